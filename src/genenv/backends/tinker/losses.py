# pyright: standard
"""Translates genenv's losses (`genenv.algorithms.losses`) into those of the Tinker protocol.

    ppo, ...   the loss's `wire` name, old log-probabilities, advantages w A
    nll        `cross_entropy`, weights w; or as below with A = w, if the server normalizes weights away
    KL term    `importance_sampling` at the present weights: there its gradient is -sum A grad log pi, so
               A = beta u (e^d - 1), d = log pi_ref - log pi, has that of beta u k3, which is e^d - d - 1

u is the weight of a token in the KL term: its loss weight under `k3`, or the same for all tokens with a
weight under `exact`. A server cannot compute the exact KL, so k3 on the sampled tokens replaces it. Values
are bounded as in `algorithms.losses`.

All of these are sums over tokens. For a server that takes means, the inputs are scaled up (`Sums`).

Shapes: T = tokens of a completion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import tinker
import torch

from genenv.algorithms.datum import Datum, Objective
from genenv.algorithms.losses import K3_MAX, LOG_RATIO_MAX, LOSSES, LossTerms, find_loss, held, k3
from genenv.backends.tinker.service import encoded, targets
from genenv.errors import UsageError

Rows = Mapping[int, tuple[float, ...]]
"""[T] log-probabilities by index in the data. Nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """How a server combines the losses of tokens: as sums, which the protocol specifies, or as means."""

    weighs: bool = True
    """Whether `cross_entropy` multiplies by weights and sums."""
    by_length: bool = False
    """Whether `ppo` and `importance_sampling` are divided by a sequence's length, prompt included."""
    by_count: bool = False
    """Whether a step is divided by its number of sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One forward and backward pass to request from the server."""

    loss: tinker.types.LossFnType
    places: Sequence[int]
    """Indices of the sequences in the data."""
    sequences: Sequence[tinker.Datum]
    config: dict[str, float] | None = None


def wants_own(data: Sequence[Datum], objective: Objective, sums: Sums) -> list[int]:
    """Return the indices of data whose present log-probabilities are needed before the pass.

    Args:
        data: of the step.
        objective: bounds and terms of the loss.
        sums: how the server combines losses.
    """
    anchored = set(wants_reference(data, objective))
    return [
        place
        for place, one in enumerate(data)
        if place in anchored or (one.loss == "nll" and not sums.weighs)
    ]


def wants_reference(data: Sequence[Datum], objective: Objective) -> list[int]:
    """Return the indices of data that have a KL term."""
    if objective.kl_coefficient <= 0:
        return []
    return [place for place, one in enumerate(data) if objective.kl == "exact" or one.is_policy_gradient]


def calls(data: Sequence[Datum], objective: Objective, own: Rows, reference: Rows, sums: Sums) -> list[Call]:
    """Return the passes whose gradients add up to the gradient of the step.

    Args:
        data: of the step; policy-gradient data must have old log-probabilities.
        objective: bounds and terms of the loss.
        own: present log-probabilities of the data in `wants_own`.
        reference: log-probabilities under the reference of the data in `wants_reference`.
        sums: how the server combines losses.
    """
    sampled = [place for place, one in enumerate(data) if one.is_policy_gradient]
    taught = [place for place, one in enumerate(data) if one.loss == "nll" and sums.weighs]
    surrogate = _surrogate(data, objective, own, reference, sums)
    count = len(sampled) + len(taught) + len(surrogate) if sums.by_count else 1

    def credited(place: int, logprobs: Sequence[float], advantages: Sequence[float]) -> tinker.Datum:
        times = count * (targets(data[place]) if sums.by_length else 1)
        return encoded(data[place], logprobs=logprobs, advantages=[times * value for value in advantages])

    def weighted(place: int) -> tinker.Datum:
        return encoded(data[place], weights=[count * weight for weight in data[place].weights])

    found = [
        *(
            Call(
                loss=wire_loss(name),
                places=own_places,
                sequences=[credited(i, _old(data[i]), _weighted(data[i])) for i in own_places],
                config=_bounds(objective) if find_loss(name).settings else None,
            )
            for name in dict.fromkeys(data[place].loss for place in sampled)
            for own_places in [[place for place in sampled if data[place].loss == name]]
        ),
        Call(loss="cross_entropy", places=taught, sequences=[weighted(i) for i in taught]),
        Call(
            loss="importance_sampling",
            places=list(surrogate),
            sequences=[credited(i, own[i], row) for i, row in surrogate.items()],
        ),
    ]
    return [call for call in found if call.places]


