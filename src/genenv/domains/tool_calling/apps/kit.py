"""What an app is made of: typed functions over plain-data state, with schemas read off their signatures.

An app is a module of tools that share one entry of the world. A tool is a function whose first parameter is
its app's state (a dict of plain JSON data) and whose docstring describes it and, under Args, each parameter:

    @tool("calendar", writes=True, arrange=_event_exists)
    def cancel_event(state: State, title: Name) -> Result:
        '''Cancel an event. ...'''

It raises `ToolError` when the world forbids the call. `arrange` prepares a state in which the call can
succeed (the event to cancel exists), so a simulator need not know the state. The module also has
`initial(rng, today)`, the app's seeded state. Ids come from content (`common.fresh_id`), not from counters:
independent calls commute.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast, get_args, get_origin

from genenv.types import Json, JsonObject

State = dict[str, Any]
"""One app's state: plain JSON data, comparable with ==."""
World = dict[str, State]
"""App name -> state."""
Result = dict[str, Json]
"""What a tool returns: plain JSON data."""

Kind = Literal["date", "time", "name", "text", "number", "flag", "choice"]
"""How a literal is read in an instruction. Names and texts must appear as they are; text is free text."""

Date = Annotated[str, "date"]
"""ISO date, e.g. 2025-03-14."""
Time = Annotated[str, "time"]
"""24-hour time, e.g. 09:30."""
Name = Annotated[str, "name"]
"""A proper name, title, path, product, city or identifier."""
Text = Annotated[str, "text"]
"""Free text: a message body, a note."""


@dataclass(frozen=True, slots=True)
class Between:
    """The smallest and the largest number that a parameter takes, e.g. `Annotated[int, Between(1, 9)]`.

    They stand in the tool's schema. The function checks them itself, with a sentence of its own.
    """

    lowest: int
    highest: int


TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]"
"""What a time looks like, as a regular expression."""
_SHORT_CHOICE = 3
_STRING_KINDS: Mapping[str, JsonObject] = {
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "pattern": f"^{TIME}$"},
    "name": {"type": "string", "minLength": 1},
    "text": {"type": "string", "minLength": 1},
}
_PLAIN_KINDS: Mapping[object, tuple[Kind, str]] = {
    int: ("number", "integer"),
    float: ("number", "number"),
    bool: ("flag", "boolean"),
}
_HINTS: Mapping[str, str] = {"date": "date", "time": "time", "flag": "bool"}
_NUMBER_HINTS: Mapping[str, str] = {"integer": "int", "number": "float"}


