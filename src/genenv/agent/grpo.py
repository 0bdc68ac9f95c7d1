# pyright: standard
"""Player 2 learns: group-relative policy optimisation on the agent's own attempts.

    A_i = r_i - mean(r)            "centred"     (Dr. GRPO, arXiv:2503.20783)
    A_i = (r_i - mean(r)) / std(r) "normalised"  (GRPO, arXiv:2402.03300)
    L_t = -min(rho_t A, clip(rho_t, 1 - low, 1 + high) A) + beta k3_t,   rho_t = pi(t) / pi_old(t)
    k3_t = exp(d_t) - d_t - 1,  d_t = log pi_ref(t) - log pi(t)

with both log-ratios held to 20 nats and k3 to 10; averaged over all sampled tokens of the update ("token"),
or first within each attempt ("sequence"). With guidance a supervised term is added, c * mean_t -log pi(t)
over the tokens of known solutions (DAPG, arXiv:1709.10087): it teaches what no attempt has found.

Shapes: G = attempts of a task, M = sampled tokens of a micro-batch.
"""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from genenv.agent.settings import AgentConfig
from genenv.backends.base import Advance
from genenv.backends.local.optimizer import Optimizer, accumulate, evenly, micro_batches
from genenv.backends.local.packing import Bundle, Packed
from genenv.backends.local.policy import LocalPolicy
from genenv.errors import UpdateSkipped
from genenv.types import Group, Trace

log = logging.getLogger(__name__)

LOG_RATIO_MAX = 20.0
"""Beyond this, in nats, a ratio of probabilities counts no further: its exponential would overflow."""
K3_MAX = 10.0
"""The most that one token can add to the KL term, nats."""


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
    """Log-probability when it was sampled. Nats; of no effect where the token belongs to a known solution."""
    reference_M: Tensor | None
    """Log-probability under the initial policy; None leaves the KL term out."""
    advantage_M: Tensor
    weight_M: Tensor
    """Share of the token in the loss. Sums to 1 over what was sampled in the update."""
    guided_M: Tensor | None = None
    """True where the token belongs to a known solution, which the policy did not sample; None for nowhere."""


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
    log_ratio_M = (logprobs_M - batch.old_M).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    ratio_M = log_ratio_M.exp()
    clipped_M = ratio_M.clamp(1 - clip.low, 1 + clip.high)
    loss_M = -torch.minimum(ratio_M * batch.advantage_M, clipped_M * batch.advantage_M)
    outside_M = ((ratio_M < 1 - clip.low) & (batch.advantage_M < 0)) | (
        (ratio_M > 1 + clip.high) & (batch.advantage_M > 0)
    )
    sums = {"clip_rate": (outside_M * batch.weight_M).sum().detach()}
    if batch.reference_M is not None:
        kl_M = k3(logprobs_M, batch.reference_M)
        if batch.guided_M is not None:  # the estimate holds for what the policy sampled
            kl_M = kl_M.masked_fill(batch.guided_M, 0.0)
        loss_M = loss_M + clip.kl * kl_M if clip.kl else loss_M
        sums["kl"] = (kl_M * batch.weight_M).sum().detach()
    if batch.guided_M is not None:
        loss_M = torch.where(batch.guided_M, -logprobs_M, loss_M)
    return (loss_M * batch.weight_M).sum(), sums


