# pyright: standard
"""Player 1 learns: reward-weighted regression on its own tasks, held near the initial simulator.

    L = sum_i w_i sum_t -log pi(y_it) / sum_i w_i T_i  +  beta * mean_it KL(pi(. | it) || pi_0(. | it))

pi and pi_0 are what samples are drawn from: the policy, and the initial one, at the temperature of the
sampling, among the tokens that the grammar allows. Equal rewards for all samples then move it nowhere on
average: E[grad log pi(y)] = 0. Imitating at 1 what was sampled below 1 would make the policy narrower with
every update, whatever the rewards; imitating without the grammar would make likelier what was written only
because nothing else was allowed, such as words that go on because the spec may not end yet. (The gate still
selects: only tasks that pass it have a weight.) A distance between other distributions than those sampled
from would hold the policy to what it never writes, and miss what changes in what it does write.

With equal weights, and at temperature 1, the first term is the plain supervised loss, which is what the
warm-up of both players uses. An update of several steps gives each its part of the sum: a step of light
samples is a light step. After each step the distance to the policy before the update is measured; a step that
goes too far is taken back and halved.

Shapes: M = completion tokens of a micro-batch, V = vocabulary.
"""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genenv.backends.base import Advance
from genenv.backends.local.kl import frozen_head, kl_between
from genenv.backends.local.optimizer import Optimizer, accumulate, evenly, micro_batches
from genenv.backends.local.packing import Bundle, Packed
from genenv.backends.local.policy import LocalPolicy
from genenv.backends.local.token_logprobs import frozen_logprobs_and_kl
from genenv.errors import UpdateSkipped
from genenv.simulator.settings import SimulatorConfig
from genenv.types import JsonObject, SimulatorSample

log = logging.getLogger(__name__)

