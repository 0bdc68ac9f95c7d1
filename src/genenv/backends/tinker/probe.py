# pyright: standard
"""What a server does, found out before a run begins: the protocol leaves open what learning hangs on.

How a gradient adds up is measured without seeing it. AdamW with beta1 = beta2 = 0 and a large eps steps by
-lr g / (|g| + eps), nearly along the gradient g of the loss, so that the log-likelihood of a sequence s rises
by about (lr / eps) g_s . g: linear in g. Half the weight has to move it half as far, and two halves of a
sequence, one by one, together as far as the whole. Each time from the same weights, which are restored.

All of it happens on an adapter of its own, which is let go of afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean

import tinker

from genenv.backends.tinker import wire
from genenv.backends.tinker.service import ServerError, Service, reason
from genenv.backends.tinker.states import States
from genenv.errors import UsageError
from genenv.learning.datum import Datum

LOSSES: Sequence[tinker.types.LossFnType] = ("cross_entropy", "importance_sampling", "ppo")
"""What a run asks for."""

_EPS = 1000.0
"""Far more than any gradient's element."""
_FIRST_RATE = 10.0
_LEAST, _MOST = 0.1, 1.0
"""Nats that the whole sequence is to move: far more than rounding, and so little that it is nearly linear."""
_TRIES = 8
"""To find a learning rate that does."""
_NEAR = 0.12
"""So far from the value that it should have a ratio of movements may be: steps are not infinitely short."""
_GAP = 0.5
"""Nats: beyond, sampler and trainer are not the same model."""
_TOKENS = 24
"""Of what is sampled."""


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
    def imitates(self) -> bool:
        """Whether `cross_entropy` does what weighted imitation needs."""
        return _near(self.scales.get("cross_entropy", 0), 0.5) and _near(
            self.adds_up.get("cross_entropy", 0), 1
        )

    def check(self) -> None:
        """Refuse a server that a run cannot learn on.

        Raises:
            UsageError: it lacks a loss, weights do not count in it, or it samples another model.
        """
        for loss in ("importance_sampling", "ppo"):
            if self.losses.get(loss) != "yes":
                raise UsageError(
                    f"the Tinker server lacks the loss {loss}: {self.losses.get(loss, 'not tried')}"
                )
            if loss in self.scales and not _near(self.scales[loss], 0.5):
                raise UsageError(
                    f"under the Tinker server's {loss} half the advantage moves a sequence "
                    f"{self.scales[loss]:.2f} times as far as all of it, and should half as far: rewards "
                    "would not count"
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
    made = service.client.create_lora_training_client_async(
        base_model=model, rank=rank, seed=1, train_unembed=False
    )
    client = await service.within(made, f"make an adapter of {model}")
    states, paths = States(service, "probe"), list[str]()
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
    own = await _scores(service, client, whole)
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
    mover = _Mover(service, client, states, paths[0], whole, own)
    losses, scales, adds_up = dict[str, str](), dict[str, float](), dict[str, float]()
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
                half = len(own) // 2
                parts = [await mover.moves(loss, 1.0, part) for part in (range(half), range(half, len(own)))]
                adds_up[loss] = sum(parts) / all_of_it
    finally:
        if mover.client is not client:
            await states.let_go(mover.client)
    return replace(facts, losses=losses, scales=scales, adds_up=adds_up, live_load=bool(mover.live_load))


class _Mover:
    """Makes one short step from the same weights each time, and says how far it took a sequence."""

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
        self._service, self._states, self._path, self._datum, self._before = (
            service,
            states,
            path,
            datum,
            before,
        )
        self._rate: float | None = None
        self.live_load: bool | None = None

    async def moves(self, loss: tinker.types.LossFnType, weight: float, part: range | None = None) -> float:
        """Nats by which the log-likelihood rises; 0 where it cannot be made to move.

        Args:
            loss: that is asked for.
            weight: of each token that counts: advantage, or weight of imitation.
            part: the tokens that count; None: all.
        """
        if self._rate is None:
            self._rate = await self._found_rate(loss)
        return await self._moved(loss, weight, part, self._rate) if self._rate else 0.0

    async def _found_rate(self, loss: tinker.types.LossFnType) -> float:
        rate = _FIRST_RATE
        for _ in range(_TRIES):
            moved = await self._moved(loss, 1.0, None, rate)
            if _LEAST <= moved <= _MOST:
                longer = await self._moved(loss, 1.0, None, rate, eps=10 * _EPS)
                return rate if longer < moved / 5 else 0.0  # else it has an eps of its own
            rate *= min(max(math.sqrt(_LEAST * _MOST) / max(moved, 1e-4), 0.05), 50.0)
        return 0.0

    async def _moved(
        self,
        loss: tinker.types.LossFnType,
        weight: float,
        part: range | None,
        rate: float,
        *,
        eps: float = _EPS,
    ) -> float:
        row = [weight if part is None or token in part else 0.0 for token in range(len(self._before))]
        if loss == "cross_entropy":
            sequence = wire.encoded(self._datum, weights=row)
        else:
            sequence = wire.encoded(self._datum, logprobs=self._before, advantages=row)
        await self._service.within(self.client.forward_backward([sequence], loss), f"learn by {loss}")
        step = tinker.AdamParams(learning_rate=rate, beta1=0.0, beta2=0.0, eps=eps)
        await self._service.within(self.client.optim_step(step), "make a step")
        after = await _scores(self._service, self.client, self._datum)
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
        old, open_ = self.client, self._service.client
        made = open_.create_training_client_from_state_with_optimizer_async(self._path)
        self.client = await self._service.within(made, "restore a state")
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


async def _scores(service: Service, client: tinker.TrainingClient, datum: Datum) -> tuple[float, ...]:
    asked = client.forward([wire.encoded(datum, weights=datum.weights)], "cross_entropy")
    answer = await service.within(asked, "score tokens")
    (row,) = wire.logprobs_of(answer.loss_fn_outputs, [datum])
    return row


def _near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= _NEAR * 2 * wanted
