# pyright: standard
"""Whether servers sample from the weights that they were given: replies of theirs are scored here.

Each server is checked before its first request, and again in each round, with replies of that round for each
version of each player that it answered with. They are checked before anybody learns from them. What a gap is,
and how large one may be: `genenv.backends.sampled`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from genenv.algorithms.datum import Datum
from genenv.backends.sampled import GAP, QUESTION, SMALL, TOKENS, is_older, mean_gap
from genenv.backends.vllm.answers import Unfit
from genenv.backends.vllm.asking import LOST
from genenv.backends.vllm.fleet import Broken, Fleet, Forgot, Refused
from genenv.backends.vllm.sampler import Reply, VllmSampler
from genenv.backends.vllm.server import Server
from genenv.backends.vllm.trainer import PublishingTrainer
from genenv.errors import GenenvError, UsageError
from genenv.sampling import SampleRequest
from genenv.types import Message

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """One of those that learn here and sample there."""

    name: str
    sampler: VllmSampler
    trainer: PublishingTrainer


class WeightChecks:
    """Holds what servers sample to the weights here."""

    def __init__(self, fleet: Fleet, players: Sequence[Player]) -> None:
        self._fleet, self._players = fleet, players

    async def admit(self, server: Server) -> None:
        """Find out whether a server that answers from here on samples from the weights here.

        Raises:
            Unfit: it does not, or takes shorter sequences than those before.
            LOST: it does not answer.
        """
        try:
            cards = await self._fleet.cards(server)
        except UsageError as error:
            raise Unfit(f"is no server for this run: {error}") from error
        for card in cards[:1]:
            if card.max_model_len is not None and card.max_model_len < self._fleet.context_tokens:
                raise Unfit(
                    f"takes sequences of {card.max_model_len} tokens, and this run has up to "
                    f"{self._fleet.context_tokens}"
                )
        await self.gap(server)

    async def gap(self, server: Server) -> float:
        """The gap of a server, by the present weights of one player. Nats.

        Raises:
            Unfit: it is too large.
            LOST: it does not answer.
        """
        player = self._players[0]
        name = player.sampler.adapter
        try:
            replies = [await self._asked(server, player, name)]
        except Refused as error:
            raise Unfit(f"refuses a request of {TOKENS} tokens: {error}") from error
        return await self._held(player, name, replies)

    async def check(self) -> None:
        """Check what was sampled since the last check, before anybody learns from it.

        Raises:
            GenenvError: a server did not sample from the weights that it was asked for; names both.
        """
        for player in self._players:
            for (address, name), replies in player.sampler.taken().items():
                server = next((one for one in self._fleet.present() if one.address == address), None)
                if sum(len(one.token_ids) for one in replies) < TOKENS and server is not None:
                    try:
                        replies = [*replies, await self._asked(server, player, name)]
                    except (*LOST, Broken, Forgot, Refused, Unfit) as error:
                        log.info("%s could not be asked once more: %s", address, error)
                if not replies or not player.trainer.has_written(name):
                    continue
                try:
                    gap = await self._held(player, name, replies)
                except Unfit as error:
                    raise GenenvError(
                        f"{address} {error}; what it sampled in this round is not learned from: start it "
                        "anew, or take it out of policy.vllm.addresses; committed rounds are kept, continue "
                        "with --resume"
                    ) from error
                log.info("%s: gap of %s is %.2g nats", address, name, gap)

    async def _asked(self, server: Server, player: Player, name: str) -> Reply:
        """A reply to a question of our own."""
        prompt = player.sampler.render([Message(role="user", content=QUESTION)], first=True)
        request = SampleRequest(prompt_ids=prompt, max_tokens=TOKENS)
        done = await self._fleet.ask(server, name, prompt, player.sampler.parameters(request))
        return Reply(prompt_ids=prompt, token_ids=done.token_ids, logprobs=done.logprobs, temperature=1.0)

    async def _held(self, player: Player, name: str, replies: Sequence[Reply]) -> float:
        """The gap of replies to the weights that they should be of. Nats.

        Raises:
            Unfit: it is too large, or other weights are nearer.
        """
        gap = await self._mean_gap(player, name, replies)
        what = f"the {player.name}'s version {player.trainer.version_of(name)}"
        if not gap <= GAP:
            usual = [one._replace(temperature=1.0) for one in replies]
            if (
                any(one.temperature != 1 for one in replies)
                and await self._mean_gap(player, name, usual) <= GAP
            ):
                raise Unfit(
                    "gives log-probabilities at temperature 1, whatever the sampling's: start it with "
                    "--logprobs-mode processed_logprobs, as `genenv serve --vllm` does"
                )
            raise Unfit(
                f"does not sample from {what}: its log-probabilities are {gap:.2f} nats from those of the "
                f"weights here, where {GAP:g} is the most"
            )
        for older in player.trainer.older(name) if gap > SMALL else ():
            tokens = sum(len(one.token_ids) for one in replies)
            if is_older(gap, await self._mean_gap(player, older, replies), tokens=tokens):
                raise Unfit(
                    f"does not sample from {what}, which it says it has loaded, but from version "
                    f"{player.trainer.version_of(older)}"
                )
        return gap

    async def _mean_gap(self, player: Player, name: str, replies: Sequence[Reply]) -> float:
        data = [
            Datum(
                prompt_ids=one.prompt_ids,
                completion_ids=one.token_ids,
                weights=(1.0,) * len(one.token_ids),
                loss="nll",
                temperature=one.temperature,
            )
            for one in replies
        ]
        rows = await player.trainer.logprobs_as_written(data, name)
        return mean_gap([reply.logprobs for reply in replies], rows)
