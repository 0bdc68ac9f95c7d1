# pyright: standard
"""What processes that train together tell each other, as JSON: plain values, and the few classes named here.

Whoever reaches the port of a process group can write into it. So nothing that is read from it is code, as a
pickle would be.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from genenv.algorithms.datum import Datum, Objective
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.base import Role
from genenv.backends.settings import PolicyConfig
from genenv.types import Choices

_TAG = "is"


@dataclass(frozen=True, slots=True)
class Opening:
    """What rank 0 opens."""

    config: PolicyConfig
    roles: Sequence[Role]
    seed: int


@dataclass(frozen=True, slots=True)
class Call:
    """What rank 0 does to a player's weights."""

    player: str
    method: str
    arguments: Sequence[Any]
    options: Mapping[str, Any]


_CLASSES = {one.__name__: one for one in (Opening, Call, Datum, Choices, Objective, Role)}
_SETTINGS: Mapping[str, type[BaseModel]] = {one.__name__: one for one in (PolicyConfig, OptimizerConfig)}


def encoded(value: object) -> bytes:
    """A value as JSON.

    Raises:
        TypeError: it holds something of another class.
    """
    return json.dumps(_plain(value), separators=(",", ":")).encode()


def decoded(data: bytes) -> Any:  # noqa: ANN401 - what was encoded
    """What `encoded` wrote.

    Raises:
        ValueError: it did not write this.
    """
    try:
        return _value(json.loads(data))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"this is no message of processes that train together: {error}") from error


def _plain(value: Any) -> Any:  # noqa: ANN401
    """A value of JSON's own types; what is none of them is an object with a tag."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, tuple):
        return {_TAG: "tuple", "of": [_plain(one) for one in value]}
    if isinstance(value, dict):
        return {_TAG: "dict", "of": [[_plain(key), _plain(one)] for key, one in value.items()]}
    if isinstance(value, Path):
        return {_TAG: "Path", "of": str(value)}
    for name, settings in _SETTINGS.items():  # of what builds on them, such as the agent's, their own part
        if isinstance(value, settings):
            return {_TAG: name, "of": value.model_dump_json(include=set(settings.model_fields))}
    name = type(value).__name__
    if _CLASSES.get(name) is type(value):
        fields = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {_TAG: name, "of": fields}
    raise TypeError(f"{name} is nothing that processes tell each other")


def _value(plain: Any) -> Any:  # noqa: ANN401
    if isinstance(plain, list):
        return [_value(one) for one in plain]
    if not isinstance(plain, dict):
        return plain
    kind, of = plain[_TAG], plain["of"]
    if kind == "tuple":
        return tuple(_value(one) for one in of)
    if kind == "dict":
        return {_value(key): _value(one) for key, one in of}
    if kind == "Path":
        return Path(of)
    if kind in _SETTINGS:
        return _SETTINGS[kind].model_validate_json(of)
    return _CLASSES[kind](**{name: _value(one) for name, one in of.items()})
