"""The command `genenv report`: builds the page of a run from facts, charts and example tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from markupsafe import Markup

from genenv.files import write_whole
from genenv.report import charts, parts
from genenv.report.facts import RunFacts, read_facts
from genenv.report.parts import DASH, Picture, rate
from genenv.runs.folder import RunFolder
from genenv.runs.metrics import late_p_hats
from genenv.runs.store.store import PoolStore
from genenv.types import Group, JsonObject, Message, Origin, StopReason, Task, Trace

_LOST = {
    "agent/skipped_updates": "skipped updates, agent",
    "simulator/skipped_updates": "skipped updates, simulator",
    "simulator/kl_retries": "halved steps, simulator",
    "agent/failed_traces": "failed rollouts",
}
"""Metrics of wasted work with their labels; each has a column if it is not always zero."""

Run = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="The folder of a run, such as runs/demo.", show_default=False),
]


def report(run: Run) -> None:
    """Make RUN/report.html: pictures of the run, and tasks with the agent's rollouts."""
    typer.echo(f"report: {write_report(run)}")


def write_report(run: Path) -> Path:
    """Write `report.html` into a run's folder; the run may be in progress.

    The page loads no external files, and the same run always gives the same bytes.

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
    """Return the page as HTML."""
    return parts.render(
        "report.html",
        title=run.name,
        maker="genenv report",
        run=run,
        held_out={number: point.rate for number, point in run.held_out().items()},
        progress=_progress(run),
        numbers=_numbers(run),
        lost={name: label for name, label in _LOST.items() if any(run.series(name).values())},
        pictures=[
            Picture(title=title, svg=chart(run), reading=reading, missing=missing)
            for title, chart, reading, missing in _READINGS
        ],
        examples=[("Early tasks", early), ("Late tasks", late)],
    )


def _progress(run: RunFacts) -> str:
    done = sum(facts.number > 0 for facts in run.rounds)
    if run.planned_rounds is not None and done < run.planned_rounds:
        return f"{done} of {run.planned_rounds} rounds"
    return f"{done} {'round' if done == 1 else 'rounds'}"


def _numbers(run: RunFacts) -> list[tuple[str, str]]:
    """Return the label and value of each number at the top of the page."""
    late = late_p_hats({facts.number: facts.metrics for facts in run.rounds})
    p_hat = fmean(late) if late else None
    generated = sum(facts.generated for facts in run.rounds)
    accepted = sum(facts.accepted for facts in run.rounds)
    shift = max(run.series("agent/eval_at_shift"), default=0)
    held_out = [point.rate for number, point in run.held_out().items() if number >= shift]
    valid = [facts.valid_rate for facts in run.rounds if facts.valid_rate is not None]
    since = f" from round {shift} on" if shift else ""
    return [
        (f"held-out success, first to last{since}", _first_to_last(held_out)),
        ("valid generations, first to last round", _first_to_last(valid)),
        ("mean p̂ in the last third of the rounds", rate(p_hat)),
        ("generations that became tasks", f"{accepted:,} of {generated:,}"),
        ("spent in the rounds", _duration(sum(facts.wall_s for facts in run.rounds))),
    ]


_READINGS: Sequence[tuple[str, Callable[[RunFacts], Markup | None], str, str]] = (
    (
        "Are the tasks at the agent's level?",
        charts.p_hat_chart,
        "Each dot is the variations written for one context; a simulator that learns brings the line into "
        "the target band.",
        "No batch of generated tasks was rolled out.",
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


def _first_to_last(rates: Sequence[float]) -> str:
    if len(rates) < 2:
        return rate(rates[0] if rates else None)
    return f"{rate(rates[0])} → {rate(rates[-1])}"


def _duration(seconds: float) -> str:
    if not seconds:
        return DASH
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest_s} s" if minutes else f"{seconds:.1f} s"


_SHOWN_ROLLOUTS = 6
_LONGEST_TEXT = 2000  # characters of one message


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRollout:
    """Equal rollouts of a task with their count."""

    messages: tuple[Message, ...]
    """The messages after those of the task."""
    success: bool
    explanation: str
    stop_reason: str | None
    """The reason why the rollout was cut short; None if it ended normally."""
    count: int

    @property
    def turns(self) -> int:
        """Return the number of the agent's replies."""
        return sum(message.role == "assistant" for message in self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A task with its rollouts, as the report shows it."""

    task_id: str
    round: int
    instruction: str
    difficulty: dict[str, str]
    oracle: tuple[str, ...]
    successes: int
    rollouts: int
    """The number of rollouts with a verdict."""
    distinct: tuple[CountedRollout, ...]
    """The most frequent different rollouts."""
    hidden: int
    """The number of rollouts not among `distinct`."""


_EACH = 5
"""So many early examples, and so many late ones, at most."""


def pick_examples(store: PoolStore) -> tuple[list[Example], list[Example]]:
    """Early and late generated tasks that were rolled out, no task twice and contexts varied."""
    order = store.rounds()
    early = _pick(store, order, seen=frozenset())
    seen = frozenset(example.task_id for example in early)
    late = _pick(store, order[::-1], seen=seen)
    return early, sorted(late, key=lambda example: example.round)


def _pick(store: PoolStore, order: Sequence[int], *, seen: frozenset[str]) -> list[Example]:
    found: list[Example] = []
    for number in order:
        tasks = store.tasks(origin=Origin.GENERATED, rounds=range(number, number + 1))
        for task in _one_per_context_first([task for task in tasks if task.id not in seen]):
            traces = store.lineage(task.id).traces
            if traces:
                found.append(_example(task, number, traces))
            if len(found) == _EACH:
                return found
    return found


def _one_per_context_first(tasks: Sequence[Task]) -> list[Task]:
    """Order tasks as the first of every context, then the second: variations of one seed look similar."""
    taken: Counter[str | None] = Counter()
    turns: list[tuple[int, Task]] = []
    for task in tasks:
        turns.append((taken[task.lineage.context_id], task))
        taken[task.lineage.context_id] += 1
    return [task for _, task in sorted(turns, key=lambda turn: turn[0])]


def _example(task: Task, number: int, traces: Sequence[Trace]) -> Example:
    counts = Counter(
        (trace.messages, trace.success, trace.explanation, trace.stop_reason) for trace in traces
    )
    distinct = tuple(
        CountedRollout(
            messages=tuple(replace(one, content=_shorten(one.content)) for one in messages),
            success=success,
            explanation=explanation,
            stop_reason=None if reason is StopReason.DONE else _STOPPED[reason],
            count=count,
        )
        for (messages, success, explanation, reason), count in counts.most_common(_SHOWN_ROLLOUTS)
    )
    group = Group(task=task, traces=tuple(traces))
    return Example(
        task_id=task.id,
        round=number,
        instruction=_instruction(task),
        difficulty=_difficulty(task.spec),
        oracle=task.oracle,
        successes=group.successes,
        rollouts=len(group.valid),
        distinct=distinct,
        hidden=len(traces) - sum(one.count for one in distinct),
    )


_STOPPED = {
    StopReason.DONE: "came to its end",
    StopReason.MAX_TURNS: "used all its turns",
    StopReason.LENGTH: "reached the token limit",
    StopReason.CONTEXT: "filled the context window",
    StopReason.TIMEOUT: "ran out of time",
    StopReason.ERROR: "got no answer",
}


def _instruction(task: Task) -> str:
    said = [message.content for message in task.messages if message.role == "user"]
    return _shorten(said[-1]) if said else "(no instruction)"


def _difficulty(spec: JsonObject) -> dict[str, str]:
    """Return the spec's leading short fields, which set the difficulty, up to the first structure or text."""
    fields: dict[str, str] = {}
    for key, value in spec.items():
        if isinstance(value, bool):
            fields[key] = "yes" if value else "no"
        elif isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 24):
            fields[key] = str(value)
        else:
            break
    return fields


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + " …"
