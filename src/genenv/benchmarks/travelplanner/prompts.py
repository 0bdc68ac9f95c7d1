"""TravelPlanner's settings, and the prompts for planning from given information: genenv's or the authors'.

As in the authors' prompts (`agents/prompts.py` of OSU-NLP-Group/TravelPlanner, `PLANNER_INSTRUCTION` and
`COT_PLANNER_INSTRUCTION`) there is one message: the task, an example, the given information, the query.
genenv's prompt has its own wording and an example with fictional cities. `form: json` asks for the form of
submissions, which the authors derive from the plan with a second model; `form: text` asks for the authors'
lines. The authors' prompt is not part of genenv: with `prompt: authors` it is parsed, not executed, from the
authors' file among the data.
"""

from __future__ import annotations

import ast
import json
import string
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Literal

from genenv.benchmarks.travelplanner.loading import Question
from genenv.environments.travel.query import FIELDS
from genenv.evaluation.data import DataFolder
from genenv.settings import Settings


class TravelPlannerSettings(Settings, frozen=True):
    """Settings of the TravelPlanner benchmark."""

    mode: Literal["sole-planning", "two-stage"] = "sole-planning"
    """`sole-planning` gives all information; in `two-stage` the model first searches for it with tools."""
    strategy: Literal["direct", "cot"] = "direct"
    """`direct` asks for the plan at once, `cot` for reasoning first: two of the authors' four strategies."""
    form: Literal["json", "text"] = "json"
    """`json` asks for the form of submissions, `text` for the authors' lines (`Breakfast: ...`)."""
    prompt: Literal["ours", "authors"] = "ours"
    """`authors` is their prompt, verbatim, from `travelplanner/prompts.py` of the data; it asks for lines."""


VERSION = "1"
NAMES: Mapping[str, str] = {
    "current_city": "Current City",
    **{field: field.capitalize() for field in FIELDS},
}
"""The name in the lines of `form: text`, by the key of the submission form; in order."""

_TASK = (
    "You are an experienced travel planner. Use the given information to answer the query with a detailed "
    "plan that names flight numbers (such as F0123456), restaurants, attractions and accommodations. "
    "Everything in the plan must come from the given information, and all of it should make sense. Keep "
    "exactly to the format of the example. The symbol '-' says that something is not needed: in the example "
    "nothing more is planned once the travelers are back in the city of departure. On a day with two cities "
    "the current city names both, as in the example (from A to B)."
)
_DIVERSE = " Restaurants and attractions should not come twice."
_QUERY = (
    "Please plan a 3-day trip for two people from Alderbrook to Quillport, from March 8th to March 10th, "
    "2022, with a budget of $2,100."
)
_ROOM = "Bright Loft near the Old Harbor, Quillport"
_DAYS: tuple[tuple[str, ...], ...] = (
    (
        "from Alderbrook to Quillport",
        "Flight Number: F0123456, from Alderbrook to Quillport, Departure Time: 06:15, Arrival Time: 08:05",
        "The Copper Kettle, Quillport",
        "Lighthouse Museum, Quillport;",
        "Basil & Thyme, Quillport",
        "Three Lanterns, Quillport",
        _ROOM,
    ),
    (
        "Quillport",
        "-",
        "Morning Glory Bakery, Quillport",
        "Quillport Botanic Garden, Quillport;Pier Nine Aquarium, Quillport;",
        "Saffron House, Quillport",
        "Harbor Grill, Quillport",
        _ROOM,
    ),
    (
        "from Quillport to Alderbrook",
        "Flight Number: F0123987, from Quillport to Alderbrook, Departure Time: 20:40, Arrival Time: 22:30",
        "Cafe Marmalade, Quillport",
        "Clock Tower Square, Quillport;",
        "Noodle Corner, Quillport",
        "-",
        "-",
    ),
)
"""The example's plan; fields are in the order of `NAMES`."""


AUTHORS_FILE = "travelplanner/prompts.py"
"""`agents/prompts.py` of the authors' repository, among the data."""
_THEIRS = {"direct": "PLANNER_INSTRUCTION", "cot": "COT_PLANNER_INSTRUCTION"}
_BLANKS = {"text", "query"}
_SEARCHING = "ZEROSHOT_REACT_INSTRUCTION"


