"""The executable toolbox: every tool by name, argument checks, execution on a world, comparison of worlds.

A world is plain JSON data: a state for each app, and the clock. The tools live in `apps`, one module an app;
`apps.kit` says what a tool is. Nothing here runs what a model wrote: arguments are data, and checked.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Mapping
from datetime import date as Day
from types import ModuleType
from typing import cast

from genenv.domains.tool_calling.apps import (
    bank,
    calendar,
    contacts,
    convert,
    email,
    files,
    home,
    music,
    notes,
    shop,
    trips,
)
from genenv.domains.tool_calling.apps.kit import (
    TIME,
    Date,
    Kind,
    Name,
    Parameter,
    Result,
    State,
    Text,
    Time,
    Tool,
    ToolError,
    World,
    plain_copy,
    tool,
)
from genenv.errors import unknown_name
from genenv.types import Json, JsonObject

__all__ = [
    "APPS",
    "TOOLS",
    "Date",
    "Kind",
    "Name",
    "Parameter",
    "Result",
    "State",
    "Text",
    "Time",
    "Tool",
    "ToolError",
    "World",
    "arrange",
    "difference",
    "execute",
    "initial_world",
    "same_state",
    "tool",
    "tools_of",
    "validate",
]

_MODULES: Mapping[str, ModuleType] = {
    "bank": bank,
    "calendar": calendar,
    "contacts": contacts,
    "convert": convert,
    "email": email,
    "files": files,
    "home": home,
    "music": music,
    "notes": notes,
    "shop": shop,
    "trips": trips,
}

APPS: tuple[str, ...] = tuple(_MODULES)
"""Every app, sorted; each is also a key of the world."""

TOOLS: Mapping[str, Tool] = {
    value.name: value
    for module in _MODULES.values()
    for value in vars(module).values()
    if isinstance(value, Tool)
}
"""Every tool by name, sorted by app and then as defined in the app's module."""


def tools_of(app: str) -> tuple[Tool, ...]:
    """The tools of one app, as defined in its module.

    Raises:
        UsageError: no such app.
    """
    if app not in APPS:
        raise unknown_name("app", app, APPS)
    return tuple(known for known in TOOLS.values() if known.app == app)


# --- arguments ---

_LARGEST = 1_000_000_000
_YEARS = range(1900, 2101)


def validate(tool: Tool, args: JsonObject) -> dict[str, Json]:
    """The arguments as the function gets them: in order, with defaults, strings stripped, int made float.

    Raises:
        ToolError: a parameter is unknown or missing, or a value has the wrong type or syntax.
    """
    known = {parameter.name for parameter in tool.parameters}
    if unknown := [name for name in args if name not in known]:
        raise ToolError(f"{tool.name} has no parameter {unknown[0]!r}.")
    if missing := [p.name for p in tool.parameters if p.required and p.name not in args]:
        raise ToolError(f"{tool.name} needs a value for {missing[0]!r}.")
    return {p.name: _read(p, args[p.name]) if p.name in args else p.default for p in tool.parameters}


def _read(parameter: Parameter, value: Json) -> Json:
    """One argument, checked and in its canonical form."""
    if parameter.kind == "flag":
        if isinstance(value, bool):
            return value
        raise _wrong(parameter, "true or false", value)
    if parameter.kind == "choice":
        if value in parameter.choices:
            return value
        raise _wrong(parameter, "one of " + ", ".join(map(str, parameter.choices)), value)
    if parameter.kind == "number":
        return _number(parameter, value)
    return _string(parameter, value)


def _number(parameter: Parameter, value: Json) -> int | float:
    whole = parameter.schema["type"] == "integer"
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise _wrong(parameter, "a whole number" if whole else "a number", value)
    if not -_LARGEST <= value <= _LARGEST:  # also false for NaN
        raise ToolError(f"{parameter.name} must be a number between -{_LARGEST} and {_LARGEST}.")
    return value if whole else float(value)


def _string(parameter: Parameter, value: Json) -> str:
    if not isinstance(value, str):
        raise _wrong(parameter, "a string", value)
    text = value.strip()
    if not text:
        raise ToolError(f"{parameter.name} must not be empty.")
    if re.search("[\ud800-\udfff]", text):
        raise ToolError(f"{parameter.name} holds half a character.")
    if parameter.kind == "date" and not _is_date(text):
        raise _wrong(parameter, "a real date in the form YYYY-MM-DD, between 1900 and 2100", value)
    if parameter.kind == "time" and not re.fullmatch(TIME, text):
        raise _wrong(parameter, "a time in the form HH:MM", value)
    return text


