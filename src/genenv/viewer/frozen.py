"""Pages in one file that needs no server: `genenv report`, and pages with charts of other commands.

The viewer itself makes the pages. What leads out of the file is taken out: forms, links to other pages, and
what the page of a running run asks of its server. Charts are drawn from data in the file.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import unescape
from pathlib import Path
from sqlite3 import Row
from typing import Annotated
from urllib.parse import parse_qs, urlencode, urlsplit

import typer
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from genenv.files import write_whole
from genenv.runs.folder import RunFolder
from genenv.runs.store.database import Database
from genenv.runs.store.reader import rollouts_that_count
from genenv.runs.store.records import RoundOverview
from genenv.runs.store.store import PoolStore
from genenv.statistics import wilson
from genenv.types import Json, JsonObject, Origin
from genenv.viewer.folders import Runs
from genenv.viewer.pages import Pages, environment
from genenv.viewer.tasks import conversation, readable

_NONE = "–"
"""A cell without a value."""
_EACH = 5
"""So many early tasks, and so many late ones, at most."""
_SHORT = 140
"""Characters of what a task asks that stand in the list."""
_STATIC = Path(__file__).parent / "static"
_SCRIPTS = ("vendor/uplot.min.js", "viewer.js")
_STYLES = ("vendor/uplot.min.css", "viewer.css")
_STORED = Markup(
    'const stored = JSON.parse(document.getElementById("curves").textContent);\n'
    "window.fetch = async () => ({ok: true, json: async () => stored});"
)
"""A script that answers the one request of the viewer's own script."""
_LOST = {
    "agent/skipped_updates": "skipped updates, agent",
    "simulator/skipped_updates": "skipped updates, simulator",
    "simulator/kl_retries": "halved steps, simulator",
    "agent/failed_traces": "failed rollouts",
}
"""Metrics of wasted work with their labels; each has a column if it is not always zero."""
_NUMBERS: Mapping[str, Callable[[RoundOverview], object]] = {
    "round": lambda found: found.number,
    "held-out": lambda found: _rate(_held_out(found)),
    "95% interval": lambda found: _interval(found),
    "training success": lambda found: _rate(found.metrics.get("agent/success_rate")),
    "mean p̂": lambda found: _rate(found.metrics.get("curriculum/p_hat_mean")),
    "valid": lambda found: _rate(found.valid_rate),
    "accepted": lambda found: found.accepted if found.generated else _NONE,
    "generated": lambda found: found.generated or _NONE,
    "agent KL": lambda found: _precise(found.metrics.get("agent/kl")),
    "simulator KL": lambda found: _precise(found.metrics.get("simulator/kl")),
}
"""Columns of the table of rounds; each is left out if it has no value, as those of a simulator that does not
exist."""

Run = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="The folder of a run, such as runs/demo.", show_default=False),
]


