"""The pages of a run's tasks, trajectories and refusals, and of what a reader asks and marks."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Row
from urllib.parse import parse_qsl, urlencode

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from genenv.errors import DataError, UsageError
from genenv.files import cache_folder
from genenv.http.guard import is_same, new_key
from genenv.runs.store.database import Database
from genenv.texts import clean
from genenv.types import Json, RejectReason
from genenv.viewer import BadAddress, address, lists, number, refusals, rounds, tasks, whole
from genenv.viewer.folders import NotFound, Run, Runs, reading
from genenv.viewer.lists import Index, Indices, Wanted
from genenv.viewer.reader import EXAMPLES, Marks, answer, state_folder
from genenv.viewer.tasks import Elsewhere, Replay, TaskPage, Told

_LONGEST_QUERY = 500
"""Characters of a text that is searched for."""
_LONGEST_TEXT = 200_000
"""Characters of a text that its own page shows; a longer one is whole as plain text."""
_BOX_WIDTH, _BOX_HEIGHT, _COLUMN, _ROW, _MOST_BOXES = 220, 40, 290, 48, 14
"""Boxes of the picture of a lineage: their size, the distance of columns and of rows, and how many."""
_ELSEWHERE_S = 0.3
"""Seconds in which a task is looked for in other runs."""


class TaskPages:
    """The pages of what a run's store holds."""

    replay: Replay | None = None
    """Executes calls again; None: it is not known what they changed."""

    def __init__(self, runs: Runs, show: Callable[..., Response], indices: Indices | None) -> None:
        """Show the runs of a folder.

        Args:
            runs: the runs.
            show: renders a page.
            indices: the side files of the runs; None to read stores alone, which is slow in a large one.
        """
        self._runs, self._show, self._indices = runs, show, indices
        self.marks = Marks(state_folder() / "marks.jsonl")
        self._token = new_key()
        """What a form has to send, so that no other site can."""

    def _run(self, request: Request) -> Run:
        return self._runs.find(request.path_params["run"])

    def _index(self, run: Run, *, needed: bool) -> Index | None:
        return self._indices.of(run) if needed and self._indices is not None else None

    def tasks(self, request: Request) -> Response:
        """List the tasks of a run that fit the filters, or the generations that were refused."""
        run, query = self._run(request), request.query_params
        reason = query.get("outcome", "")
        if reason in list(RejectReason):
            given = {"reason": reason, "round": query.get("round", ""), "text": query.get("text", "")}
            return Response(status_code=303, headers={"location": address(run.name, "refused", **given)})
        marks = self._marks(run)
        wanted = Wanted(
            round=whole(query, "round"),
            origin=query.get("origin", ""),
            skill=query.get("skill", ""),
            change=query.get("change", ""),
            low=number(query, "low"),
            high=number(query, "high"),
            reward_low=number(query, "reward_low"),
            reward_high=number(query, "reward_high"),
            text=query.get("text", "")[:_LONGEST_QUERY],
            sort=query.get("sort", "new"),
            marked=marks if query.get("marked") else None,
            after=query.get("after", ""),
        )
        prefixes = ("tasks/share/", "agent/skill/")
        names = {name for name in run.metrics if name.startswith(prefixes)}
        index = self._index(run, needed=wanted.indexed)
        rows, after = _listed(run, index, lambda db: lists.tasks(db, wanted))
        return self._show(
            "tasks.html",
            request,
            title=f"Tasks of {run.name}",
            run=run,
            wanted=wanted,
            rows=rows,
            skills=sorted({name.split("/", 2)[2] for name in names}),
            reasons=[one.reason for one in refusals.counts(run)],
            changes=list(lists.CHANGES),
            note=index.note if index else "",
            marks=marks,
            following=after and _changed(query, after),
            first=_changed(query, "") if wanted.after else "",
        )

    def _marks(self, run: Run) -> tuple[str, ...]:
        return self.marks.of(reading(run, lambda db: tasks.owner(db)))

    def task(self, request: Request) -> Response:
        """Show a task with its origin, its rollouts side by side, and its relatives."""
        run, query = self._run(request), request.query_params
        id_, round_ = query.get("id", ""), whole(query, "round")
        index, side = Index(path=None, note=""), "main"
        if self._indices is not None:
            try:
                index = self._indices.of(run)
            except DataError as error:
                index = Index(path=None, note=f"{error}.")
            side = "side" if index.path else None
        found = reading(run, lambda db: tasks.task_page(db, id_, round_, family=side), side=index.path)
        told = [(row, tasks.conversation(row["messages"])) for row in found.group]
        attempts = [(row, messages, film(run, found.payload, messages, frames=3)) for row, messages in told]
        others, left_out = self._elsewhere(run, found.task)
        return self._show(
            "task.html",
            request,
            title=f"Task {id_}",
            run=run,
            it=found,
            attempts=attempts,
            note=index.note,
            lineage=lineage_of(found),
            box=(_BOX_WIDTH, _BOX_HEIGHT),
            others=others,
            left_out=left_out,
            is_marked=id_ in self.marks.of(found.run),
            token=self._token,
        )

    def _elsewhere(self, run: Run, task: Row) -> tuple[list[Elsewhere], bool]:
        """Return what became of a task in each run, this one first, and whether there was no time for all."""
        found, until = list[Elsewhere](), time.monotonic() + _ELSEWHERE_S
        for other in (run, *(one for one in self._runs.all() if one.name != run.name)):
            if time.monotonic() > until:
                return found, True
            with contextlib.suppress(DataError):
                found += reading(other, lambda db, name=other.name: tasks.elsewhere(db, name, task))
        return found, False

    async def mark(self, request: Request) -> Response:
        """Mark a task as one that does not say what is asked, or take the mark away."""
        given = dict(parse_qsl((await request.body()).decode(errors="replace")))
        if not is_same(given.get("token", ""), self._token):
            raise HTTPException(403)
        return await run_in_threadpool(self._marked, request, given)

    def _marked(self, request: Request, given: Mapping[str, str]) -> Response:
        run, id_ = self._run(request), request.query_params.get("id", "")
        owner = reading(run, lambda db: tasks.owner(db, id_))
        self.marks.set(owner, id_, unclear=given.get("unclear") == "yes")
        return Response(status_code=303, headers={"location": address(run.name, "task", id=id_)})

    def sql(self, request: Request) -> Response:
        """Answer a query of the reader's own."""
        run, asked = self._run(request), request.query_params.get("sql", "")
        found, wrong = None, ""
        if asked.strip():
            try:
                found = reading(run, lambda db: answer(db, asked))
            except UsageError as error:
                wrong = f"{error}."
        return self._show(
            "sql.html",
            request,
            title=f"SQL on {run.name}",
            run=run,
            sql=asked,
            found=found,
            wrong=wrong,
            examples=EXAMPLES,
        )

    def trace(self, request: Request) -> Response:
        """Show a trajectory turn by turn, with its tokens."""
        run, id_ = self._run(request), request.query_params.get("id", "")
        hub = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "hub"

        def texts(agent: str) -> tasks.Texts:
            return tasks.texts_of(*run.tokens_of(agent), (cache_folder(), hub))

        found = reading(run, lambda db: tasks.trace_page(db, id_, texts, run.advantage_of))
        calls, why = tasks.changes(found, run.settings, self.replay)
        return self._show(
            "trace.html",
            request,
            title=f"Trajectory {id_}",
            run=run,
            it=found,
            strip=film(run, tasks.parsed(found.task["payload"]), found.messages),
            calls=calls,
            why=why,
        )

    def rounds(self, request: Request) -> Response:
        """Show what changed from a round to a later one, and from one evaluation to another."""
        run, query = self._run(request), request.query_params
        number_, before = self._two_rounds(run, whole(query, "round"), whole(query, "before"))
        index, found, held_out = None, None, None
        if before is not None:
            numbers, by, kind = (before, number_), query.get("by", ""), query.get("kind", "")
            if reading(run, lambda db: rounds.is_small(db, numbers)):
                found = reading(run, lambda db: rounds.compared(db, numbers, by, kind, indexed=False))
            else:
                index = self._index(run, needed=True)
                if index is not None and index.path is not None:
                    found = reading(run, lambda db: rounds.compared(db, numbers, by, kind), side=index.path)
            if (evaluations := rounds.evaluations_of(run, before, number_)) is not None:
                held_out = reading(run, lambda db: rounds.evaluated(db, evaluations))
        known = sorted(run.rounds)
        place = known.index(number_) if number_ in known else 0
        return self._show(
            "rounds.html",
            request,
            title=f"Round {number_} of {run.name}",
            run=run,
            number=number_,
            before=before,
            by=query.get("by", ""),
            found=found,
            held_out=held_out,
            metrics={} if before is None else rounds.measured(run, before, number_),
            note=index.note if index else "",
            earlier=known[place - 1] if place else None,
            later=known[place + 1] if place + 1 < len(known) else None,
            most=rounds.SHOWN,
        )

    @staticmethod
    def _two_rounds(run: Run, number_: int | None, before: int | None) -> tuple[int, int | None]:
        """Return a round, the last one if none is given, and an earlier one: that before if none is given."""
        if number_ is None:
            number_ = run.done
        elif number_ not in run.rounds:
            raise NotFound(f"the run has no round {number_}")
        if before is not None and not (before in run.rounds and before < number_):
            raise BadAddress(f"round {before} is no round before {number_}")
        played = [one for one in run.series("agent/success_rate") or run.rounds if one < number_]
        return number_, max(played, default=None) if before is None else before

    def refused(self, request: Request) -> Response:
        """List the generations that the gate refused, with its evidence."""
        run, query = self._run(request), request.query_params
        wanted = refusals.Wanted(
            reason=query.get("reason", ""),
            round=whole(query, "round"),
            text=query.get("text", "")[:_LONGEST_QUERY],
            same=query.get("same", ""),
            after=query.get("after", ""),
        )
        index = self._index(run, needed=wanted.indexed)
        rows, later = _listed(run, index, lambda db: refusals.refused(db, wanted))
        is_first = not (wanted.same or wanted.after)
        found = _listed(run, index, lambda db: (refusals.repeated(db, wanted) if is_first else [], ""))
        return self._show(
            "refused.html",
            request,
            title=f"Refused tasks of {run.name}",
            run=run,
            wanted=wanted,
            counts=refusals.counts(run),
            rows=rows,
            repeated=found[0],
            named=reading(run, lambda db: refusals.named(db, rows)),
            about=refusals.REASONS,
            note=index.note if index else "",
            following=later and _changed(query, later),
            first=_changed(query, "") if wanted.after else "",
        )

    def text(self, request: Request) -> Response:
        """Show a whole text that a page has cut; with `raw` as plain text."""
        run, query = self._run(request), request.query_params
        kind, id_, part = (query.get(name, "") for name in ("of", "id", "part"))
        place = whole(query, "place")
        found = clean(reading(run, lambda db: tasks.whole_text(db, kind, id_, part, place)))
        if query.get("raw"):
            return PlainTextResponse(found.encode())
        return self._show(
            "text.html",
            request,
            title=f"{tasks.PARTS.get((kind, part), part)}: {kind} {id_}",
            run=run,
            text=found[:_LONGEST_TEXT],
            length=len(found),
            raw=f"?{urlencode({**query, 'raw': 'yes'})}",
            task=id_ if kind == "task" else "",
            trace=id_ if kind == "trace" else "",
        )


