"""Resolved settings: automatic values in a run's configuration are decided once, when the run starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NewType

from genenv.backends.settings import AUTOMATIC, BUILT_IN, OF_THE_MACHINE, PolicyConfig
from genenv.config.run import RunConfig, as_tables, parse_config
from genenv.config.tables import flat, put
from genenv.environments import is_folder
from genenv.settings import is_own, walk, why_it_may_change, with_places
from genenv.types import Json

ResolvedConfig = NewType("ResolvedConfig", RunConfig)
"""Settings whose automatic values this machine has decided, so that a resumed run computes the same. Values
that depend on a loaded model (attention, decoder, packed weights) are filled in when it is loaded."""

FREE: Mapping[str, str] = {
    key: why for key, field in walk(RunConfig) if (why := why_it_may_change(field)) is not None
}
"""Settings that may change when a run is resumed, with the reason. Each is marked at its definition."""

ARITHMETIC = frozenset(f"policy.{name}" for name in AUTOMATIC)
"""Settings that change the last digits of results. They stay when a run is resumed, unless the user allows
it."""


def resolve(config: RunConfig) -> ResolvedConfig:
    """Return the settings with automatic values decided and absolute paths.

    Where models learn on this machine, device, number format, threads and compiled code are chosen for it.
    """
    config = anchored(config)
    return ResolvedConfig(config.model_copy(update={"policy": _for_this_machine(config)}))


def _for_this_machine(config: RunConfig) -> PolicyConfig:
    policy = config.policy
    automatic = any(getattr(policy, name) == AUTOMATIC[name] for name in OF_THE_MACHINE)
    if not config.learns_here or not automatic:
        return policy
    from genenv.backends.local.model import resolve_settings

    return resolve_settings(policy)


def anchored(config: RunConfig) -> RunConfig:
    """Return the settings with absolute paths of files and folders, so that they work from any directory."""
    shift = config.shift
    if shift.environment:
        absolute = with_places(config.shifted_environment(), _absolute).model_dump(mode="json")
        shift = shift.model_copy(update={"environment": {key: absolute[key] for key in shift.environment}})
    env = config.environment
    env = env.model_copy(update={"name": absolute_environment(env.name)})
    return with_places(config.model_copy(update={"environment": env, "shift": shift}), _absolute)


def absolute_environment(name: str) -> str:
    """Return an environment's name; of a folder or a file that is there, its absolute path."""
    return _absolute(name) if is_folder(name) or is_own(name) else name


def _absolute(text: str) -> str:
    """Return the absolute path of what is there, and any other text as it is."""
    if text in ("", *BUILT_IN):
        return text
    file, code, name = text.partition(".py:")  # a function of a file
    place = Path(file + code.rstrip(":")).expanduser()
    return f"{place.resolve()}{code and f':{name}'}" if place.exists() else text


def by_key(config: RunConfig) -> dict[str, Json]:
    """Return every setting that has a value, by dotted key, to compare runs or to name a setting."""
    return flat(as_tables(config))


def with_values(config: RunConfig, values: Mapping[str, Json]) -> RunConfig:
    """Return the settings with new values by dotted key, checked like those of a file.

    Raises:
        UsageError: a value is not allowed. The message names the setting.
    """
    tables = as_tables(config)
    for key, value in values.items():
        put(tables, key, value)
    return parse_config(tables) if values else config
