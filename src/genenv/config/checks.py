"""A wrong key or value ends in one sentence: what is wrong, and what is allowed or may have been meant."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from genenv.config.base import allowed, section_of
from genenv.config.files import flat, put
from genenv.errors import UsageError, unknown_name
from genenv.texts import masked
from genenv.types import Json, JsonObject

RENAMED = {"curriculum.temperature": "curriculum.rwr_lambda"}
"""Settings of older versions, and what they are called now. Runs of then have them in their own files."""

_Model = TypeVar("_Model", bound=BaseModel)


def renamed(tables: Mapping[str, Json]) -> dict[str, Json]:
    """What a run's own file says, with settings called what they are called now."""
    found: dict[str, Json] = {}
    for key, value in flat(tables).items():
        put(found, RENAMED.get(key, key), value)
    return found


def check_keys(document: JsonObject, known: Sequence[str]) -> None:
    """Refuse the first key that is no setting, and a value where a section belongs.

    Raises:
        UsageError: names the key, and the one that may have been meant.
    """
    sections = {".".join(key.split(".")[:depth]) for key in known for depth in range(1, key.count(".") + 1)}
    pending = list(document.items())
    for key, value in pending:
        if key not in sections:
            if key not in known:
                raise _unknown(key, known, sections)
        elif isinstance(value, Mapping):
            pending += [(f"{key}.{inner}", below) for inner, below in value.items()]
        else:
            raise UsageError(f"{key!r} is a section, not a value; write [{key}] and its settings below")


def _unknown(key: str, known: Sequence[str], sections: Collection[str]) -> UsageError:
    """Name what it is called now, one of its section spelt nearly so, its right section, or the likest."""
    if key in RENAMED:
        return UsageError(f"setting {key!r} is now called {RENAMED[key]!r}; write that instead")
    section, _, last = key.rpartition(".")
    siblings = [name for name in known if name.rpartition(".")[0] == section]
    slip = difflib.get_close_matches(key, siblings, n=1, cutoff=0.9)
    elsewhere = [name for name in known if name.rpartition(".")[2] == last]
    candidates = known if section in sections else [*known, *sections]
    close = slip or elsewhere or difflib.get_close_matches(key, candidates, n=1, cutoff=0.6)
    if close:
        return UsageError(f"unknown setting {key!r}; did you mean {close[0]!r}?")
    return unknown_name("setting", key, siblings if section else sections)


def validated(model: type[_Model], values: Mapping[str, object], prefix: str) -> _Model:
    """A section made of values.

    Raises:
        UsageError: a value is not allowed; says which setting, and what is.
    """
    try:
        return model.model_validate(values)
    except ValidationError as err:
        first, more = err.errors()[0], err.error_count() - 1
        others = f" (and {more} more {'setting is' if more == 1 else 'settings are'} wrong)" if more else ""
        raise UsageError(_sentence(model, values, first, prefix) + others) from err


def _sentence(model: type[BaseModel], values: Mapping[str, object], error: ErrorDetails, prefix: str) -> str:
    """What is wrong, in one sentence: which setting, its value, what is allowed."""
    holder, value, key = model, cast(object, values), prefix
    for part in error["loc"]:
        name = str(part)
        key += name
        value = cast(Mapping[str, object], value)[name] if isinstance(value, Mapping) else error["input"]
        inner = section_of(holder.model_fields[name])
        if inner is None:
            if error["type"] == "value_error":  # of a check of its own, which says more than a type does
                return f"setting {key!r}: {error['msg'].removeprefix('Value error, ')}"
            return not_allowed(key, value, holder.model_fields[name])
        holder, key = inner, f"{key}."
    return f"section {key.rstrip('.')!r}: {error['msg'].removeprefix('Value error, ')}"


def not_allowed(key: str, value: object, field: FieldInfo) -> str:
    """The sentence about a value that is out of range."""
    shown = masked(json.dumps(value, ensure_ascii=False, default=str))
    return (
        f"setting {key!r} is {shown if len(shown) <= 80 else shown[:77] + '...'}; allowed: {allowed(field)}"
    )
