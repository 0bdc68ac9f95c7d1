# pyright: standard
"""Training of one client's adapter: losses summed over tokens, as the Tinker protocol defines them.

The formulas are `genenv.algorithms.losses.WIRE_LOSSES`. `logprobs` are those of the policy that sampled. In
all losses but `cross_entropy`, `weights` and `mask` are optional factors. Log-ratios are not bounded, as
Thinking Machines documents for Tinker.

Shapes: N = tokens of the flat row, M = targets, U = distinct targets, W = width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from genenv.algorithms.losses import CLIP, WIRE_LOSSES, LossTerms
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.local.attention import Layout
from genenv.backends.local.optimizer import Optimizer
from genenv.backends.local.packing import Bundle, Packed, micro_batches, within_memory
from genenv.backends.local.policy_weights import ServedWeights
from genenv.backends.served import AdamParams, Example, ForwardResult, Loss, Numbers
from genenv.errors import UsageError, unknown_name

_OF_SAMPLES = ("advantages", "logprobs")
_FACTORS = ("weights", "mask")


class Learner:
    """Trains one adapter for a client of the Tinker server."""

    def __init__(self, weights: ServedWeights) -> None:
        self.weights = weights
        self.optimizer = Optimizer(
            [(name.replace(f".{weights.adapter}.", ".adapter."), own) for name, own in weights.parameters()],
            OptimizerConfig(),  # every step states its hyperparameters
        )

    @property
    def name(self) -> str:
        """The adapter's name."""
        return str(self.weights.adapter)

    def forward(self, examples: Sequence[Example], loss: Loss, *, backward: bool) -> ForwardResult:
        """Score examples; with `backward`, also accumulate the gradient of the loss.

        Raises:
            UsageError: an example does not fit the model or the loss, or the loss is not finite. The
                accumulated gradient is then unchanged.
        """
        config = checked(loss)
        self._check(examples, loss)
        rows = [_Row(place, one, counting(one, loss)) for place, one in enumerate(examples)]
        logprobs: list[Numbers] = [np.empty(0, np.float32)] * len(rows)
        losses: list[Numbers] = [np.zeros(one.targets.shape, np.float32) for one in examples]

        def run(tokens: int) -> None:
            for batch in micro_batches(_bundled(rows), tokens):
                own = [row for _, part in batch for row in part]
                terms = Terms(loss.name, config, self.weights.model.device)
                found, lost = self._batch(batch, own, terms, backward=backward)
                for row, values, terms_M in zip(own, found, lost, strict=True):
                    logprobs[row.place] = values
                    losses[row.place][row.counts] = terms_M

        model = self.weights.model
        with self.optimizer.adding():
            within_memory(model.device, model.tokens_per_microbatch, run, self.optimizer.clear)
        total = math.fsum(float(values.sum(dtype=np.float64)) for values in losses)
        return ForwardResult(loss=total, logprobs=logprobs, losses=losses)

    def divide(self, by: int) -> None:
        """Divide the accumulated gradient by a number."""
        for parameter in self.optimizer.parameters:
            if parameter.grad is not None and by != 1:
                parameter.grad /= by

    def step(self, adam: AdamParams) -> float:
        """Make one step of AdamW; return the norm of the gradient. See `Optimizer.apply`."""
        return self.optimizer.apply(adam)

    def save(self, folder: Path) -> None:
        """Write the adapter and the optimizer's moments; the accumulated gradient is not saved."""
        self.weights.save(folder)
        self.optimizer.save(folder)

    def save_adapter(self, folder: Path) -> None:
        """Write only the adapter, for samplers."""
        self.weights.save(folder)

    def load(self, folder: Path, *, optimizer: bool) -> None:
        """Restore a saved adapter, with its moments or with zero moments.

        Raises:
            DataError: the folder is damaged, or of another model or shape.
        """
        self.weights.load(folder)
        self.optimizer.clear()
        self.optimizer.keep("none")
        if optimizer:
            self.optimizer.load(folder)

    def _check(self, examples: Sequence[Example], loss: Loss) -> None:
        model = self.weights.model
        if not examples:
            raise UsageError("there are no data")
        for place, one in enumerate(examples):
            check_example(one, loss, place)
            if len(one.ids) > model.context_tokens:
                raise UsageError(
                    f"datum {place} has {len(one.ids)} tokens, which pass the context window of "
                    f"{model.context_tokens}"
                )
            largest = max(max(one.ids), int(one.targets.max()))
            if largest >= model.vocabulary or min(min(one.ids), int(one.targets.min())) < 0:
                raise UsageError(
                    f"datum {place} holds a token outside of the vocabulary, 0 to {model.vocabulary - 1}"
                )

    def _batch(
        self,
        batch: Sequence[tuple[Bundle, Sequence[_Row]]],
        rows: Sequence[_Row],
        terms: Terms,
        *,
        backward: bool,
    ) -> tuple[list[Numbers], list[Numbers]]:
        """Return log-probabilities of a micro-batch's targets, and the losses of those with a gradient."""
        model = self.weights.model
        packed = Packed([bundle for bundle, _ in batch], model.device)
        at_M, ids_M = _places(packed, batch)
        for row in rows:
            terms.add(row.example, row.counts)
        counts_M = torch.from_numpy(np.concatenate([row.counts.reshape(-1) for row in rows]))
        learns = backward and bool(counts_M.any())
        with torch.set_grad_enabled(learns), self.weights.active():
            hidden_NW = model.hidden(packed.ids_1N, packed.positions_1N, Layout(packed=packed))
            logprobs_M, counted_M = self._logprobs(hidden_NW, at_M, ids_M, counts_M.to(model.device))
            losses_M = terms.losses(counted_M)
            total = losses_M.sum()
            if not torch.isfinite(total):
                raise UsageError(
                    f"the loss {terms.name} is not finite; its gradient is left out. Ratios of probabilities "
                    "pass all bounds where logprobs are not those of the sampled tokens"
                )
            if learns:
                total.backward()
        lengths = [int(row.counts.sum()) for row in rows]
        lost = [part.numpy() for part in losses_M.detach().cpu().split(lengths)]
        parts = logprobs_M.cpu().split([row.counts.size for row in rows])
        return [part.numpy().reshape(row.counts.shape) for part, row in zip(parts, rows, strict=True)], lost

    def _logprobs(
        self, hidden_NW: Tensor, at_M: Tensor, ids_M: Tensor, counts_M: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return [M] log-probabilities of all targets without gradient, and of counted ones with gradient.

        Equal targets at the same place are scored once.
        """
        vocabulary = self.weights.model.vocabulary
        which_U, of_M = torch.unique(at_M * vocabulary + ids_M, return_inverse=True)
        learned_U = torch.zeros(len(which_U), dtype=torch.bool, device=of_M.device)
        learned_U[of_M[counts_M]] = True
        all_U = torch.empty(len(which_U), dtype=torch.float32, device=of_M.device)

        def scored(which: Tensor) -> Tensor:
            states = hidden_NW.index_select(0, which // vocabulary)
            return self.weights.token_scores(states, which % vocabulary).logprobs_M

        own = scored(which_U[learned_U])
        all_U[learned_U] = own.detach().float()
        with torch.no_grad():
            all_U[~learned_U] = scored(which_U[~learned_U]).float()
        place_U = learned_U.cumsum(0) - 1
        return all_U[of_M], own.index_select(0, place_U[of_M[counts_M]])


@dataclass(frozen=True, slots=True)
class _Row:
    """An example with its index and the targets that have a gradient."""

    place: int
    example: Example
    counts: np.ndarray
    """Mask of the targets that have a gradient."""

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens up to the first counted target, which other examples may share."""
        counted = np.flatnonzero(self.counts.reshape(len(self.example.ids), -1).sum(1))
        first = int(counted[0]) if counted.size else len(self.example.ids) - 1
        return self.example.ids[: first + 1]


def _bundled(rows: Sequence[_Row]) -> list[tuple[Bundle, list[_Row]]]:
    """Group examples by prompt."""
    by_prompt: dict[tuple[int, ...], list[_Row]] = {}
    for row in rows:
        by_prompt.setdefault(row.prompt, []).append(row)
    return [
        (Bundle(prompt_ids=prompt, completions=[row.example.ids[len(prompt) :] for row in own]), own)
        for prompt, own in by_prompt.items()
    ]


def _places(packed: Packed, batch: Sequence[tuple[Bundle, Sequence[_Row]]]) -> tuple[Tensor, Tensor]:
    """Return [M] the index in the flat row of each target's state, and [M] the target, row after row."""
    continued = iter(zip(packed.row_at_RC.tolist(), packed.row_real_RC.sum(1).tolist(), strict=True))
    places: list[int] = []
    for b, (bundle, rows) in enumerate(batch):
        of_prompt = packed.prompt_at_BP[b, : len(bundle.prompt_ids)].tolist()
        for row in rows:
            own = of_prompt
            if len(row.example.ids) > len(of_prompt):  # an empty completion has no row
                at, length = next(continued)
                own = own + at[:length]
            repeats = row.example.targets.size // len(own)
            places += own if repeats == 1 else [place for place in own for _ in range(repeats)]
    targets = np.concatenate([row.example.targets.reshape(-1) for _, rows in batch for row in rows])
    return torch.tensor(places, device=packed.device), torch.from_numpy(targets).to(packed.device)


def checked(loss: Loss) -> dict[str, float]:
    """Return the parameters of a loss, completed by default values.

    Raises:
        UsageError: the loss or a parameter is unknown, or a value is not finite.
    """
    if loss.name not in WIRE_LOSSES:
        raise unknown_name("loss", loss.name, WIRE_LOSSES)
    known = WIRE_LOSSES[loss.name].settings
    for name in loss.config:
        if name not in known:
            raise unknown_name(f"setting of the loss {loss.name}", name, known)
    config = {**known, **loss.config}
    if missing := [name for name, value in config.items() if not np.isfinite(value)]:
        raise UsageError(f"the loss {loss.name} needs a finite {missing[0]!r} in its loss_fn_config")
    return config


def check_example(example: Example, loss: Loss, place: int) -> None:
    """Check that an example has exactly the inputs that its loss reads.

    Raises:
        UsageError: an input is missing, unknown, of another shape or not finite; the message names it.
    """
    shape = example.targets.shape
    if shape[:1] != (len(example.ids),) or len(shape) > 2 or not example.targets.size:
        raise UsageError(
            f"datum {place}: target_tokens of shape {list(shape)} do not fit an input of {len(example.ids)} "
            "tokens; there is one (or one row) for each"
        )
    needed = () if loss.name == "cross_entropy" else _OF_SAMPLES
    for name in needed:
        if name not in example.inputs:
            raise UsageError(f"datum {place}: the loss {loss.name} needs {name!r} in loss_fn_inputs")
    known = {*needed, *_FACTORS, *(CLIP if WIRE_LOSSES[loss.name].settings is CLIP else ())}
    for name, values in example.inputs.items():
        if name not in known:
            raise unknown_name(f"input of the loss {loss.name} in datum {place}", name, known)
        if values.shape != shape:
            raise UsageError(
                f"datum {place}: {name} of shape {list(values.shape)} beside target_tokens of "
                f"{list(shape)}; the two must be equal"
            )
        counts = np.isfinite(values) if name != "logprobs" else np.isfinite(values) | ~counting(example, loss)
        if not counts.all():
            raise UsageError(f"datum {place}: {name} holds numbers that are not finite (NaN or infinity)")


def counting(example: Example, loss: Loss) -> np.ndarray:
    """Return the mask of targets that have a gradient."""
    if loss.name == "cross_entropy":
        return _factor(example) != 0
    counts = _factor(example) != 0
    return counts if loss.name == "dro" else counts & (example.inputs["advantages"] != 0)


def _factor(example: Example) -> Numbers:
    """Return the factor of each target's loss: the product of `weights` and `mask`."""
    factor = np.ones(example.targets.shape, dtype=np.float32)
    for name in _FACTORS:
        if name in example.inputs:
            factor = factor * example.inputs[name]
    return factor


class Terms:
    """Collects the inputs of a loss for the counted targets of a micro-batch, and computes it."""

    def __init__(self, name: str, config: Mapping[str, float], device: torch.device) -> None:
        self.name, self._config, self._device = name, config, device
        self._columns: dict[str, list[np.ndarray]] = {}

    def add(self, example: Example, counts: np.ndarray) -> None:
        """Add an example; `counts` is the mask of its counted targets."""
        columns: dict[str, Numbers] = {"factor": _factor(example)}
        if self.name != "cross_entropy":
            columns |= {name: example.inputs[name] for name in _OF_SAMPLES}
        columns |= {
            name: example.inputs.get(name, np.full(example.targets.shape, self._config[name], np.float32))
            for name in CLIP
            if name in self._config
        }
        for name, values in columns.items():
            self._columns.setdefault(name, []).append(values[counts])

    def losses(self, logprobs_M: Tensor) -> Tensor:
        """Return [M] the loss of each target."""
        column = {
            name: torch.from_numpy(np.concatenate(parts)).to(self._device)
            for name, parts in self._columns.items()
        }
        of_samples = self.name != "cross_entropy"
        terms = LossTerms(
            logprob=logprobs_M,
            old=column["logprobs"] if of_samples else None,
            advantage=column["advantages"] if of_samples else None,
            low=column.get("clip_low_threshold"),
            high=column.get("clip_high_threshold"),
            sequence_mean=lambda values_M: values_M,
            beta=self._config.get("beta", 0.0),
            bounded=False,
        )
        return WIRE_LOSSES[self.name].function(terms) * column["factor"]
