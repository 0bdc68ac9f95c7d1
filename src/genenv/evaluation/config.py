"""The registry of benchmarks, and the settings of an evaluation, with a section for each benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from genenv.backends.settings import WEIGHTS, EndpointConfig, PolicyConfig, SamplingConfig
from genenv.config.tables import apply_override, check_keys, validated
from genenv.errors import spelled, unknown_name
from genenv.evaluation.base import Benchmark
from genenv.plugins import load, parts
from genenv.settings import walk
from genenv.types import Json

BENCHMARKS: Mapping[str, str] = parts("benchmarks")
OTHERS: Mapping[str, str] = {"held-out": "genenv.evaluation.held_out:HeldOut"}
"""Benchmarks that `all` does not include."""
ALL = "all"


def benchmark_class(name: str) -> type[Benchmark]:
    """Import the class of a benchmark.

    Raises:
        UsageError: the name is unknown.
    """
    known = {**BENCHMARKS, **OTHERS}
    spelling = spelled(name, known)
    if spelling not in known:
        raise unknown_name("benchmark", name, [*known, ALL])
    return cast(type[Benchmark], load(known[spelling]))


def section(name: str) -> str:
    """Return the name of a benchmark's section in the settings: `api_bank` for `api-bank`."""
    return name.replace("-", "_")


_DEFAULTS: Mapping[str, Mapping[str, Json]] = {"policy": {"context_tokens": 131_072, "cache_gib": 4.0}}
"""Defaults that differ from training: larger context windows and KV caches, for long conversations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """All settings of an evaluation."""

    policy: PolicyConfig
    endpoint: EndpointConfig
    sampling: SamplingConfig
    benchmarks: Mapping[str, BaseModel]
    """The settings of each benchmark, by its name."""


def sections() -> dict[str, type[BaseModel]]:
    """Return the settings class of each section, by the section's name."""
    own = {section(name): benchmark_class(name).config for name in (*BENCHMARKS, *OTHERS)}
    return {"policy": PolicyConfig, "endpoint": EndpointConfig, "sampling": SamplingConfig, **own}


def evaluation_settings() -> Iterator[tuple[str, FieldInfo]]:
    """Every setting by its dotted key; those of the weights follow from `--policy`."""
    for name, model in sections().items():
        yield from (pair for pair in walk(model, f"{name}.") if pair[0] not in WEIGHTS)


def evaluation_default(key: str) -> Json:
    """Return the default that evaluation gives a setting; None: the setting's usual default."""
    name, _, field = key.partition(".")
    return _DEFAULTS.get(name, {}).get(field)


def load_evaluation_config(overrides: Sequence[str]) -> EvaluationConfig:
    """Return the settings with overrides of the form `key=value` applied.

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
        return {**_DEFAULTS.get(name, {}), **table} if isinstance(table, dict) else {}

    return EvaluationConfig(
        policy=validated(PolicyConfig, given("policy"), "policy."),
        endpoint=validated(EndpointConfig, given("endpoint"), "endpoint."),
        sampling=validated(SamplingConfig, given("sampling"), "sampling."),
        benchmarks={
            name: validated(benchmark_class(name).config, given(section(name)), f"{section(name)}.")
            for name in (*BENCHMARKS, *OTHERS)
        },
    )
