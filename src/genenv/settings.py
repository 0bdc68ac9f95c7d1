"""The base class of all sections of the configuration, and helpers that describe and validate settings.

Each setting is defined by the package that uses it (`genenv.agent.policy`, `genenv.curriculum.settings`,
...); `genenv.config.run` collects the sections.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import (
    Annotated,
    Literal,
    Protocol,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    runtime_checkable,
)
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, JsonValue
from pydantic.fields import FieldInfo


class Settings(
    BaseModel, frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
):
    """Base of all sections: frozen, strict, no unknown keys; the line under a field documents it."""


class NoSettings(Settings, frozen=True):
    """The section of an environment or a benchmark that has no settings."""


PLACE: dict[str, JsonValue] = {"place": True}
"""JSON-schema extra of a text setting that names, or may name, a file or a folder."""


def may_change(why: str) -> dict[str, JsonValue]:
    """Return the JSON-schema extra of a setting that may change when a run is resumed.

    Args:
        why: why no result depends on the setting, for the settings reference.
    """
    return {"resume": why}


def why_it_may_change(field: FieldInfo) -> str | None:
    """Return why a setting may change when a run is resumed; None if it may not."""
    return cast(str | None, _extra(field).get("resume"))


Needed = Mapping[str, Sequence[JsonValue] | str]
"""By the name of a setting of the same section, or the dotted key of any other, the values that it must have,
or `"> 1"` for a lower bound."""


def only_with(*instead: Needed, **values: Sequence[JsonValue] | str) -> dict[str, JsonValue]:
    """Return the JSON-schema extra of a setting that has an effect only with values of others.

    Args:
        instead: other values that suffice as well.
        values: the values, as in `Needed`. A sentence about the setting names the first that is another.
    """
    return {"only_with": [dict(cast("Mapping[str, JsonValue]", one)) for one in (values, *instead)]}


def needed_values(field: FieldInfo) -> Sequence[Needed]:
    """Return what `only_with` was given for a setting; empty if it always has an effect."""
    return cast(Sequence[Needed], _extra(field).get("only_with", ()))


def holds_secret(address: str) -> bool:
    """Return whether an address has a user name, a password or a query, where keys are put."""
    try:
        parts = urlsplit(address)
    except ValueError:  # the code that connects to it reports the mistake
        return False
    return "@" in parts.netloc or bool(parts.query)


def _without_credentials(address: str) -> str:
    """Refuse an address that holds a secret: settings are written into files, logs and reports.

    Raises:
        ValueError: the address holds a secret. The message does not repeat it.
    """
    if holds_secret(address):
        raise ValueError(
            "an address holds a user name, a password or a query, which would be written into files; "
            "leave it out, and put the key into the environment variable that key_variable names"
        )
    return address


Address = Annotated[str, AfterValidator(_without_credentials)]
"""The base URL of a server, without any secret."""


def is_place(field: FieldInfo) -> bool:
    """Return whether a setting may name a file or a folder."""
    return "place" in _extra(field)


@runtime_checkable
class HasPlaces(Protocol):
    """Settings that hold settings of other classes, such as those of a mixture's members."""

    def with_places(self, change: Callable[[str], str]) -> Self:
        """Return the settings with every text that names, or may name, a file or a folder changed."""
        ...


_Section = TypeVar("_Section", bound=BaseModel)


def with_places(section: _Section, change: Callable[[str], str]) -> _Section:
    """Return settings with every text that names, or may name, a file or a folder changed.

    Args:
        section: the settings; sections in it are included.
        change: returns the new text.
    """
    if isinstance(section, HasPlaces):
        return cast(_Section, section.with_places(change))
    fields = type(section).model_fields
    return section.model_copy(
        update={name: placed(value, fields[name], change) for name, value in section if name in fields}
    )


def placed(value: object, field: FieldInfo | None, change: Callable[[str], str]) -> object:
    """Return a setting's value with every text that names, or may name, a file or a folder changed.

    Args:
        value: the value.
        field: its definition; None for what is no setting.
        change: returns the new text.
    """
    if isinstance(value, BaseModel):
        return with_places(value, change)
    if isinstance(value, Mapping):  # the agents by name
        return {key: placed(one, None, change) for key, one in cast(Mapping[str, object], value).items()}
    if not isinstance(value, str) or field is None:
        return value
    return change(value) if is_place(field) or is_in_file(value) else value


