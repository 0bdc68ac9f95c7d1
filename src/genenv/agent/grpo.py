# pyright: standard
"""Player 2 learns: group-relative policy optimisation on the agent's own attempts.

    A_i = r_i - mean(r)            "centred"     (Dr. GRPO, arXiv:2503.20783)
    A_i = (r_i - mean(r)) / std(r) "normalised"  (GRPO, arXiv:2402.03300)
    L_t = -min(rho_t A, clip(rho_t, 1 - low, 1 + high) A) + beta k3_t,   rho_t = pi(t) / pi_old(t)
    k3_t = exp(d_t) - d_t - 1,  d_t = log pi_ref(t) - log pi(t)

averaged over all sampled tokens of the update ("token"), or first within each attempt ("sequence").

Shapes: G = attempts of a task, M = sampled tokens of a micro-batch.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from genenv.agent.settings import AgentConfig
from genenv.errors import UpdateSkipped
from genenv.policies.base import Advance
from genenv.policies.local import LocalPolicy
from genenv.policies.optimizer import Optimizer, accumulate, micro_batches
from genenv.policies.packing import Bundle, Packed
from genenv.types import Group, Trace

log = logging.getLogger(__name__)


def group_advantages(rewards_G: Sequence[float], *, normalise: bool) -> list[float]:
    """Rewards minus their group mean, over their deviation when normalised; all zero when the group agrees.

    The standard deviation is the sample's (G - 1), with 1e-4 added, as TRL and the GRPO paper's code have it.
    """
    mean = math.fsum(rewards_G) / len(rewards_G)
    centred = [reward - mean for reward in rewards_G]
    if max(map(abs, centred)) < 1e-9:
        return [0.0] * len(rewards_G)
    if not normalise:
        return centred
    spread = math.sqrt(math.fsum(c * c for c in centred) / (len(centred) - 1))
    return [c / (spread + 1e-4) for c in centred]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """What the loss needs of a micro-batch, one entry per token that the policy chose."""

    old_M: Tensor
    """Log-probability when it was sampled. Nats."""
    reference_M: Tensor | None
    """Log-probability under the initial policy; None leaves the KL term out."""
    advantage_M: Tensor
    weight_M: Tensor
    """Share of the token in the loss. Sums to 1 over the update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Bounds of the probability ratio, and the weight of the KL term."""

    low: float
    high: float
    kl: float


def grpo_loss(logprobs_M: Tensor, batch: TokenBatch, clip: Clip) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a micro-batch: its share of the update's loss, so micro-batches add up whatever their size.

    Returns:
        The loss, and the sums behind `kl` and `clip_rate`, weighted like the loss.
    """
    log_ratio_M = logprobs_M - batch.old_M
    ratio_M = log_ratio_M.exp()
    clipped_M = ratio_M.clamp(1 - clip.low, 1 + clip.high)
    loss_M = -torch.minimum(ratio_M * batch.advantage_M, clipped_M * batch.advantage_M)
    outside_M = ((ratio_M < 1 - clip.low) & (batch.advantage_M < 0)) | (
        (ratio_M > 1 + clip.high) & (batch.advantage_M > 0)
    )
    sums = {"clip_rate": (outside_M * batch.weight_M).sum().detach()}
    if batch.reference_M is not None:
        kl_M = k3(logprobs_M, batch.reference_M)
        loss_M = loss_M + clip.kl * kl_M if clip.kl else loss_M
        sums["kl"] = (kl_M * batch.weight_M).sum().detach()
    return (loss_M * batch.weight_M).sum(), sums


def k3(logprobs_M: Tensor, reference_M: Tensor) -> Tensor:
    """Low-variance estimate of KL(pi || pi_ref) from samples of pi: exp(d) - d - 1, d = ref - own. Nats."""
    difference_M = reference_M - logprobs_M
    return difference_M.exp() - difference_M - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    trace: Trace
    advantage: float


