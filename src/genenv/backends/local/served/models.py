# pyright: standard
"""One base model on this machine with many adapters, which clients train or load from folders."""

from __future__ import annotations

import itertools
import json
import math
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from genenv.backends.local import hardware, loading
from genenv.backends.local.model import LocalModel, settled_config
from genenv.backends.local.policy_weights import PolicyWeights, ServedWeights
from genenv.backends.local.sampler import LocalSampler
from genenv.backends.local.served.learner import Learner
from genenv.backends.local.served.sampling import ServedSampler
from genenv.backends.served import LORA_ALPHA, AdapterShape, PromptRequest, PromptResult
from genenv.backends.settings import PolicyConfig
from genenv.chat.format import ChatFormat
from genenv.errors import DataError, UsageError
from genenv.sampling import Completion, SampleRequest

_IDLE = "idle"
"""Name of an untrained adapter, which does not change the base."""
_COPIES = 4
"""Memory of an adapter in training, relative to its weights: weights, gradient and two moments."""
_SLOTS = 4
"""Maximum number of saved adapters kept in memory for sampling."""
_MOST = 256
"""Maximum number of adapters loaded from folders at a time."""
_RANKS = range(1, 1025)


class _AdapterBase:
    """A base model on which adapters are attached and removed; base class of the two servers' models."""

    def __init__(self, source: str, config: PolicyConfig) -> None:
        """Load a model.

        Raises:
            UsageError: the model cannot be loaded or used on this machine.
        """
        self.model = LocalModel(source, config)
        self._numbers = itertools.count()

    @property
    def context_tokens(self) -> int:
        """The longest sequence, in tokens."""
        return self.model.context_tokens

    def _attach(self, lora: PolicyConfig, seed: int = 0) -> str:
        """Attach a fresh adapter; return its internal name, as clients may choose any names."""
        name = f"served{next(self._numbers)}"
        self.model.add_adapter(name, seed=seed, lora=lora)
        return name

    def _drop(self, name: str) -> None:
        self.model.drop_adapter(name, instead=_IDLE)
        hardware.release_memory(self.model.device)


class ServedBase(_AdapterBase):
    """A base model on which each client trains an adapter and samples with it (`genenv tinker-server`)."""

    def __init__(self, source: str, config: PolicyConfig) -> None:
        """Load a model.

        Raises:
            UsageError: the model cannot be loaded or used on this machine.
        """
        super().__init__(source, config)
        self._layers = _linear_layers(self.model.causal)
        idle = AdapterShape(rank=1)
        self.model.add_adapter(_IDLE, seed=0, lora=self._lora(idle))
        self._bare = ServedWeights(self.model, _IDLE, idle, seed=0)
        self._slots: OrderedDict[Path, ServedWeights] = OrderedDict()
        self.settled = settled_config(config, self.model)
        """The settings, with every automatic choice that affects the last digits of results replaced by its
        value."""

    @property
    def tokenizer_place(self) -> str:
        """The folder or name of its tokenizer, for transformers."""
        return loading.resolve(self.model.source)

    def learner(self, shape: AdapterShape, seed: int | None) -> Learner:
        """Attach a fresh adapter and return its trainer.

        Raises:
            UsageError: the model has no such layers, or the memory is too small.
        """
        self._check_memory(shape, _COPIES)
        return Learner(self._adapter(shape, seed))

    def drop(self, learner: Learner) -> None:
        """Free an adapter and its optimizer."""
        self._drop(learner.name)

    def answer(
        self, folder: Path | None, shape: AdapterShape, prompts: Sequence[PromptRequest]
    ) -> list[PromptResult]:
        """Sample with a saved adapter, or with the base if `folder` is None.

        Raises:
            UsageError: a request cannot be answered.
            DataError: the folder is damaged, or of another model.
        """
        weights = self._bare if folder is None else self._slot(folder, shape)
        return ServedSampler(weights).answer(prompts)

    def check(self, request: PromptRequest) -> None:
        """Raise a UsageError with the reason if a request cannot be answered."""
        ServedSampler(self._bare).check(request)

    def forget(self, folder: Path) -> None:
        """Free the adapter that was loaded from a folder."""
        if folder in self._slots:
            self._drop(str(self._slots.pop(folder).adapter))

    def _slot(self, folder: Path, shape: AdapterShape) -> ServedWeights:
        if folder in self._slots:
            self._slots.move_to_end(folder)
            return self._slots[folder]
        weights: ServedWeights | None = None
        if len(self._slots) >= _SLOTS:
            _, oldest = self._slots.popitem(last=False)
            if oldest.shape == shape:
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
        own = secrets.randbits(31) if seed is None else seed % 2**31
        return ServedWeights(self.model, self._attach(self._lora(shape), own), shape, own)

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


