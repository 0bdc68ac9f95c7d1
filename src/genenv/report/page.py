"""The page itself: facts, charts and examples, put into the template."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from genenv.files import write_whole
from genenv.report import charts
from genenv.report.examples import Example, pick_examples
from genenv.report.facts import RunFacts, read_facts
from genenv.runs.folder import RunFolder
from genenv.runs.metrics import late_p_hats
from genenv.runs.store.store import PoolStore
from genenv.texts import inert

_NOT_IN_HTML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Code points that no HTML page may hold, control characters and lone surrogates: models write anything."""

_DASH = "–"

_LOST = {
    "agent/skipped_updates": "skipped updates, agent",
    "simulator/skipped_updates": "skipped updates, simulator",
    "simulator/kl_retries": "halved steps, simulator",
    "agent/failed_traces": "failed attempts",
}
"""Work that came to nothing: a column each, where there was any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One chart of the page."""

    title: str
    svg: Markup | None
    reading: str
    """How to read it."""
    missing: str
    """What to say when there is nothing to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One of the numbers at the top."""

    value: str
    label: str


def write_report(run: Path) -> Path:
    """Write `report.html` into a run's folder; a run in progress may be reported too.

    The page loads nothing from anywhere, and the same run always gives the same bytes.

    Args:
        run: the folder of the run.

    Returns:
        The page.

    Raises:
        UsageError: the folder holds no run.
        DataError: the run is damaged.
    """
    folder = RunFolder.open(run)
    with PoolStore.open(folder.pool, create=False) as store:
        facts = read_facts(folder, store)
        examples = pick_examples(store)
    write_whole(folder.report, render(facts, *examples))
    return folder.report


def render(run: RunFacts, early: Sequence[Example], late: Sequence[Example]) -> str:
    """The page as HTML."""
    environment = Environment(
        loader=PackageLoader("genenv.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_shown,
    )
    environment.filters["rate"] = _rate
    environment.filters["precise"] = _precise
    page = environment.get_template("report.html").render(
        run=run,
        held_out={number: point.rate for number, point in run.held_out().items()},
        progress=_progress(run),
        numbers=_numbers(run),
        lost={name: label for name, label in _LOST.items() if any(run.series(name).values())},
        pictures=_pictures(run),
        examples=[("Early tasks", early), ("Late tasks", late)],
    )
    return _NOT_IN_HTML.sub("\N{REPLACEMENT CHARACTER}", page)


def _shown(value: object) -> object:
    """Text as a reader may see it: characters that hide or turn others around stand as their escapes."""
    return inert(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _progress(run: RunFacts) -> str:
    done = sum(facts.number > 0 for facts in run.rounds)
    if run.planned_rounds is not None and done < run.planned_rounds:
        return f"{done} of {run.planned_rounds} rounds"
    return f"{done} {'round' if done == 1 else 'rounds'}"


def _numbers(run: RunFacts) -> list[Number]:
    late = late_p_hats({facts.number: facts.metrics for facts in run.rounds})
    p_hat = fmean(late) if late else None
    generated = sum(facts.generated for facts in run.rounds)
    accepted = sum(facts.accepted for facts in run.rounds)
    shift = max(run.series("agent/eval_at_shift"), default=0)
    held_out = [point.rate for number, point in run.held_out().items() if number >= shift]
    valid = [facts.valid_rate for facts in run.rounds if facts.valid_rate is not None]
    return [
        Number(
            value=_first_to_last(held_out),
            label="held-out success, first to last" + (f" from round {shift} on" if shift else ""),
        ),
        Number(value=_first_to_last(valid), label="valid generations, first to last round"),
        Number(value=_rate(p_hat), label="mean p̂ in the last third of the rounds"),
        Number(value=f"{accepted:,} of {generated:,}", label="generations that became tasks"),
        Number(value=_duration(sum(facts.wall_s for facts in run.rounds)), label="spent in the rounds"),
    ]


_READINGS: Sequence[tuple[str, Callable[[RunFacts], Markup | None], str, str]] = (
    (
        "Are the tasks at the agent's level?",
        charts.p_hat_chart,
        "Each dot is the variations written for one context; a simulator that learns brings the line into "
        "the target band.",
        "No batch of generated tasks was attempted.",
    ),
    (
        "Does the agent get better?",
        charts.held_out_chart,
        "Tasks that were never trained on; the thin bars are 95% confidence intervals, so changes inside "
        "them may be chance.",
        "No held-out evaluation was recorded.",
    ),
    (
        "Does the simulator write valid tasks?",
        charts.validity_chart,
        "Above, the share of generations that passed every check; below, why the others were rejected, the "
        "most frequent reason at the bottom.",
        "The simulator wrote nothing.",
    ),
    (
        "Do the tasks get harder?",
        charts.difficulty_chart,
        "Required: tokens of the reference solution; written: tokens of the agent's answers; below, "
        "steps that solve a task (calls, commands, hops, days).",
        "No lengths were recorded.",
    ),
    (
        "How far did both players move?",
        charts.kl_chart,
        "A steady rise is learning; a jump that stays is an update that was too large. The agent's is an "
        "estimate from some of its tokens, and a few of them can make a spike.",
        "No KL divergence was recorded.",
    ),
    (
        "What do the tasks exercise?",
        charts.skills_chart,
        "The stronger the colour, the larger the share of a round's generated tasks that need the skill; "
        "rows that fade are skills the simulator gave up.",
        "No generation became a task.",
    ),
)


def _pictures(run: RunFacts) -> list[Picture]:
    return [
        Picture(title=title, svg=chart(run), reading=reading, missing=missing)
        for title, chart, reading, missing in _READINGS
    ]


def _first_to_last(rates: Sequence[float]) -> str:
    if len(rates) < 2:
        return _rate(rates[0] if rates else None)
    return f"{_rate(rates[0])} → {_rate(rates[-1])}"


def _rate(value: float | None) -> str:
    return _DASH if value is None else f"{value:.2f}"


def _precise(value: float | None) -> str:
    return _DASH if value is None else f"{value:.4g}"


def _duration(seconds: float) -> str:
    if not seconds:
        return _DASH
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest_s} s" if minutes else f"{seconds:.1f} s"
