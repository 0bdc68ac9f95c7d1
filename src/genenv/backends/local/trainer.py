# pyright: standard
"""The trainer of a policy on this machine: it computes gradients from weighted tokens and steps AdamW.

Shapes: M = tokens of a micro-batch with a nonzero weight, W = width, V = vocabulary.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from genenv.algorithms.datum import Datum, Objective
from genenv.algorithms.settings import Moments, OptimizerConfig
from genenv.backends.local.losses import Tokens, k3, token_losses
from genenv.backends.local.model import LocalModel
from genenv.backends.local.optimizer import Optimizer, read_version, write_version
from genenv.backends.local.packing import (
    Piece,
    TokenTree,
    bundle_by_prompt,
    micro_batches,
    on_device,
    sample_of,
    within_memory,
)
from genenv.backends.local.policy_weights import PolicyWeights
from genenv.backends.local.processes import ALONE, METHODS_ON_ALL_RANKS, Call, Processes, Turn, on_all_ranks
from genenv.backends.local.token_logprobs import Scores, kl_between
from genenv.errors import UpdateSkipped
from genenv.progress import advance
from genenv.sampling import blocking

_SHARE_MEASURED = 8
"""If the KL has no weight and is only measured: about one in this many of an update's tokens is scored under
the reference, and never more than two."""


class LocalTrainer:
    """Trains the weights of one policy (implements `Trainer`)."""

    def __init__(
        self,
        weights: PolicyWeights,
        optimizer: OptimizerConfig,
        *,
        processes: Processes = ALONE,
        name: str | None = None,
    ) -> None:
        """Create a trainer.

        Args:
            weights: the weights to train.
            optimizer: settings of AdamW.
            processes: the processes that train these weights together.
            name: of the policy, by which rank 0 calls this trainer in the other processes.
        """
        self.weights = weights
        self.processes, self.name = processes, name or weights.adapter or ""
        self.changes = 0
        """How often the weights may have changed, so that copies of them are out of date."""
        self.optimizer = Optimizer(weights.parameters(), optimizer)
        self._moved: Callable[[], float] | None = None

    @on_all_ranks
    async def forward_backward(self, data: Sequence[Datum], objective: Objective) -> Mapping[str, float]:
        """Accumulate the gradient of the loss, whatever the micro-batch size. See `Trainer`."""
        tokens = sum(datum.tokens for datum in data)
        if not tokens:
            raise UpdateSkipped("there is no token to learn from")
        pieces, parts = bundle_by_prompt(data), list[dict[str, Tensor]]()

        def run(budget: int) -> None:
            parts.clear()  # of a try that was broken off nothing is left
            batches = micro_batches(pieces, budget)
            measured = self._measured(batches, objective, tokens)
            most = max(1, sum(bundle.tokens for bundle, _ in pieces) // _SHARE_MEASURED)
            for turn in self.processes.turns(len(batches)):
                parts.append(self._backward(turn, batches, objective, tokens, measured, most))

        with blocking(), self.optimizer.adding():
            self._within_memory(run, forget=self.optimizer.clear)
            sums = self.processes.total(_added(parts))
        for name, meaning in (("loss", "loss"), ("kl", "KL to the reference")):
            if not math.isfinite(sums.get(name, 0.0)):
                self.optimizer.clear()
                raise UpdateSkipped(f"the {meaning} is not finite")
        return sums | {"tokens": float(tokens)}

    @on_all_ranks
    async def step(self, learning_rate: float) -> Mapping[str, float]:
        """Make one step of AdamW. See `Trainer`."""
        self.changes += 1
        self.processes.add_gradients(self.optimizer.parameters)
        return {"grad_norm": self.optimizer.step(learning_rate, keep_before=self._moved is not None)}

    @on_all_ranks
    async def watch(self, data: Sequence[Datum]) -> None:
        """Store the present hidden states and output layer for `moved`. See `Trainer`."""
        pieces = bundle_by_prompt(data)
        packed = self.weights.packed([bundle for bundle, _ in pieces])
        rows = [datum for _, own in pieces for datum in own]
        allowed, temperature = self._allowed(rows), rows[0].temperature
        with torch.no_grad(), self.weights.active():
            before_MW, _ = self.weights.completion_hidden(packed)
            head = self.weights.frozen_head()

        def moved() -> float:
            with torch.no_grad(), self.weights.active(), blocking():
                now_MW, _ = self.weights.completion_hidden(packed)
                own, then = (self.weights.model.head, now_MW), (head, before_MW)
                return float(kl_between(own, then, temperature=temperature, allowed=allowed).mean())

        self._moved = moved

    @on_all_ranks
    async def moved(self) -> float:
        """Return the mean KL between the present weights and those at `watch`. See `Trainer`."""
        if self._moved is None:
            raise RuntimeError("watch comes before moved")
        return self._moved()

    @on_all_ranks
    async def shorten(self, fraction: float) -> None:
        """Undo part of the last step. See `Trainer`."""
        self.changes += 1
        self.optimizer.shorten(fraction)

    @on_all_ranks
    async def logprobs(
        self, data: Sequence[Datum], *, reference: bool = False, written: Path | None = None
    ) -> list[tuple[float, ...]]:
        """Return the log-probability of each token of each completion; see `Trainer`.

        Args:
            data: prompts and completions.
            reference: whether to use the reference instead of the present weights.
            written: folder with the weights to use instead of either; None: as `reference` says.
        """
        in_place = self.weights.reference if reference else self.weights.active
        if written is not None:
            self.weights.read_written(written)
            in_place = self.weights.written
        whole = [replace(datum, weights=(1.0,) * len(datum.completion_ids)) for datum in data]
        places = {id(datum): place for place, datum in enumerate(whole)}
        values: list[tuple[float, ...]] = [()] * len(data)

        def run(budget: int) -> None:
            batches, own = micro_batches(bundle_by_prompt(whole), budget), dict[int, tuple[float, ...]]()
            for turn in self.processes.turns(len(batches)):
                batch = batches[turn.own]
                packed = self.weights.packed([bundle for bundle, _ in batch])
                rows = self._rows([datum for _, some in batch for datum in some])
                with torch.no_grad(), in_place():
                    found_M = self._scores(*self.weights.completion_hidden(packed), rows).logprobs_M
                parts = found_M.split([len(datum.completion_ids) for datum in rows.data])
                for datum, part in zip(rows.data, parts, strict=True):
                    own[places[id(datum)]] = tuple(part.tolist())
                advance(tokens=packed.tokens, items=len(rows.data))
            for found in self.processes.gathered(own):
                for place, value in found.items():
                    values[place] = value

        with blocking():
            self._within_memory(run)
        return values

    @on_all_ranks
    async def anchor(self, moments: Moments) -> None:
        """Make the present weights the reference, and reset the moments that are not kept. See `Trainer`."""
        self.optimizer.keep(moments)
        self.weights.anchor()

    @on_all_ranks
    async def publish(self) -> int:
        """Increase the version; the sampler already uses the trained weights. See `Trainer`."""
        self._moved = None
        self.weights.version += 1
        return self.weights.version

    def fill(self, other: LocalModel | None = None) -> None:
        """Copy the weights of all processes into a whole model of rank 0, which samples with them.

        Args:
            other: the model; None in the other processes.
        """
        self.processes.broadcast(Call(self.name, "fill", (), {}))
        with torch.no_grad():
            self.weights.fill(other)

    @on_all_ranks
    async def save(self, folder: Path) -> None:
        """Write weights, reference, optimizer and version to a folder; rank 0 writes, others send shards."""
        if self.processes.rank and not self.weights.model.sharded:
            return
        self.weights.save(folder)
        self.optimizer.save(folder)
        if self.processes.rank:
            return
        write_version(folder, self.weights.version)

    @on_all_ranks
    async def load(self, folder: Path) -> None:
        """Restore the state that `save` wrote; old checkpoints without a version get version 0."""
        self.changes += 1
        self.weights.load(folder)
        self.optimizer.load(folder)
        self.weights.version = read_version(folder)

    def _within_memory(self, run: Callable[[int], None], forget: Callable[[], None] = lambda: None) -> None:
        if self.processes.size > 1:  # all of them have as many pieces
            run(self.weights.tokens_per_microbatch)
            return
        within_memory(self.weights.model.device, self.weights.tokens_per_microbatch, run, forget)

    def _measured(self, batches: Sequence[Sequence[Piece]], objective: Objective, tokens: int) -> int | None:
        """Return the index of the micro-batch on which to measure an unweighted k3; None: on none."""
        if objective.kl != "k3" or objective.kl_coefficient or not self.weights.has_reference:
            return None
        sampled = [
            i for i, batch in enumerate(batches) if any(d.is_policy_gradient for _, own in batch for d in own)
        ]
        return random.Random(tokens).choice(sampled) if sampled else None

    def _backward(
        self,
        turn: Turn,
        batches: Sequence[Sequence[Piece]],
        objective: Objective,
        tokens: int,
        measured: int | None,
        most: int,
    ) -> dict[str, Tensor]:
        """Run a micro-batch forward and backward; return its share of the metrics, as tensors on the device.

        Args:
            turn: this process's micro-batch, and those of the other processes at the same time.
            batches: all micro-batches.
            objective: bounds and terms of the loss.
            tokens: number of tokens with a nonzero weight in the whole step.
            measured: index of the micro-batch on which k3 is measured although it has no weight.
            most: maximum tokens of that measurement if tokens are laid out as a tree, as such micro-batches
                are large.
        """
        batch = batches[turn.own]
        packed = self.weights.packed([bundle for bundle, _ in batch])
        rows = self._rows([datum for _, own in batch for datum in own])
        values = Tokens.of(rows.data, self.weights.model.device)
        measure_kl = turn.own == measured
        exact = objective.kl == "exact" and objective.kl_coefficient > 0
        wants_k3 = (
            objective.kl == "k3" and (objective.kl_coefficient > 0 or measure_kl) and values.loss is not None
        )
        apart = measure_kl and isinstance(packed, TokenTree)
        reference_M, reference = None, None
        if exact or (not apart and self._any_k3(turn, batches, objective, measured)):
            with torch.no_grad(), self.weights.reference():
                hidden_MW, tokens_M = rows.chosen(*self.weights.completion_hidden(packed))
                reference_M = self._scores(hidden_MW, tokens_M, rows).logprobs_M if wants_k3 else None
                reference = (self.weights.frozen_head(), hidden_MW) if exact else None
        with self.weights.active():
            hidden_MW, tokens_M = rows.chosen(*self.weights.completion_hidden(packed))
            scores = self._scores(
                hidden_MW,
                tokens_M,
                rows,
                reference=reference,
                entropy=objective.entropy_coefficient > 0 and values.loss is not None,
            )
            loss, sums = token_losses(scores.logprobs_M, values, objective, reference_M, scores.entropy_M)
            kl = None if scores.kl_M is None else (scores.kl_M * (1.0 / tokens)).sum()
            if kl is not None:
                loss = loss + objective.kl_coefficient * kl
            (loss if turn.counts else 0.0 * loss).backward()
        if not turn.counts:
            return {}
        if kl is not None:
            sums["kl"] = kl.detach()
        elif apart:
            sums |= self._kl_of_some(batch, scores.logprobs_M.detach(), most, tokens)
        elif measure_kl:
            sums["kl"] = sums["kl"] / values.weight_M.masked_fill(values.nll_M, 0.0).sum()
        elif objective.kl == "k3" and objective.kl_coefficient:
            sums.setdefault("kl", torch.zeros(()))
        advance(tokens=packed.tokens, items=len(rows.data))
        return {"loss": loss.detach(), **sums}

    def _kl_of_some(
        self, batch: Sequence[Piece], logprobs_M: Tensor, most: int, seed: int
    ) -> dict[str, Tensor]:
        """Measure the mean k3 on some rollouts of one prompt, about `most` tokens (`sample_of`).

        Args:
            batch: a micro-batch with policy-gradient data.
            logprobs_M: log-probabilities of the whole micro-batch under the present weights.
            most: maximum tokens.
            seed: of the choice of the prompt.

        Returns:
            `kl`; nothing if the prompt leaves no room for a part of a rollout.
        """
        whole = [datum for _, own in batch for datum in own]
        own = random.Random(seed).choice([own for _, own in batch if any(d.is_policy_gradient for d in own)])
        some = sample_of(own, most)
        if not sum(datum.tokens for datum in some):
            return {}
        first = next(datum for datum in own if datum.is_policy_gradient)
        start = sum(d.tokens for d in itertools.takewhile(lambda d: d is not first, whole))
        packed = self.weights.packed([bundle for bundle, _ in bundle_by_prompt(some)])
        rows = self._rows(some)
        with torch.no_grad(), self.weights.reference():
            reference_M = self._scores(*rows.chosen(*self.weights.completion_hidden(packed)), rows).logprobs_M
        weight_M = Tokens.of(some, self.weights.model.device).weight_M
        kl_M = k3(logprobs_M[start : start + len(reference_M)], reference_M)
        return {"kl": (kl_M * weight_M).sum() / weight_M.sum()}

    @staticmethod
    def _any_k3(
        turn: Turn, batches: Sequence[Sequence[Piece]], objective: Objective, measured: int | None
    ) -> bool:
        """Return whether any process needs the reference; all must then run it, as each holds a shard."""
        if objective.kl != "k3" or not (objective.kl_coefficient > 0 or measured in turn.all):
            return False
        return any(d.is_policy_gradient for index in turn.all for _, own in batches[index] for d in own)

    def _scores(
        self,
        hidden_MW: Tensor,
        tokens_M: Tensor,
        rows: _Rows,
        *,
        reference: tuple[Callable[[Tensor], Tensor], Tensor] | None = None,
        entropy: bool = False,
    ) -> Scores:
        """Return log-probabilities, exact KL and entropy of tokens, each at its datum's temperature."""
        parts: list[Scores] = []
        for temperature, at_M in rows.by_kind:
            own, ids = (_at(at_M, x) for x in (hidden_MW, tokens_M))
            other = None if reference is None else (reference[0], _at(at_M, reference[1]))
            allowed = None if rows.allowed is None else _at(at_M, rows.allowed)
            options = {"temperature": temperature, "allowed": allowed, "entropy": entropy}
            parts.append(self.weights.token_scores(own, ids, other, **options))
        if len(parts) == 1:
            return parts[0]
        logprobs, kls, entropies = zip(*parts, strict=True)
        return Scores(
            torch.cat(logprobs)[rows.back_M],
            None if reference is None else torch.cat(kls)[rows.back_M],
            torch.cat(entropies)[rows.back_M] if entropy else None,
        )

    def _rows(self, data: Sequence[Datum]) -> _Rows:
        """The tokens of data that count."""
        device = self.weights.model.device
        counts_M = np.concatenate([np.asarray(datum.weights) > 0 for datum in data])
        chosen_M = None if counts_M.all() else on_device(counts_M.nonzero()[0], device)
        kinds = sorted({_kind(datum) for datum in data if datum.tokens})
        of_data = [kinds.index(_kind(datum)) if datum.tokens else 0 for datum in data]
        kind_M = np.repeat(of_data, [datum.tokens for datum in data])
        masks = self._allowed(data)
        return _Rows(
            data=data,
            chosen_M=chosen_M,
            allowed=masks if masks is None else _at(chosen_M, masks),
            by_kind=[
                (temperature, None if len(kinds) == 1 else on_device((kind_M == i).nonzero()[0], device))
                for i, (_, temperature) in enumerate(kinds)
            ],
        )

    def _allowed(self, data: Sequence[Datum]) -> Tensor | None:
        """Return [M, ceil(V / 32)] bit masks of the tokens that could be sampled; None: all could."""
        if all(datum.schema is None and not datum.choices for datum in data):
            return None
        grammars = self.weights.model.grammars
        masks = [
            grammars.among(datum.choices, datum.completion_ids)
            if datum.schema is None
            else grammars.along(datum.schema, datum.completion_ids)
            for datum in data
        ]
        return torch.cat(masks).to(self.weights.model.device)


