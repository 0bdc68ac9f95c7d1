"""Truncated importance sampling, for what other weights or another engine have sampled than those that learn.

    L_t = -min(rho_t A, clip(rho_t) A) min(pi_0(t) / mu(t), C),    rho_t = pi(t) / pi_0(t)

mu sampled, as it said itself; pi_0 is what learns when the update begins, as the trainer says. The ratio of
the two corrects, token by token, for weights that were older (`run.staleness`) and for a sampler whose
arithmetic is another one; the cap C bounds what one token can do to the gradient (TIS: Yao et al. 2025, "Your
efficient RL framework secretly brings you off-policy RL training"; decoupled PPO: Hilton et al.,
arXiv:2110.00641). Clipping then holds the update to where it began, and not to where the sampler was.

Shapes: T = tokens of a completion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from genenv.algorithms.datum import Datum
from genenv.algorithms.ratios import held, k3

ALARM = 0.05
"""Nats a token. Rounding makes 1e-13 in float32 and about 1e-3 in bfloat16."""


@dataclass(slots=True)
class Mismatch:
    """How far apart those who sampled and those who learn are, over the tokens that count."""

    tokens: int = 0
    kl: float = 0.0
    weighed: int = 0
    """Tokens whose advantages were weighted by importance."""
    importance: float = 0.0
    capped: int = 0

    def note(self, datum: Datum, now_T: Sequence[float]) -> None:
        """Take in a datum that was sampled: KL(mu || pi_0) by k3.

        Args:
            datum: with what its sampler said.
            now_T: log-probabilities of its tokens when the update begins. Nats.
        """
        for now, then, counts in zip(now_T, datum.old_logprobs or (), datum.weights, strict=True):
            if counts > 0:
                self.tokens += 1
                self.kl += k3(then, now)

    def note_step(self, data: Sequence[Datum], measured: Mapping[str, float]) -> None:
        """Take in the first step of an update: its pass compares what sampled and what learns as well.

        Args:
            data: of the step, with what their sampler said.
            measured: what `Trainer.forward_backward` returned, before any weight has changed.
        """
        sampled = [datum for datum in data if datum.loss == "ppo"]
        weight = math.fsum(w for datum in sampled for w in datum.weights)
        if weight > 0 and "old_kl" in measured:
            tokens = sum(datum.tokens for datum in sampled)
            self.tokens += tokens
            self.kl += tokens * measured["old_kl"] / weight

    def metrics(self, player: str) -> dict[str, float]:
        """Means over tokens; nothing where none was compared."""
        found = {f"{player}/mismatch_kl": self.kl / self.tokens} if self.tokens else {}
        if self.weighed:
            found[f"{player}/importance_ratio"] = self.importance / self.weighed
            found[f"{player}/importance_capped"] = self.capped / self.weighed
        return found

    def alarm(self, player: str) -> str | None:
        """What to do about a mismatch that spoils the gradient; None where it is small."""
        nats = self.kl / max(1, self.tokens)
        if nats <= ALARM:
            return None
        weigh = "" if self.weighed else f"{player}.importance_cap = 2 weighs tokens by importance, "
        return (
            f"what samples for the {player} and what trains it disagree by {nats:.2g} nats a token "
            f"({player}/mismatch_kl; above {ALARM:g} the gradient is of another policy): {weigh}"
            "policy.dtype = 'float32' makes both more exact, and run.staleness = 0 keeps both at one version"
        )


def corrected(datum: Datum, now_T: Sequence[float], cap: float, noted: Mismatch) -> Datum:
    """A datum of `ppo` whose advantages are weighted by importance, and whose ratios are to now.

    Args:
        datum: with advantages, and with what its sampler said.
        now_T: log-probabilities of its tokens when the update begins. Nats.
        cap: C, the largest weight.
        noted: takes in how far apart they are, the mean weight, and how many are at the cap.
    """
    assert datum.advantages is not None and datum.old_logprobs is not None  # noqa: PT018, S101
    noted.note(datum, now_T)
    weights_T: list[float] = []
    for now, then, counts in zip(now_T, datum.old_logprobs, datum.weights, strict=True):
        ratio = math.exp(held(now - then))
        weights_T.append(min(ratio, cap))
        if counts > 0:
            noted.weighed += 1
            noted.importance += weights_T[-1]
            noted.capped += ratio > cap
    advantages = tuple(a * w for a, w in zip(datum.advantages, weights_T, strict=True))
    return replace(datum, advantages=advantages, old_logprobs=tuple(now_T))
