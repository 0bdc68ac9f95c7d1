# pyright: standard
"""LoRA adapters on a model: which weights get one, and how an adapter is saved and loaded.

`auto` adapts every linear layer between the embeddings and the output layer, and the stacked weights of
experts, as far as PEFT supports them. A weight's *kind* is its name without the layer number.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import safetensors.torch
import torch
from peft.tuners.tuners_utils import BaseTunerLayer, check_target_module_exists
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from transformers.pytorch_utils import Conv1D

from genenv.backends.local import loading
from genenv.backends.settings import ALL_LINEAR, AUTO_TARGETS, PolicyConfig
from genenv.errors import DataError, UsageError, unknown_name

log = logging.getLogger(__name__)

ADAPTER = "adapter_model.safetensors"

_STACKED = 3
"""Number of dimensions of stacked expert weights: [experts, inputs, outputs] or [experts, outputs,
inputs]."""
_WORTH_SAYING = 0.01
"""Minimum share of unadapted weights for a warning."""
_SHOWN = 4
"""Maximum number of kinds of weights that a warning names."""
_NUMBER = re.compile(r"\.\d+(?=\.)")
_LINEAR: dict[type, bool] = {nn.Linear: True, Conv1D: True}
"""Kind of a module -> whether it computes what a linear layer does (`_is_linear`)."""
_TAKEN: dict[tuple[type, type, str], bool] = {}
"""Kinds of a configuration and of a module, and a name -> whether PEFT adapts the weight (`_is_taken`)."""


def add_lora_adapter(causal: Any, name: str, config: PolicyConfig, wrapped: Any = None) -> Any:  # noqa: ANN401
    """Attach a fresh LoRA adapter to a model; return PEFT's wrapper of the model.

    Args:
        causal: the model, which is changed in place unless the settings are refused.
        name: of the adapter.
        config: states rank, scale and layers of the adapter.
        wrapped: the wrapper that the previous call returned; None for the first adapter.

    Raises:
        UsageError: the adapter settings do not fit this model.
    """
    targets = config.lora_targets
    layers, stacked = _resolved(causal, targets)
    settings = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type] - PEFT takes any number
        target_modules=layers,
        target_parameters=stacked or None,
        exclude_modules=_not_linear(causal) if targets == ALL_LINEAR else None,
        task_type="CAUSAL_LM",
    )
    try:
        with _quietly():
            if wrapped is not None:
                wrapped.add_adapter(name, settings)
                return wrapped
            wrapped = peft.get_peft_model(causal, settings, adapter_name=name)
    except ValueError as error:
        raise UsageError(f"policy.lora_targets = {targets!r} does not fit: {error}") from error
    _warn_of_unknown(causal, targets, wrapped.peft_config[name].target_modules)
    return wrapped


def linear_layers(causal: Any) -> dict[str, int]:  # noqa: ANN401
    """Return inputs plus outputs of each linear layer but the output layer, by path."""
    return {weight.path: sum(weight.widths) for weight in _weights(causal) if weight.is_layer}


def targets_in(causal: Any, settings: Mapping[str, Any]) -> str:  # noqa: ANN401
    """Return the layers and stacked weights that a settings file of PEFT selects, as `policy.lora_targets`.

    Raises:
        ValueError: it selects none.
    """
    names = ("exclude_modules", "layers_to_transform", "layers_pattern")
    others: dict[str, Any] = {name: settings.get(name) for name in names}
    selected = peft.LoraConfig(target_modules=settings.get("target_modules") or [], **others)
    weights = list(_weights(causal))
    layers = [weight.path for weight in weights if check_target_module_exists(selected, weight.path)]
    known = _endings(weight.name for weight in weights if not weight.is_layer)
    stacked = [name for name in settings.get("target_parameters") or [] if name in known]
    if not layers + stacked:
        raise ValueError("its target_modules are no layers of the base")
    return ",".join([*layers, *stacked])


def unadapted(causal: Any) -> dict[str, float]:  # noqa: ANN401
    """Return the kinds of weights without adapters and their shares of all layer weights, largest first.

    Embeddings, the output layer and vectors do not count.
    """
    adapted = {
        f"{_bare(path)}.{getattr(module, 'parameter_name', 'weight')}"
        for path, module in causal.named_modules()
        if isinstance(module, BaseTunerLayer)
    }
    found: Counter[str] = Counter()
    total = 0
    for weight in _weights(causal):
        total += weight.count
        if weight.name not in adapted:
            found[weight.kind.removesuffix(".weight")] += weight.count
    return {kind: count / total for kind, count in found.most_common()}


def unadapted_sentence(without: Mapping[str, float]) -> str | None:
    """Return a warning about weights without adapters; None if their share is tiny."""
    share = sum(without.values())
    if share < _WORTH_SAYING:
        return None
    shown = ", ".join(f"{kind} ({part:.1%})" for kind, part in [*without.items()][:_SHOWN])
    return (
        f"{share:.0%} of the weights in its layers get no adapter and stay as they are: {shown}"
        f"{', ...' if len(without) > _SHOWN else ''}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weight:
    """A weight matrix of a layer, or the stacked matrices of experts."""

    path: str
    """Name of the module that has the weight."""
    own: str
    """Name of the weight in that module."""
    module: nn.Module
    value: nn.Parameter

    @property
    def name(self) -> str:
        return f"{self.path}.{self.own}"

    @property
    def count(self) -> int:
        """Number of weights."""
        return math.prod(self.widths)

    @property
    def widths(self) -> tuple[int, ...]:
        """Shape of the weight; the tensor of a layer in 4 bits has another one."""
        if isinstance(self.module, nn.Linear) and self.own == "weight":
            return self.module.out_features, self.module.in_features
        return tuple(self.value.shape)

    @property
    def kind(self) -> str:
        """The name from the layer list on, without layer numbers."""
        return _NUMBER.sub(".*", self.name).rpartition(".*.")[2]

    @property
    def is_layer(self) -> bool:
        return self.own == "weight" and _is_linear(self.module)

    @property
    def is_layer_or_convolution(self) -> bool:
        return self.is_layer or isinstance(self.module, _ConvNd)

    @property
    def is_stacked(self) -> bool:
        shape = self.value.shape
        return len(shape) == _STACKED and min(shape[1:]) > 1 and not isinstance(self.module, _ConvNd)


@torch.no_grad()
def _is_linear(module: nn.Module) -> bool:
    """Return whether a module computes what a linear layer does; some routers of experts are subclasses."""
    kind = type(module)
    if isinstance(module, nn.Linear) and kind not in _LINEAR:
        own = module.weight
        one_row = torch.zeros(1, module.in_features, device=own.device)
        try:
            found = module(one_row.to(own.dtype) if own.is_floating_point() else one_row)
            _LINEAR[kind] = found.shape == (1, module.out_features)
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError):
            _LINEAR[kind] = False
    return _LINEAR.get(kind, False)


def _weights(causal: Any) -> Iterator[_Weight]:  # noqa: ANN401
    """Yield every weight between embeddings and output layer but vectors and adapters."""
    ends = (causal.get_input_embeddings(), causal.get_output_embeddings())
    for path, module in causal.named_modules():
        if ".lora_" in path or ".base_layer" in path:
            continue
        inner = module.get_base_layer() if isinstance(module, BaseTunerLayer) else module
        if inner in ends or isinstance(inner, nn.Embedding):
            continue
        for own, value in inner.named_parameters(recurse=False):
            if value.dim() > 1 and not own.endswith("bias"):
                yield _Weight(path=path, own=own, module=inner, value=value)


def _not_linear(causal: Any) -> list[str] | None:  # noqa: ANN401
    """Return the modules that PEFT takes for linear layers and that compute something else."""
    linear = [(path, own) for path, own in causal.named_modules() if isinstance(own, nn.Linear)]
    return [path for path, own in linear if not _is_linear(own)] or None


def _resolved(causal: Any, targets: str) -> tuple[str | list[str], list[str]]:  # noqa: ANN401
    """Return the names of layers and of stacked weights that a setting selects, as PEFT expects them.

    Raises:
        UsageError: a name selects what gets no adapter, or the setting is `auto` and PEFT supports no weight
            of the model.
    """
    if targets == ALL_LINEAR:
        return targets, []
    weights = list(_weights(causal))
    if targets != AUTO_TARGETS:
        return _named(causal, weights, targets)
    first = {weight.kind: weight for weight in reversed(weights) if weight.is_layer or weight.is_stacked}
    taken = {kind for kind, weight in first.items() if _is_taken_once(causal.config, weight)}
    layers = [weight.path for weight in weights if weight.is_layer and weight.kind in taken]
    stacked = sorted(kind for kind in taken if not first[kind].is_layer)
    if not taken:
        raise UsageError(
            f"policy.lora_targets = {targets!r} does not fit: PEFT adapts no layer of a "
            f"{type(causal).__name__}; use policy.tuning = 'full'"
        )
    return layers, stacked


def _named(causal: Any, weights: Sequence[_Weight], targets: str) -> tuple[list[str], list[str]]:  # noqa: ANN401
    """Return `_resolved` of names; PEFT knows more names than the model has, such as old ones of experts."""
    names = _names(targets)
    ends = (causal.get_input_embeddings(), causal.get_output_embeddings())
    if not _endings(path for path, module in causal.named_modules() if module in ends).isdisjoint(names):
        raise UsageError(
            f"policy.lora_targets = {targets!r} does not fit: embeddings and the output layer stay as "
            f"they are; name layers in between, or use {AUTO_TARGETS!r}"
        )
    refused = _endings(_not_linear(causal) or ())
    if wrong := [name for name in names if name in refused]:
        raise UsageError(f"policy.lora_targets = {targets!r} does not fit: {_unknown(weights, wrong[0])}")
    stacked = _endings(weight.name for weight in weights if not weight.is_layer)
    return [name for name in names if name not in stacked], [name for name in names if name in stacked]


def _names(targets: str) -> list[str]:
    return [name.strip() for name in targets.rstrip(", ").split(",")]


def _unknown(weights: Sequence[_Weight], name: str) -> UsageError:
    known = {weight.path.rpartition(".")[2] for weight in weights if weight.is_layer_or_convolution}
    return unknown_name("layer", name, known | {weight.kind for weight in weights if weight.is_stacked})


def _warn_of_unknown(causal: Any, targets: str, selected: Iterable[str]) -> None:  # noqa: ANN401
    """Log the names that PEFT, which has replaced old names of experts, found nowhere."""
    weights = list(_weights(causal))
    layers = _endings(weight.path for weight in weights if weight.is_layer_or_convolution)
    for name in sorted({*selected}.intersection(_names(targets)) - layers):
        log.warning("policy.lora_targets = %r: %s", targets, _unknown(weights, name))


def _endings(paths: Iterable[str]) -> set[str]:
    """Return the names by which PEFT finds modules or weights: the ends of their paths from a dot on."""
    parts = (path.split(".") for path in paths)
    return {".".join(own[start:]) for own in parts for start in range(len(own))}


def _is_taken_once(config: Any, weight: _Weight) -> bool:  # noqa: ANN401
    """Return `_is_taken`, which is tried once for the weights of a name in a kind of model."""
    key = type(config), type(weight.module), _NUMBER.sub(".*", weight.name)
    if key not in _TAKEN:
        _TAKEN[key] = _is_taken(config, weight)
    return _TAKEN[key]


def _is_taken(config: Any, weight: _Weight) -> bool:  # noqa: ANN401
    """Return whether PEFT can attach two adapters to a weight, tried on a model that has only this weight."""
    alone = nn.Module()
    alone.config = config
    *parents, last = weight.path.split(".")
    parent = alone
    for name in parents:
        parent.add_module(name, nn.Module())
        parent = parent.get_submodule(name)
    parent.add_module(last, weight.module)
    settings = peft.LoraConfig(
        r=1,
        target_modules=[weight.path] if weight.is_layer else [],
        target_parameters=None if weight.is_layer else [weight.name],
    )
    try:
        with warnings.catch_warnings(action="ignore"), torch.random.fork_rng(devices=[]):
            for name in ("one", "other"):
                peft.inject_adapter_in_model(copy.copy(settings), alone, name)
    except ValueError:
        return False
    # PEFT may match the name to another weight, as for layers that are named like experts.
    return isinstance(alone.get_submodule(weight.path), BaseTunerLayer)


def _bare(path: str) -> str:
    return path.replace(".base_layer", "")


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Context manager: suppress irrelevant warnings of PEFT."""
    with warnings.catch_warnings():
        # PEFT uses names that transformers will rename.
        warnings.simplefilter("ignore", FutureWarning)
        # PEFT has patterns for architectures, some of which are for other weight layouts.
        warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern keys")
        # PEFT detects by itself that a layer's weights are transposed (GPT-2).
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
        yield


