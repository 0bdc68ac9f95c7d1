"""What a mock world answers: records in the form that the document gives to them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, cast

from genenv.tools.worlds.base import Outcome
from genenv.tools.worlds.jsonable import NotPlain, result_of
from genenv.tools.worlds.openapi.asking import Reply, status_said
from genenv.tools.worlds.openapi.headers import Headers
from genenv.tools.worlds.openapi.rows import Record, valued
from genenv.tools.worlds.openapi.shapes import Answer, Field, plain, properties_of, reference_path
from genenv.tools.worlds.python_child import MOST_CHARS
from genenv.types import Json

_COUNTS = frozenset({"total", "count", "size", "totalcount", "totalresults", "totalitems", "totalsize"})
"""Names of fields that say how many records there are."""
_DONE = frozenset({"deleted", "success", "successful", "ok", "done", "removed"})
"""Names of fields that say that a change was made."""
_PYTHON: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


class Teller:
    """Says what an operation answers.

    Args:
        answer: what the document says of it; None: nothing, records are told as they are.
        seed: of what an answer must have and no record holds.
    """

    def __init__(self, answer: Answer | None, seed: str) -> None:
        self._answer, self._seed = answer, seed
        self._made: dict[tuple[str, ...], Json] = {}

    def told(self, records: Sequence[Record], *, several: bool) -> Json:
        """The answer about some records.

        Args:
            records: as their table holds them.
            several: whether they were asked for as a list; else there is one.
        """
        answer = self._answer
        if answer is None:
            plainly = [cast(Json, copy.deepcopy(one)) for one in records]
            return plainly if several else plainly[0]
        if not answer.many and not answer.fields:
            return self._new((), answer.schema)
        items = [_as_declared(answer.fields, one) for one in records]
        value: Json = items if answer.many else items[0]
        for name in reversed(answer.path):
            value = {name: value}
        return self._completed(value, answer.schema, (), len(records))

    def _completed(self, value: Json, schema: Mapping[str, Any], path: tuple[str, ...], count: int) -> Json:
        """With what the schema requires beside."""
        if isinstance(value, list):
            items = cast("Mapping[str, Any]", schema.get("items") or {})
            return [self._completed(one, items, (*path, "*"), count) for one in value]
        if not isinstance(value, dict):
            return value
        properties = properties_of(schema)
        whole: dict[str, Json] = {
            name: self._completed(one, properties.get(name, {}), (*path, name), count)
            for name, one in value.items()
        }
        required = set(cast("Sequence[str]", schema.get("required", ())))
        wanted = [name for name in properties if name in required and name not in whole]
        if not whole and not path:  # an acknowledgment
            wanted = [name for name, one in properties.items() if name in required or _is_single(one)]
        for name in wanted:
            kind = properties[name].get("type")
            if plain(name) in _COUNTS and kind in ("integer", "number"):
                whole[name] = count
            elif kind == "boolean":
                whole[name] = plain(name) in _DONE
            elif kind == "array" and not properties[name].get("minItems"):
                whole[name] = []
            else:
                whole[name] = self._new((*path, name), properties[name])
        return whole

    def _new(self, path: tuple[str, ...], schema: Mapping[str, Any]) -> Json:
        """A value that no record holds, always the same one."""
        if path not in self._made:
            rng = random.Random(f"{self._seed} {path}")
            self._made[path] = valued(path[-1] if path else self._seed, schema, rng)
        return copy.deepcopy(self._made[path])


def _is_single(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") in ("string", "integer", "number", "boolean")


def _as_declared(fields: Mapping[str, Field], record: Record) -> Json:
    """The fields of a record that an answer has, each where it has it."""
    made: dict[str, Json] = {}
    for name, one in fields.items():
        if name not in record:
            continue
        value = _fitting(copy.deepcopy(record[name]), one.schema)
        if value is None:
            continue
        inside = made
        for part in one.path[:-1]:
            inside = cast("dict[str, Json]", inside.setdefault(part, {}))
        inside[one.path[-1]] = value
    return made


def _fitting(value: Json, schema: Mapping[str, Any]) -> Json:
    """A value of the kind that is declared; None: it has none.

    What is sent of a field need not be what comes back: `"owner": "U-1"` comes back as `{"id": "U-1"}`.
    """
    kind = str(schema.get("type", ""))
    if "const" in schema or "enum" in schema:
        listed = cast("Sequence[Json]", schema.get("enum", [schema.get("const")]))
        return value if value in listed else listed[0] if len(listed) == 1 else None
    if isinstance(value, list) and kind == "array":
        items = cast("Mapping[str, Any]", schema.get("items") or {})
        return [one for one in (_fitting(one, items) for one in value) if one is not None]
    if kind not in _PYTHON or (isinstance(value, _PYTHON[kind]) and not _is_no_number(value, kind)):
        return value
    if kind == "array" and not isinstance(value, dict):
        return [value] if value is not None else None
    if kind == "object" and isinstance(value, str | int):
        path = reference_path(schema)
        for name in reversed(path):
            value = {name: value}
        return value if path else None
    if kind == "string" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, dict) and (path := reference_path({"properties": {one: {} for one in value}})):
        return _fitting(value[path[0]], schema)
    return None


def _is_no_number(value: Json, kind: str) -> bool:
    return isinstance(value, bool) and kind in ("integer", "number")


TOO_LONG = f"The result is longer than {MOST_CHARS} characters."
_MOST_TOLD = 300
"""Characters of what a service says of an error."""
_TELLING = ("detail", "message", "error_description", "error", "errors", "title", "reason", "msg")
"""Fields of an error that say what is wrong, the likeliest first."""


def outcome_of(reply: Reply, headers: Headers) -> Outcome:
    """What the agent is told of an answer.

    Args:
        reply: it.
        headers: whose secrets it is rid of.
    """
    answer: Json = None
    try:
        answer = headers.without(result_of(json.loads(reply.body or b"null")))
        problem = ""
    except NotPlain as error:
        problem = f"The service answers {error}."
    except (ValueError, RecursionError):
        problem = f"The service answers {headers.safe(reply.kind)[:80] or 'something'} that is no JSON."
    if not 200 <= reply.status < 300:
        told = _told(answer)
        return Outcome(error=f"The service answers {status_said(reply.status)}{f': {told}' if told else '.'}")
    if problem:
        return Outcome(error=problem)
    if len(json.dumps(answer, ensure_ascii=False)) > MOST_CHARS:
        return Outcome(error=TOO_LONG)
    return Outcome(result=answer)


def _told(answer: Json, depth: int = 0) -> str:
    """What a service says of an error."""
    if isinstance(answer, str):
        return " ".join(answer.split())[:_MOST_TOLD]
    if depth > 4:
        return ""
    if isinstance(answer, list):
        return next((told for one in answer[:4] if (told := _told(one, depth + 1))), "")
    if isinstance(answer, Mapping):
        held = (answer[name] for name in _TELLING if name in answer)
        return next((told for one in held if (told := _told(one, depth + 1))), "")
    return ""