def k3(logprobs_M: Tensor, reference_M: Tensor) -> Tensor:
    """Low-variance estimate of KL(pi || pi_ref) from samples of pi: exp(d) - d - 1, d = ref - own.

    Unbounded, one token that has become very unlikely outweighs all others: as in verl (`kl_penalty` of
    `verl/trainer/ppo/core_algos.py`, "low_var_kl"; the authors train with it), d is held to [-20, 20] and the
    estimate to at most 10 (verl writes [-10, 10]; it is never negative). A token beyond d = 2.61 or -11 has
    no gradient here: the term does not pull it back.

    Returns:
        [M] in [0, 10]. Nats.
    """
    difference_M = (reference_M - logprobs_M).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    return (difference_M.exp() - difference_M - 1).clamp(max=K3_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    trace: Trace
    advantage: float
    guide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """What one token counts in the loss of an update."""

    sampled: float
    """1 / sampled tokens, or 1 / attempts when averaged by sequence."""
    guided: float = 0.0
    """The guidance coefficient / tokens of known solutions."""
    by_sequence: bool = False
    """Whether a token's share is divided by the sampled tokens of its attempt."""


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
        self.ramped = config.warmup.steps > 0 and config.warmup.kept_moments == "none"
        """Whether the first steps are shorter: the warm-up left no moments."""

    def update(self, groups: Sequence[Group], *, seed: int, lr_scale: float = 1.0) -> Mapping[str, float]:
        """Learn from one round's groups.

        Args:
            groups: attempts, known solutions beside some of them, and known solutions alone.
            seed: shuffles the groups.
            lr_scale: factor of the learning rate.

        Returns:
            `agent/steps`, `agent/skipped_updates`, `agent/zero_advantage_rate`, `tokens/trained`; and the
            means over the steps that measured them of `agent/loss`, `agent/kl`, `agent/grad_norm` and
            `agent/clip_rate`, where there is one.
        """
        advantages = [self._advantages(group) for group in groups]
        compared = [row for row in advantages if row]
        kept = [
            members
            for group, row in zip(groups, advantages, strict=True)
            if (members := self._members(group, row))
        ]
        totals: dict[str, float] = {}
        measured: Counter[str] = Counter()
        steps = skipped = 0
        order = random.Random(seed)
        for _ in range(self.config.epochs):
            for part in evenly(order.sample(kept, len(kept)), self.config.updates_per_epoch):
                try:
                    for name, value in self._step(part, lr_scale).items():
                        totals[name] = totals.get(name, 0.0) + value
                        measured[name] += 1
                    steps += 1
                except UpdateSkipped as reason:
                    log.warning("an update of the agent was skipped: %s", reason)
                    skipped += 1
        names = [name for name in ("loss", "kl", "grad_norm", "clip_rate") if name in totals]
        return {f"agent/{name}": totals[name] / measured[name] for name in names} | {
            "agent/steps": float(steps),
            "agent/zero_advantage_rate": (
                sum(not any(row) for row in compared) / len(compared) if compared else 0.0
            ),
            "agent/skipped_updates": float(skipped if kept else 1),
            "tokens/trained": totals.get("tokens", 0.0),
        }

    def _advantages(self, group: Group) -> list[float]:
        """One for each valid attempt; none where there is nothing to compare."""
        rewards = [trace.reward for trace in group.valid]
        normalise = self.config.advantage == "normalised"
        return group_advantages(rewards, normalise=normalise) if len(rewards) > 1 else []

    def _members(self, group: Group, advantages: Sequence[float]) -> list[_Attempt]:
        """What a group has to teach: its attempts, unless their rewards all agree, and the known solution."""
        compared = advantages and (any(advantages) or not self.config.skip_zero_advantage)
        members: list[_Attempt] = []
        if compared:
            pairs = zip(group.valid, advantages, strict=True)
            members = [_Attempt(trace=trace, advantage=advantage) for trace, advantage in pairs]
        if group.guide is not None:
            members.append(_Attempt(trace=group.guide, advantage=0.0, guide=True))
        return members

    def _step(self, groups: Sequence[Sequence[_Attempt]], lr_scale: float) -> dict[str, float]:
        attempts = [attempt for group in groups for attempt in group]
        shares = self._shares(attempts)
        tokens = sum(attempt.trace.response_tokens for attempt in attempts)
        if not tokens:
            raise UpdateSkipped("no attempt has a token that the agent chose")
        items = _bundles(attempts)
        sums: dict[str, float] = {}

        def run(budget: int) -> None:
            sums.clear()
            batches = micro_batches(items, budget)
            sampled = [i for i, batch in enumerate(batches) if _has_attempts(batch)]
            measured = (
                random.Random(tokens).choice(sampled) if sampled and self.policy.has_reference else None
            )
            for index, batch in enumerate(batches):
                self._backward(batch, shares, sums, measure_kl=index == measured)

        accumulate(self.optimizer, self.policy.model.config.tokens_per_microbatch, run)
        for name, meaning in (("loss", "loss"), ("kl", "KL to the initial agent")):
            if not math.isfinite(sums.get(name, 0.0)):
                self.optimizer.clear()
                raise UpdateSkipped(f"the {meaning} is not finite")
        if all(attempt.guide for attempt in attempts):  # no ratio that could be clipped
            sums.pop("clip_rate")
        sums["grad_norm"] = self.optimizer.clip()
        ramp = self.optimizer.ramp() if self.ramped else 1.0
        self.optimizer.step(self.config.lr * lr_scale * ramp)
        self.optimizer.clear()
        return sums | {"tokens": float(tokens)}

    def _shares(self, attempts: Sequence[_Attempt]) -> _Shares:
        sampled = [a.trace.response_tokens for a in attempts if not a.guide]
        guided = sum(a.trace.response_tokens for a in attempts if a.guide)
        by_sequence = self.config.loss_average == "sequence"
        return _Shares(
            sampled=1 / (len(sampled) if by_sequence else sum(sampled) or 1) if sampled else 0.0,
            guided=self.config.guidance_coefficient / guided if guided else 0.0,
            by_sequence=by_sequence,
        )

    def _backward(
        self,
        batch: Sequence[tuple[Bundle, Sequence[_Attempt]]],
        shares: _Shares,
        sums: dict[str, float],
        *,
        measure_kl: bool,
    ) -> None:
        device = self.policy.model.device
        packed = Packed([bundle for bundle, _ in batch], device)
        rows = [attempt for _, row in batch for attempt in row]
        chosen = [flag for row in rows for flag in row.trace.sampled[row.trace.prompt_tokens :]]
        chosen_M = torch.tensor(chosen, device=device).nonzero()[:, 0]
        data = token_batch(rows, shares, device=device)
        reference_M = None
        # Without a KL term it is measured on one micro-batch of the update, where there is a reference.
        if self.clip.kl > 0 or measure_kl:
            with torch.no_grad(), self.policy.reference():
                reference_M = self._logprobs(packed, chosen_M, data.guided_M)
        with self.policy.active():
            logprobs_M = self._logprobs(packed, chosen_M, data.guided_M)
        loss, extra = grpo_loss(logprobs_M, replace(data, reference_M=reference_M), self.clip)
        loss.backward()
        if self.clip.kl == 0 and "kl" in extra:
            sampled_M = slice(None) if data.guided_M is None else ~data.guided_M
            extra["kl"] = extra["kl"] / data.weight_M[sampled_M].sum()
        for name, value in {"loss": loss.detach(), **extra}.items():
            sums[name] = sums.get(name, 0.0) + float(value)
        if self.progress is not None:
            self.progress(packed.ids_1N.shape[1], len(rows))

    def _logprobs(self, packed: Packed, chosen_M: Tensor, guided_M: Tensor | None) -> Tensor:
        """Log-probabilities of chosen tokens: at the sampling temperature, or at 1 for known solutions.

        Below temperature 1 an imitation at the sampling temperature would flatten the scores until what is
        sampled is as random as the model was at 1.
        """
        hidden_MW, tokens_M = self.policy.completion_hidden(packed)
        hidden_MW, tokens_M = hidden_MW[chosen_M], tokens_M[chosen_M]
        temperature = self.config.temperature
        if guided_M is None:
            return self.policy.token_logprobs(hidden_MW, tokens_M, temperature=temperature)
        parts = ((~guided_M).nonzero()[:, 0], temperature), (guided_M.nonzero()[:, 0], 1.0)
        values_M = torch.cat(
            [self.policy.token_logprobs(hidden_MW[at], tokens_M[at], temperature=t) for at, t in parts]
        )
        return values_M[torch.cat([at for at, _ in parts]).argsort()]

    def save(self, folder: Path) -> None:
        """Write weights and optimizer."""
        self.policy.save(folder)
        self.optimizer.save(folder)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""
        self.policy.load(folder)
        self.optimizer.load(folder)


def token_batch(rows: Sequence[_Attempt], shares: _Shares, *, device: torch.device) -> TokenBatch:
    """Flatten attempts to one entry per token that the policy chose, or that it should have chosen.

    The reference is left out.

    Args:
        rows: attempts and known solutions in the order in which they were packed.
        shares: what a token counts.
        device: where the tensors go.
    """
    old: list[float] = []
    advantage: list[float] = []
    weight: list[float] = []
    guided: list[bool] = []
    for row in rows:
        tokens = row.trace.response_tokens
        share = shares.sampled / tokens if shares.by_sequence else shares.sampled
        old += [value for value, flag in zip(row.trace.logprobs, row.trace.sampled, strict=True) if flag]
        advantage += [row.advantage] * tokens
        weight += [shares.guided if row.guide else share] * tokens
        guided += [row.guide] * tokens
    old_M, advantage_M, weight_M = (torch.tensor(x, device=device) for x in (old, advantage, weight))
    return TokenBatch(
        old_M=old_M,
        reference_M=None,
        advantage_M=advantage_M,
        weight_M=weight_M,
        guided_M=torch.tensor(guided, device=device) if any(guided) else None,
    )


def _has_attempts(batch: Sequence[tuple[Bundle, Sequence[_Attempt]]]) -> bool:
    return any(not row.guide for _, rows in batch for row in rows)


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
