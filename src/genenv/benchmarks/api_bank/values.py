"""Compares two values of a parameter under the API's description of the parameter.

API-Bank records every value as text, whatever the declared type. Its authors convert a request's values to
the declared types before they call the API, and some of their checks ignore case or compare parsed times.
The rules here follow the description in the prompt; no API is called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

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