def authors_template(data: DataFolder, settings: TravelPlannerSettings) -> str:
    """Return the authors' template for planning, with the fields `{text}` and `{query}`.

    Raises:
        DataError: the authors' file is missing or changed, or lacks the template.
    """
    return _template(data, _THEIRS[settings.strategy], _BLANKS)


def authors_searching(data: DataFolder) -> str:
    """Return the authors' template for searching with tools, with the fields `{query}` and `{scratchpad}`.

    Raises:
        DataError: as for `authors_template`.
    """
    return _template(data, _SEARCHING, {"query", "scratchpad"})


def _template(data: DataFolder, name: str, blanks: AbstractSet[str]) -> str:
    read = lambda: _checked(_text_named(name, data.read(AUTHORS_FILE)), blanks)  # noqa: E731
    return data.reading(AUTHORS_FILE, name, read)


def filled(template: str, blanks: Mapping[str, str]) -> str:
    """Return a template with its fields filled."""
    pieces = string.Formatter().parse(template)
    return "".join(said + (blanks[blank] if blank is not None else "") for said, blank, _, _ in pieces)


def _checked(template: str, wanted: AbstractSet[str]) -> str:
    """Return a template unchanged, after checking its fields.

    Raises:
        ValueError: the fields are not exactly those wanted.
    """
    blanks = {blank for _, blank, _, _ in string.Formatter().parse(template) if blank is not None}
    if blanks != wanted:
        raise ValueError(
            f"it has other blanks than {' and '.join(f'{{{one}}}' for one in sorted(wanted, reverse=True))}"
        )
    return template


def _text_named(name: str, source: str) -> str:
    """Return a string constant of Python source, found without executing the source.

    Raises:
        KeyError: there is no such constant.
        ValueError: the source is not Python.
    """
    try:
        statements = ast.parse(source).body
    except (SyntaxError, RecursionError) as error:
        raise ValueError("it is not Python") from error
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Name(id=found)], value=ast.Constant(value=str(text))) if (
                found == name
            ):
                return text
            case _:
                continue
    raise KeyError(name)


def described(settings: TravelPlannerSettings) -> str:
    """Return the prompt's name, for the summary."""
    if settings.prompt == "authors":
        return f"the authors', {_THEIRS[settings.strategy]} of agents/prompts.py"
    return f"genenv's, version {VERSION}, {settings.strategy}, {settings.form}"


def prompt(question: Question, settings: TravelPlannerSettings) -> str:
    """Return the message that asks for a plan."""
    if question.split.template is not None:
        return filled(question.split.template, {"text": question.information, "query": question.text})
    thinks = settings.strategy == "cot"
    parts = [
        _TASK + (_DIVERSE if thinks else ""),
        "***** Example *****",
        f"Query: {_QUERY}",
        f"Travel Plan:\n{_json_example() if settings.form == 'json' else _text_example()}",
        "***** Example Ends *****",
        "",
        f"Given information: {question.information}",
        f"Query: {question.text}",
        _ending(settings, thinks=thinks),
    ]
    return "\n".join(parts)


def _ending(settings: TravelPlannerSettings, *, thinks: bool) -> str:
    what = "a JSON list, as in the example" if settings.form == "json" else "lines, as in the example"
    if thinks:
        return f"Think step by step first. Then write the travel plan as {what}.\nLet's think step by step."
    return f"Answer with the travel plan alone: {what}.\nTravel Plan:"


def _json_example() -> str:
    days = [
        json.dumps({"days": number, **dict(zip(NAMES, day, strict=True))})
        for number, day in enumerate(_DAYS, 1)
    ]
    return "[" + ",\n".join(days) + "]"


def _text_example() -> str:
    days = [
        "\n".join([f"Day {number}:", *map(": ".join, zip(NAMES.values(), day, strict=True))])
        for number, day in enumerate(_DAYS, 1)
    ]
    return "\n\n".join(days)
