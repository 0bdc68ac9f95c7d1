"""Pages of `genenv eval`: results, item by item, and two policies side by side."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from genenv.errors import DataError, GenenvError
from genenv.evaluation.compare import Comparison, compare, paired
from genenv.evaluation.results import FAILED, SUMMARY, figures_of, read_summary, records_beside
from genenv.statistics import Figure
from genenv.viewer import whole
from genenv.viewer.folders import NotFound, folders_below, is_kind, written

_MOST_BYTES = 256 << 20
"""The largest file of results that is read."""
_MOST_FILES = 2000
_PAGE = 100
"""Items of a page."""
_CUT = 300
"""Characters of an explanation in a list."""
KINDS = {
    "": "all items",
    "right": "right",
    "wrong": "wrong",
    "lost": "right before, wrong now",
    "won": "wrong before, right now",
    "failed": "without an answer",
}
"""Which items a list shows -> its label; `lost` and `won` need a second policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One evaluation: its summary, without its items."""

    name: str
    """By which addresses name it."""
    path: Path
    """The summary."""
    summary: Mapping[str, Any]
    note: str = ""
    """A sentence if it cannot be read."""

    @property
    def policy(self) -> str:
        """The name of the policy."""
        return str(self.summary.get("policy", {}).get("name") or "")

    @property
    def figures(self) -> list[Figure]:
        """The figures over all items."""
        return [one for one in figures_of(self.summary) if not one.group] if self.summary else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An item of an evaluation, with the place of its whole record."""

    id: str
    status: str
    score: float
    explanation: str
    cluster: str
    groups: str
    start: int
    """The first byte of its record in the file."""

    @property
    def right(self) -> bool:
        """Whether the whole score was earned."""
        return self.status != FAILED and self.score >= 1.0

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        if self.status == FAILED:
            return "no answer"
        return "✓ right" if self.right else "✗ wrong" if self.score <= 0 else f"◐ {self.score:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An item that one policy or two answered."""

    id: str
    one: Line
    other: Line | None

    def fits(self, kind: str) -> bool:
        """Return whether a list of a kind shows it."""
        shown = self.other or self.one
        before, now = self.one.right, shown.right
        fitting = {
            "": True,
            "right": now,
            "wrong": not now and shown.status != FAILED,
            "failed": shown.status == FAILED,
            "lost": before and not now,
            "won": now and not before,
        }
        return fitting.get(kind, False)


