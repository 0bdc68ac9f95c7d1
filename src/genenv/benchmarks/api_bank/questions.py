"""API-Bank's questions, and the parsing and comparison of calls in replies, shared by both forms.

API-Bank records every value as text, whatever the declared type. Its authors convert a request's values to
the declared types before they call the API, and some of their checks ignore case or compare parsed times.
Two values of a parameter are compared under the API's description in the prompt; no API is called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, cast

from genenv.chat.reasoning import without_thoughts
from genenv.types import Json

_MAX_LITERAL_CHARS = 10_000
_MAX_TIME_CHARS = 40
_INPUTS = re.compile(r"""(?:Parameters: |['"]input_parameters['"]: )(\{.*)""")
_PARAMETER = re.compile(
    r"""['"](?P<name>\w+)['"]: \{['"]type['"]: ['"](?P<type>[^'"]*)['"], """
    r"""['"]description['"]: (?:"(?P<double>[^"]*)"|'(?P<single>[^']*)')\}"""
)
_FORMAT = re.compile(r"Format(?: be like)?:? (%[^'\"]*?)\.?\s*$")
_NUMBER = re.compile(r"[-+]?[0-9]{1,18}(?:\.[0-9]{0,18})?")
_PYTHON = re.compile(r"'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\"|\b(?:True|False|None)\b|[()]", re.DOTALL)
_WORDS = {"True": "true", "False": "false", "None": "null", "(": "[", ")": "]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A parameter in an API's description."""

    type: str
    """The declared type: `str`, `int`, `float`, `bool`, `list`, `list(str)`, `dict`, `json`."""
    description: str

    @property
    def ignores_case(self) -> bool:
        """Return whether the description says that case is ignored."""
        return "Cases are ignored" in self.description

    @property
    def time_format(self) -> str | None:
        """Return the format of the parameter's times, e.g. `%Y-%m-%d`; None if there is none."""
        found = _FORMAT.search(self.description)
        return found[1] if found else None


def declared_in(prompt: str, api: str) -> dict[str, Declared]:
    """Return an API's parameters from its description in a prompt: ToolRL's form, JSON or a Python dict.

    Returns:
        The parameters by name; empty if the prompt does not describe the API.
    """
    name = re.escape(api)
    header = re.search(rf"""['"]name['"]: ['"]{name}['"]|^\d+\. (?:Name: )?{name}(?:$|: )""", prompt, re.M)
    inputs = _INPUTS.search(prompt, header.end()) if header else None
    if inputs is None:
        return {}
    text = re.split(r"""['"]output_parameters['"]""", inputs[1], maxsplit=1)[0]
    return {
        found["name"]: Declared(type=found["type"], description=found["double"] or found["single"] or "")
        for found in _PARAMETER.finditer(text)
    }


def same_value(given: Json, gold: Json, declared: Declared | None) -> bool:
    """Return whether a value equals the recorded value under its declaration.

    | declared | equal if |
    |---|---|
    | int, float | equal as numbers |
    | list, list(str), dict, json | equal after parsing as a Python or JSON literal |
    | bool | equal as words, ignoring case |
    | str, with "Cases are ignored" | equal as text, ignoring case |
    | str, with "Format: %Y-%m-%d" or another | equal as times, both in this format |

    All other values are compared as text, without leading and trailing spaces.
    """
    mine, right = _text(given), _text(gold)
    if mine is not None and mine == right:
        return True
    kind = declared.type if declared else "str"
    if kind in ("int", "float"):
        number = _number(mine)
        return number is not None and number == _number(right)
    if kind not in ("str", "bool"):
        return _literal(given) == _literal(gold)
    if mine is None or right is None or declared is None:
        return False
    if kind == "bool" or declared.ignores_case:
        return mine.casefold() == right.casefold()
    return declared.time_format is not None and _same_time(mine, right, declared.time_format)


def same_values(
    given: Mapping[str, Json], gold: Mapping[str, Json], declared: Mapping[str, Declared]
) -> bool:
    """Return whether two requests have the same parameters with equal values."""
    return given.keys() == gold.keys() and all(
        same_value(given[name], value, declared.get(name)) for name, value in gold.items()
    )


def _text(value: Json) -> str | None:
    """Return a scalar as text; None for lists and objects."""
    if isinstance(value, str):
        return value.strip()
    if value is None or isinstance(value, bool | int | float):
        return str(value)
    return None


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and _NUMBER.fullmatch(text) else None


def _same_time(given: str, gold: str, time_format: str) -> bool:
    if max(len(given), len(gold)) > _MAX_TIME_CHARS:
        return False
    # A leap year for formats without a year, so that 29 February is valid.
    year, leap = ("", "") if "%Y" in time_format else ("%Y ", "2000 ")
    try:
        mine, right = (datetime.strptime(leap + text, year + time_format) for text in (given, gold))  # noqa: DTZ007
        return mine == right
    except (ValueError, OverflowError):
        return False


def _literal(value: Json) -> Json:
    """Return the value of a text that is a Python or JSON literal, else the text.

    Python literals are rewritten as JSON, so no model output reaches a code parser.
    """
    if not isinstance(value, str) or len(value) > _MAX_LITERAL_CHARS:
        return value
    try:
        return json.loads(_PYTHON.sub(_as_json, value))
    except (ValueError, RecursionError):
        return value


def _as_json(found: re.Match[str]) -> str:
    token = found[0]
    if token[0] == "'":
        return json.dumps(token[1:-1].replace("\\'", "'"))
    return _WORDS.get(token, token)


MAX_REPLY_CHARS = 100_000
"""The most characters of a reply that are parsed."""
_MAX_FAILURES = 64
"""The number of lines without JSON after which parsing stops, to bound its time."""
_MAX_SHOWN = 60
_DECODER = json.JSONDecoder()
_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
"""The last block need not be closed."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool: its name and parameters."""

    name: str
    parameters: Mapping[str, Json]


def call_of(value: Any) -> Call | None:  # noqa: ANN401
    """Parse a call from JSON with `name`, and `parameters` or `arguments`; None if malformed."""
    if not isinstance(value, dict):
        return None
    found = cast("dict[str, Any]", value)
    name, parameters = found.get("name"), found.get("parameters", found.get("arguments"))
    if not isinstance(name, str) or not isinstance(parameters, dict):
        return None
    return Call(name, cast("dict[str, Json]", parameters))


def calls_in(reply: str) -> list[Call]:
    """Return the calls of a reply in ToolRL's form.

    They are JSON objects in `<tool_call>` blocks outside `<think>`, in sequence or in a list. The last block
    may lack its end tag. Text that is not JSON is skipped up to the end of its line.
    """
    found: list[Call | None] = []
    for block in _BLOCK.findall(without_thoughts(reply[:MAX_REPLY_CHARS])):
        for value in _json_values(block):
            found += map(call_of, cast("list[Any]", value) if isinstance(value, list) else [value])
    return [call for call in found if call is not None]


def _json_values(block: str) -> Iterator[Any]:
    at, failures = 0, 0
    while at < len(block) and failures < _MAX_FAILURES:
        if block[at].isspace() or block[at] == ",":
            at += 1
            continue
        try:
            value, at = _DECODER.raw_decode(block, at)
        except (ValueError, RecursionError):
            failures += 1
            line_end = block.find("\n", at)
            at = line_end + 1 if line_end >= 0 else len(block)
            continue
        yield value


def is_subset(gold: Call, given: Call) -> bool:
    """Return whether a call is right under GenEnv's lenient rule: empty and extra parameters are ignored.

    The rule is the reward of arXiv:2512.19682 for tool calls. All other parameters must be equal.
    """
    wanted, mine = _with_content(gold.parameters), _with_content(given.parameters)
    return gold.name == given.name and all(name in mine and mine[name] == wanted[name] for name in wanted)


def _with_content(parameters: Mapping[str, Json]) -> dict[str, Json]:
    return {
        name: value
        for name, value in parameters.items()
        if value is not None and not (isinstance(value, str | list | dict) and not value)
    }


def difference(gold: Call, calls: Sequence[Call], same: Callable[[str, Json], bool] | None = None) -> str:
    """Return a sentence on the difference between the recorded call and the most similar call of a reply.

    Args:
        gold: the recorded call.
        calls: the calls of the reply.
        same: returns whether the value of a named parameter is right; default: equality.
    """
    if not calls:
        return f"no call could be read; {gold.name} was wanted"
    named = [call for call in calls if call.name == gold.name]
    if not named:
        return f"{shown(calls[0].name)} was called; {gold.name} was wanted"
    return _parameters_differ(gold, named[0], same or (lambda name, value: value == gold.parameters[name]))


def _parameters_differ(gold: Call, call: Call, same: Callable[[str, Json], bool]) -> str:
    for name, value in gold.parameters.items():
        if name not in call.parameters:
            return f"{gold.name} lacks {name}={shown(value)}"
        if not same(name, call.parameters[name]):
            return f"{gold.name} has {name}={shown(call.parameters[name])}; {shown(value)} was wanted"
    extra = [name for name in call.parameters if name not in gold.parameters]
    return f"{gold.name} has {shown(extra[0])}, which is not wanted" if extra else f"{gold.name} as recorded"


def shown(value: Json) -> str:
    """Format a value for a sentence: short and printable."""
    if isinstance(value, str):
        return json.dumps(value if len(value) <= _MAX_SHOWN else value[:_MAX_SHOWN] + "…")
    if isinstance(value, Mapping):
        return "an object"
    if value is None or isinstance(value, bool | int | float):
        return str(value)[:_MAX_SHOWN]
    return "a list"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One prompt with its recorded call or response."""

    kind: Literal["call", "request", "response"]
    """`call`: ToolRL's form; `request`: the authors' form; `response`: an answer to the user, same form."""
    messages: tuple[Mapping[str, str], ...]
    gold: Call = field(default_factory=lambda: Call("", {}))
    """The recorded call; empty for a response."""
    response: str = ""
    """The recorded response; empty for a call."""
    declared: Mapping[str, Declared] = field(default_factory=dict[str, Declared])
    """The parameters of the recorded call's API, as the prompt describes them."""
    dialogue: str = ""
    """The id of the dialogue, for level 3 in the authors' form; else empty."""
    of_dialogue: int = 0
    """The number of requests in that dialogue."""


def text_of(entry: Any, key: str) -> str:  # noqa: ANN401
    """Return a text field of an entry.

    Raises:
        KeyError: the field is missing.
        TypeError: the field is not a text.
    """
    text = entry[key]
    if not isinstance(text, str):
        raise TypeError(f"{key} must be a text")
    return text


def reply_of(answer: Json) -> str:
    """Return the reply in an answer; "" if the answer is malformed."""
    reply = answer.get("reply") if isinstance(answer, Mapping) else None
    return reply if isinstance(reply, str) else ""
