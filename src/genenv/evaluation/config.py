"""The registry of benchmarks, and the settings of an evaluation, with a section for each benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from genenv.backends.settings import WEIGHTS, EndpointConfig, PolicyConfig, SamplingConfig
from genenv.config.tables import apply_override, check_keys, validated
from genenv.errors import UsageError, spelled, unknown_name
from genenv.evaluation.base import Benchmark
from genenv.evaluation.models import ENDPOINT
from genenv.plugins import load, parts
from genenv.settings import walk
from genenv.texts import masked
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


_OF_RUNS = ("policy.backend", "policy.tinker.", "policy.vllm.", "policy.ppo.")
"""Settings of policies that only a run uses, by the beginning of their keys."""


def evaluation_settings() -> Iterator[tuple[str, FieldInfo]]:
    """Every setting by its dotted key; those of the weights follow from `--policy`."""
    for name, model in sections().items():
        for key, field in walk(model, f"{name}."):
            if key not in WEIGHTS and not key.startswith(_OF_RUNS):
                yield key, field


def evaluation_default(key: str) -> Json:
    """Return the default that evaluation gives a setting; None: the setting's usual default."""
    name, _, field = key.partition(".")
    return _DEFAULTS.get(name, {}).get(field)


def load_evaluation_config(overrides: Sequence[str], models: Sequence[str] = ()) -> EvaluationConfig:
    """Return the settings with overrides of the form `key=value` applied.

    Args:
        overrides: the settings that are not at their defaults.
        models: the names of all models that are asked; empty: whatever model it is.

    Raises:
        UsageError: a key is unknown, a value is not allowed, or a setting has no effect on any of the models.
    """
    document: dict[str, Json] = {}
    for override in overrides:
        name, dot, rest = override.partition(".")
        apply_override(document, f"{spelled(name, sections())}{dot}{rest}")
    check_keys(document, [key for key, _ in evaluation_settings()])
    _check_effect(document, models)

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


def _check_effect(document: Mapping[str, Json], models: Sequence[str]) -> None:
    """Refuse settings of local models if there is none, and settings of endpoints if there is none.

    Raises:
        UsageError: there are such settings; names them.
    """
    kinds = {"policy": "loaded on this machine", "endpoint": "behind an endpoint"}
    used = {"endpoint" if name.startswith(ENDPOINT) else "policy" for name in models}
    for section in kinds.keys() - used if models else ():
        table = document.get(section)
        if isinstance(table, Mapping) and table:
            raise UsageError(
                f"{', '.join(f'{section}.{key}' for key in table)}: without effect, as no model is "
                f"{kinds[section]} ({', '.join(map(masked, models))}); leave it out"
            )
