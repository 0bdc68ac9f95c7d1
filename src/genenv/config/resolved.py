"""Settings decided: what is automatic in a run's configuration is decided once, when the run starts.

Everything here works on the settings themselves. They become tables again only to be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NewType, TypeVar, cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from genenv.backends.settings import AUTOMATIC, BUILT_IN, OF_THE_MACHINE, PolicyConfig
from genenv.config.run import RunConfig
from genenv.config.tables import validated
from genenv.settings import is_place, section_of, walk, why_it_may_change
from genenv.types import Json

ResolvedConfig = NewType("ResolvedConfig", RunConfig)
"""Settings in which this machine has decided all that was automatic, so that a resumed run computes the same.
What only a loaded model can decide (attention, decoder, packed weights) is put in when it is loaded."""

FREE: Mapping[str, str] = {
    key: why for key, field in walk(RunConfig) if (why := why_it_may_change(field)) is not None
}
"""Settings that may change when a run is resumed, and why. Each says so where it is defined."""

ARITHMETIC = frozenset(f"policy.{name}" for name in AUTOMATIC)
"""Settings that change the last digits of what is computed: they stay, unless a user asks for the change."""

_Section = TypeVar("_Section", bound=BaseModel)


def resolve(config: RunConfig) -> ResolvedConfig:
    """Decide what is automatic in a run's settings.

    Paths become absolute. On the backend `local` the device, number format, threads and compiled code are
    those that suit this machine.
    """
    config = anchored(config)
    return ResolvedConfig(config.model_copy(update={"policy": _for_this_machine(config.policy)}))


def _for_this_machine(policy: PolicyConfig) -> PolicyConfig:
    automatic = any(getattr(policy, name) == AUTOMATIC[name] for name in OF_THE_MACHINE)
    if policy.backend != "local" or not automatic:
        return policy
    from genenv.backends.local.model import resolve_settings

    return resolve_settings(policy)


def anchored(config: RunConfig) -> RunConfig:
    """The settings with absolute paths of files and folders, so that a run finds them from anywhere."""
    fields = type(config.environment.settings).model_fields
    shift = config.shift.model_copy(update={"environment": _anchored(config.shift.environment, fields)})
    return config.model_copy(update={**_anchored(dict(config), RunConfig.model_fields), "shift": shift})


def _anchored(values: Mapping[str, object], fields: Mapping[str, FieldInfo]) -> dict[str, object]:
    """Values of a section, by name, with absolute paths."""
    return {name: _anchored_value(value, fields.get(name)) for name, value in values.items()}


def _anchored_value(value: object, field: FieldInfo | None) -> object:
    if isinstance(value, BaseModel):
        return value.model_copy(update=_anchored(dict(value), type(value).model_fields))
    if field is None:
        return value
    if (section := section_of(field)) is not None:
        return _anchored(cast(Mapping[str, object], value), section.model_fields)
    if is_place(field) and isinstance(value, str) and value not in ("", *BUILT_IN):
        place = Path(value).expanduser()
        return str(place.resolve()) if place.exists() else value
    return value


def by_key(config: RunConfig) -> dict[str, Json]:
    """Every setting that has a value, by its dotted key: to compare two runs' settings, or to name one."""
    return _by_key(config, "")


def _by_key(section: BaseModel | Mapping[str, object], prefix: str) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for name, value in section.items() if isinstance(section, Mapping) else section:
        if isinstance(value, BaseModel | Mapping):
            own = prefix == "environment." and name == "settings"  # they stand beside its name
            found |= _by_key(cast(Mapping[str, object], value), prefix if own else f"{prefix}{name}.")
        elif value is not None:
            found[prefix + name] = to_jsonable_python(value)
    return found


def with_values(section: _Section, values: Mapping[str, object], prefix: str = "") -> _Section:
    """The settings with other values for some of them, checked as those of a file are.

    Args:
        section: the settings.
        values: by dotted key.
        prefix: the key of the section itself, with a dot.

    Raises:
        UsageError: a value is not allowed; names the setting.
    """
    inside: dict[str, dict[str, object]] = {}
    for key, value in values.items():
        name, _, rest = key.partition(".")
        inside.setdefault(name, {})[rest] = value
    new = dict(section)
    for name, changes in inside.items():
        if isinstance(old := new[name], BaseModel):
            new[name] = with_values(old, changes, f"{prefix}{name}.")
        else:
            new[name] = changes[""] if "" in changes else {**cast(Mapping[str, object], old), **changes}
    return validated(type(section), new, prefix) if values else section