def report(run: Run) -> None:
    """Make RUN/report.html: pictures of the run, and tasks with the agent's rollouts."""
    typer.echo(f"report: {write_report(run)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A page of the viewer inside of the file."""

    id: str
    label: str
    """The heading before it, with a link to it at the top; "" for a page that follows another of its kind."""
    summary: str
    body: Markup


def write_report(run: Path) -> Path:
    """Write `report.html` into a run's folder; the run may be in progress.

    The page loads no other file, and the same run always gives the same bytes.

    Args:
        run: the folder of the run.

    Returns:
        The page.

    Raises:
        UsageError: the folder holds no run.
        DataError: the store is damaged.
    """
    folder = RunFolder.open(run)
    with PoolStore.open(folder.pool, create=False) as store:  # checks it, and brings it up to date
        rounds = store.overview()
    with Database.peek(folder.pool) as db:
        numbers, simulated = [found.number for found in rounds], any(found.generated for found in rounds)
        early, late = _examples(db, numbers, Origin.GENERATED)
        if not simulated and not early:
            early, late = _examples(db, numbers, Origin.SEED)
    write_whole(folder.report, _Frozen(folder.path).page(rounds, early, late))
    return folder.report


def _examples(db: Database, rounds: Sequence[int], origin: Origin) -> tuple[list[Example], list[Example]]:
    """Return early and late tasks of an origin that were rolled out, contexts varied.

    Variations of one context look similar, so the first of every context come first.
    """
    graded = f"task_id = tasks.id AND {rollouts_that_count(db)}"
    sql = f"""SELECT id, messages, round, (SELECT count(*) FROM traces WHERE {graded}) AS tried,
                    (SELECT sum(success) FROM traces WHERE {graded}) AS solved
             FROM tasks JOIN (
                 SELECT n, row_number() OVER (PARTITION BY context_id ORDER BY n) AS place FROM tasks
                 WHERE origin = ? AND round = ?
             ) AS placed USING (n)
             WHERE tried ORDER BY place, n LIMIT ?"""  # noqa: S608 - a constant

    def some(order: Sequence[int], seen: Sequence[Example]) -> list[Example]:
        found = list[Example]()
        for number in order:
            rows = [_example(row) for row in db.rows(sql, (origin, number, 2 * _EACH))]
            found += [one for one in rows if one not in seen][: _EACH - len(found)]
            if len(found) == _EACH:
                break
        return found

    early = some(rounds, ())
    return early, some(rounds[::-1], early)[::-1]


@dataclass(frozen=True, slots=True)
class Example:
    """A task that the file shows."""

    id: str
    summary: str


def _example(row: Row) -> Example:
    asked = " ".join(conversation(row["messages"])[-1].content.split())
    short = asked if len(asked) <= _SHORT else f"{asked[:_SHORT]} …"
    told = f"round {row['round']} · solved {row['solved']} of {row['tried']} · {short}"
    return Example(readable(row["id"]), told)


class _Frozen:
    """The pages of one run without what leads out of the file."""

    def __init__(self, folder: Path) -> None:
        runs = Runs(folder)
        (self._run,) = runs.all()
        self._pages, self._anchors = Pages(runs), dict[tuple[str, str], str]()

    def page(self, rounds: Sequence[RoundOverview], early: Sequence[Example], late: Sequence[Example]) -> str:
        """Return the file.

        Args:
            rounds: the committed rounds.
            early: tasks that are shown first.
            late: further tasks.
        """
        tasks = [*early, *late]
        self._anchors = {("", ""): "main", ("refused", ""): "refused", ("config", ""): "settings"}
        self._anchors |= {("task", one.id): f"task-{place}" for place, one in enumerate(tasks)}
        labels = {len(early): "Late tasks", 0: "Early tasks"}
        parts = [
            Part(
                id=f"task-{place}",
                label=labels.get(place, ""),
                summary=one.summary,
                body=self._body("task", self._pages.data.task, id=one.id),
            )
            for place, one in enumerate(tasks)
        ]
        if any(found.generated for found in rounds):
            refused = self._body("refused", self._pages.data.refused)
            what = "generations that the gate refused"
            parts.append(Part(id="refused", label="Refused", summary=what, body=refused))
        parts += [
            Part(
                id="settings",
                label="Settings",
                summary="all settings of the run",
                body=self._body("config", self._pages.config),
            ),
        ]
        curves = _text(self._pages.curves(self._request("curves")))
        lost = {name: label for name, label in _LOST.items() if any(one.metrics.get(name) for one in rounds)}
        cells = {name: [show(one) for one in rounds] for name, show in _NUMBERS.items()}
        known = [name for name, column in cells.items() if any(cell != _NONE for cell in column)]
        return (
            environment()
            .get_template("frozen.html")
            .render(
                title=self._run.name,
                **_inlined(curves),
                first=self._body("", self._pages.run),
                parts=parts,
                columns=[*known, *lost.values(), "seconds"],
                rows=[_row(found, known, list(lost)) for found in rounds],
                lost=lost,
            )
        )

    def _request(self, page: str, **query: str) -> Request:
        own = {"path": f"/runs/{self._run.name}/-/{page}", "path_params": {"run": self._run.name}}
        asked: dict[str, object] = {"headers": [], "query_string": urlencode(query).encode()}
        return Request({"type": "http", "method": "GET", **asked, **own})

    def _body(self, page: str, make: Callable[[Request], Response], **query: str) -> Markup:
        """Return the content of a page, with links to what the file has only."""
        whole = _text(make(self._request(page, **query)))
        body = re.search(r'<main id="main">(.*)</main>', whole, re.DOTALL)
        found = body[1] if body else ""
        found = re.sub(r"<form\b.*?</form>", "", found, flags=re.DOTALL)
        found = re.sub(r"<[a-zA-Z][^<>]*>", _for_file, found)
        found = re.sub(r"<a\b([^>]*)>(.*?)</a>", self._link, found, flags=re.DOTALL)
        if page:
            found = re.sub(
                r'<(/?)h1\b|\sid="[^"]*"', lambda part: f"<{part[1]}h2" if part[1] is not None else "", found
            )
        return Markup(found)  # noqa: S704 - the viewer's templates have escaped it

    def _link(self, link: re.Match[str]) -> str:
        """Return a link inside of the file, or only the words of a link that leads out of it."""
        to = re.search(r'\shref="([^"]*)"', link[1])
        address = urlsplit(unescape(to[1]) if to else "")
        page, id_ = address.path.rpartition("/-/")[2], parse_qs(address.query).get("id", [""])[0]
        known = "/-/" in address.path and (bool(id_) or not address.query)
        anchor = self._anchors.get((page, id_)) if known else None
        rest = re.sub(r'\s(?:href|rel|aria-current)="[^"]*"', "", link[1])
        return f'<a href="#{anchor}"{rest}>{link[2]}</a>' if anchor else f"<span{rest}>{link[2]}</span>"


def _inlined(curves: str) -> dict[str, object]:
    """Return what a template needs to draw charts in a file of its own, from their data as JSON."""
    scripts = [_STORED, *(_static(name) for name in _SCRIPTS)]
    hashes = [b64encode(sha256(one.encode()).digest()).decode() for one in scripts]
    return {
        "styles": [*(_static(name) for name in _STYLES)],
        "hashes": [f"'sha256-{one}'" for one in hashes],
        "curves": Markup(curves.replace("<", "\\u003c")),  # noqa: S704 - JSON without any tag
        "scripts": scripts,
    }


def chart_page(package: str, template: str, charts: Sequence[JsonObject], **values: object) -> str:
    """Return a page with charts that loads no other file, as HTML; equal values give equal pages.

    Args:
        package: the package that has the template.
        template: the name of a file in its `templates`, which shows `charts`.
        charts: from `line_chart`.
        values: what else the template shows.
    """
    curves = json.dumps({"charts": charts}, ensure_ascii=False)
    return environment(package).get_template(template).render(charts=charts, **_inlined(curves), **values)


def line_chart(
    title: str,
    note: str,
    lines: Mapping[str, Mapping[float, tuple[float, float, float]]],
    *,
    axis: str,
    unit: str = "share",
    band: tuple[float, float] | None = None,
) -> JsonObject | None:
    """Return a chart of lines with bands; None without any point.

    Args:
        title: unique on the page.
        note: how to read the chart.
        lines: name of a line -> place -> value, lower and upper bound; NaN if there is none.
        axis: name of the places.
        unit: of the values; a `share` is in [0, 1].
        band: shaded values.
    """

    def short(value: float) -> float | None:
        return None if math.isnan(value) else float(f"{value:.5g}")

    known = {name: points for name, points in lines.items() if points}
    if not known:
        return None
    groups: list[Json] = [
        {"name": name, "place": place, "x": [float(x) for x in points]}
        | {
            key: [short(row[column]) for row in points.values()]
            for column, key in enumerate(("mean", "low", "high"))
        }
        for place, (name, points) in enumerate(lines.items())  # of its color, the same in all charts
        if points
    ]
    ends = {name: list(points.values())[-1][0] for name, points in known.items()}
    return {
        "title": title,
        "unit": unit,
        "note": note,
        "axis": axis,
        "share": unit == "share",
        "band": None if band is None else list(band),
        "groups": groups,
        "said": "; ".join(f"{name}: {end:.3g} at last" for name, end in ends.items()),
    }


def _for_file(tag: re.Match[str]) -> str:
    """Return a tag without the attributes that ask a server, or say what a click opens there.

    Attributes are read with their values, and texts between tags stay, so words of a model are never taken.
    """
    return re.sub(r'\s+([^\s="<>/]+)(?:="[^"]*")?', _but_of_server, tag[0])


def _but_of_server(attribute: re.Match[str]) -> str:
    return "" if attribute[1].startswith("hx-") or attribute[1] == "data-tasks" else attribute[0]


def _static(name: str) -> Markup:
    return Markup((_STATIC / name).read_text(encoding="utf-8"))  # noqa: S704 - a file of genenv


def _row(found: RoundOverview, known: Sequence[str], lost: Sequence[str]) -> list[object]:
    """Return the cells of a round."""
    shown: list[object] = [_NUMBERS[name](found) for name in known]
    return [*shown, *(_precise(found.metrics.get(name)) for name in lost), f"{found.wall_s:.1f}"]


def _text(answer: Response) -> str:
    return bytes(answer.body).decode()


def _held_out(found: RoundOverview) -> float | None:
    """Return held-out success as the curve has it; of a store without that metric, from its evaluations."""
    rate = None if found.held_out is None else found.held_out[0] / found.held_out[1]
    return found.metrics.get("agent/eval_success", rate)


def _interval(found: RoundOverview) -> str:
    """Return Wilson's interval of held-out success over its tasks, however many agents had them."""
    rate = _held_out(found)
    if found.held_out is None or rate is None:
        return _NONE
    return "{:.2f} to {:.2f}".format(*wilson(rate * found.held_out[1], found.held_out[1]))


def _rate(value: float | None) -> str:
    return _NONE if value is None else f"{value:.2f}"


def _precise(value: float | None) -> str:
    return _NONE if value is None else f"{value:.4g}"