class GrpoLearner:
    """Updates a local policy on groups of attempts."""

    def __init__(self, policy: LocalPolicy, config: AgentConfig) -> None:
        self.policy, self.config = policy, config
        self.progress: Advance | None = None
        self.clip = Clip(low=config.clip_low, high=config.clip_high, kl=config.kl_coefficient)
        self.optimizer = Optimizer(
            policy.parameters(),
            betas=config.betas,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
        )

    def update(self, groups: Sequence[Group], *, seed: int) -> Mapping[str, float]:
        """Learn from one round's groups.

        Returns:
            `agent/steps`, `agent/skipped_updates`, `agent/zero_advantage_rate`, `tokens/trained`; and, unless
            no step was made, the means `agent/loss`, `agent/kl`, `agent/grad_norm`, `agent/clip_rate`.
        """
        usable = [group for group in groups if len(group.valid) > 1]
        advantages = [
            group_advantages([t.reward for t in group.valid], normalise=self.config.advantage == "normalised")
            for group in usable
        ]
        silent = sum(not any(row) for row in advantages)
        kept = [
            (group, row)
            for group, row in zip(usable, advantages, strict=True)
            if any(row) or not self.config.skip_zero_advantage
        ]
        totals: dict[str, float] = {}
        steps = skipped = 0
        order = random.Random(seed)
        for _ in range(self.config.epochs):
            shuffled = order.sample(kept, len(kept))
            share = -(-len(kept) // self.config.updates_per_epoch) or 1
            for start in range(0, len(shuffled), share):
                try:
                    for name, value in self._step(shuffled[start : start + share]).items():
                        totals[name] = totals.get(name, 0.0) + value
                    steps += 1
                except UpdateSkipped as reason:
                    log.warning("an update of the agent was skipped: %s", reason)
                    skipped += 1
        names = ("loss", "kl", "grad_norm", "clip_rate") if steps else ()
        return {f"agent/{name}": totals.get(name, 0.0) / steps for name in names} | {
            "agent/steps": float(steps),
            "agent/zero_advantage_rate": silent / len(usable) if usable else 0.0,
            "agent/skipped_updates": float(skipped),
            "tokens/trained": totals.get("tokens", 0.0),
        }

    def _step(self, groups: Sequence[tuple[Group, Sequence[float]]]) -> dict[str, float]:
        attempts = [
            _Attempt(trace=trace, advantage=advantage)
            for group, advantages in groups
            for trace, advantage in zip(group.valid, advantages, strict=True)
        ]
        tokens = sum(attempt.trace.response_tokens for attempt in attempts)
        if not tokens:
            raise UpdateSkipped("no attempt has a token that the agent chose")
        items = _bundles(attempts)
        sums: dict[str, float] = {}

        def run(budget: int) -> None:
            sums.clear()
            batches = micro_batches(items, budget)
            measured = random.Random(tokens).randrange(len(batches))
            for index, batch in enumerate(batches):
                self._backward(batch, (tokens, len(attempts)), sums, measure_kl=index == measured)

        accumulate(self.optimizer, self.policy.model.config.tokens_per_microbatch, run)
        if not math.isfinite(sums["loss"]):
            self.optimizer.clear()
            raise UpdateSkipped("the loss is not finite")
        sums["grad_norm"] = self.optimizer.clip()
        self.optimizer.step(self.config.lr)
        self.optimizer.clear()
        return sums | {"tokens": float(tokens)}

    def _backward(
        self,
        batch: Sequence[tuple[Bundle, Sequence[_Attempt]]],
        sizes: tuple[int, int],
        sums: dict[str, float],
        *,
        measure_kl: bool,
    ) -> None:
        tokens, attempts = sizes
        device = self.policy.model.device
        packed = Packed([bundle for bundle, _ in batch], device)
        rows = [attempt for _, row in batch for attempt in row]
        chosen = [flag for row in rows for flag in row.trace.sampled[row.trace.prompt_tokens :]]
        chosen_M = torch.tensor(chosen, device=device).nonzero()[:, 0]
        reference_M = None
        if (
            self.clip.kl > 0 or measure_kl
        ):  # without a KL term it is measured on one micro-batch of the update
            with torch.no_grad(), self.policy.reference():
                reference_M = self.policy.logprobs(packed, temperature=self.config.temperature)[chosen_M]
        with self.policy.active():
            logprobs_M = self.policy.logprobs(packed, temperature=self.config.temperature)[chosen_M]
        by_sequence = self.config.loss_average == "sequence"
        share = 1 / attempts if by_sequence else 1 / tokens
        data = token_batch(rows, reference_M, share, by_sequence=by_sequence, device=device)
        loss, extra = grpo_loss(logprobs_M, data, self.clip)
        loss.backward()
        if self.clip.kl == 0 and "kl" in extra:
            extra["kl"] = extra["kl"] / data.weight_M.sum()
        for name, value in {"loss": loss.detach(), **extra}.items():
            sums[name] = sums.get(name, 0.0) + float(value)
        if self.progress is not None:
            self.progress(packed.ids_1N.shape[1], len(rows))

    def save(self, folder: Path) -> None:
        """Write weights and optimizer."""
        self.policy.save(folder)
        self.optimizer.save(folder)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""
        self.policy.load(folder)
        self.optimizer.load(folder)


def token_batch(
    rows: Sequence[_Attempt],
    reference_M: Tensor | None,
    share: float,
    *,
    by_sequence: bool,
    device: torch.device,
) -> TokenBatch:
    """Flatten attempts to one entry per token that the policy chose.

    Args:
        rows: attempts in the order in which they were packed.
        reference_M: see `TokenBatch`.
        share: 1 / tokens of the update, or 1 / attempts of the update when averaged by sequence.
        by_sequence: divide a token's share by the sampled tokens of its attempt.
        device: where the tensors go.
    """
    old: list[float] = []
    advantage: list[float] = []
    weight: list[float] = []
    for row in rows:
        tokens = row.trace.response_tokens
        old += [value for value, flag in zip(row.trace.logprobs, row.trace.sampled, strict=True) if flag]
        advantage += [row.advantage] * tokens
        weight += [share / tokens if by_sequence else share] * tokens
    old_M, advantage_M, weight_M = (torch.tensor(x, device=device) for x in (old, advantage, weight))
    return TokenBatch(old_M=old_M, reference_M=reference_M, advantage_M=advantage_M, weight_M=weight_M)


def _bundles(attempts: Sequence[_Attempt]) -> list[tuple[Bundle, list[_Attempt]]]:
    """Attempts of one prompt share it; those in which the policy chose no token are left out."""
    by_prompt: dict[tuple[int, ...], list[_Attempt]] = {}
    for attempt in attempts:
        if attempt.trace.response_tokens:
            by_prompt.setdefault(attempt.trace.token_ids[: attempt.trace.prompt_tokens], []).append(attempt)
    return [
        (Bundle(prompt_ids=prompt, completions=[row.trace.token_ids[len(prompt) :] for row in rows]), rows)
        for prompt, rows in by_prompt.items()
    ]
