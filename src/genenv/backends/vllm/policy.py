# pyright: standard
"""A policy that trains here and samples on vLLM servers, and the checks that both have the same weights.

Every completion names the version of the weights that wrote it. Each version is a folder of its own, which
all servers load. Each server is checked before its first request, and again in each round: with replies of
that round, for each version of each policy that it answered with, before anybody learns from them. What a gap
is, and how large one may be: `genenv.backends.sampler_check`.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from genenv.algorithms.datum import Datum, Objective, Trainer
from genenv.algorithms.settings import Moments
from genenv.backends.local.trainer import LocalTrainer
from genenv.backends.sampler_check import (
    MAX_GAP,
    PROBE_PROMPT,
    PROBE_TOKENS,
    ROUNDING_GAP,
    is_older,
    mean_gap,
)
from genenv.backends.vllm.client import LOST, Broken, Busy, Forgot, Refused, Unfit
from genenv.backends.vllm.fleet import Fleet, Server
from genenv.chat.format import ChatFormat
from genenv.chat.sampler import ChatSampler, forced_places, structural_tag
from genenv.errors import GenenvError, RolloutError, UsageError
from genenv.progress import advance
from genenv.sampling import COLDEST, Completion, SampleRequest, sampling_params
from genenv.threads import WorkerThread
from genenv.types import Message


class Reply(NamedTuple):
    """One reply as a server gave it."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]  # [T]
    logprobs: tuple[float, ...]  # [T] nats, at the temperature of the sampling
    temperature: float


class VllmSampler(ChatSampler):
    """Samples with the version that was published last."""

    def __init__(
        self, fleet: Fleet, chat: ChatFormat, *, context_tokens: int, max_thinking_tokens: int | None
    ) -> None:
        super().__init__(chat, context_tokens=context_tokens, max_thinking_tokens=max_thinking_tokens)
        self.fleet = fleet
        self.adapter, self.version = "", 0
        """What servers call the weights, and their version."""
        self._newest: dict[tuple[str, str], list[Reply]] = {}
        """By server and adapter: the newest replies that were held to nothing, not checked yet."""

    async def _sample(self, request: SampleRequest) -> Completion:
        """One completion.

        Raises:
            RolloutError: the request was lost too often.
            UsageError: the reply has to be one of some, and the servers mix such requests up.
            GenenvError: no server answers, or none as it should.
        """
        if request.choices and not self.fleet.holds_choices:
            raise UsageError(
                "these servers take one list of replies for another (xgrammar 0.2.8 keeps the first one's "
                "tokens): set the environment so that the agent replies freely, or take servers of "
                "`genenv serve`"
            )
        version, adapter = self.version, self.adapter
        done = await self.fleet.generate(
            adapter, request.prompt_ids, self.parameters(request), choices=request.choices
        )
        ids = done.token_ids
        self._keep(done.address, adapter, request, Reply(request.prompt_ids, ids, done.logprobs, 1.0))
        advance(tokens=len(ids))
        return Completion(
            token_ids=ids,
            logprobs=done.logprobs,
            text=self.chat.decode(ids),
            finished=ids[-1:] == (self.chat.end_id,),
            forced=forced_places(ids, request.choices),
            version=version,
        )

    def _keep(self, address: str, adapter: str, request: SampleRequest, reply: Reply) -> None:
        """Keep the newest replies of a server for `take_replies`, as few as have enough tokens.

        Those that were held to something are not kept: servers differ in whose log-probabilities they give
        there. That there were some is.
        """
        kept = self._newest.setdefault((address, adapter), [])
        if request.schema is not None or request.choices or request.truncates:
            return
        warm = request.temperature if request.temperature >= COLDEST else 1.0
        kept.append(reply._replace(temperature=warm))
        while sum(len(one.token_ids) for one in kept[1:]) >= PROBE_TOKENS:
            del kept[0]

    def take_replies(self) -> Mapping[tuple[str, str], list[Reply]]:
        """By server and adapter: the newest replies since this was called last."""
        found, self._newest = self._newest, {}
        return found

    async def holds_choices(self, server: Server) -> bool:
        """Whether a server holds a reply to one of some, one list after the other.

        Raises:
            Busy: it is full.
        """
        prompt = self.render([Message(role="user", content="Say a word.")], first=True)
        for texts in (("yes", "no"), ("red", "blue"), ("up", "down")):
            choices = tuple(self.encode_reply(text) for text in texts)
            request = SampleRequest(prompt_ids=prompt, max_tokens=max(map(len, choices)), choices=choices)
            try:
                done = await self.fleet.ask(server, self.adapter, prompt, self.parameters(request))
            except Busy:
                raise
            except (RolloutError, Broken):
                return False
            if done.token_ids not in choices:
                return False
        return True

    def parameters(self, request: SampleRequest) -> Mapping[str, Any]:
        """The request by vLLM's names."""
        parameters: dict[str, Any] = {
            "max_tokens": request.max_tokens,
            **sampling_params(request, greedy_below=COLDEST),
            "seed": request.stream % 2**63,
            "logprobs": 0,
            "stop_token_ids": [self.chat.end_id],
            "skip_special_tokens": False,
            "detokenize": False,
        }
        if request.schema is not None:
            parameters["structured_outputs"] = {"json": request.schema, "disable_any_whitespace": True}
        elif request.choices:
            parameters["structured_outputs"] = {"structural_tag": structural_tag(request.choices)}
        return parameters

    def end_round(self) -> None:
        """Nothing is kept here."""