def film(run: Run, payload: Json, messages: Sequence[Told], *, frames: int = 12) -> Markup:
    """Return the film strip of a trajectory of the environment `control`; "" for any other."""
    if run.text("environment.name") != "control" or not isinstance(payload, Mapping):
        return Markup()
    from genenv.environments.control.simulation import film_of  # imports numpy, and few pages need it

    replies = [one.content for one in messages if one.role == "assistant"]
    found = film_of(str(payload.get("level", "")), *replies[:1], frames=frames)
    return Markup(found)  # noqa: S704 - numbers and words of ours


def _listed(
    run: Run, index: Index | None, query: Callable[[Database], tuple[list[Row], str]]
) -> tuple[list[Row], str]:
    """Answer a query that needs an index; nothing before the index has its first rows."""
    if index is not None and index.path is None:
        return [], ""
    return reading(run, query, side=index and index.path)


def _changed(query: Mapping[str, str], after: str) -> str:
    """Return the query of the same list from another row on; from the first if `after` is empty."""
    kept = {name: value for name, value in query.items() if name != "after" and value}
    return f"?{urlencode(kept | ({'after': after} if after else {}))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A box of the picture of a lineage."""

    x: int
    y: int
    title: str
    detail: str
    id: str = ""
    """Of the task that it leads to; "" for a seed without a task and for a context."""
    share: float | None = None
    """The success rate."""
    here: bool = False
    """Whether it is the task of the page, or its context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """A picture: a seed, the contexts written from it, and the tasks of each."""

    nodes: list[Node]
    lines: list[tuple[int, int, int, int]]
    """From x, y to x, y."""
    width: int
    height: int
    left_out: int
    """Newest tasks of the seed that have no room."""


def lineage_of(page: TaskPage) -> Lineage | None:
    """Return the picture of a task's lineage; None if the task has no seed."""
    task = page.task
    if not task["seed_id"]:
        return None
    family = {row["id"]: row for row in (*page.siblings, *page.children)}
    family.pop(page.seed["id"] if page.seed else "", None)
    groups: dict[str, list[Row]] = {}
    for row in sorted(family.values(), key=lambda row: int(row["n"])):
        groups.setdefault(row["context_id"] or "", []).append(row)
    own = task["context_id"] or ""
    kept = {own: groups.pop(own)} if own in groups else {}
    left_out = 0
    for context, rows in reversed(groups.items()):  # the newest first, as far as there is room
        room = _MOST_BOXES - sum(map(len, kept.values()))
        left_out += max(0, len(rows) - room)
        kept |= {context: rows[:room]} if room > 0 else {}
    nodes, lines, row_at = list[Node](), list[tuple[int, int, int, int]](), 0
    middles = list[int]()
    for context, rows in sorted(kept.items(), key=lambda one: int(one[1][0]["n"])):
        middle = (2 * row_at + len(rows) - 1) * _ROW // 2
        middles.append(middle)
        p_hat = rows[0]["p_hat"]
        detail = "no p̂" if p_hat is None else f"p̂ {p_hat:.2f}"
        place = "" if rows[0]["round"] is None else f"round {rows[0]['round']}"
        nodes.append(
            Node(x=_COLUMN, y=middle, title=place, detail=f"{detail} · {context}", here=context == own)
        )
        for row in rows:
            y = row_at * _ROW
            nodes.append(_box(row, 2 * _COLUMN, y, here=row["id"] == task["id"]))
            lines.append((_COLUMN + _BOX_WIDTH, middle, 2 * _COLUMN, y))
            row_at += 1
    root = (middles[0] + middles[-1]) // 2 if middles else 0
    lines += [(_BOX_WIDTH, root, _COLUMN, middle) for middle in middles]
    if page.seed:
        nodes.insert(0, _box(page.seed, 0, root, here=page.seed["id"] == task["id"]))
    else:
        nodes.insert(0, Node(x=0, y=root, title=f"seed {task['seed_id']}", detail="no base task"))
    return Lineage(
        nodes=nodes,
        lines=[(x1, y1 + _BOX_HEIGHT // 2, x2, y2 + _BOX_HEIGHT // 2) for x1, y1, x2, y2 in lines],
        width=2 * _COLUMN + _BOX_WIDTH,
        height=max(1, row_at) * _ROW,
        left_out=left_out,
    )


def _box(row: Row, x: int, y: int, *, here: bool) -> Node:
    tried, solved = row["tried"] or 0, row["solved"] or 0
    detail = f"{solved} of {tried} solved" if tried else "not rolled out"
    share = solved / tried if tried else None
    return Node(x=x, y=y, title=str(row["id"]), detail=detail, id=str(row["id"]), share=share, here=here)