def _extra(field: FieldInfo) -> dict[str, JsonValue]:
    extra = field.json_schema_extra
    return cast(dict[str, JsonValue], extra) if isinstance(extra, dict) else {}


_IN_FILE = re.compile(r"[^:\n]*\.py:[A-Za-z_]\w*")
"""A user-defined function or class of a file."""
_OWN = re.compile(rf"[A-Za-z_][\w.]*:[A-Za-z_]\w*|{_IN_FILE.pattern}")


@dataclass(frozen=True, slots=True)
class Names:
    """Validator of a text setting: a known name, or a user-defined function or class (`is_own`)."""

    known: tuple[str, ...]

    def __call__(self, name: str) -> str:
        """Return the name. Refuse one that is neither known nor `module:name` or `FILE.py:name`."""
        if name not in self.known and not is_own(name):
            raise AssertionError(name)
        return name

    def __str__(self) -> str:
        return " or ".join([*map(json.dumps, self.known), "module:name or FILE.py:name of your own"])


def is_in_file(name: str) -> bool:
    """Return whether a name is that of a user's function or class in a file, `path/to/file.py:name`."""
    return _IN_FILE.fullmatch(name) is not None


def is_own(name: str) -> bool:
    """Return whether a name has the form of a user-defined function or class.

    The forms are `module:name` and `path/to/file.py:name`.
    """
    return _OWN.fullmatch(name) is not None


_TYPE_NAMES: dict[object, str] = {bool: "true or false", int: "whole number", float: "number", str: "text"}
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def allowed(field: FieldInfo) -> str:
    """Describe the values that a setting allows, for people: `number, > 0, < 1` or `"lora" or "full"`."""
    rules = (rule.func for rule in field.metadata if isinstance(rule, AfterValidator))
    names = [str(rule) for rule in rules if isinstance(rule, Names)]
    return ", ".join([*(names or [_type_name(field.annotation)]), *_rules(field.metadata)])


def _rules(metadata: Iterable[object]) -> Iterator[str]:
    for rule in metadata:
        yield from (f"{sign} {getattr(rule, name)}" for name, sign in _BOUNDS.items() if hasattr(rule, name))
        if getattr(rule, "min_length", None) == 1:
            yield "not empty"
        elif getattr(rule, "min_length", None) is not None:
            yield f"at least {getattr(rule, 'min_length')} long"  # noqa: B009 - not every rule has it
        if getattr(rule, "max_length", None) is not None:
            yield f"at most {getattr(rule, 'max_length')} long"  # noqa: B009 - not every rule has it
        if getattr(rule, "pattern", None) is not None:
            yield f"matching `{getattr(rule, 'pattern')}`"  # noqa: B009 - not every rule has it


def _type_name(annotation: object) -> str:
    """Describe a type in plain words."""
    if isinstance(annotation, type) and annotation in _TYPE_NAMES:
        return _TYPE_NAMES[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(json.dumps(value) for value in arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"list of any of {_type_name(arguments[0])}"
    if origin is tuple:
        return f"list of {len(arguments)}, each a {_type_name(arguments[0])}"
    if origin is Annotated:
        rules = [text for extra in arguments[1:] for text in _rules(getattr(extra, "metadata", [extra]))]
        return ", ".join([_type_name(arguments[0]), *rules])
    if origin is dict:
        return "table"
    if type(None) in arguments:
        return f"{' or '.join(_type_name(kind) for kind in arguments if kind is not type(None))}, or left out"
    if origin is UnionType or origin is Union:
        return " or ".join(map(_type_name, arguments))
    return getattr(annotation, "__name__", str(annotation))


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model class of a field that is a section; None for other fields."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def walk(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield (dotted name, field) of every setting of a section and its subsections, as defined."""
    for name, field in model.model_fields.items():
        inner = section_of(field)
        if inner is None:
            yield prefix + name, field
        else:
            yield from walk(inner, f"{prefix}{name}.")