def save_adapter(model: Any, name: str, folder: Path, other_inputs: Sequence[str] = ()) -> None:  # noqa: ANN401
    """Write an adapter in PEFT's format: its settings, and its weights as safetensors.

    Args:
        model: the PEFT model.
        name: the adapter's name in the model.
        folder: where the two files are written.
        other_inputs: modules that the original model has and this one does not.
    """
    model.peft_config[name].save_pretrained(str(folder))
    _complete(folder / "adapter_config.json", other_inputs)
    state = {key: value.contiguous() for key, value in adapter_state(model, name).items()}
    safetensors.torch.save_file(state, folder / ADAPTER)


def adapter_state(model: Any, name: str | None) -> dict[str, Tensor]:  # noqa: ANN401
    """Return the weights of an adapter by their names in PEFT's format."""
    # Left to itself, PEFT asks the hub whether the vocabulary was changed.
    return peft.get_peft_model_state_dict(model, adapter_name=str(name), save_embedding_layers=False)


def put_adapter(model: Any, name: str, state: dict[str, Tensor]) -> None:  # noqa: ANN401
    """Set the weights of an adapter to those of `adapter_state`."""
    peft.set_peft_model_state_dict(model, state, adapter_name=name)


def check_adapter(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], place: Path) -> None:
    """Check the tensors that were read for an adapter.

    Raises:
        DataError: names or shapes differ from `expected`, or a number is not finite; the message names
            `place`.
    """
    if {k: v.shape for k, v in state.items()} != {k: v.shape for k, v in expected.items()}:
        raise DataError(f"the adapter in {place} belongs to another model or other LoRA settings")
    if loading.not_finite(state.items()):
        raise DataError(f"the adapter in {place} holds numbers that are not finite (NaN or infinity)")


def _complete(path: Path, other_inputs: Sequence[str]) -> None:
    """Make an adapter's settings file deterministic, and valid for the original model.

    PEFT writes the adapted layers in the order of a set. Layer names may also match modules that the original
    model has and this one does not.
    """
    settings = json.loads(path.read_text(encoding="utf-8"))
    for targets in (settings["target_modules"], settings.get("target_parameters")):
        if isinstance(targets, list):
            targets.sort()
    if other_inputs:
        settings["exclude_modules"] = f"({'|'.join(map(re.escape, other_inputs))})\\..*"
    path.write_text(json.dumps(settings, indent=2, sort_keys=True), encoding="utf-8")
