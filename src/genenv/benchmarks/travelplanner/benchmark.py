"""TravelPlanner: a trip of 3, 5 or 7 days, planned from given information under 13 constraints.

Xie et al., "TravelPlanner: A Benchmark for Real-World Planning with Language Agents" (arXiv:2402.01622),
github.com/OSU-NLP-Group/TravelPlanner. In the default mode "sole-planning" the model gets all information, in
the authors' format, and writes the plan in one reply. Prompts are genenv's or the authors'. The constraints
are those of the authors' evaluator (`genenv.environments.travel.constraints`). One part of their pipeline
differs: code, not a second model, extracts the plan from the reply (`replies.py`).

Figures are those of `evaluation/eval.py` of their repository. They are over N plans. Each has 8 commonsense
constraints, and as many hard ones as its query requests:

    delivery rate           delivered plans / N
    commonsense micro       commonsense constraints met / 8 N  (validation: 1440, train: 360)
    commonsense macro       plans that meet all 8 / N
    hard micro              hard constraints met / those requested  (validation: 420, train: 105)
    hard macro              plans that meet all requested ones / N
    final pass rate         plans that meet all constraints / N

Hard constraints count as met only in plans that are complete and within the sandbox. The headline is the mean
of the two micro and the two macro rates, as GenEnv (arXiv:2512.19682) reports the benchmark.

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
import math
import string
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import ClassVar, Final, Literal, cast

from pydantic import BaseModel

from genenv.benchmarks.travelplanner import two_stage
from genenv.benchmarks.travelplanner.loading import Question, read_questions
from genenv.benchmarks.travelplanner.replies import reading_of, submission
from genenv.benchmarks.travelplanner.two_stage import Searches
from genenv.chat.assistant import Talk
from genenv.environments.travel.constraints import COMMONSENSE, HARD, Score, score
from genenv.environments.travel.query import FIELDS
from genenv.evaluation.base import Benchmark, Grade, Graded, Item
from genenv.evaluation.data import DataFolder
from genenv.evaluation.results import Record
from genenv.settings import Settings
from genenv.statistics import Figure, Part, rate, weighted
from genenv.types import Json, JsonObject


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
_SEARCHING = "ZEROSHOT_REACT_INSTRUCTION"


def _template(data: DataFolder, name: str, blanks: AbstractSet[str]) -> str:
    """Return one of the authors' templates, which has exactly these fields.

    Raises:
        DataError: the authors' file is missing or changed, or lacks the template.
    """
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


OFFICIAL = "OSU-NLP-Group/TravelPlanner da7c1d4, 2025-06-15"
"""The commit whose rules these are; its evaluators were last changed on 2024-12-11."""
READER = "3"
"""Version of the parser. Version 1 parsed names and cities only without other text next to them; 2 silently
dropped days that are not JSON.
"""
_LONGEST = 300
"""The most characters of an explanation."""
_DIRECT_TOKENS, _THINKING_TOKENS = 2048, 4096


class TravelPlanner(Benchmark):
    """The TravelPlanner benchmark. Its headline is the mean of the four constraint rates, as in GenEnv."""

    name: ClassVar[str] = "travelplanner"
    config: ClassVar[type[BaseModel]] = TravelPlannerSettings
    prompt_version: ClassVar[str] = "1"
    splits: ClassVar[Mapping[str, str]] = {
        "validation": "180 queries, 20 of each level and length: what is reported",
        "train": "45 queries, 5 of each level and length, with plans by people",
        "test": "1,000 queries that the authors' leaderboard alone can grade: for --export",
    }

    settings: TravelPlannerSettings

    def __init__(self, settings: BaseModel | None = None) -> None:
        super().__init__(settings)
        thinks = self.settings.strategy == "cot"
        self.max_tokens = _THINKING_TOKENS if thinks else _DIRECT_TOKENS
        """A plan for a week has about 1,300 tokens of JSON."""

    def load(self, data: DataFolder, split: str) -> Sequence[Item]:
        """Return the queries of a split, in the order of its file."""
        theirs = self.settings.prompt == "authors"
        planning = _THEIRS[self.settings.strategy]
        template = _template(data, planning, {"text", "query"}) if theirs else None
        whole = self.settings.mode == "two-stage"
        searching = _template(data, _SEARCHING, {"query", "scratchpad"}) if theirs and whole else None
        questions = read_questions(data, split, template, searching=searching, two_stage=whole)
        return [
            Item(
                id=f"{split}-{number:03}",
                groups=question.groups,
                data=question,
            )
            for number, question in enumerate(questions, 1)
        ]

    def many_turns(self, item: Item) -> bool:
        """Return whether the model searches for the information (mode two-stage)."""
        return self.settings.mode == "two-stage"

    def most_replies(self, item: Item) -> int:
        """Return the most replies: 1, or in two-stage mode a thought and an action per step, and the plan."""
        return 2 * two_stage.MAX_STEPS + 1 if self.many_turns(item) else 1

    async def attempt(self, item: Item, talk: Talk) -> Json:
        """Roll out one turn or the two-stage agent; return an answer with the reply that holds the plan."""
        searches = _question(item).split.searches
        if searches is not None:
            return await self._agent(_question(item), searches).run(talk)
        content = prompt(_question(item), self.settings)
        reply = await talk([{"role": "user", "content": content}])
        return reply.text

    def _agent(self, question: Question, searches: Searches) -> two_stage.Agent:
        theirs = question.split.searching

        def step(query: str, done: str) -> str:
            if theirs is None:
                return f"{two_stage.INSTRUCTION}{query}{done}"
            return filled(theirs, {"query": query, "scratchpad": done})

        def planning(notebook: str, query: str) -> str:
            return prompt(replace(question, information=notebook, text=query), self.settings)

        return two_stage.Agent(query=question.text, searches=searches, prompt=step, planning=planning)

    def grade(self, item: Item, answer: Json) -> Grade:
        """Grade the plan in a reply, or a plan in the form of a submission."""
        question = _question(item)
        read = reading_of(question, answer)
        if question.query is None:
            return _ungraded(len(read.plan), read.unread)
        found = score(question.query, read.plan[: question.query.days], question.database)
        return _graded(found, found.sentence if read.plan else "The reply holds no plan.", read.unread)

    def unanswered(self, item: Item, reason: str) -> Grade:
        """Return the grade without a plan: no constraint is met."""
        question = _question(item)
        if question.query is None:
            return Grade(score=0.0, explanation=_printable(reason))
        return _graded(score(question.query, [], question.database), reason)

    def export(self, answered: Sequence[tuple[Item, Record]], policy: str) -> Mapping[str, str]:
        """Return `submission.jsonl` for the authors' evaluator and leaderboard."""
        plans = [(_question(item), record.answer) for item, record in answered]
        return {"submission.jsonl": submission(plans)}

    def figures(self, graded: Sequence[Graded]) -> list[Figure]:
        """Return the mean of four rates, the authors' six numbers by level and days, and each constraint."""
        if any(_question(item).query is None for item, _ in graded):
            return super().figures(graded)
        return figures(graded)

    def headline_of(self, graded: Sequence[Graded]) -> str:
        """Return the headline's name for the test split, whose constraints are hidden."""
        return "delivery_rate"

    def describe(self) -> JsonObject:
        """Return the mode, the prompt, the parser and the constraints."""
        settings, named = self.settings, f"genenv's, version {self.prompt_version}"
        named += f", {settings.strategy}, {settings.form}"
        if settings.prompt == "authors":
            named = f"the authors', {_THEIRS[settings.strategy]} of agents/prompts.py"
        return {
            "mode": settings.mode,
            "prompt": named,
            "plans_read_by": f"code, version {READER} (the authors: GPT-4)",
            "rules_of": OFFICIAL,
            "flights": "all" if settings.mode == "two-stage" else "those of the reference information",
            "constraints": [*COMMONSENSE, *HARD],
        }


