# pyright: standard
"""What a server does, found out before a run begins: the protocol leaves open what learning hangs on.

How a gradient adds up is measured without seeing it. AdamW with beta1 = beta2 = 0 and a large eps steps by
-lr g / (|g| + eps), nearly along the gradient g of the loss, so that the log-likelihood of a sequence s rises
by about (lr / eps) g_s . g: linear in g. Half the weight has to move it half as far, and two halves of a
sequence, one by one, together as far as the whole. Under sums, which the protocol has, a tail that has no
credit changes nothing, and two copies at half the weight move as far as one; servers that take means are
given more (`losses.Sums`). Each time from the same weights, which are restored.

All of it happens on an adapter of its own, which is let go of afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean

import tinker

from genenv.algorithms.datum import Datum
from genenv.backends.tinker import service as wire
from genenv.backends.tinker.losses import Sums
from genenv.backends.tinker.service import ServerError, Service, States, reason
from genenv.errors import UsageError

LOSSES: Sequence[tinker.types.LossFnType] = ("cross_entropy", "importance_sampling", "ppo")
"""What a run asks for."""

_CREDITED: Sequence[tinker.types.LossFnType] = ("importance_sampling", "ppo")
"""Those that rewards go by."""
_EPS = 1000.0
"""Far more than any gradient's element."""
_FIRST_RATE = 10.0
_FAR = 0.06
"""Of the nats that the sequence lacks, how many the first step tried gives it."""
_ABOUT = 1.8
"""By so many times it may be less or more."""
_TRIES = 8
"""To find a learning rate that does."""
_STRAIGHT = 0.05
"""So far from half and three quarters of a movement half and three quarters of the rate may move it."""
_HALVINGS = 10
"""Of a rate that moves it too far to be straight; what rounding leaves of a movement is lost below."""
_NEAR = 0.12
"""So far from the value that it should have a ratio of movements may be: steps are not infinitely short."""
_GAP = 0.5
"""Nats: beyond, sampler and trainer are not the same model."""
_TOKENS = 24
"""Of what is sampled."""
_LEARNED = 64
"""Of what is learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a server does."""

    sdk: str
    """Version of the client."""
    losses: Mapping[str, str]
    """Of each loss: `yes`, or what the server says instead."""
    scales: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of each loss: how far half the weight moves, in units of all of it; 0.5 where weights count.

    Nothing where it cannot be measured, as where a server has an eps of its own.
    """
    adds_up: Mapping[str, float] = field(default_factory=dict[str, float])
    """How far two halves of a sequence move, one by one, in units of the whole; 1 under sums."""
    tails: Mapping[str, float] = field(default_factory=dict[str, float])
    """How far a sequence moves with a tail as long as itself that has no credit, in units of it alone; 1
    under sums, 0.5 where a sequence is divided by its length."""
    copies: Mapping[str, float] = field(default_factory=dict[str, float])
    """How far two copies move at half the weight, in units of one; 1 under sums, 0.5 where a step is divided
    by how many sequences it has."""
    scored: int = 0
    """How many log-probabilities a sampler gives for n tokens, less n."""
    gap: float = 0.0
    """Mean |log pi(sampled) - log pi(trainer)| of sampled tokens, the same weights. Nats."""
    seeds: bool = False
    """Whether the same seed draws the same tokens."""
    live_load: bool = False
    """Whether a client that has learned takes a state."""
    ends: bool = True
    """Whether the token that ends a reply stands in it."""

    def said(self) -> dict[str, object]:
        """As JSON."""
        return asdict(self)

    @property
    def sums(self) -> Sums:
        """How it adds up."""
        weighs = [self.scales, 0.5], [self.adds_up, 1.0], [self.tails, 1.0]
        return Sums(
            weighs=all(_near(ratios.get("cross_entropy", 0), wanted) for ratios, wanted in weighs),
            by_length=_near(self.tails.get(_CREDITED[0], 1), 0.5),
            by_count=_near(self.copies.get(_CREDITED[0], 1), 0.5),
        )

    def check(self) -> None:
        """Refuse a server that a run cannot learn on.

        Raises:
            UsageError: it lacks a loss, weights or lengths do not count in it as they should, or it samples
                another model.
        """
        sums = self.sums
        for loss in _CREDITED:
            if self.losses.get(loss) != "yes":
                raise UsageError(
                    f"the Tinker server lacks the loss {loss}: {self.losses.get(loss, 'not tried')}"
                )
            if loss not in self.scales:
                continue
            wants = (
                ("half the advantage moves a sequence", self.scales, 0.5),
                ("a tail without credit has a sequence move", self.tails, 0.5 if sums.by_length else 1.0),
                ("two copies at half the advantage move", self.copies, 0.5 if sums.by_count else 1.0),
            )
            for what, ratios, wanted in wants:
                if not _near(ratios[loss], wanted):
                    raise UsageError(
                        f"under the Tinker server's {loss} {what} {ratios[loss]:.2f} times as far, and "
                        f"should {wanted:g} times: rewards would not count as they are"
                    )
        if not math.isfinite(self.gap) or self.gap > _GAP:
            raise UsageError(
                f"the Tinker server samples with log-probabilities {self.gap:.2f} nats from those that it "
                "trains with: that is another model"
            )


async def probe(service: Service, model: str, *, rank: int, prompt: Sequence[int], end_id: int) -> Facts:
    """Find out what a server does.

    Args:
        service: the server.
        model: as it calls the base.
        rank: of the adapters of the run.
        prompt: some prompt of the model's.
        end_id: the token that ends a reply.

    Raises:
        ServerError: it does not answer.
    """
    client = await service.adapter(model, rank, seed=1)
    states, paths = States(service, "probe", model=model, rank=rank), list[str]()
    try:
        return await _found(service, client, states, paths, tuple(prompt), end_id)
    finally:
        for path in paths:
            await states.delete(path)
        await states.let_go(client)


async def _found(
    service: Service,
    client: tinker.TrainingClient,
    states: States,
    paths: list[str],
    prompt: tuple[int, ...],
    end_id: int,
) -> Facts:
    sampler = await service.within(client.save_weights_and_get_sampling_client_async(), "publish weights")
    drawn = [await _drawn(service, sampler, prompt, seed=seed, end_id=end_id) for seed in (7, 7, 8)]
    first = drawn[0]
    whole = Datum(
        prompt_ids=prompt,
        completion_ids=tuple(first.tokens),
        weights=(1.0,) * len(first.tokens),
        loss="nll",
    )
    (own,) = await service.scored(client, [whole])
    scored = await service.within(
        sampler.compute_logprobs_async(tinker.ModelInput.from_ints([*prompt, *first.tokens])), "score tokens"
    )
    _ = wire.tail(scored, whole)
    facts = Facts(
        sdk=tinker.__version__,
        losses={},
        scored=len(scored) - len(prompt) - len(first.tokens),
        gap=fmean(abs(a - b) for a, b in zip(first.logprobs or (), own, strict=True)),
        seeds=list(first.tokens) == list(drawn[1].tokens),
        ends=all(one.stop_reason != "stop" or list(one.tokens)[-1:] == [end_id] for one in drawn),
    )
    paths.append(await states.save(client))
    unlikely = _unlikely(prompt, first.tokens)
    (before,) = await service.scored(client, [unlikely])
    mover = _Mover(service, client, states, paths[0], unlikely, before)
    losses, scales, adds_up = dict[str, str](), dict[str, float](), dict[str, float]()
    tails, copies = dict[str, float](), dict[str, float]()
    try:
        for loss in LOSSES:
            try:
                all_of_it = await mover.moves(loss, 1.0)
            except ServerError as problem:
                losses[loss] = reason(problem.__cause__ or problem)
                continue
            losses[loss] = "yes"
            if all_of_it:
                scales[loss] = await mover.moves(loss, 0.5) / all_of_it
                adds_up[loss] = sum([await mover.moves(loss, 1.0, part) for part in mover.halves]) / all_of_it
                tails[loss] = await mover.moves(loss, 1.0, tail=True) / all_of_it
                copies[loss] = await mover.moves(loss, 0.5, copies=2) / all_of_it
    finally:
        if mover.client is not client:
            await states.let_go(mover.client)
    found = {"losses": losses, "scales": scales, "adds_up": adds_up, "tails": tails, "copies": copies}
    return replace(facts, **found, live_load=bool(mover.live_load))


def _unlikely(prompt: Sequence[int], tokens: Sequence[int]) -> Datum:
    """A reply that no model gives: what it was asked and has said, from its end.

    One that it is sure of cannot become much likelier, and what rounding makes of it is as much as that.
    """
    said = (*prompt, *tokens)[::-1]
    reply = tuple(said[at % len(said)] for at in range(_LEARNED))
    return Datum(prompt_ids=tuple(prompt), completion_ids=reply, weights=(1.0,) * _LEARNED, loss="nll")


class _Mover:
    """Makes one short step from the same weights each time, and says how far it took a sequence.

    How short is found first: half the rate has to move it half as far, whatever a server does to weights.
    """

    def __init__(
        self,
        service: Service,
        client: tinker.TrainingClient,
        states: States,
        path: str,
        datum: Datum,
        before: Sequence[float],
    ) -> None:
        self.client = client
        self._service, self._states, self._path = service, states, path
        self._datum, self._before = datum, before
        self._rates: dict[str, float] = {}
        """By loss: one may take sums where another takes means. 0: there is none."""
        self.live_load: bool | None = None

    @property
    def halves(self) -> tuple[range, range]:
        """Of the tokens of the sequence."""
        half = len(self._before) // 2
        return range(half), range(half, len(self._before))

    async def moves(
        self,
        loss: tinker.types.LossFnType,
        weight: float,
        part: range | None = None,
        *,
        tail: bool = False,
        copies: int = 1,
    ) -> float:
        """Nats by which the log-likelihood rises; 0 where it cannot be made to move.

        Args:
            loss: that is asked for.
            weight: of each token that counts: advantage, or weight of imitation.
            part: the tokens that count; None: all.
            tail: whether as many tokens again follow, without credit.
            copies: how many times the sequence is in the step.
        """
        if loss not in self._rates:
            start = next((rate for rate in self._rates.values() if rate), _FIRST_RATE)
            self._rates[loss] = await self._found_rate(loss, start)
        if not self._rates[loss]:
            return 0.0
        row = [weight if part is None or token in part else 0.0 for token in range(len(self._before))]
        return await self._moved(loss, [self._sequence(loss, row, tail=tail)] * copies, self._rates[loss])

    def _sequence(
        self, loss: tinker.types.LossFnType, row: Sequence[float], *, tail: bool = False
    ) -> tinker.Datum:
        datum, before = self._datum, list(self._before)
        if tail:
            whole = (*datum.prompt_ids, *datum.completion_ids)
            more = whole[: wire.targets(datum)]
            datum = replace(
                datum,
                completion_ids=(*datum.completion_ids, *more),
                weights=(*datum.weights, *(0.0,) * len(more)),
            )
            row, before = [*row, *(0.0,) * len(more)], [*before, *(0.0,) * len(more)]
        if loss == "cross_entropy":
            return wire.encoded(datum, weights=row)
        return wire.encoded(datum, logprobs=before, advantages=row)

    async def _found_rate(self, loss: tinker.types.LossFnType, start: float) -> float:
        """The largest rate found that moves the sequence straight; 0 where there is none."""
        whole = [self._sequence(loss, [1.0] * len(self._before))]
        rate, moved = await self._far(loss, whole, start)
        for _ in range(_HALVINGS if moved else 0):
            half = await self._moved(loss, whole, rate / 2)
            if abs(half / moved - 0.5) <= _STRAIGHT:
                more = await self._moved(loss, whole, 0.75 * rate)
                if abs(more / moved - 0.75) <= _STRAIGHT:
                    longer = await self._moved(loss, whole, rate, eps=10 * _EPS)
                    return rate if longer < moved / 5 else 0.0  # else it has an eps of its own
            rate, moved = rate / 2, half
            if moved <= 0:
                break
        return 0.0

    async def _far(
        self, loss: tinker.types.LossFnType, whole: Sequence[tinker.Datum], rate: float
    ) -> tuple[float, float]:
        """A rate that moves the sequence far, and how far; 0 where none is found."""
        far = -_FAR * math.fsum(self._before)
        for _ in range(_TRIES):
            moved = await self._moved(loss, whole, rate)
            if far / _ABOUT <= moved <= far * _ABOUT:
                return rate, moved
            rate *= min(max(far / max(moved, 1e-4), 0.05), 50.0)
        return rate, 0.0

    async def _moved(
        self,
        loss: tinker.types.LossFnType,
        sequences: Sequence[tinker.Datum],
        rate: float,
        *,
        eps: float = _EPS,
    ) -> float:
        learned = self.client.forward_backward(list(sequences), loss)
        await self._service.within(learned, f"learn by {loss}")
        step = tinker.AdamParams(learning_rate=rate, beta1=0.0, beta2=0.0, eps=eps)
        await self._service.within(self.client.optim_step(step), "make a step")
        (after,) = await self._service.scored(self.client, [self._datum])
        await self._restore()
        return math.fsum(after) - math.fsum(self._before)

    async def _restore(self) -> None:
        if self.live_load is not False:
            try:
                await self._service.within(
                    self.client.load_state_with_optimizer(self._path), "take a state back"
                )
            except ServerError:
                self.live_load = False
            else:
                self.live_load = True
                return
        old = self.client
        self.client = await self._states.opened(self._path, optimizer=True)
        await self._states.let_go(old)


async def _drawn(
    service: Service, sampler: tinker.SamplingClient, prompt: tuple[int, ...], *, seed: int, end_id: int
) -> tinker.SampledSequence:
    asked = sampler.sample_async(
        prompt=tinker.ModelInput.from_ints(list(prompt)),
        num_samples=1,
        sampling_params=tinker.SamplingParams(max_tokens=_TOKENS, temperature=1.0, seed=seed, stop=[end_id]),
    )
    (sequence,) = (await service.within(asked, "sample")).sequences
    return sequence


def _near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= _NEAR * 2 * wanted
