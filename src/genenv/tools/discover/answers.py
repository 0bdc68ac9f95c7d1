"""What answers of tools look like: the values that they show, and their form without these."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from genenv.tools.discover.recipes import RESULT_OF, parsed_result
from genenv.tools.discover.rows import row_answers
from genenv.tools.discover.state_values import ANY, KEY, NAMES, indices, leaves, single_paths
from genenv.tools.worlds.base import Outcome
from genenv.tools.worlds.differences import is_equal
from genenv.types import Json

_REFUSAL = re.compile(
    r"\b(?:can ?not|\w+n['’]t|failed|invalid|must|no|not|nothing|unable|unknown)\b", re.IGNORECASE
)
"""Words of an answer in prose that says why nothing was done."""


def is_one_refusal(outcomes: Iterable[Outcome], forms: Collection[str]) -> bool:
    """Return whether answers are texts of one form that says why nothing was done."""
    prose = all(isinstance(outcome.result, str) for outcome in outcomes)
    return prose and len(forms) == 1 and any(map(_REFUSAL.search, forms))


_FLAGS = {None, "0", "1"}
"""What a column of yes and no may hold, as `repr` gives it; None where a result has no such field."""


def shown_by(
    calls: Iterable[tuple[Mapping[str, Json], Outcome]],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the kinds of single values in results, and those that one can ask for: they differ.

    Questions about the rows of a list are kinds that one can ask for, too (`rows`). What only some results
    show differs as well: of a list with one item, the fields of that item. A result that is no record is
    asked for if it is a number or a word. What only repeats the arguments is known before. Of 0 and 1 nobody
    asks for the number: such a column is mostly a yes or a no.

    Args:
        calls: the arguments and outcomes of calls of one tool.
    """
    results = [(args, parsed_result(outcome.result)) for args, outcome in calls]
    made = [(args, single_paths(result)) for args, result in results]
    shown = dict.fromkeys(kind for _, one in made for kind in one)
    values = {kind: {repr(one[kind][1]) if kind in one else None for _, one in made} for kind in shown}
    new = {
        kind
        for known, one in ((given_in(args), one) for args, one in made)
        for kind, (_, value) in one.items()
        if repr(value) not in known
    }
    told = (kind for kind in shown if kind in new and len(values[kind]) > 1 and values[kind] - _FLAGS)
    is_prose = any(len(str(one[""][1]).split()) > 1 for _, one in made if "" in one)
    return tuple(shown), (
        *(kind for kind in told if kind or not is_prose),
        *_of_rows([result for _, result in results]),
    )


def _of_rows(results: Sequence[Json]) -> Iterator[str]:
    """Yield the kinds of questions about rows whose answers differ between results."""
    made = [row_answers(one) for one in results]
    for kind in dict.fromkeys(kind for one in made for kind in one):
        if len({repr(one[kind][1]) if kind in one else None for one in made}) > 1:
            yield kind


def given_in(args: Mapping[str, Json]) -> set[str]:
    """Return the values in arguments, those inside lists and records too, as `repr` gives them."""
    return {repr(value) for held in leaves(dict(args)).values() for value in held}


_REPEATED = re.compile(r"((['\"]?)<[^<>]*>\2)(?:, ?\1)+")
_QUOTED = re.compile(r"(['\"])(?!<)[^'\"]*\1|\d+")


def form_of(outcome: Outcome, args: Mapping[str, Json]) -> str:
    """Return an answer with the names of arguments in place of their values; of errors, without other values.

    A call that fails because of another argument fails in another form.
    """
    text = outcome.text if outcome.error is None else outcome.error
    for name, values in leaves(dict(args)).items():
        for value in sorted((str(one) for one in values if not isinstance(one, bool)), key=len, reverse=True):
            found = rf"(?<!\w){re.escape(value)}(?!\w)(?!\":)"  # a field that has this name stays
            text = re.sub(found, f"<{name}>", text) if value else text
    text = _REPEATED.sub(r"\1", text)
    return _QUOTED.sub("", text) if outcome.error is not None else text


_ITEM = re.compile(r"[\s*+•-]*(\S{1,64})\s*")
_LONGEST = 80


def result_values(tool: str, results: Iterable[Json]) -> dict[str, list[Json]]:
    """Return the single values in a tool's results by kind."""
    found: dict[str, dict[str, Json]] = {}
    for result in results:
        for kind, value in _values(parsed_result(result)):
            found.setdefault(result_kind(tool, kind), {}).setdefault(repr(value), value)
    return {kind: list(values.values()) for kind, values in found.items()}


def _values(result: Json) -> Iterator[tuple[str, Json]]:
    for kind, values in leaves(result).items():
        named = kind_without_lists(kind)
        for value in values:
            if isinstance(value, str) and not named:
                yield from ((KEY, word) for word in _items(value))
            elif isinstance(value, int | float) and not isinstance(value, bool):
                yield named or KEY, value
            elif isinstance(value, str) and value.strip() and "\n" not in value and len(value) <= _LONGEST:
                yield named, value
    for kind, values in indices(result).items():
        if kind.endswith(NAMES) and not kind.endswith(f"{ANY}.{NAMES}"):  # of a mapping that is no record
            yield from ((kind_without_lists(kind), value) for value in values)


def _items(text: str) -> list[str]:
    """Return the lines of a text that are single words, as lists of names are printed."""
    return [match[1] for line in text.splitlines() if (match := _ITEM.fullmatch(line))]


def result_kind(tool: str, kind: str) -> str:
    """Return the source name of a kind of result values, such as `list_branches().#`."""
    return f"{tool}{RESULT_OF}{kind_without_lists(kind)}"


def kind_without_lists(kind: str) -> str:
    """Return a kind without list markers: `*.commit` becomes `commit`."""
    return ".".join(part for part in kind.split(".") if part != ANY)


def has_list(result: Json) -> bool:
    """Whether a result is a list, or a record with one, as of a search."""
    result = parsed_result(result)
    return any(
        isinstance(one, list) for one in (result.values() if isinstance(result, Mapping) else [result])
    )


def has_items(found: Json, wanted: Json) -> bool:
    """Whether a result has all items of the lists of another one, which are not all empty."""
    if isinstance(found, list) and isinstance(wanted, list):
        return bool(wanted) and all(any(is_equal(one, other) for other in found) for one in wanted)
    if not isinstance(found, Mapping) or not isinstance(wanted, Mapping):
        return False
    lists = [name for name, one in wanted.items() if isinstance(one, list) and one]
    return bool(lists) and all(has_items(found.get(name), wanted[name]) for name in lists)