def wire_loss(name: str) -> tinker.types.LossFnType:
    """Return the protocol's name for a loss.

    Raises:
        UsageError: the protocol has no such loss.
    """
    wire = find_loss(name).wire
    if wire is None:
        known = ", ".join(
            sorted(one for one, loss in LOSSES.items() if loss.wire and one not in ("nll", "dro"))
        )
        raise UsageError(f"a Tinker server has no loss like agent.loss = {name!r}; it has {known}")
    return cast(tinker.types.LossFnType, wire)


def _bounds(objective: Objective) -> dict[str, float]:
    return {
        "clip_low_threshold": 1 - objective.clip_low,
        "clip_high_threshold": 1 + objective.clip_high,
    }


def measures(data: Sequence[Datum], objective: Objective, now: Rows, reference: Rows) -> dict[str, float]:
    """Compute the loss and metrics of a step, as `Trainer.forward_backward` returns them.

    Args:
        data: of the step.
        objective: bounds and terms of the loss.
        now: log-probabilities of all data before the step.
        reference: log-probabilities under the reference of the data in `wants_reference`.
    """
    tokens = sum(one.tokens for one in data)
    loss, clipped, kl, old_kl = [0.0], [0.0], [0.0], [0.0]
    for place, one in enumerate(data):
        old = _old(one) if one.is_policy_gradient else now[place]
        terms = LossTerms(
            logprob=torch.tensor(now[place], dtype=torch.float64),
            old=torch.tensor(old, dtype=torch.float64),
            advantage=torch.tensor(one.advantages or (0.0,) * len(one.weights), dtype=torch.float64),
            low=1 - objective.clip_low,
            high=1 + objective.clip_high,
            sequence_mean=lambda values: values,
        )
        loss_of = find_loss(one.loss)
        losses, is_clipped = loss_of.function(terms).tolist(), loss_of.clipped(terms).tolist()
        for token, weight in enumerate(one.weights):
            if weight <= 0:
                continue
            value = now[place][token]
            loss.append(weight * losses[token])
            if one.is_policy_gradient:
                clipped.append(weight * is_clipped[token])
                old_kl.append(weight * k3(old[token], value))
            if place in reference:
                counts = 1 / tokens if objective.kl == "exact" else weight
                kl.append(counts * k3(value, reference[place][token]))
    found = {"loss": math.fsum(loss) + objective.kl_coefficient * math.fsum(kl), "tokens": float(tokens)}
    if any(one.is_policy_gradient for one in data):
        found |= {"clip_rate": math.fsum(clipped), "old_kl": math.fsum(old_kl)}
    if reference:
        found["kl"] = math.fsum(kl)
    return found


def distance(now: Sequence[Sequence[float]], then: Sequence[Sequence[float]]) -> float:
    """Estimate of KL(now || then), mean over tokens that `then` sampled: rho log rho - rho + 1. Nats.

    Unbiased for such tokens, and never negative.
    """
    logs = [held(a - b) for new, old in zip(now, then, strict=True) for a, b in zip(new, old, strict=True)]
    return math.fsum(math.exp(log) * (log - 1) + 1 for log in logs) / max(1, len(logs))


def _surrogate(
    data: Sequence[Datum], objective: Objective, own: Rows, reference: Rows, sums: Sums
) -> dict[int, list[float]]:
    """Return advantages at the present weights, by index: for the KL term, and for `nll` data if needed."""
    found: dict[int, list[float]] = {}
    share = 1 / max(1, sum(one.tokens for one in data))
    for place in wants_own(data, objective, sums):
        one = data[place]
        credit = list(one.weights) if one.loss == "nll" and not sums.weighs else [0.0] * len(one.weights)
        for token, weight in enumerate(one.weights if place in reference else ()):
            if weight > 0:
                counts = share if objective.kl == "exact" else weight
                pull = _pull(own[place][token], reference[place][token])
                credit[token] += objective.kl_coefficient * counts * pull
        found[place] = credit
    return found


def _pull(own: float, reference: float) -> float:
    """Return e^d - 1, the gradient of k3; 0 if d or k3 is clipped."""
    difference = reference - own
    if abs(difference) >= LOG_RATIO_MAX or k3(own, reference) >= K3_MAX:
        return 0.0
    return math.exp(difference) - 1


def _old(datum: Datum) -> tuple[float, ...]:
    if datum.old_logprobs is None:
        raise ValueError("the log-probabilities of its sampling are not known")
    return datum.old_logprobs


def _weighted(datum: Datum) -> list[float]:
    advantages = datum.advantages or (0.0,) * len(datum.weights)
    return [weight * advantage for weight, advantage in zip(datum.weights, advantages, strict=True)]
