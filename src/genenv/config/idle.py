"""Settings that have no effect beside the others, as sentences that a run says at its start.

Most are found by `genenv.settings.only_with`, with which a setting names the values of others that it needs.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import cast

from pydantic import BaseModel, JsonValue

from genenv.algorithms.settings import SIMULATOR_ALGORITHMS
from genenv.config.run import RunConfig
from genenv.config.tables import flat, of_every_agent
from genenv.config.variants import with_variant
from genenv.curriculum.settings import CurriculumConfig, preset
from genenv.settings import Needed, is_own, needed_values
from genenv.types import Json


def idle_settings(config: RunConfig) -> Iterator[str]:
    """Yield a sentence for each setting that is not at its default and has no effect beside the others.

    Values of the preset and of named variants count as defaults. Where a value of the variant is the reason,
    there is no sentence, because a file has settings for several variants.
    """
    inherited = {"agent"} if config.agents else set[str]()  # by the agents, whose own sections are looked at
    parts = config.variant.split("+") if config.variant else []
    chosen = _set_by(parts)
    usual = {**flat(preset(config.preset)), **_set_by([part for part in parts if "=" not in part])}
    for prefix, name, section in _settings(config, "", but=inherited):
        field, value = type(section).model_fields[name], getattr(section, name)
        needed = needed_values(field)
        if not needed or value in (field.get_default(), usual.get(of_every_agent(prefix + name))):
            continue
        unmet = [found for one in needed if (found := _unmet(one, section, prefix, config)) is not None]
        if len(unmet) == len(needed) and of_every_agent(unmet[0][0]) not in chosen:
            reason, given = unmet[0]
            yield f"{prefix}{name} = {json.dumps(value)} has no effect, as {reason} is {json.dumps(given)}"
    simulator, curriculum = config.simulator, config.curriculum
    if simulator.source == "model" and simulator.train and simulator.per_seed:
        yield (
            f"simulator.train has no effect, as simulator.per_seed is {simulator.per_seed}: the tasks of a "
            "seed are written once"
        )
        return
    if curriculum.env_reward == "variance" and curriculum.foretold_attempts:
        yield (
            "curriculum.foretold_attempts has no effect on the reward of tasks with rollouts, as "
            'curriculum.env_reward is "variance"'
        )
    if simulator.source != "model" or not simulator.train or simulator.algorithm not in SIMULATOR_ALGORITHMS:
        return
    reason = f"as simulator.algorithm is {json.dumps(simulator.algorithm)}"
    if simulator.algorithm != "rwr" and curriculum.full_novelty not in (0, CurriculumConfig().full_novelty):
        yield f"curriculum.full_novelty = {curriculum.full_novelty:g} has no effect, {reason}"
    by_batch = curriculum.p_hat_scope == "batch" and "curriculum.p_hat_scope" not in chosen
    if simulator.algorithm == "rwr" and by_batch:
        reason += ' and curriculum.p_hat_scope "batch"'
        if curriculum.foretold_attempts:
            yield f"curriculum.foretold_attempts has no effect on the simulator, {reason}"
        if curriculum.rwr_within == "context":
            yield f"curriculum.rwr_within gives all tasks of a context one weight, {reason}"


def _settings(
    section: BaseModel, prefix: str, but: Collection[str] = ()
) -> Iterator[tuple[str, str, BaseModel]]:
    """Yield the settings of a section and of the sections in it: start of the dotted key, name, section.

    Args:
        section: the settings.
        prefix: what its dotted keys begin with, such as `agent.`.
        but: names of settings or sections to leave out.
    """
    for name in type(section).model_fields:
        if name in but:
            continue
        yield prefix, name, section
        for inner, one in _sections_in(getattr(section, name)):
            own = prefix == "environment." and name == "settings"  # those of the environment have no section
            yield from _settings(one, prefix if own else f"{prefix}{name}.{inner}")


def _set_by(parts: Sequence[str]) -> Mapping[str, Json]:
    """Return what variants that are joined set, by dotted key."""
    return flat(with_variant({}, "+".join(parts))) if parts else {}


def _unmet(needed: Needed, section: BaseModel, prefix: str, config: RunConfig) -> tuple[str, object] | None:
    """Return the dotted key and the value of the first setting that is not as needed; None if all are."""
    for other, values in needed.items():
        given: object = functools.reduce(getattr, other.split("."), config if "." in other else section)
        if not _is_met(given, values):
            return other if "." in other else prefix + other, given
    return None


def _sections_in(value: object) -> Iterator[tuple[str, BaseModel]]:
    """Yield the sections in a value, by the end of their dotted names."""
    if isinstance(value, BaseModel):
        yield "", value
    elif isinstance(value, Mapping):  # the agents by name
        for key, one in cast(Mapping[str, object], value).items():
            if isinstance(one, BaseModel):
                yield f"{key}.", one


def _is_met(given: object, needed: Sequence[JsonValue] | str) -> bool:
    if isinstance(needed, str):
        return cast(float, given) > float(needed.removeprefix("> "))
    return given in needed or (isinstance(given, str) and is_own(given))
