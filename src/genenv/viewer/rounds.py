"""What changed from one round of a run to a later one, and how much of a fall of success that explains."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from sqlite3 import Row
from statistics import fmean, median, stdev

from genenv.runs.store.database import Database
from genenv.runs.store.reader import rollouts_that_count
from genenv.statistics import counted
from genenv.viewer.curves import described, of_agents, short
from genenv.viewer.folders import Run
from genenv.viewer.kinds import (
    Grouping,
    Kind,
    Played,
    alone,
    best,
    common,
    groupings,
    kinds,
    rate_of,
    summed,
    why,
)
from genenv.viewer.lists import ASKED, evaluations_that_count, last_evaluations
from genenv.viewer.tasks import strings

_MOST_TASKS = 20_000
"""Tasks of a round that are read."""
SHOWN, HARDEST, OF_KIND = 20, 10, 50
"""Rows of a table of tasks or of kinds, hardest new tasks, and tasks of a kind, that the page shows."""
DASH = "–"
_Z = 1.96
_STEPS, _FEWEST, _UNUSUAL = 200, 5, 3.0
"""Rounds whose changes say what is usual; fewest of them; how many times the usual change is marked."""
_LEAST, _FALLS = 0.005, 3
"""Smallest change of success that is named, and how many falls are."""
_HALF_TENTH = 0.0005
"""Half of a tenth of a point: a smaller share is shown as 0.0."""

_METRICS: Mapping[str, Sequence[str]] = {
    "Tasks": (
        "curriculum/p_hat_mean",
        *("tasks/new", "tasks/base", "tasks/review", "tasks/mixed", "tasks/solved", "tasks/unsolved"),
        *("tasks/steps_mean", "tasks/text_tokens", "tasks/required_response_tokens"),
    ),
    "Rollouts": (
        *("agent/success_rate", "agent/reward", "agent/response_tokens", "agent/truncated_rate"),
        *("agent/readable_rate", "agent/failed_traces", "agent/attempts"),
    ),
    "Refusals": ("simulator/valid_rate", "simulator/novelty", "simulator/rejected/"),
    "The agent's update": (
        *("agent/kl", "agent/entropy", "agent/grad_norm", "agent/clip_rate", "agent/loss"),
        *("agent/mismatch_kl", "agent/importance_ratio", "agent/staleness", "agent/zero_advantage_rate"),
        *("agent/imitated", "agent/replayed", "agent/steps", "agent/skipped_updates"),
    ),
    "The simulator's update": (
        *("simulator/kl", "simulator/kl_step", "simulator/kl_retries", "simulator/decision_entropy"),
        *("simulator/grad_norm", "simulator/loss", "simulator/response_tokens", "simulator/skipped_updates"),
    ),
}
"""Heading -> metrics of a round that are compared. One that ends in a slash is a family of metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Success before and after."""

    before: float
    after: float
    error: float
    """Half of the 95% interval of the difference, by the normal approximation; infinite for one task."""

    @property
    def value(self) -> float:
        """The difference."""
        return self.after - self.before

    @property
    def interval(self) -> str:
        """The 95% interval of the difference, in points."""
        if math.isinf(self.error):
            return "no interval"
        ends = (self.value - self.error, self.value + self.error)
        digits = 1 if self.is_chance or all(abs(end) >= _HALF_TENTH for end in ends) else 2
        low, high = (points(end, digits) for end in ends)
        may_be_chance = self.is_chance and abs(self.value) >= _LEAST
        return f"95% interval {low} to {high}" + (": chance alone may explain it" if may_be_chance else "")

    @property
    def is_chance(self) -> bool:
        """Whether no change at all is in the interval."""
        return abs(self.value) <= self.error


def change(before: Sequence[Played], after: Sequence[Played]) -> Change | None:
    """Return the change of success, the rounds taken as independent; None if one has no rollouts.

    The variance of a rate p is n/(n - 1) sum_i (solved_i - p tried_i)^2 / (sum_i tried_i)^2 over n tasks.
    """
    if not (before and after):
        return None
    variance = 0.0
    for side in (before, after):
        p, n = rate_of(side), len(side)
        squares = math.fsum((task.solved - p * task.tried) ** 2 for task in side)
        variance += math.inf if n == 1 else squares * n / (n - 1) / sum(task.tried for task in side) ** 2
    return Change(before=rate_of(before), after=rate_of(after), error=_Z * math.sqrt(variance))


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """A task that both rounds have."""

    id: str
    before: Played
    after: Played

    @property
    def fall(self) -> float:
        """How far its success rate fell."""
        return self.before.rate - self.after.rate


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What is compared in the rollouts of two rounds, or in two evaluations."""

    numbers: tuple[int, int]
    """The earlier and the later round."""
    before: Sequence[Played]
    after: Sequence[Played]
    by: str = ""
    """The key of a grouping; anything else: the one that predicts most."""
    is_cut: bool = False
    """Whether a round has more tasks than were read."""
    kind: str = ""
    """The kind whose tasks are listed."""
    asked: Mapping[str, str] = field(default_factory=dict[str, str])
    """Id of a task that is shown -> what it asks."""
    replies: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Id of a held-out task that is shown -> the last reply in the earlier and in the later evaluation."""

    @cached_property
    def change(self) -> Change | None:
        """The change of success."""
        return change(self.before, self.after)

    @cached_property
    def groupings(self) -> Mapping[str, Grouping]:
        """The ways to tell its tasks apart."""
        return groupings(self.before, self.after)

    @cached_property
    def grouping(self) -> Grouping:
        """How its tasks are told apart."""
        return self.groupings.get(self.by) or best(self.groupings)

    @cached_property
    def kinds(self) -> list[Kind]:
        """Its parts by kind."""
        return kinds(self.before, self.after, self.grouping.split)

    @cached_property
    def origins(self) -> list[Kind]:
        """Its parts by origin."""
        return kinds(self.before, self.after, self.groupings["origin"].split)

    def rest(self, found: Sequence[Kind]) -> list[Kind]:
        """Return the kinds for which a table has no row, added up."""
        return summed(found[SHOWN:], self.numbers)

    @cached_property
    def of_kind(self) -> list[list[Played]]:
        """The tasks of the chosen kind in the earlier and in the later round, the hardest first."""
        is_origin = self.kind in {kind.name for kind in self.origins}
        split = self.groupings["origin"].split if is_origin else self.grouping.split
        return [
            sorted(
                (task for task in side if self.kind in split(task)), key=lambda task: (task.rate, task.id)
            )[:OF_KIND]
            for side in (self.before, self.after)
        ]

    @cached_property
    def both(self) -> list[Both]:
        """The tasks of both, those that fell most first."""
        known = {task.id: task for task in self.before}
        found = [Both(id=one.id, before=known[one.id], after=one) for one in self.after if one.id in known]
        return sorted(found, key=lambda one: (-one.fall, one.id))

    @cached_property
    def paired(self) -> Change | None:
        """The change of the mean success rate of the tasks of both; None if there are none."""
        if not self.both:
            return None
        falls = [one.fall for one in self.both]
        error = _Z * stdev(falls) / math.sqrt(len(falls)) if len(falls) > 1 else math.inf
        before, after = (
            fmean(one.rate for one in side)
            for side in ([b.before for b in self.both], [b.after for b in self.both])
        )
        return Change(before=before, after=after, error=error)

    @cached_property
    def hardest(self) -> list[Played]:
        """The new tasks with the lowest success rates."""
        new = [task for task in self.after if task.origin == "new"]
        return sorted(new, key=lambda task: (task.rate, -task.tried, task.id))[:HARDEST]

    @property
    def lost(self) -> list[Both]:
        """Tasks whose success rate fell, the farthest first."""
        return [one for one in self.both if one.fall > 0]

    @property
    def won(self) -> list[Both]:
        """Tasks whose success rate rose, the farthest first."""
        return sorted((one for one in self.both if one.fall < 0), key=lambda one: (one.fall, one.id))

    @property
    def words(self) -> list[str]:
        """What the figures of two rounds say."""
        if self.change is None:
            return []
        found = [f"Success {_moved(self.change)} ({self.change.interval})."]
        found.append(f"By {self.grouping.name}: {_parts(self.kinds, self.numbers)}.")
        found += why(self.groupings, self.grouping, common(self.before, self.after))
        if len(self.origins) > 1 and self.grouping.key != "origin":
            found.append(f"By origin: {_parts(self.origins, self.numbers)}.")
        if self.paired is not None:
            tasks = counted(len(self.both), "task")
            found.append(
                f"The same {tasks} in both rounds: success {_moved(self.paired)} ({self.paired.interval})."
            )
        return found

    @property
    def held_out_words(self) -> list[str]:
        """What the figures of two evaluations say."""
        if self.paired is None:
            return []
        # The tasks that flipped say more than their sum, in which lost and won ones cancel.
        flipped = f"{len(self.lost)} of {counted(len(self.both), 'task')} lost, {len(self.won)} won"
        found = [f"Held-out success {_moved(self.paired)}: {flipped} ({self.paired.interval})."]
        worst, best = min(self.kinds, key=_total), max(self.kinds, key=_total)
        named = [f"Most was lost at {_within(worst)}"] if worst.total < 0 else []
        named += [f"most was won at {_within(best)}"] if best.total > 0 else []
        text = "; ".join(named)
        return [*found, f"{text[:1].upper()}{text[1:]}."] if text else found


def points(value: float, digits: int = 1) -> str:
    """Return a difference of shares in points, with its sign."""
    text = f"{100 * value:+.{digits}f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def percent(value: float | None) -> str:
    """Return a share in percent."""
    return DASH if value is None else f"{100 * value:.0f}%"


def _moved(found: Change) -> str:
    before, after = (f"{100 * rate:.1f}%" for rate in (found.before, found.after))
    if before == after:
        return f"is {after} in both"
    if abs(found.value) < _LEAST:
        return f"hardly changed, by {points(found.value)} points from {before} to {after}"
    verb = "fell" if found.value < 0 else "rose"
    return f"{verb} by {100 * abs(found.value):.1f} points, from {before} to {after}"


def _total(kind: Kind) -> float:
    return kind.total


def _parts(found: Sequence[Kind], numbers: tuple[int, int]) -> str:
    """Say how much the mix of tasks and the success within kinds account for, each with its largest part."""
    mix, within = math.fsum(kind.mix for kind in found), math.fsum(kind.within for kind in found)
    sign = [math.copysign(1, value) for value in (mix, within)]
    changed = max(found, key=lambda kind: sign[1] * kind.within)
    first = f"{points(mix)} points come from the mix of tasks" + _moved_most(found, numbers, sign[0])
    second = f"{points(within)} from success within kinds"
    return first + ", " + second + (f" (most at {_within(changed)})" if abs(changed.within) >= _LEAST else "")


def _moved_most(found: Sequence[Kind], numbers: tuple[int, int], sign: float) -> str:
    """Say what the largest part of the mix of tasks is: a kind, or all kinds that one round alone has."""
    moved = max(found, key=lambda kind: sign * kind.mix)
    sides = [alone(found, side) for side in (0, 1)]
    if sign * math.fsum(one.mix for one in sides if one) > max(sign * moved.mix, _LEAST) and all(sides):
        parts = [
            f"{percent(one.shares[side])} of round {numbers[side]}, {percent(one.rates[side])} solved"
            for side, one in enumerate(sides)
            if one is not None
        ]
        together = points(math.fsum(one.mix for one in sides if one))
        return f" ({together} from kinds that only one round has: {'; '.join(parts)})"
    if abs(moved.mix) < _LEAST:
        return ""
    more = "more" if moved.shares[1] > moved.shares[0] else "fewer"
    known = [rate for rate in moved.rates if rate is not None]
    return (
        f" (most: {more} of {moved.name}, {percent(moved.shares[0])} → {percent(moved.shares[1])} of the "
        f"rollouts, {percent(fmean(known))} solved)"
    )


def _within(kind: Kind) -> str:
    before, after = map(percent, kind.rates)
    return f"{kind.name}, {before} → {after} solved"


_OF_ROUND = """SELECT tasks.id, one.origin, one.round, tasks.skills, rates.tried, rates.solved
    FROM side.rates AS rates CROSS JOIN side.tasks AS one ON one.n = rates.n
         CROSS JOIN main.tasks AS tasks ON tasks.n = rates.n
    WHERE rates.round = ? ORDER BY rates.n LIMIT ?"""
_PLAYED = """
    SELECT tasks.id, tasks.origin, tasks.round, tasks.skills, count(*) AS tried, sum(success) AS solved
    FROM traces JOIN tasks ON tasks.id = task_id
    WHERE traces.round = ? AND {} GROUP BY tasks.n ORDER BY tasks.n LIMIT ?"""
_FEW = 5000
"""So many rollouts of two rounds are read from the store itself, without its side file."""
_EVALUATED = """SELECT task_id, count(*), sum(success), skills
    FROM {} CROSS JOIN tasks ON tasks.id = task_id
    GROUP BY task_id ORDER BY min(place) LIMIT ?"""
_REPLIES = """SELECT task_id, substr(json_extract(replies, '$[#-1]'), 1, 400) FROM evaluations
    WHERE round = ? AND task_id IN (SELECT value FROM json_each(?)) AND json_valid(replies) AND {}"""
_TEXTS = f"SELECT id, {ASKED} AS asked FROM tasks WHERE id IN (SELECT value FROM json_each(?))"  # noqa: S608


def is_small(db: Database, numbers: tuple[int, int]) -> bool:
    """Return whether the store alone answers `compared` quickly."""
    counted_ = "SELECT count(*) FROM (SELECT 1 FROM traces WHERE round IN (?, ?) LIMIT ?)"
    return int(db.rows(counted_, (*numbers, _FEW + 1))[0][0]) <= _FEW


def compared(
    db: Database, numbers: tuple[int, int], by: str, kind: str = "", *, indexed: bool = True
) -> Compared:
    """Return what is compared in the rollouts of two rounds: with seats, in those of the leading one.

    Args:
        db: the store, with the side file as `side` if `indexed`.
        numbers: the earlier and the later round.
        by: the key of a grouping; anything else: the one that predicts most.
        kind: the kind whose tasks are listed.
        indexed: whether the side file is read, which is faster in a large store.
    """
    sql = _OF_ROUND if indexed else _PLAYED.format(rollouts_that_count(db))
    sides = [[_played(row, number) for row in db.rows(sql, (number, _MOST_TASKS + 1))] for number in numbers]
    before, after = (side[:_MOST_TASKS] for side in sides)
    is_cut = any(len(side) > _MOST_TASKS for side in sides)
    return _with_texts(
        db, Compared(numbers=numbers, before=before, after=after, by=by, kind=kind, is_cut=is_cut)
    )


def _played(row: Row, number: int) -> Played:
    origin = "base" if row["origin"] == "seed" else "new" if row["round"] == number else "back"
    return Played(
        id=row["id"], origin=origin, skills=_skills(row["skills"]), tried=row["tried"], solved=row["solved"]
    )


@lru_cache(maxsize=4096)
def _skills(stored: str | bytes | None) -> tuple[str, ...]:
    """Return stored skills; many tasks have the same, and parsing them takes longer than finding them."""
    return tuple(strings(stored))


def evaluated(db: Database, numbers: tuple[int, int]) -> Compared:
    """Return what is compared in two evaluations: the held-out tasks that both have."""
    whose = evaluations_that_count(db)
    sql = _EVALUATED.format(last_evaluations(whose))
    one, other = (
        {
            str(id_): Played(
                id=str(id_), origin="held_out", skills=_skills(skills), tried=tried, solved=solved
            )
            for id_, tried, solved, skills in db.rows(sql, (number, _MOST_TASKS))
        }
        for number in numbers
    )
    shared = [id_ for id_ in one if id_ in other]
    before, after = ([side[id_] for id_ in shared] for side in (one, other))
    found = _with_texts(db, Compared(numbers=numbers, before=before, after=after, by="skill"))
    shown = json.dumps([one.id for one in (*found.lost[:SHOWN], *found.won[:SHOWN])])
    sql = _REPLIES.format(whose)
    first, last = ({str(id_): reply for id_, reply in db.rows(sql, (one, shown))} for one in numbers)
    return replace(
        found,
        replies={id_: (str(first.get(id_) or ""), str(reply or "")) for id_, reply in last.items()},
    )


def _with_texts(db: Database, found: Compared) -> Compared:
    """Add the texts of the tasks that the page shows."""
    shown = [one.id for one in (*found.hardest, *found.lost[:SHOWN], *found.won[:SHOWN])]
    shown += [task.id for side in found.of_kind for task in side] if found.kind else []
    rows = db.rows(_TEXTS, (json.dumps(shown),))
    return replace(found, asked={str(row["id"]): str(row["asked"] or "") for row in rows})


def evaluations_of(run: Run, before: int, number: int) -> tuple[int, int] | None:
    """Return the rounds of the last evaluations up to two rounds, and of that before if both are one.

    None if there are no two evaluations of the same tasks: a shift of the environment changes them.
    """
    taken, shift = sorted(run.series("agent/eval_success")), run.shift
    later = [one for one in taken if one <= number]
    if shift is not None and later and later[-1] >= shift:
        later = [one for one in later if one >= shift]
    earlier = [one for one in later[:-1] if one <= before] or later[:-1][:1]
    return (earlier[-1], later[-1]) if earlier else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A metric of two rounds."""

    name: str
    unit: str
    about: str
    before: float | None
    after: float | None
    usual: float | None
    """The median size of its change from one round to the next; None if few rounds have it."""

    @property
    def times(self) -> float:
        """How many times the usual change it changed; 0 if that is not known."""
        if self.before is None or self.after is None or not self.usual:
            return 0.0
        return abs(self.after - self.before) / self.usual

    @property
    def is_unusual(self) -> bool:
        """Whether it changed much more than it does from one round to the next."""
        return self.times > _UNUSUAL

    @property
    def cells(self) -> tuple[str, str, str]:
        """Both values and their difference."""
        before, after = (self._said(value) for value in (self.before, self.after))
        if self.before is None or self.after is None:
            return before, after, DASH
        gap = self.after - self.before
        if self.unit == "share":
            return before, after, f"{points(gap)} points"
        return before, after, f"{'+' if gap > 0 else '−' if gap < 0 else ''}{short(abs(gap))}"

    def _said(self, value: float | None) -> str:
        if value is None:
            return DASH
        return f"{100 * value:.1f}%" if self.unit == "share" else short(value)