class LoadedBase(_AdapterBase):
    """A base model that samples with adapters from folders, which others train (`genenv serve`)."""

    def __init__(self, source: str, config: PolicyConfig) -> None:
        """Load a model.

        Raises:
            UsageError: the model cannot be loaded or used on this machine.
        """
        super().__init__(source, config)
        self.model.add_adapter(_IDLE, seed=0, lora=config.model_copy(update={"lora_rank": 1}))
        self._by_name: dict[str, PolicyWeights] = {}

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the loaded adapters."""
        return tuple(self._by_name)

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary."""
        return self.model.vocabulary

    @property
    def chat(self) -> ChatFormat:
        """The chat format, which has the tokens that end a reply."""
        return self.model.chat

    def load(self, name: str, folder: Path) -> None:
        """Load an adapter in PEFT's format; it replaces one of the same name, unless it is refused.

        Raises:
            UsageError: the folder holds no adapter, it does not fit the base, or too many are loaded.
        """
        if name not in self._by_name and len(self._by_name) >= _MOST:
            raise UsageError(f"there are {_MOST} adapters, as many as there may be; unload some")
        settings = _settings(folder)
        self._check_targets(str(settings["lora_targets"]))
        inner = self._attach(self.model.config.model_copy(update=settings))
        weights = PolicyWeights(self.model, inner)
        try:
            weights.load(folder, reference=False)
        except DataError as error:
            self._drop(inner)
            raise UsageError(str(error)) from error
        self.unload(name)
        self._by_name[name] = weights

    def unload(self, name: str) -> bool:
        """Free an adapter; return whether it was loaded."""
        weights = self._by_name.pop(name, None)
        if weights is None:
            return False
        self._drop(str(weights.adapter))
        return True

    def _check_targets(self, targets: str) -> None:
        """Refuse an adapter of embeddings or output layer, before the model is changed.

        Raises:
            UsageError: the adapter has such targets.
        """
        ends = (self.model.causal.get_input_embeddings(), self.model.causal.get_output_embeddings())
        names = [path for path, module in self.model.causal.named_modules() if module in ends]
        wanted = [target.strip() for target in targets.split(",")]
        if any(path == one or path.endswith(f".{one}") for path in names for one in wanted):
            raise UsageError(
                f"an adapter of {targets} has embeddings or the output layer, which stay as they are"
            )

    def sample(self, name: str, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Answer requests with an adapter, as one batch.

        Raises:
            UsageError: no adapter of this name is loaded.
        """
        if name not in self._by_name:
            raise UsageError(f"there is no adapter {name!r}")
        return LocalSampler(self._by_name[name]).sample_all(requests)


def _linear_layers(causal: Any) -> dict[str, int]:  # noqa: ANN401
    """Return inputs plus outputs of each linear layer but the output layer, by path."""
    end = causal.get_output_embeddings()
    return {
        path: module.in_features + module.out_features
        for path, module in causal.named_modules()
        if isinstance(module, nn.Linear) and module is not end
    }


def _is_of(path: str, *parts: str) -> bool:
    return any(part in piece for piece in path.split(".")[:-1] for part in parts)


def _settings(folder: Path) -> dict[str, object]:
    """Read an adapter's rank, alpha and targets from its settings file, as settings of the policies.

    Raises:
        UsageError: the file is missing or damaged, or the adapter is not a LoRA adapter.
    """
    file = folder / "adapter_config.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        targets = found["target_modules"]
        stacked = found.get("target_parameters") or []
        named = targets if isinstance(targets, str) else ",".join(sorted(map(str, [*targets, *stacked])))
        rank, alpha = int(found["r"]), float(found["lora_alpha"])
        if rank not in _RANKS or not math.isfinite(alpha):
            raise ValueError(f"rank {rank} and lora_alpha {alpha}")
        return {"lora_rank": rank, "lora_alpha": alpha, "lora_targets": named}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UsageError(f"{file} is no file of a LoRA adapter: {type(error).__name__}: {error}") from error