def _question(item: Item) -> Question:
    return cast(Question, item.data)


def _ungraded(days: int, unread: Sequence[str]) -> Grade:
    """Return a grade without constraints: 1 if there is a plan, else 0."""
    plan = f"There is a plan of {days} days" if days else "The reply holds no plan"
    return Grade(
        score=float(days > 0),
        explanation=f"{plan}; the authors' leaderboard grades it.",
        unread=tuple(map(_printable, unread)),
    )


def _graded(found: Score, explanation: str, unread: Sequence[str] = ()) -> Grade:
    """Return a plan's grade: counts of met constraints, and for each requested one whether it is met.

    An unchecked constraint is not met, as in the authors' rates: all without a plan, the hard ones without a
    complete plan within the sandbox.
    """
    (met, asked), (hard_met, hard_asked) = found.commonsense, found.hard
    rates = (met / asked, float(met == asked), hard_met / hard_asked, float(hard_met == hard_asked))
    numbers = {
        DELIVERED: float(found.delivered),
        COMMONSENSE_MET: float(met),
        COMMONSENSE_ASKED: float(asked),
        HARD_MET: float(hard_met),
        HARD_ASKED: float(hard_asked),
        PASSED: float(found.passed),
    }
    judged = {name: found.delivered and (name in COMMONSENSE or found.judged_hard) for name in found.asked}
    constraints = {name: float(judged[name] and name not in found.problems) for name in found.asked}
    return Grade(
        score=sum(rates) / len(rates),
        explanation=_printable(explanation),
        unread=tuple(map(_printable, unread)),
        measures={**numbers, **constraints},
    )


