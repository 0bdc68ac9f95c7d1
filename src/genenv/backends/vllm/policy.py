# pyright: standard
"""The sampler and trainer of a policy that trains on this machine and samples on vLLM servers.

Every completion names the version of the weights that sampled it. Each version is an adapter in a separate
folder, which all servers load. `WeightChecks` verifies that a server samples from these weights: before its
first request, and in each round before any update. The second check uses replies of the round, per server,
policy and version. `genenv.backends.sampler_check` defines the gap and its limits.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

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
from genenv.backends.vllm.client import LOST, Broken, Busy, Forgot, Refused, Sampled, Unfit
from genenv.backends.vllm.fleet import Fleet, Server
from genenv.chat.format import ChatFormat
from genenv.chat.sampler import ChatSampler, forced_places, structural_tag, with_free_text
from genenv.errors import GenenvError, RolloutError, UsageError
from genenv.progress import advance
from genenv.sampling import COLDEST, Completion, SampleRequest, sampling_params
from genenv.threads import WorkerThread
from genenv.types import Message


def _reply(prompt_ids: tuple[int, ...], done: Sampled, temperature: float = 1.0) -> Datum:
    """Return a reply of a server as a datum, for the check of its weights."""
    return Datum(
        prompt_ids=prompt_ids,
        completion_ids=done.token_ids,
        weights=(1.0,) * len(done.token_ids),
        loss="nll",
        old_logprobs=done.logprobs,
        temperature=temperature,
    )


class VllmSampler(ChatSampler):
    """Samples from vLLM servers with the weights that were published last."""

    def __init__(
        self, fleet: Fleet, chat: ChatFormat, *, context_tokens: int, max_thinking_tokens: int | None
    ) -> None:
        super().__init__(chat, context_tokens=context_tokens, max_thinking_tokens=max_thinking_tokens)
        self.fleet = fleet
        self.adapter, self.version = "", 0
        """The adapter's name on the servers, and the version of its weights."""
        self._newest: dict[tuple[str, str], list[Datum]] = {}
        """By server and adapter: the newest unconstrained replies that are not checked yet."""

    async def _sample(self, request: SampleRequest) -> Completion:
        """Return one completion.

        Raises:
            RolloutError: the request was lost too often.
            UsageError: the reply must be one of given choices, and the servers mix up such requests.
            GenenvError: no server answers, or none correctly.
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
        self._keep(adapter, request, done)
        advance(tokens=len(ids))
        return Completion(
            token_ids=ids,
            logprobs=done.logprobs,
            text=self.chat.decode(ids),
            finished=bool(ids) and ids[-1] in self.chat.stop_ids,
            forced=forced_places(ids, request.choices),
            version=version,
        )

    def _keep(self, adapter: str, request: SampleRequest, done: Sampled) -> None:
        """Store the newest replies of a server for `take_replies`: as few as have enough tokens.

        Constrained replies are not stored, because servers differ in which log-probabilities they return for
        them. Their server and adapter are still noted, with an empty list.
        """
        kept = self._newest.setdefault((done.address, adapter), [])
        if request.schema is not None or request.choices or request.truncates:
            return
        warm = request.temperature if request.temperature >= COLDEST else 1.0
        kept.append(_reply(request.prompt_ids, done, warm))
        while sum(one.tokens for one in kept[1:]) >= PROBE_TOKENS:
            del kept[0]

    def take_replies(self) -> Mapping[tuple[str, str], list[Datum]]:
        """Return the newest replies by server and adapter since the last call."""
        found, self._newest = self._newest, {}
        return found

    async def holds_choices(self, server: Server) -> bool:
        """Return whether a server holds replies to a list of choices, with a new list in each request.

        Raises:
            Busy: the server is full.
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
        """Return the sampling parameters of a request by vLLM's names."""
        parameters: dict[str, Any] = {
            "max_tokens": request.max_tokens,
            **sampling_params(request, greedy_below=COLDEST),
            "seed": request.stream % 2**63,
            "logprobs": 0,
            "stop_token_ids": sorted(self.chat.stop_ids),
            "skip_special_tokens": False,
            "detokenize": False,
        }
        if request.schema is not None:
            schema = with_free_text(request.schema)
            parameters["structured_outputs"] = {"json": schema, "disable_any_whitespace": True}
        elif request.choices:
            parameters["structured_outputs"] = {"structural_tag": structural_tag(request.choices)}
        return parameters


