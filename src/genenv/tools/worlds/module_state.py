"""The values that a user's modules hold: what the state of Python tools is made of.

A module holds state in its global variables, in attributes of its classes, and in its functions: mutable
defaults and variables of closures.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import cast

from pydantic import BaseModel

from genenv.tools.worlds.in_process import closure_of, decorated
from genenv.tools.worlds.jsonable import is_code


def without_second_names(values: Mapping[str, object]) -> dict[str, object]:
    """Values without those that an earlier name has already: a name that was imported is not state twice."""
    seen: set[int] = set()
    kept: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, str | int | float | bool | None) or id(value) not in seen:
            kept[name] = value
            seen.add(id(value))
    return kept


def state_of_module(module: ModuleType, prefix: str) -> list[tuple[str, object]]:
    """The values that a module's names, its classes and its functions hold, by name."""
    found: list[tuple[str, object]] = []
    tools = decorated(module)
    for name, value in list(vars(module).items()):
        if name in tools or name.startswith("__") or type(value).__module__ in ("__future__", "typing"):
            continue
        if not is_code(value):
            found.append((f"{prefix}{name}", value))
        elif isinstance(value, type) and value.__module__ == module.__name__:
            found += [(f"{prefix}{name}.{key}", one) for key, one in _class_attributes(value)]
        elif isinstance(value, FunctionType) and value.__module__ == module.__name__:
            found += [(f"{prefix}{name}.{key}", one) for key, one in _held_by(value)]
    return found


def _class_attributes(made: type[object]) -> list[tuple[str, object]]:
    if issubclass(made, BaseModel | enum.Enum):
        return []
    return [
        (name, value)
        for name, value in vars(made).items()
        if not name.startswith(("__", "_abc_"))
        and not is_code(value)
        and not hasattr(cast(object, type(value)), "__get__")  # properties, slots
    ]


def _held_by(function: FunctionType) -> list[tuple[str, object]]:
    """Containers that a function keeps between calls: mutable defaults, and variables of a closure."""
    found = [
        (f"default {place}", value)
        for place, value in enumerate(
            (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        )
    ]
    found += closure_of(function).items()
    return [(name, value) for name, value in found if isinstance(value, list | dict | set | bytearray)]


def is_constant(name: str, value: object) -> bool:
    """Whether a value cannot change, and its name does not say that it will be bound anew."""
    if isinstance(value, str | int | float | bool):
        return name.isupper()
    return value is None or isinstance(value, bytes | tuple | frozenset)
