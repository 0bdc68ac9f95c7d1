"""Settings that have no effect beside the others, as sentences that a run says at its start.

Most are found by `genenv.settings.only_with`, with which a setting names the values of others that it needs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import cast

from pydantic import BaseModel, JsonValue

from genenv.algorithms.settings import SIMULATOR_ALGORITHMS
from genenv.config.run import RunConfig
from genenv.curriculum.settings import CurriculumConfig
from genenv.settings import is_own, needed_values


def idle_settings(config: RunConfig) -> Iterator[str]:
    """Yield a sentence for each setting that is not at its default and has no effect beside the others."""
    inherited = {"agent"} if config.agents else set[str]()  # by the agents, whose own sections are looked at
    yield from _in_section(config, "", but=inherited)
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
    if simulator.algorithm == "rwr" and curriculum.p_hat_scope == "batch":
        reason += ' and curriculum.p_hat_scope "batch"'
        if curriculum.foretold_attempts:
            yield f"curriculum.foretold_attempts has no effect on the simulator, {reason}"
        if curriculum.rwr_within == "context":
            yield f"curriculum.rwr_within gives all tasks of a context one weight, {reason}"


def _in_section(section: BaseModel, prefix: str, but: Collection[str] = ()) -> Iterator[str]:
    """Yield the sentences of a section and of the sections in it.

    Args:
        section: the settings.
        prefix: what its dotted name begins with, such as `agent.`.
        but: names of settings or sections to leave out.
    """
    for key, field in type(section).model_fields.items():
        if key in but:
            continue
        value = getattr(section, key)
        for inner, one in _sections_in(value):
            own = prefix == "environment." and key == "settings"  # those of the environment have no section
            yield from _in_section(one, prefix if own else f"{prefix}{key}.{inner}")
        needed = needed_values(field)
        if not needed or value == field.get_default():
            continue
        for other, values in needed.items():
            if not _is_met(given := getattr(section, other), values):
                yield (
                    f"{prefix}{key} = {json.dumps(value)} has no effect, as {prefix}{other} is "
                    f"{json.dumps(given)}"
                )
                break


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