T = TypeVar("T")


class PublishingTrainer:
    """A local trainer that publishes its weights by writing an adapter, which every server loads."""

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
        """Create a trainer.

        Args:
            own: the local trainer.
            fleet: the servers that sample.
            sampler: is given the name and version of each published adapter.
            worker: a thread in which to train while servers sample, shared by all policies of one model;
                None: train in the caller's thread. On a CPU, matrix products in two threads would slow each
                other down.
            name: prefix of the policy's adapter names, unique to this run.
            folder: for adapters, on a disk that the servers can read.
        """
        self.own, self.sampler, self._fleet, self._worker = own, sampler, fleet, worker
        self._name, self._folder = name, folder
        self._published: list[str] = []
        """Names of the adapters that the servers hold."""
        self._written: dict[str, int] = {}
        """Versions by adapter name, for adapters still on disk: the first and the newest."""
        self._count = 0

    async def _run(self, made: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await (made() if self._worker is None else self._worker.run(made))

    async def forward_backward(self, data: Sequence[Datum], objective: Objective) -> Mapping[str, float]:
        """See `Trainer`. A server that the run started sleeps from here to the next request."""
        if self._worker is None:
            await self._fleet.sleep()
        return await self._run(lambda: self.own.forward_backward(data, objective))

    async def step(self, learning_rate: float) -> Mapping[str, float]:
        """See `Trainer`."""
        return await self._run(lambda: self.own.step(learning_rate))

    async def watch(self, data: Sequence[Datum]) -> None:
        """See `Trainer`."""
        await self._run(lambda: self.own.watch(data))

    async def moved(self) -> float:
        """See `Trainer`."""
        return await self._run(lambda: self.own.moved())

    async def shorten(self, fraction: float) -> None:
        """See `Trainer`."""
        await self._run(lambda: self.own.shorten(fraction))

    async def logprobs(
        self, data: Sequence[Datum], *, reference: bool = False, written: Path | None = None
    ) -> list[tuple[float, ...]]:
        """See `Trainer`."""
        return await self._run(lambda: self.own.logprobs(data, reference=reference, written=written))

    async def anchor(self, moments: Moments) -> None:
        """See `Trainer`."""
        await self._run(lambda: self.own.anchor(moments))

    async def publish(self) -> int:
        """Write the weights as a new version and have every server load it. See `Trainer`."""
        version = await self.own.publish()
        await self.publish_current()
        return version

    async def save(self, folder: Path) -> None:
        """See `Trainer`."""
        await self.own.save(folder)

    async def load(self, folder: Path) -> None:
        """See `Trainer`."""
        await self.own.load(folder)
        await self.publish_current()

    async def publish_current(self) -> None:
        """Have every server load the present weights; adapters beyond `policy.vllm.kept` are unloaded."""
        version = self.own.weights.version
        name = f"{self._name}-{self._count}-v{version}"  # a repeated version may be of other weights
        self._count += 1
        folder = self._folder / name
        self.own.weights.write_adapter(folder)
        self._written[name] = version
        gone = self._published.pop(0) if len(self._published) >= self._fleet.config.kept else None
        self._published.append(name)
        await self._fleet.load_adapter(name, folder.resolve(), instead_of=gone)
        self.sampler.adapter, self.sampler.version = name, version
        for old in list(self._written)[1 : -max(2, len(self._published))]:
            del self._written[old]
            shutil.rmtree(self._folder / old, ignore_errors=True)

    def has_written(self, name: str) -> bool:
        """Return whether the adapter of this name is still on disk."""
        return name in self._written

    def version_of(self, name: str) -> int:
        """Return the version of the adapter of this name."""
        return self._written[name]

    def older(self, name: str) -> list[str]:
        """Return the names of up to two adapters before this one: the first published, and the previous."""
        before = list(self._written)[: list(self._written).index(name)]
        return list(dict.fromkeys((*before[:1], *before[-1:])))

    async def logprobs_as_written(self, data: Sequence[Datum], name: str) -> list[tuple[float, ...]]:
        """Return [T] per datum: log-probabilities under the adapter of this name, read from disk. Nats."""
        return await self.logprobs(data, written=self._folder / name)


_: type[Trainer] = PublishingTrainer


log = logging.getLogger(__name__)


class WeightChecks:
    """Checks that servers sample from the weights of this machine's trainers."""

    def __init__(self, fleet: Fleet, policies: Sequence[PublishingTrainer]) -> None:
        self._fleet, self._policies = fleet, policies

    async def admit(self, server: Server) -> None:
        """Check a server that has just appeared or restarted.

        Raises:
            Unfit: the server samples from other weights, or accepts only shorter sequences than the run has.
            LOST: the server does not answer.
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
        """Return the gap of a server, for the present weights of the first policy. Nats.

        Raises:
            Unfit: the gap is too large.
            LOST: the server does not answer.
        """
        policy = self._policies[0]
        name = policy.sampler.adapter
        try:
            replies = [await self._probe_reply(server, policy, name)]
        except Refused as error:
            raise Unfit(f"refuses a request of {PROBE_TOKENS} tokens: {error}") from error
        return await self._verified_gap(policy, name, replies)

    async def check(self) -> None:
        """Check the replies since the last check, before any policy is updated on them.

        Raises:
            GenenvError: a server did not sample from the requested weights; the message names both.
        """
        for policy in self._policies:
            for (address, name), replies in policy.sampler.take_replies().items():
                server = next((one for one in self._fleet.available() if one.address == address), None)
                if sum(one.tokens for one in replies) < PROBE_TOKENS and server is not None:
                    try:
                        replies = [*replies, await self._probe_reply(server, policy, name)]
                    except (*LOST, Broken, Forgot, Refused, Unfit) as error:
                        log.info("%s could not be asked once more: %s", address, error)
                if not replies or not policy.has_written(name):
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

    async def _probe_reply(self, server: Server, policy: PublishingTrainer, name: str) -> Datum:
        """Return a reply of a server to the probe prompt."""
        prompt = policy.sampler.render([Message(role="user", content=PROBE_PROMPT)], first=True)
        request = SampleRequest(prompt_ids=prompt, max_tokens=PROBE_TOKENS)
        done = await self._fleet.ask(server, name, prompt, policy.sampler.parameters(request))
        return _reply(prompt, done)

    async def _verified_gap(self, policy: PublishingTrainer, name: str, replies: Sequence[Datum]) -> float:
        """Return the gap of replies to the weights that should have sampled them. Nats.

        Raises:
            Unfit: the gap is too large, or is much smaller to older weights.
        """
        gap = await self._mean_gap(policy, name, replies)
        what = f"the {policy.own.name}'s version {policy.version_of(name)}"
        if not gap <= MAX_GAP:
            usual = [replace(one, temperature=1.0) for one in replies]
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
        for older in policy.older(name) if gap > ROUNDING_GAP else ():
            tokens = sum(one.tokens for one in replies)
            if is_older(gap, await self._mean_gap(policy, older, replies), tokens=tokens):
                raise Unfit(
                    f"does not sample from {what}, which it says it has loaded, but from version "
                    f"{policy.version_of(older)}"
                )
        return gap

    async def _mean_gap(self, policy: PublishingTrainer, name: str, replies: Sequence[Datum]) -> float:
        rows = await policy.logprobs_as_written(replies, name)
        return mean_gap([one.old_logprobs or () for one in replies], rows)
