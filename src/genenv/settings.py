"""What every section of the configuration has in common, and how a setting says what it allows.

A setting lives with its owner (`genenv.agent.settings`, `genenv.curriculum.settings`, ...); `genenv.config` puts the
sections together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo


class Settings(
    BaseModel, frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
):
    """A section: frozen, unknown keys fail, no silent conversions, the line under a field documents it."""


_TYPE_NAMES: dict[object, str] = {bool: "true or false", int: "whole number", float: "number", str: "text"}
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def allowed(field: FieldInfo) -> str:
    """What may stand for a setting, for people: `number, > 0, < 1` or `"lora" or "full"`."""
    parts = [type_name(field.annotation)]
    for rule in field.metadata:
        parts += [f"{sign} {getattr(rule, name):g}" for name, sign in _BOUNDS.items() if hasattr(rule, name)]
        if (pattern := getattr(rule, "pattern", None)) is not None:
            parts.append(f"matching {pattern}")
        if (least := getattr(rule, "min_length", None)) is not None:
            parts.append("not empty" if least == 1 else f"at least {least} items")
    return ", ".join(parts)


def type_name(annotation: object) -> str:
    """A type in plain words."""
    if annotation in _TYPE_NAMES:
        return _TYPE_NAMES[annotation]
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return " or ".join(f'"{value}"' for value in arguments)
    if get_origin(annotation) is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return f"list of {type_name(arguments[0])}"
        return f"list of {len(arguments)} {type_name(arguments[0])}s"
    named = [type_name(argument) for argument in arguments if argument is not type(None)]
    if named and len(named) < len(arguments):
        return f"{' or '.join(named)}, or left out"
    return getattr(annotation, "__name__", str(annotation))


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model behind a field that is itself a section, otherwise None."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def walk(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting of a section and of the sections in it: (dotted name, field), in order of definition."""
    for name, field in model.model_fields.items():
        inner = section_of(field)
        if inner is None:
            yield prefix + name, field
        else:
            yield from walk(inner, f"{prefix}{name}.")