TOTALS = ("loss", "kl", "kl_step", "grad_norm", "kl_retries", "tokens")
"""What is added up over the steps of an update; `kl_step` alone is what the last one left."""
CAP_TOKENS = 384
"""On how many completion tokens the KL cap is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A sequence to imitate: which tokens of the completion count, and how much."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    weight: float = 1.0
    counted: tuple[bool, ...] | None = None
    """[T] False for tokens the player did not write; None when all count."""
    schema: JsonObject | None = None
    """Of the grammar under which its likelihood is taken; None: among all tokens."""

    @property
    def tokens(self) -> int:
        """How many tokens count."""
        return len(self.completion_ids) if self.counted is None else sum(self.counted)


def weighted_nll(logprobs_M: Tensor, share_M: Tensor) -> Tensor:
    """-sum_m share_m log pi(m): the RWR loss with w_i / sum_j w_j T_j, plain SFT with equal shares. Nats."""
    return -(logprobs_M * share_M).sum()


def weighted_tokens(demonstrations: Sequence[Demonstration]) -> float:
    """sum_j w_j T_j."""
    return math.fsum(d.weight * d.tokens for d in demonstrations)


class Imitator:
    """Weighted supervised steps on a local policy: RWR, and the warm-up of both players."""

    def __init__(self, policy: LocalPolicy, optimizer: Optimizer) -> None:
        self.policy, self.optimizer = policy, optimizer
        self.progress: Advance | None = None

    def gradients(
        self,
        demonstrations: Sequence[Demonstration],
        *,
        kl_coefficient: float,
        temperature: float = 1.0,
        total: float | None = None,
    ) -> dict[str, float]:
        """Accumulate the gradient of the loss over demonstrations; the micro-batches do not change it.

        Args:
            demonstrations: what to imitate.
            kl_coefficient: weight of the KL term.
            temperature: of likelihood and KL; that of the sampling when a policy imitates its own samples.
            total: what the weighted sum over tokens is divided by; the demonstrations' own weighted tokens
                when None.

        Returns:
            `loss`, `kl` (mean over counted tokens; 0 when its coefficient is 0), `tokens`.

        Raises:
            UpdateSkipped: the loss is not finite.
        """
        items = _bundles(demonstrations, total or weighted_tokens(demonstrations))
        tokens = sum(d.tokens for d in demonstrations)
        sums = {"loss": 0.0, "kl": 0.0}

        def run(budget: int) -> None:
            sums.update(loss=0.0, kl=0.0)
            for batch in micro_batches(items, budget):
                for name, value in self._backward(batch, tokens, kl_coefficient, temperature).items():
                    sums[name] += value

        accumulate(self.optimizer, self.policy.model.config.tokens_per_microbatch, run)
        if not math.isfinite(sums["loss"]):
            self.optimizer.clear()
            raise UpdateSkipped("the loss is not finite")
        return sums | {"tokens": float(tokens)}

    def _backward(
        self,
        batch: Sequence[tuple[Bundle, Sequence[tuple[Demonstration, float]]]],
        tokens: int,
        kl_coefficient: float,
        temperature: float,
    ) -> dict[str, float]:
        model = self.policy.model
        packed = Packed([bundle for bundle, _ in batch], model.device)
        rows = [row for _, rows in batch for row in rows]
        share, counted = [], []
        for d, own in rows:
            flags = d.counted or (True,) * len(d.completion_ids)
            share += [own if flag else 0.0 for flag in flags]
            counted += [1.0 / tokens if flag else 0.0 for flag in flags]
        share_M, counted_M = (torch.tensor(x, device=model.device) for x in (share, counted))
        reference_MW, reference_head = None, model.head
        if kl_coefficient > 0:
            with torch.no_grad(), self.policy.reference():
                reference_MW, _ = self.policy.completion_hidden(packed)
                reference_head = frozen_head(self.policy)
        with self.policy.active():
            hidden_MW, tokens_M = self.policy.completion_hidden(packed)
            masked: dict[str, Any] = {
                "temperature": temperature,
                "allowed": self.allowed([d for d, _ in rows]),
            }
            kl_M = None
            if reference_MW is not None and self.policy.head_is_frozen:
                logprobs_M, kl_M = frozen_logprobs_and_kl(
                    model.output, hidden_MW, tokens_M, reference_MW, **masked
                )
            else:
                logprobs_M = self.policy.token_logprobs(hidden_MW, tokens_M, **masked)
                if reference_MW is not None:
                    kl_M = kl_between((model.head, hidden_MW), (reference_head, reference_MW), **masked)
            nll = weighted_nll(logprobs_M, share_M)
            loss, kl = nll, torch.zeros(())
            if kl_M is not None:
                kl = (kl_M * counted_M).sum()
                loss = nll + kl_coefficient * kl
            loss.backward()
        if self.progress is not None:
            self.progress(packed.ids_1N.shape[1], len(rows))
        return {"loss": float(loss.detach()), "kl": float(kl.detach())}

    def allowed(self, demonstrations: Sequence[Demonstration]) -> Tensor | None:
        """[M, ceil(V / 32)] bit masks of what could stand in the place of each token; None: anything."""
        if all(d.schema is None for d in demonstrations):
            return None
        grammars = self.policy.model.grammars
        masks = [
            grammars.anything(len(d.completion_ids))
            if d.schema is None
            else grammars.along(d.schema, d.completion_ids)
            for d in demonstrations
        ]
        return torch.cat(masks).to(self.policy.model.device)


class RwrLearner:
    """Updates a local policy on weighted generations."""

    def __init__(self, policy: LocalPolicy, config: SimulatorConfig) -> None:
        self.policy, self.config = policy, config
        self.optimizer = Optimizer(
            policy.parameters(),
            betas=config.betas,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
        )
        self.imitator = Imitator(policy, self.optimizer)
        self.ramped = config.warmup.steps > 0 and config.warmup.kept_moments == "none"
        """Whether the first steps are shorter: the warm-up left no moments."""

    @property
    def progress(self) -> Advance | None:
        """Told of tokens and sequences gone through, when set."""
        return self.imitator.progress

    @progress.setter
    def progress(self, advance: Advance | None) -> None:
        self.imitator.progress = advance

    def update(
        self, samples: Sequence[SimulatorSample], *, seed: int, lr_scale: float = 1.0
    ) -> Mapping[str, float]:
        """Learn from one round's selected generations.

        Args:
            samples: the generations and their weights.
            seed: shuffles them.
            lr_scale: factor of the learning rate.

        Returns:
            `simulator/steps`, `simulator/kl_retries`, `simulator/skipped_updates`, `tokens/trained`; and,
            unless no step was made, `simulator/kl_step` (how far all of them moved the simulator), and means
            over steps: `simulator/loss`, `simulator/kl` (to the initial simulator), `simulator/grad_norm`.
        """
        totals: dict[str, float] = dict.fromkeys(TOTALS, 0.0)
        steps = skipped = 0
        order = random.Random(seed)
        demonstrations = [
            Demonstration(
                prompt_ids=s.generation.prompt_ids,
                completion_ids=s.generation.token_ids,
                weight=s.weight,
                schema=s.schema,
            )
            for s in samples
            if s.weight > 0 and s.generation.token_ids
        ]
        if not demonstrations:
            skipped = 1
        else:
            parts = -(-len(demonstrations) // self.config.batch)
            distance = self._distance_meter(demonstrations)
            total = weighted_tokens(demonstrations) / parts
            for _ in range(self.config.epochs):
                for part in evenly(order.sample(demonstrations, len(demonstrations)), parts):
                    try:
                        self._step(part, total, lr_scale, distance, totals)
                        steps += 1
                    except UpdateSkipped as reason:
                        log.warning("an update of the simulator was skipped: %s", reason)
                        skipped += 1
        means = ("loss", *(("kl",) if self.config.kl_coefficient else ()), "grad_norm") if steps else ()
        return {f"simulator/{name}": totals[name] / steps for name in means} | {
            **({"simulator/kl_step": totals["kl_step"]} if steps else {}),
            "simulator/steps": float(steps),
            "simulator/kl_retries": totals["kl_retries"],
            "simulator/skipped_updates": float(skipped),
            "tokens/trained": totals["tokens"],
        }

    def _step(
        self,
        demonstrations: Sequence[Demonstration],
        total: float,
        lr_scale: float,
        distance: Callable[[], float],
        totals: dict[str, float],
    ) -> None:
        """One step that keeps the update within the KL cap, added to the totals.

        Raises:
            UpdateSkipped: the loss or gradient is not finite, or even the smallest step goes too far.
        """
        sums = self.imitator.gradients(
            demonstrations,
            kl_coefficient=self.config.kl_coefficient,
            temperature=self.config.temperature,
            total=total,
        )
        norm = self.optimizer.clip()
        before = self.optimizer.snapshot()
        lr = self.config.lr * lr_scale * (self.optimizer.ramp() if self.ramped else 1.0)
        for retry in range(self.config.kl_retries + 1):
            self.optimizer.step(lr / 2**retry)
            moved = distance()
            if moved <= self.config.kl_cap:
                self.optimizer.clear()
                for name, value in {**sums, "grad_norm": norm}.items():
                    totals[name] += value
                totals["kl_step"] = moved
                return
            self.optimizer.restore(before)
            totals["kl_retries"] += retry < self.config.kl_retries
        self.optimizer.clear()
        raise UpdateSkipped(
            f"even the smallest step takes it further than {self.config.kl_cap:g} nats per token in an update"
        )

    @torch.no_grad()
    def _distance_meter(self, demonstrations: Sequence[Demonstration]) -> Callable[[], float]:
        """A function that measures mean KL(now || as it is at this moment) on some of the tokens.

        Of what would be sampled in their place: at the temperature of the sampling, under the grammars.
        """
        some: list[Demonstration] = []
        for d in _in_turns(demonstrations):
            if some and sum(len(s.completion_ids) for s in some) + len(d.completion_ids) > CAP_TOKENS:
                break
            some.append(d)
        bundles = _bundles(some, 1.0)
        packed = Packed([bundle for bundle, _ in bundles], self.policy.model.device)
        allowed = self.imitator.allowed([d for _, rows in bundles for d, _ in rows])
        with self.policy.active():
            before_MW, _ = self.policy.completion_hidden(packed)
            head = frozen_head(self.policy)

        def distance() -> float:
            with torch.no_grad(), self.policy.active():
                now_MW, _ = self.policy.completion_hidden(packed)
                own = (self.policy.model.head, now_MW)
                moved_M = kl_between(
                    own, (head, before_MW), temperature=self.config.temperature, allowed=allowed
                )
                return float(moved_M.mean())

        return distance

    def save(self, folder: Path) -> None:
        """Write weights and optimizer."""
        self.policy.save(folder)
        self.optimizer.save(folder)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""
        self.policy.load(folder)
        self.optimizer.load(folder)


def _in_turns(demonstrations: Sequence[Demonstration]) -> list[Demonstration]:
    """One demonstration of each prompt, the heaviest first, then a second of each, and so on."""
    seen: Counter[tuple[int, ...]] = Counter()
    turns: list[tuple[int, float, Demonstration]] = []
    for d in sorted(demonstrations, key=lambda d: -d.weight):
        turns.append((seen[d.prompt_ids], -d.weight, d))
        seen[d.prompt_ids] += 1
    return [d for _, _, d in sorted(turns, key=lambda turn: turn[:2])]


def _bundles(
    demonstrations: Sequence[Demonstration], total: float
) -> list[tuple[Bundle, list[tuple[Demonstration, float]]]]:
    """Demonstrations of one prompt share it. With each: what one of its tokens counts, its weight / total."""
    by_prompt: dict[tuple[int, ...], list[tuple[Demonstration, float]]] = {}
    for d in demonstrations:
        by_prompt.setdefault(d.prompt_ids, []).append((d, d.weight / total))
    return [
        (Bundle(prompt_ids=prompt, completions=[d.completion_ids for d, _ in rows]), rows)
        for prompt, rows in by_prompt.items()
    ]
