# pyright: standard
"""The base that is served: one model, an adapter for each client that learns, some that are only sampled."""

from __future__ import annotations

import itertools
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from genenv.backends.local import hardware, loading
from genenv.backends.local.arithmetic import settled
from genenv.backends.local.model import LocalModel
from genenv.backends.local.served.drawing import DrawingSampler
from genenv.backends.local.served.learner import Learner
from genenv.backends.local.served.weights import ServedWeights
from genenv.backends.served import LORA_ALPHA, AdapterShape, Answered, Asked
from genenv.backends.settings import PolicyConfig
from genenv.errors import UsageError

IDLE = "idle"
"""An adapter that changes nothing: the bare base."""
_COPIES = 4
"""An adapter that learns takes so many times its weights: gradient and two moments."""
_SLOTS = 4
"""So many adapters are kept in memory for sampling alone."""


class ServedBase:
    """One base model, and the adapters on it."""

    def __init__(self, source: str, config: PolicyConfig) -> None:
        """Load a model.

        Raises:
            UsageError: it cannot be loaded or used here.
        """
        self.model = LocalModel(source, config)
        self._layers = _linear_layers(self.model.causal)
        self._numbers = itertools.count()
        self._shapes: dict[str, AdapterShape] = {}
        idle = AdapterShape(rank=1)
        self.model.add_adapter(IDLE, seed=0, lora=self._lora(idle))
        self._bare = ServedWeights(self.model, IDLE, idle, seed=0)
        self._slots: OrderedDict[Path, ServedWeights] = OrderedDict()
        self.settled = settled(config, self.model)
        """The settings with all decided that changes the last digits of what is computed."""

    @property
    def tokenizer_place(self) -> str:
        """The folder or the name of its tokenizer, as transformers understands it."""
        return loading.resolve(self.model.source)

    @property
    def context_tokens(self) -> int:
        """The longest sequence."""
        return self.model.context_tokens

    def learner(self, shape: AdapterShape, seed: int | None) -> Learner:
        """A fresh adapter that learns.

        Raises:
            UsageError: the model has no such layers, or there is no memory for it.
        """
        self._check_memory(shape, _COPIES)
        return Learner(self._adapter(shape, seed), shape)

    def drop(self, learner: Learner) -> None:
        """Let go of an adapter and its optimizer."""
        self._drop(learner.name)

    def answer(self, folder: Path | None, shape: AdapterShape, asked: Sequence[Asked]) -> list[Answered]:
        """Sample with an adapter that was written, or with the bare base.

        Raises:
            UsageError: a request cannot be answered.
            DataError: the folder is damaged, or of another model.
        """
        weights = self._bare if folder is None else self._slot(folder, shape)
        return DrawingSampler(weights).answer(asked)

    def check(self, asked: Asked) -> None:
        """Whether a request can be answered. Raises a UsageError that says why not."""
        DrawingSampler(self._bare).check(asked)

    def forget(self, folder: Path) -> None:
        """Let go of what was read from a folder."""
        if folder in self._slots:
            self._drop(str(self._slots.pop(folder).adapter))

    def _slot(self, folder: Path, shape: AdapterShape) -> ServedWeights:
        if folder in self._slots:
            self._slots.move_to_end(folder)
            return self._slots[folder]
        weights: ServedWeights | None = None
        if len(self._slots) >= _SLOTS:
            _, oldest = self._slots.popitem(last=False)
            if self._shapes[str(oldest.adapter)] == shape:
                weights = oldest
            else:
                self._drop(str(oldest.adapter))
        if weights is None:
            self._check_memory(shape, 1)
            weights = self._adapter(shape, 0)
        try:
            weights.load(folder)
        except BaseException:
            self._drop(str(weights.adapter))
            raise
        self._slots[folder] = weights
        return weights

    def _adapter(self, shape: AdapterShape, seed: int | None) -> ServedWeights:
        name = f"served{next(self._numbers)}"
        own = secrets.randbits(31) if seed is None else seed % 2**31
        self.model.add_adapter(name, seed=own, lora=self._lora(shape))
        self._shapes[name] = shape
        return ServedWeights(self.model, name, shape, own)

    def _drop(self, name: str) -> None:
        self.model.drop_adapter(name, instead=IDLE)
        del self._shapes[name]
        hardware.release_memory(self.model.device)

    def _lora(self, shape: AdapterShape) -> PolicyConfig:
        targets = "all-linear" if shape.mlp and shape.attention else ",".join(sorted(self._names(shape)))
        if not targets:
            raise UsageError(
                f"{self.model.source} has no layers that are known to be "
                f"{'of attention' if shape.attention else 'of its MLPs'}; train both, or neither alone"
            )
        return self.model.config.model_copy(
            update={"lora_rank": shape.rank, "lora_alpha": LORA_ALPHA, "lora_targets": targets}
        )

    def _names(self, shape: AdapterShape) -> set[str]:
        return {
            path.rpartition(".")[2]
            for path in self._layers
            if (shape.mlp and _is_of(path, "mlp", "feed_forward", "ffn"))
            or (shape.attention and _is_of(path, "attn", "attention"))
        }

    def _check_memory(self, shape: AdapterShape, copies: int) -> None:
        names = None if shape.mlp and shape.attention else self._names(shape)
        numbers = sum(
            shape.rank * width
            for path, width in self._layers.items()
            if names is None or path.rpartition(".")[2] in names
        )
        numbers += shape.rank * sum(self.model.output.weight.shape) if shape.unembed else 0
        wanted, free = 4 * copies * numbers, hardware.free_bytes(self.model.device)
        if wanted > free:
            raise UsageError(
                f"an adapter of rank {shape.rank} takes {wanted / 2**30:.1f} GiB to learn, and "
                f"{free / 2**30:.1f} GiB are free; take a smaller rank, or end other clients"
            )


def _linear_layers(causal: Any) -> dict[str, int]:  # noqa: ANN401
    """Inputs plus outputs of the linear layers in between, by their paths."""
    end = causal.get_output_embeddings()
    return {
        path: module.in_features + module.out_features
        for path, module in causal.named_modules()
        if isinstance(module, nn.Linear) and module is not end
    }


def _is_of(path: str, *parts: str) -> bool:
    return any(part in piece for piece in path.split(".")[:-1] for part in parts)