METHODS_ON_ALL_RANKS.add(LocalTrainer.fill.__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The tokens of a micro-batch with a nonzero weight, with the masks and temperatures to score them."""

    data: Sequence[Datum]
    chosen_M: Tensor | None
    """Indices of these tokens among all completion tokens; None: all tokens have a nonzero weight."""
    allowed: Tensor | None
    """[M, ceil(V / 32)] bit masks of the tokens that the grammars allow; None: all are allowed."""
    by_kind: Sequence[tuple[float, Tensor | None]]
    """One entry per kind of loss and temperature: the temperature, and the indices of its tokens; None:
    all."""

    def chosen(self, hidden_MW: Tensor, tokens_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states and tokens with a nonzero weight, out of those of all completions."""
        return _at(self.chosen_M, hidden_MW), _at(self.chosen_M, tokens_M)

    @property
    def back_M(self) -> Tensor:
        """The permutation that restores the order of tokens after they were scored by temperature."""
        return torch.cat([at_M for _, at_M in self.by_kind if at_M is not None]).argsort()


def _kind(datum: Datum) -> tuple[bool, float]:
    """Return the key by which data are grouped for scoring: whether the loss is `nll`, and temperature."""
    return not datum.is_policy_gradient, datum.temperature


def _at(at_M: Tensor | None, x: Tensor) -> Tensor:
    return x if at_M is None else x.index_select(0, at_M)


def _added(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Sum the metrics of all micro-batches by name; only here does an update wait for its GPU."""
    named = [(name, value) for part in parts for name, value in part.items()]
    if not named:
        return {}
    values = torch.stack([value.to(named[0][1].device, torch.float32) for _, value in named]).tolist()
    sums: dict[str, float] = {}
    for (name, _), value in zip(named, values, strict=True):
        sums[name] = sums.get(name, 0.0) + value
    return sums
