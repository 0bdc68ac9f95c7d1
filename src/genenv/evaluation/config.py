"""Settings of an evaluation: how models are loaded and asked, and each benchmark's own section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from genenv.backends.settings import EndpointConfig, PolicyConfig, SamplingConfig
from genenv.config.tables import apply_override, check_keys, validated
from genenv.errors import spelled
from genenv.evaluation.registry import BENCHMARKS, OTHERS, benchmark_class, section
from genenv.settings import walk
from genenv.types import Json

_BENEATH: Mapping[str, Mapping[str, Json]] = {"policy": {"context_tokens": 131_072, "cache_gib": 4.0}}
"""What is other than in training: windows are as long as the model's, conversations are long."""
_NOT_HERE = frozenset(
    f"policy.{name}"
    for name in ("model", "simulator_model", "tuning", "lora_rank", "lora_alpha", "lora_targets")
)
"""Settings that `--policy` decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """All settings of an evaluation."""

    policy: PolicyConfig
    endpoint: EndpointConfig
    sampling: SamplingConfig
    benchmarks: Mapping[str, BaseModel]
    """By the benchmark's name."""


def sections() -> dict[str, type[BaseModel]]:
    """The sections by name."""
    own = {section(name): benchmark_class(name).config for name in (*BENCHMARKS, *OTHERS)}
    return {"policy": PolicyConfig, "endpoint": EndpointConfig, "sampling": SamplingConfig, **own}


def evaluation_settings() -> Iterator[tuple[str, FieldInfo]]:
    """Every setting by its dotted key."""
    for name, model in sections().items():
        yield from (pair for pair in walk(model, f"{name}.") if pair[0] not in _NOT_HERE)


def beneath(key: str) -> Json:
    """What an evaluation takes for a setting instead of its default; None: its default."""
    name, _, field = key.partition(".")
    return _BENEATH.get(name, {}).get(field)


def load_evaluation_config(overrides: Sequence[str]) -> EvaluationConfig:
    """Settings from `key=value` each.

    Raises:
        UsageError: a key is unknown or a value is not allowed.
    """
    document: dict[str, Json] = {}
    for override in overrides:
        name, dot, rest = override.partition(".")
        apply_override(document, f"{spelled(name, sections())}{dot}{rest}")
    check_keys(document, [key for key, _ in evaluation_settings()])

    def given(name: str) -> dict[str, Json]:
        table = document.get(name, {})
        return {**_BENEATH.get(name, {}), **table} if isinstance(table, dict) else {}

    return EvaluationConfig(
        policy=validated(PolicyConfig, given("policy"), "policy."),
        endpoint=validated(EndpointConfig, given("endpoint"), "endpoint."),
        sampling=validated(SamplingConfig, given("sampling"), "sampling."),
        benchmarks={
            name: validated(benchmark_class(name).config, given(section(name)), f"{section(name)}.")
            for name in (*BENCHMARKS, *OTHERS)
        },
    )
