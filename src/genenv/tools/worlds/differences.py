"""Compare states, which are JSON: whether they are equal, and in what they differ.

A process sends the `difference` of two states of which a call changed a little: `{"is": value}`, or
`{"in": {key: difference}, "gone": [key]}` of an object or a list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast


def is_equal(one: object, other: object) -> bool:
    """Whether two values of JSON are equal; a truth value equals no number."""
    if isinstance(one, dict) and isinstance(other, dict):
        before, after = cast("dict[str, object]", one), cast("dict[str, object]", other)
        return before.keys() == after.keys() and all(is_equal(before[key], after[key]) for key in before)
    if isinstance(one, list) and isinstance(other, list):
        items, others = cast("list[object]", one), cast("list[object]", other)
        return len(items) == len(others) and all(map(is_equal, items, others))
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def difference(old: object, new: object) -> dict[str, Any] | None:
    """Return what makes a state of another one; None if they are equal.

    Values that are the same object in both are not looked at, so that it takes no longer than what changed.
    """
    if old is new:
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        before, after = cast("dict[str, object]", old), cast("dict[str, object]", new)
        inner = {
            key: {"is": one} if key not in before else difference(before[key], one)
            for key, one in after.items()
            if key not in before or before[key] is not one
        }
        gone = [key for key in before if key not in after]
    elif (
        isinstance(old, list)
        and isinstance(new, list)
        and len(cast("list[object]", old)) == len(cast("list[object]", new))
    ):
        pairs = zip(cast("list[object]", old), cast("list[object]", new), strict=True)
        inner = {str(place): difference(one, other) for place, (one, other) in enumerate(pairs)}
        gone = []
    else:
        return None if is_equal(cast(object, old), cast(object, new)) else {"is": new}
    inner = {key: one for key, one in inner.items() if one is not None}
    return {"in": inner, "gone": gone} if inner or gone else None


def patched(old: object, change: Mapping[str, Any] | None) -> Any:  # noqa: ANN401 - JSON
    """Return the state that a difference makes of another one; they share what did not change."""
    if change is None:
        return old
    if "is" in change:
        return change["is"]
    inner = cast("Mapping[str, Mapping[str, Any]]", change["in"])
    if isinstance(old, list):
        items = list(cast("list[object]", old))
        for place, one in inner.items():
            items[int(place)] = patched(items[int(place)], one)
        return items
    found = dict(cast("dict[str, object]", old))
    for key in change["gone"]:
        del found[key]
    for key, one in inner.items():
        found[key] = patched(found.get(key), one)
    return found


def changed(old: object, new: object, place: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield each place in a state whose value changed, with the value before and after as JSON.

    "" stands for no value. What was put into a list or taken out of it is one place each. Values are equal as
    `is_equal` says.
    """
    if old is new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        before, after = cast("dict[str, object]", old), cast("dict[str, object]", new)
        for key in (*before, *(key for key in after if key not in before)):
            inner = f"{place}.{key}" if place else str(key)
            if key in before and key in after:
                yield from changed(before[key], after[key], inner)
            else:
                yield inner, _json(before, key), _json(after, key)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _changed_items(cast("list[object]", old), cast("list[object]", new), place)
    elif not is_equal(cast(object, old), new):
        yield place, json.dumps(old, ensure_ascii=False), json.dumps(new, ensure_ascii=False)


def _changed_items(old: list[object], new: list[object], place: str) -> Iterator[tuple[str, str, str]]:
    shared = min(len(old), len(new))
    start = next((at for at in range(shared) if not is_equal(old[at], new[at])), shared)
    left = range(shared - start)
    same = next((at for at in left if not is_equal(old[-1 - at], new[-1 - at])), shared - start)
    before, after = old[start : len(old) - same], new[start : len(new) - same]
    if len(before) == len(after):
        for at, (one, other) in enumerate(zip(before, after, strict=True), start):
            yield from changed(one, other, f"{place}[{at}]")
    else:
        for at, one in enumerate(before, start):
            yield f"{place}[{at}]", json.dumps(one, ensure_ascii=False), ""
        for at, one in enumerate(after, start):
            yield f"{place}[{at}]", "", json.dumps(one, ensure_ascii=False)


def _json(values: dict[str, object], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else ""
