"""The pages of a run's tasks, trajectories and refusals, and of what a reader asks and marks."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from sqlite3 import Row
from urllib.parse import parse_qsl, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from genenv.errors import DataError, UsageError
from genenv.files import cache_folder
from genenv.http.guard import is_same, new_key
from genenv.runs.store.database import Database
from genenv.texts import clean
from genenv.types import RejectReason
from genenv.viewer import address, lists, number, tasks, whole
from genenv.viewer.folders import Run, Runs, reading
from genenv.viewer.lists import Index, Indices, Wanted
from genenv.viewer.reader import EXAMPLES, Marks, answer, state_folder
from genenv.viewer.tasks import Elsewhere

_LONGEST_QUERY = 500
"""Characters of a text that is searched for."""
_ELSEWHERE_S = 0.3
"""Seconds in which a task is looked for in other runs."""


class TaskPages:
    """The pages of what a run's store holds."""

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
            reasons=list(RejectReason),
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
        attempts = [(row, tasks.conversation(row["messages"])) for row in found.group]
        others, left_out = self._elsewhere(run, found.task)
        return self._show(
            "task.html",
            request,
            title=f"Task {id_}",
            run=run,
            it=found,
            attempts=attempts,
            note=index.note,
            lineage=tasks.lineage(found),
            box=(tasks.BOX_WIDTH, tasks.BOX_HEIGHT),
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
                one = reading(other, lambda db, name=other.name: tasks.elsewhere(db, name, task))
                found += [] if one is None else [one]
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
        texts = tasks.texts_of(run.text("policy.backend"), run.text("policy.model"), (cache_folder(), hub))
        advantage = run.text("agent.advantage")
        found = reading(run, lambda db: tasks.trace_page(db, id_, texts, advantage))
        return self._show("trace.html", request, title=f"Trajectory {id_}", run=run, it=found)

    def refused(self, request: Request) -> Response:
        """List the generations that the gate refused, with its evidence."""
        run, query = self._run(request), request.query_params
        reason, text = query.get("reason", ""), query.get("text", "")[:_LONGEST_QUERY]
        round_, after = whole(query, "round"), query.get("after", "")
        counts = {one.value: sum(run.series(f"simulator/rejected/{one}").values()) for one in RejectReason}
        index = self._index(run, needed=bool(reason or text))
        rows, later = _listed(
            run, index, lambda db: lists.refusals(db, reason=reason, round_=round_, text=text, after=after)
        )
        return self._show(
            "refused.html",
            request,
            title=f"Refused tasks of {run.name}",
            run=run,
            reason=reason,
            round=round_,
            text=text,
            counts=sorted(((int(count), name) for name, count in counts.items()), reverse=True),
            rows=rows,
            named=reading(run, lambda db: lists.named_tasks(db, rows)),
            about=lists.REASONS,
            note=index.note if index else "",
            following=later and _changed(query, later),
            first=_changed(query, "") if after else "",
        )

    def text(self, request: Request) -> Response:
        """Return a whole text that a page has cut, as plain text."""
        run, query = self._run(request), request.query_params
        kind, id_, part = (query.get(name, "") for name in ("of", "id", "part"))
        place = whole(query, "place")
        return PlainTextResponse(
            clean(reading(run, lambda db: tasks.whole_text(db, kind, id_, part, place))).encode()
        )


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