def _printable(text: str) -> str:
    """Return printable text of bounded length."""
    return "".join(char if char.isprintable() else "?" for char in text[:_LONGEST])


DELIVERED: Final = "delivered"
COMMONSENSE_MET: Final = "commonsense_met"
COMMONSENSE_ASKED: Final = "commonsense_asked"
HARD_MET: Final = "hard_met"
HARD_ASKED: Final = "hard_asked"
PASSED: Final = "passed"
_FAMILIES = ((COMMONSENSE_MET, COMMONSENSE_ASKED), (HARD_MET, HARD_ASKED))


def figures(graded: Sequence[Graded]) -> list[Figure]:
    """Return all figures of these grades, the headline first."""
    grades = [grade for _, grade in graded]
    found = list(_numbers(grades, ""))
    for key in ("level", "days"):
        for label, members in _by(key, graded):
            found += _numbers(members, label)
    found += _constraints(grades, "")
    for label, members in _by("level", graded):
        found += _constraints(members, label)
    return found


def _by(key: str, graded: Sequence[Graded]) -> Iterator[tuple[str, list[Grade]]]:
    """Yield the label and grades of each group."""
    for value in dict.fromkeys(item.groups[key] for item, _ in graded):
        yield f"{key}={value}", [grade for item, grade in graded if item.groups[key] == value]


def _numbers(grades: Sequence[Grade], group: str) -> Iterator[Figure]:
    (met, asked), (hard_met, hard_asked) = _FAMILIES
    yield _average(grades, group)
    yield rate("delivery_rate", _column(grades, DELIVERED), group=group)
    yield weighted("commonsense_micro", [_micro(grades, met, asked)], group=group)
    yield rate("commonsense_macro", _macro(grades, met, asked), group=group)
    yield weighted("hard_micro", [_micro(grades, hard_met, hard_asked)], group=group)
    yield rate("hard_macro", _macro(grades, hard_met, hard_asked), group=group)
    yield rate("final_pass_rate", _column(grades, PASSED), group=group)


def _average(grades: Sequence[Grade], group: str) -> Figure:
    """Return the mean of the four rates, with one bootstrap over plans, as all rates are of the same plans.

    Each plan contributes to the four numerators; contributions are divided by the denominators, times N. The
    denominators are fixed, as the authors'.
    """
    parts = [0.0] * len(grades)
    for met, asked in _FAMILIES:
        whole = math.fsum(_column(grades, asked))
        for index, (over, all_met) in enumerate(
            zip(_column(grades, met), _macro(grades, met, asked), strict=True)
        ):
            parts[index] += (over * len(grades) / whole + all_met) / 4
    return weighted("average", [Part(parts)], group=group)


def _column(grades: Sequence[Grade], name: str) -> list[float]:
    return [grade.measures[name] for grade in grades]


def _micro(grades: Sequence[Grade], met: str, asked: str) -> Part:
    return Part(_column(grades, met), _column(grades, asked))


def _macro(grades: Sequence[Grade], met: str, asked: str) -> list[float]:
    """Return 1 for each plan that meets all constraints of a family, else 0."""
    return [float(grade.measures[met] == grade.measures[asked]) for grade in grades]


def _constraints(grades: Sequence[Grade], group: str) -> Iterator[Figure]:
    """Yield, for each constraint, the share of plans that meet it among those whose query requests it."""
    for name in (*COMMONSENSE, *HARD):
        asked = [grade.measures[name] for grade in grades if name in grade.measures]
        if asked:
            yield rate(name, asked, group=group)