T = TypeVar("T")


class PublishingTrainer:
    """The local trainer; what it publishes is written out, and loaded by every server."""

    def __init__(
        self,
        own: LocalTrainer,
        fleet: Fleet,
        sampler: VllmSampler,
        worker: WorkerThread | None,
        *,
        name: str,
        folder: Path,
    ) -> None:
        """A trainer.

        Args:
            own: learns.
            fleet: samples.
            sampler: is told what to ask for.
            worker: a thread in which it learns while others sample, one for all whose weights are of one
                model; None where nobody does. On a CPU a second thread makes those of its products wait.
            name: of the player's adapters, unlike those of other runs.
            folder: for them, on a disk that the servers see too.
        """
        self._own, self._fleet, self._sampler, self._worker = own, fleet, sampler, worker
        self._name, self._folder = name, folder
        self._published: list[str] = []
        """Those that servers have."""
        self._written: dict[str, int] = {}
        """Versions by name that are still on the disk: the first one, and the newest."""
        self._count = 0

    async def _run(self, made: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await (made() if self._worker is None else self._worker.run(made))

    async def forward_backward(self, data: Sequence[Datum], objective: Objective) -> Mapping[str, float]:
        """See `Trainer`."""
        return await self._run(lambda: self._own.forward_backward(data, objective))

    async def step(self, learning_rate: float) -> Mapping[str, float]:
        """See `Trainer`."""
        return await self._run(lambda: self._own.step(learning_rate))

    async def watch(self, data: Sequence[Datum]) -> None:
        """See `Trainer`."""
        await self._run(lambda: self._own.watch(data))

    async def moved(self) -> float:
        """See `Trainer`."""
        return await self._run(lambda: self._own.moved())

    async def shorten(self, fraction: float) -> None:
        """See `Trainer`."""
        await self._run(lambda: self._own.shorten(fraction))

    async def logprobs(self, data: Sequence[Datum], *, reference: bool = False) -> list[tuple[float, ...]]:
        """See `Trainer`."""
        return await self._run(lambda: self._own.logprobs(data, reference=reference))

    async def anchor(self, moments: Moments) -> None:
        """See `Trainer`."""
        await self._run(lambda: self._own.anchor(moments))

    async def publish(self) -> int:
        """Write the weights out as one more version and have every server load it. See `Trainer`."""
        version = await self._own.publish()
        await self.publish_current()
        return version

    async def save(self, folder: Path) -> None:
        """See `Trainer`."""
        await self._own.save(folder)

    async def load(self, folder: Path) -> None:
        """See `Trainer`."""
        await self._own.load(folder)
        await self.publish_current()

    async def publish_current(self) -> None:
        """Have every server load the weights as they are; those before the last one are given up."""
        version = self._own.weights.version
        name = f"{self._name}-{self._count}-v{version}"  # a version that is shown again may be another's
        self._count += 1
        folder = self._folder / name
        self._own.weights.write_adapter(folder)
        self._written[name] = version
        gone = self._published.pop(0) if len(self._published) >= self._fleet.config.kept else None
        self._published.append(name)
        await self._fleet.load_adapter(name, folder.resolve(), instead_of=gone)
        self._sampler.adapter, self._sampler.version = name, version
        for old in list(self._written)[1 : -max(2, len(self._published))]:
            del self._written[old]
            shutil.rmtree(self._folder / old, ignore_errors=True)

    def has_written(self, name: str) -> bool:
        """Whether weights that were shown by this name are still on the disk."""
        return name in self._written

    def version_of(self, name: str) -> int:
        """The version of weights that were shown by this name."""
        return self._written[name]

    def older(self, name: str) -> list[str]:
        """Names of weights before these: the first that were shown, and those just before."""
        before = list(self._written)[: list(self._written).index(name)]
        return list(dict.fromkeys((*before[:1], *before[-1:])))

    async def logprobs_as_written(self, data: Sequence[Datum], name: str) -> list[tuple[float, ...]]:
        """[T] of each datum: log-probabilities by the weights that were shown by this name. Nats."""
        folder = self._folder / name
        return await self._run(lambda: self._own.logprobs(data, written=folder))


_: type[Trainer] = PublishingTrainer


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPolicy:
    """One of those that learn here and sample there."""

    name: str
    sampler: VllmSampler
    trainer: PublishingTrainer


class WeightChecks:
    """Holds what servers sample to the weights here."""

    def __init__(self, fleet: Fleet, policies: Sequence[ServedPolicy]) -> None:
        self._fleet, self._policies = fleet, policies

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
        policy = self._policies[0]
        name = policy.sampler.adapter
        try:
            replies = [await self._probe_reply(server, policy, name)]
        except Refused as error:
            raise Unfit(f"refuses a request of {PROBE_TOKENS} tokens: {error}") from error
        return await self._verified_gap(policy, name, replies)

    async def check(self) -> None:
        """Check what was sampled since the last check, before anybody learns from it.

        Raises:
            GenenvError: a server did not sample from the weights that it was asked for; names both.
        """
        for policy in self._policies:
            for (address, name), replies in policy.sampler.take_replies().items():
                server = next((one for one in self._fleet.available() if one.address == address), None)
                if sum(len(one.token_ids) for one in replies) < PROBE_TOKENS and server is not None:
                    try:
                        replies = [*replies, await self._probe_reply(server, policy, name)]
                    except (*LOST, Broken, Forgot, Refused, Unfit) as error:
                        log.info("%s could not be asked once more: %s", address, error)
                if not replies or not policy.trainer.has_written(name):
                    continue
                try:
                    gap = await self._verified_gap(policy, name, replies)
                except Unfit as error:
                    raise GenenvError(
                        f"{address} {error}; what it sampled in this round is not learned from: start it "
                        "anew, or take it out of policy.vllm.addresses; committed rounds are kept, continue "
                        "with --resume"
                    ) from error
                log.info("%s: gap of %s is %.2g nats", address, name, gap)

    async def _probe_reply(self, server: Server, policy: ServedPolicy, name: str) -> Reply:
        """A reply to a question of our own."""
        prompt = policy.sampler.render([Message(role="user", content=PROBE_PROMPT)], first=True)
        request = SampleRequest(prompt_ids=prompt, max_tokens=PROBE_TOKENS)
        done = await self._fleet.ask(server, name, prompt, policy.sampler.parameters(request))
        return Reply(prompt_ids=prompt, token_ids=done.token_ids, logprobs=done.logprobs, temperature=1.0)

    async def _verified_gap(self, policy: ServedPolicy, name: str, replies: Sequence[Reply]) -> float:
        """The gap of replies to the weights that they should be of. Nats.

        Raises:
            Unfit: it is too large, or other weights are nearer.
        """
        gap = await self._mean_gap(policy, name, replies)
        what = f"the {policy.name}'s version {policy.trainer.version_of(name)}"
        if not gap <= MAX_GAP:
            usual = [one._replace(temperature=1.0) for one in replies]
            if (
                any(one.temperature != 1 for one in replies)
                and await self._mean_gap(policy, name, usual) <= MAX_GAP
            ):
                raise Unfit(
                    "gives log-probabilities at temperature 1, whatever the sampling's: start it with "
                    "--logprobs-mode processed_logprobs, as `genenv serve --vllm` does"
                )
            raise Unfit(
                f"does not sample from {what}: its log-probabilities are {gap:.2f} nats from those of the "
                f"weights here, where {MAX_GAP:g} is the most"
            )
        for older in policy.trainer.older(name) if gap > ROUNDING_GAP else ():
            tokens = sum(len(one.token_ids) for one in replies)
            if is_older(gap, await self._mean_gap(policy, older, replies), tokens=tokens):
                raise Unfit(
                    f"does not sample from {what}, which it says it has loaded, but from version "
                    f"{policy.trainer.version_of(older)}"
                )
        return gap

    async def _mean_gap(self, policy: ServedPolicy, name: str, replies: Sequence[Reply]) -> float:
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
        rows = await policy.trainer.logprobs_as_written(data, name)
        return mean_gap([reply.logprobs for reply in replies], rows)