class Evaluations:
    """The evaluations below some folders. Links are not followed."""

    def __init__(self, roots: Sequence[Path]) -> None:
        """Serve what lies in these folders; one that does not exist holds nothing."""
        self._roots = [root.resolve() for root in roots]

    def all(self) -> list[Result]:
        """Return all evaluations, the newest first."""
        found = [self._result(name, path) for name, path in self._files()]
        return sorted(found, key=lambda one: (-written(one.path), one.name))

    def find(self, name: str) -> Result:
        """Return an evaluation by its name.

        Raises:
            NotFound: there is none.
        """
        for known, path in self._files():
            if known == name:
                return self._result(name, path)
        raise NotFound(f"{name!r} is not an evaluation")

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Yield summaries with their names; a file in two folders once."""
        seen = set[Path]()
        for root in self._roots:
            below = [(root.name, root)]
            below += [(f"{root.name}/{name}", path) for name, path in folders_below(root)]
            below += [(f"{name}/evaluations", path / "evaluations") for name, path in below]
            for name, folder in below:
                if folder in seen or folder.is_symlink():
                    continue
                seen.add(folder)
                for path in sorted(folder.glob(f"*{SUMMARY}"))[:_MOST_FILES]:
                    if is_kind(path, stat.S_ISREG):
                        yield f"{name}/{path.name.removesuffix(SUMMARY)}", path

    def _result(self, name: str, path: Path) -> Result:
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise DataError(f"{path.name} is too large to be shown")
            return Result(name=name, path=path, summary=read_summary(path))
        except (DataError, OSError) as error:
            return Result(name=name, path=path, summary={}, note=str(error).replace(str(path), path.name))


def lines(result: Result) -> dict[str, Line]:
    """Return the items of an evaluation by id.

    Raises:
        DataError: the file of the items is missing, too large, or a link.
    """
    file = records_beside(result.path)
    if not is_kind(file, stat.S_ISREG):
        raise DataError(f"{file.name} is missing, or it is a link")
    at = file.stat()
    if at.st_size > _MOST_BYTES:
        raise DataError(f"{file.name} is too large to be shown")
    return _lines(file, at.st_ino, at.st_size, at.st_mtime_ns)


@lru_cache(maxsize=8)
def _lines(file: Path, *_: int) -> dict[str, Line]:
    """Return the items of a file. A line that is no record is left out."""
    found, start = dict[str, Line](), 0
    with file.open("rb") as lines:
        for line in lines:
            record = _parsed(line)
            with suppress(KeyError, TypeError, ValueError):
                groups = cast("Mapping[str, object]", record["groups"]).values()
                found[str(record["id"])] = Line(
                    id=str(record["id"]),
                    status=str(record["status"]),
                    score=_score(record["score"]),
                    explanation=str(record["explanation"])[:_CUT],
                    cluster=str(record.get("cluster", "")),
                    groups=", ".join(map(str, groups))[:_CUT],
                    start=start,
                )
            start += len(line)
    return found


def _parsed(line: bytes) -> Mapping[str, Any]:
    with suppress(ValueError, RecursionError):
        record = json.loads(line.decode(errors="replace"))
        if isinstance(record, dict):
            return cast("Mapping[str, Any]", record)
    return {}


def _score(given: Any) -> float:  # noqa: ANN401 - any value of JSON
    score = float(given)
    return score if math.isfinite(score) else 0.0


def record(result: Result, line: Line) -> Mapping[str, Any]:
    """Return the whole record of an item."""
    with records_beside(result.path).open("rb") as file:
        file.seek(line.start)
        return _parsed(file.readline(_MOST_BYTES))


def pairs(one: Mapping[str, Line], other: Mapping[str, Line] | None) -> list[Pair]:
    """Return the items of one evaluation, or those that two share."""
    if other is None:
        return [Pair(id=id_, one=line, other=None) for id_, line in one.items()]
    return [Pair(id=id_, one=line, other=other[id_]) for id_, line in one.items() if id_ in other]


Show = Callable[..., Response]
"""Returns a page: (template, request, values) -> answer."""


class EvaluationPages:
    """The pages of evaluations."""

    def __init__(self, show: Show, found: Evaluations) -> None:
        """Show these evaluations by a function that renders pages."""
        self._show, self._found = show, found

    def all(self, request: Request) -> Response:
        """List all evaluations."""
        results = self._found.all()
        return self._show("evaluations.html", request, title="Evaluations", results=results)

    def items(self, request: Request) -> Response:
        """List the items of an evaluation, or of two side by side with flips and the paired interval."""
        query = request.query_params
        one, other, kind = query.get("one", ""), query.get("other", ""), query.get("kind", "")
        first, text = self._found.find(one), query.get("text", "").casefold()
        second = self._found.find(other) if other and other != one else None
        left = lines(first)
        right = None if second is None else lines(second)
        every = pairs(left, right)
        wanted = [
            pair
            for pair in every
            if pair.fits(kind)
            and (not text or text in f"{pair.id} {(pair.other or pair.one).explanation}".casefold())
        ]
        start = max(0, whole(query, "from") or 0)
        return self._show(
            "evaluation.html",
            request,
            title=f"Items of {one}",
            first=first,
            second=second,
            others=[result for result in self._found.all() if _fits(first, result)],
            comparison=None if second is None else _compared(first, second),
            gain=None if right is None else paired(left, right),
            counts={name: sum(pair.fits(name) for pair in every) for name in KINDS},
            kinds=KINDS,
            kind=kind,
            text=query.get("text", ""),
            start=start,
            shown=wanted[start : start + _PAGE],
            following=start + _PAGE if start + _PAGE < len(wanted) else None,
        )

    def item(self, request: Request) -> Response:
        """Show the record of an item, of one policy or of two side by side."""
        query, found = request.query_params, list[tuple[Result, Line, Mapping[str, Any]]]()
        id_ = query.get("id", "")
        for name in dict.fromkeys(filter(None, (query.get("one", ""), query.get("other", "")))):
            result = self._found.find(name)
            line = lines(result).get(id_)
            if line is None:
                raise NotFound(f"{name} has no item {id_!r}")
            found.append((result, line, record(result, line)))
        if not found:
            raise NotFound("no evaluation is named")
        return self._show("item.html", request, title=f"Item {id_}", id=id_, found=found)


def _compared(one: Result, other: Result) -> Comparison | None:
    """Return the figures of two evaluations, with names for paths; None if they are of two benchmarks."""
    if not _fits(one, other):
        return None
    try:
        found = compare([one.path, other.path], gains=False)
    except GenenvError as error:
        raise type(error)(_named(str(error), one, other)) from error
    return replace(found, warnings=tuple(_named(warning, one, other) for warning in found.warnings))


def _named(text: str, *results: Result) -> str:
    """Return a text with the names of evaluations in place of their paths on this machine."""
    for result in results:
        text = text.replace(str(result.path), result.name).replace(f"{result.path.parent}/", "")
    return text


def _fits(one: Result, other: Result) -> bool:
    same = one.summary.get("benchmark") == other.summary.get("benchmark")
    return bool(one.summary and other.summary and same and one.name != other.name)