def _is_date(text: str) -> bool:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return False
    try:
        return Day.fromisoformat(text).year in _YEARS
    except ValueError:
        return False


def _wrong(parameter: Parameter, wanted: str, value: Json) -> ToolError:
    return ToolError(f"{parameter.name} must be {wanted}, not {json.dumps(value)[:80]}.")


# --- execution ---


def today_in(seed: int) -> Day:
    """The day of 2025 that the clock of a world shows."""
    return Day.fromordinal(Day(2025, 1, 1).toordinal() + random.Random(f"{seed}/clock").randrange(365))


def initial_world(seed: int) -> World:
    """The state of every app, and `world["clock"]["today"]`, a day of 2025. Equal seeds give equal worlds."""
    today = today_in(seed)
    world: World = {"clock": {"today": today.isoformat()}}
    for app in APPS:
        world[app] = _MODULES[app].initial(random.Random(f"{seed}/{app}"), today)
    return world


def execute(world: World, tool_name: str, args: JsonObject) -> Result:
    """Call a tool: changes `world` if the tool writes and succeeds, and not at all otherwise. Deterministic.

    Raises:
        ToolError: no such tool, wrong arguments, or the world does not allow the call.
    """
    tool = _known(tool_name)
    values = validate(tool, args)
    state = plain_copy(world[tool.app])
    result = tool.function(state, **values)
    if tool.writes:
        world[tool.app] = state
    return result


def arrange(world: World, tool_name: str, args: JsonObject, rng: random.Random) -> None:
    """Change the world so that this call can succeed and, if it writes, makes a difference. Idempotent.

    A call whose preconditions an earlier call provides (a playlist to be created first) needs no arrangement:
    arrange only what fails without it.

    Raises:
        ToolError: no such tool or wrong arguments; the world is as it was.
    """
    tool = _known(tool_name)
    values = validate(tool, args)
    if tool.arrange is not None:
        state = plain_copy(world[tool.app])
        tool.arrange(state, rng, **values)
        world[tool.app] = state


def _known(tool_name: str) -> Tool:
    if tool_name not in TOOLS:
        raise ToolError(f"There is no tool {tool_name!r}.")
    return TOOLS[tool_name]


# --- comparing worlds ---


def same_state(a: World, b: World) -> bool:
    """Whether two worlds are the same but for the order of list items: independent calls commute."""
    return not difference(a, b)


def difference(a: World, b: World) -> str:
    """A sentence on the first place where `b` departs from the expected `a`; empty if they are the same."""
    return _difference("", a, b)


def _difference(path: str, a: Json, b: Json) -> str:
    if isinstance(a, dict) and isinstance(b, dict):
        return _dict_difference(path, cast(JsonObject, a), cast(JsonObject, b))
    if isinstance(a, list) and isinstance(b, list):
        expected, actual = Counter(map(_canonical, a)), Counter(map(_canonical, b))
        for item in expected - actual:
            return f"{path} lacks {item}."
        for item in actual - expected:
            return f"{path} has an unexpected {item}."
        return ""
    expected_text, actual_text = _canonical(a), _canonical(b)
    return "" if expected_text == actual_text else f"{path} is {actual_text} instead of {expected_text}."


def _dict_difference(path: str, a: JsonObject, b: JsonObject) -> str:
    for key in sorted({*a, *b}):
        place = f"{path}.{key}" if path else key
        if key not in b:
            return f"{place} is missing; it should be {_canonical(a[key])}."
        if key not in a:
            return f"{place} should not be there; it is {_canonical(b[key])}."
        if sentence := _difference(place, a[key], b[key]):
            return sentence
    return ""


def _canonical(value: Json) -> str:
    """JSON text, equal for equal values: keys and items sorted, 1.0 written as 1, true distinct from 1."""
    if isinstance(value, Mapping):
        items = (f"{json.dumps(key, ensure_ascii=False)}: {_canonical(value[key])}" for key in sorted(value))
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(sorted(map(_canonical, value))) + "]"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value, ensure_ascii=False)
