"""What answers of tools look like: the values that they show, and their form without these."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from genenv.tools.discover.recipes import parsed_result
from genenv.tools.discover.state_values import leaves, single_paths
from genenv.tools.worlds.base import Outcome
from genenv.types import Json

_REFUSAL = re.compile(
    r"\b(?:can ?not|\w+n['’]t|failed|invalid|must|no|not|nothing|unable|unknown)\b", re.IGNORECASE
)
"""Words of an answer in prose that says why nothing was done."""


def is_one_refusal(outcomes: Iterable[Outcome], forms: Collection[str]) -> bool:
    """Return whether answers are texts of one form that says why nothing was done."""
    prose = all(isinstance(outcome.result, str) for outcome in outcomes)
    return prose and len(forms) == 1 and any(map(_REFUSAL.search, forms))


def shown_by(outcomes: Iterable[Outcome]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the kinds of single values in results, and those of them that differ between results."""
    shown: dict[str, set[str]] = {}
    for outcome in outcomes:
        for kind, (_, value) in single_paths(parsed_result(outcome.result)).items():
            shown.setdefault(kind, set()).add(repr(value))
    return tuple(shown), tuple(kind for kind, values in shown.items() if kind and len(values) > 1)


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