def plain_copy(value: Any) -> Any:  # noqa: ANN401
    """A copy of plain JSON data that shares nothing with it: several times as fast as `copy.deepcopy`."""
    if isinstance(value, dict):
        return {key: plain_copy(inner) for key, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [plain_copy(inner) for inner in cast("list[Any]", value)]
    return value


class ToolError(Exception):
    """The world does not allow this call. The message is a sentence for the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a tool."""

    name: str
    kind: Kind
    schema: JsonObject
    required: bool
    default: Json = None
    choices: tuple[Json, ...] = ()

    @property
    def short(self) -> str:
        """The parameter in a signature; a hint only where the name does not give the form of the value."""
        if not self.required:
            return f"{self.name}={self.default!r}"
        if self.kind == "choice":
            return f"{self.name}: " + "|".join(repr(choice) for choice in self.choices)
        hint = _HINTS.get(self.kind) or _NUMBER_HINTS.get(str(self.schema["type"]))
        return f"{self.name}: {hint}" if hint and hint != self.name else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A typed function that acts on one app's state."""

    name: str
    app: str
    description: str
    writes: bool
    parameters: tuple[Parameter, ...]
    function: Callable[..., Result]
    arrange: Callable[..., None] | None = None
    """arrange(state, rng, **args): change the state so that the call can succeed, and a write makes a
    difference. Idempotent."""
    spends: str = ""
    """The argument that uses up what `arrange` provides. Earlier calls leave less of it for later ones: calls
    with the same arrangement are then arranged for with their sum."""
    returns: tuple[str, ...] = ()
    """Fields of the result that a later call may use, e.g. `("flight_id", "price")`; there whenever the call
    succeeds in an arranged state."""

    @property
    def schema(self) -> JsonObject:
        """The tool in the JSON form of the OpenAI and Hugging Face chat APIs."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": {p.name: p.schema for p in self.parameters},
                    "required": [p.name for p in self.parameters if p.required],
                },
            },
        }

    @property
    def heading(self) -> str:
        """The tool as one line of Python, short because each prompt token costs.

        E.g. `create_event(title, date, start: time, minutes=60)`; a long
        list of choices that an earlier parameter has as well is not repeated.
        """
        shown: dict[tuple[Json, ...], str] = {}
        parts: list[str] = []
        for parameter in self.parameters:
            twin = shown.get(parameter.choices) if len(parameter.choices) > _SHORT_CHOICE else None
            shown.setdefault(parameter.choices, parameter.name)
            parts.append(f"{parameter.name}: as {twin}" if twin else parameter.short)
        return f"{self.name}({', '.join(parts)})"

    @property
    def signature(self) -> str:
        """The heading and the description, e.g. `list_events(date)  # List the events of a day.`."""
        return f"{self.heading}  # {self.description}"


def tool(
    app: str,
    *,
    writes: bool = False,
    arrange: Callable[..., None] | None = None,
    spends: str = "",
    returns: tuple[str, ...] = (),
) -> Callable[[Callable[..., Result]], Tool]:
    """Make a tool of a function `(state, **parameters) -> Result`: reads its signature and Google docstring.

    Args:
        app: the app whose state the function gets.
        writes: whether a successful call may change the state; a change by any other tool is dropped.
        arrange: see `Tool.arrange`.
        spends: see `Tool.spends`.
        returns: see `Tool.returns`.

    Raises:
        TypeError: a parameter without a known type or without a line in the docstring.
    """

    def decorate(function: Callable[..., Result]) -> Tool:
        description, notes = _documentation(function)
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        parameters = [_parameter(parameter, notes.get(parameter.name)) for parameter in own]
        return Tool(
            name=function.__name__,
            app=app,
            description=description,
            writes=writes,
            parameters=tuple(parameters),
            function=function,
            arrange=arrange,
            spends=spends,
            returns=returns,
        )

    return decorate


def _documentation(function: Callable[..., Result]) -> tuple[str, dict[str, str]]:
    """The first line of a function's docstring, and its `Args:` section by parameter name."""
    lines = (inspect.getdoc(function) or "").splitlines()
    if not lines:
        raise TypeError(f"the tool {function.__name__} has no docstring")
    notes: dict[str, str] = {}
    start = lines.index("Args:") + 1 if "Args:" in lines else len(lines)
    for line in lines[start:]:
        if not line.startswith(" "):
            break
        name, _, note = line.strip().partition(": ")
        notes[name] = note
    return lines[0], notes


def _parameter(parameter: inspect.Parameter, note: str | None) -> Parameter:
    """A parameter from its annotation, its default and its line in the docstring."""
    if note is None:
        raise TypeError(f"the parameter {parameter.name!r} has no line under Args")
    annotation: object = parameter.annotation
    choices: tuple[Json, ...] = ()
    kind: Kind
    if get_origin(annotation) is Literal:
        kind, choices = "choice", get_args(annotation)
        schema: dict[str, Json] = {"type": "string", "enum": list(choices)}
    elif get_origin(annotation) is Annotated and isinstance(get_args(annotation)[1], Between):
        plain, limits = get_args(annotation)
        kind, json_type = _PLAIN_KINDS[plain]
        schema = {"type": json_type, "minimum": limits.lowest, "maximum": limits.highest}
    elif get_origin(annotation) is Annotated:
        kind = get_args(annotation)[1]
        schema = dict(_STRING_KINDS[kind])
    elif annotation in _PLAIN_KINDS:
        kind, json_type = _PLAIN_KINDS[annotation]
        schema = {"type": json_type}
    else:
        raise TypeError(f"the parameter {parameter.name!r} has no kind: {annotation!r}")
    required = parameter.default is inspect.Parameter.empty
    default = None if required else parameter.default
    schema |= {"description": note} if required else {"description": note, "default": default}
    return Parameter(
        name=parameter.name, kind=kind, schema=schema, required=required, default=default, choices=choices
    )