def measured(run: Run, before: int, number: int) -> dict[str, list[Measured]]:
    """Return the metrics of two rounds by heading, those that neither has left out."""
    found = dict[str, list[Measured]]()
    for heading, names in _METRICS.items():
        rows = [_measured(run, name, before, number) for name in _spelled(run, names)]
        if rows := [row for row in rows if row.before is not None or row.after is not None]:
            found[heading] = rows
    return found


def _spelled(run: Run, names: Sequence[str]) -> list[str]:
    found = list[str]()
    for name in names:
        family = (one for one, line in run.metrics.items() if one.startswith(name) and any(line.values()))
        found += sorted(family) if name.endswith("/") else [name, *(own for _, own in of_agents(run, name))]
    return found


def _measured(run: Run, name: str, before: int, number: int) -> Measured:
    line = run.series(name)
    steps = [abs(later - earlier) for earlier, later in pairwise(list(line.values())[-_STEPS:])]
    usual = median(steps) if len(steps) >= _FEWEST else None
    unit, about = described(name)
    return Measured(
        name=name, unit=unit, about=about, before=line.get(before), after=line.get(number), usual=usual
    )


def _is_between(shift: int | None, before: int, number: int) -> bool:
    """Whether two evaluations are of the tasks of two environments."""
    return shift is not None and before < shift <= number


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """A fall of success from one round, or evaluation, to the next."""

    before: int
    number: int
    size: float


def falls(run: Run) -> dict[str, list[Fall]]:
    """Return the largest falls of success in training and of held-out success."""
    found = dict[str, list[Fall]]()
    for label, metric in (
        ("Success in training", "agent/success_rate"),
        ("Held-out success", "agent/eval_success"),
    ):
        line = run.series(metric).items()
        sizes = [
            Fall(before=one, number=other, size=before - after)
            for (one, before), (other, after) in pairwise(line)
            if metric == "agent/success_rate" or not _is_between(run.shift, one, other)
        ]
        sizes.sort(key=lambda fall: (-fall.size, fall.number))
        if kept := [fall for fall in sizes[:_FALLS] if fall.size >= _LEAST]:
            found[label] = kept
    return found
