"""What changed from one round of a run to a later one, and how much of a fall of success that explains.

Success of a round is the share of its rollouts that succeeded, S = sum_k w_k s_k: over kinds of tasks, their
share of the rollouts times their success. From an earlier round 0 to a later round 1 it changes by

    S1 - S0 = sum_k (w1_k - w0_k) ((s0_k + s1_k)/2 - c)  +  sum_k (w0_k + w1_k)/2 (s1_k - s0_k),

the mix of tasks and the success within kinds (Kitagawa 1955). c = (S0 + S1)/2 adds up to nothing, but makes
more of a hard kind a loss. A kind that only one round has counts as mix. The sum is exact.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from sqlite3 import Row
from statistics import fmean, median, stdev

from markupsafe import Markup

from genenv.runs.store.database import Database
from genenv.statistics import counted
from genenv.viewer.curves import described, family, picture, plain, short
from genenv.viewer.folders import Run
from genenv.viewer.lists import ASKED
from genenv.viewer.tasks import strings

_MOST_TASKS = 20_000
"""Tasks of a round that are read."""
SHOWN, HARDEST = 20, 10
"""Rows of a table of tasks or of kinds, and hardest new tasks, that the page shows."""
DASH = "–"
_Z = 1.96
_COMMON = 0.8
"""Tasks are told apart by combinations of skills if both rounds have those of this share of the rollouts."""
_STEPS, _FEWEST, _UNUSUAL = 200, 5, 3.0
"""Rounds whose changes say what is usual; fewest of them; how many times the usual change is marked."""
_LEAST, _FALLS = 0.005, 3
"""Smallest change of success that is named, and how many falls are."""

ORIGINS = {"new": "new tasks", "base": "base tasks", "back": "tasks that came back"}
"""Origin of a task in a round -> its name."""
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
class Played:
    """A task in a round: how often it was rolled out, and how often it was solved."""

    id: str
    origin: str
    """A key of `ORIGINS`; "held_out" in an evaluation."""
    skills: Sequence[str]
    tried: int
    solved: int

    @property
    def rate(self) -> float:
        """The share of its rollouts that succeeded."""
        return self.solved / self.tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Tasks of one kind in two rounds; `w` and `s` of the formula above, and their parts of the change."""

    name: str
    shares: tuple[float, float]
    rates: tuple[float | None, float | None]
    """None in a round without such tasks."""
    mix: float
    within: float

    @property
    def total(self) -> float:
        """Both parts."""
        return self.mix + self.within


Split = Callable[[Played], Sequence[str]]
"""The kinds of a task; one that has several counts for each with an equal part."""
SPLITS: Mapping[str, Split] = {
    "skills": lambda task: [" + ".join(sorted(task.skills)) or "none"],
    "skill": lambda task: list(dict.fromkeys(task.skills)) or ["none"],
    "origin": lambda task: [ORIGINS.get(task.origin, task.origin)],
}
"""How tasks are told apart: by all their skills together, by each skill, or by their origin."""


def kinds(before: Sequence[Played], after: Sequence[Played], split: Split) -> list[Kind]:
    """Return the parts of a change of success by kind, the largest first; see the module for the formula."""
    if not (before and after):
        return []
    sides = (_sums(before, split), _sums(after, split))
    totals = [math.fsum(tried for tried, _ in side.values()) for side in sides]
    c = fmean(_rate(side) for side in (before, after))
    found = list[Kind]()
    for name in dict.fromkeys(name for side in sides for name in side):
        sums = [side.get(name, (0.0, 0.0)) for side in sides]
        w0, w1 = (tried / total for (tried, _), total in zip(sums, totals, strict=True))
        s0, s1 = (solved / tried if tried else None for tried, solved in sums)
        known = [rate for rate in (s0, s1) if rate is not None]
        within = (w0 + w1) / 2 * (known[1] - known[0]) if len(known) == 2 else 0.0
        mix = (w1 - w0) * (fmean(known) - c)
        found.append(Kind(name=name, shares=(w0, w1), rates=(s0, s1), mix=mix, within=within))
    return sorted(found, key=lambda kind: (-abs(kind.total), -max(kind.shares), kind.name))


def _sums(tasks: Sequence[Played], split: Split) -> Mapping[str, tuple[float, float]]:
    """Return rollouts and successes of each kind."""
    found = defaultdict[str, tuple[float, float]](lambda: (0.0, 0.0))
    for task in tasks:
        names = split(task)
        for name in names:
            tried, solved = found[name]
            found[name] = (tried + task.tried / len(names), solved + task.solved / len(names))
    return dict(found)


def _rate(tasks: Sequence[Played]) -> float:
    """Return the share of all rollouts of some tasks that succeeded."""
    return sum(task.solved for task in tasks) / sum(task.tried for task in tasks)


def _fitting(before: Sequence[Played], after: Sequence[Played]) -> str:
    """Return `skills` if both rounds have mostly the same combinations of skills, else `skill`."""
    one, other = (_sums(side, SPLITS["skills"]) for side in (before, after))
    for side, beside in ((one, other), (other, one)):
        shared = math.fsum(tried for name, (tried, _) in side.items() if name in beside)
        if shared < _COMMON * math.fsum(tried for tried, _ in side.values()):
            return "skill"
    return "skills"


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
        low, high = points(self.value - self.error), points(self.value + self.error)
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
        p, n = _rate(side), len(side)
        squares = math.fsum((task.solved - p * task.tried) ** 2 for task in side)
        variance += math.inf if n == 1 else squares * n / (n - 1) / sum(task.tried for task in side) ** 2
    return Change(before=_rate(before), after=_rate(after), error=_Z * math.sqrt(variance))


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
    by: str = "skill"
    """A key of `SPLITS`."""
    is_cut: bool = False
    """Whether a round has more tasks than were read."""
    asked: Mapping[str, str] = field(default_factory=dict[str, str])
    """Id of a task that is shown -> what it asks."""

    @cached_property
    def change(self) -> Change | None:
        """The change of success."""
        return change(self.before, self.after)

    @cached_property
    def kinds(self) -> list[Kind]:
        """Its parts by kind."""
        return kinds(self.before, self.after, SPLITS[self.by])

    @cached_property
    def origins(self) -> list[Kind]:
        """Its parts by origin."""
        return kinds(self.before, self.after, SPLITS["origin"])

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
        return [one for one in reversed(self.both) if one.fall < 0]

    @property
    def words(self) -> list[str]:
        """What the figures of two rounds say."""
        if self.change is None:
            return []
        found = [f"Success {_moved(self.change)} ({self.change.interval})."]
        found.append(f"By {_BY[self.by]}: {_parts(self.kinds)}.")
        if len(self.origins) > 1:
            found.append(f"By origin: {_parts(self.origins)}.")
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
        flipped = f"{len(self.lost)} of {counted(len(self.both), 'task')} lost, {len(self.won)} won"
        found = [f"Held-out success {_moved(self.paired)}: {flipped} ({self.paired.interval})."]
        worst, best = min(self.kinds, key=_total), max(self.kinds, key=_total)
        named = [f"Most was lost at {_within(worst)}"] if worst.total < 0 else []
        named += [f"most was won at {_within(best)}"] if best.total > 0 else []
        text = "; ".join(named)
        return [*found, f"{text[:1].upper()}{text[1:]}."] if text else found


_BY = {"skills": "combination of skills", "skill": "skill", "origin": "origin"}
"""Key of `SPLITS` -> what the page calls it."""


def points(value: float) -> str:
    """Return a difference of shares in points, with its sign."""
    text = f"{100 * value:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def percent(value: float | None) -> str:
    """Return a share in percent."""
    return DASH if value is None else f"{100 * value:.0f}%"


def _moved(found: Change) -> str:
    size = f"{100 * abs(found.value):.1f} points, from {100 * found.before:.1f}% to {100 * found.after:.1f}%"
    if abs(found.value) < _LEAST:
        return f"stayed at {100 * found.after:.1f}%"
    return f"{'fell' if found.value < 0 else 'rose'} by {size}"


def _total(kind: Kind) -> float:
    return kind.total


def _parts(found: Sequence[Kind]) -> str:
    """Say how much the mix of tasks and the success within kinds account for, each with its largest part."""
    mix, within = math.fsum(kind.mix for kind in found), math.fsum(kind.within for kind in found)
    sign = [math.copysign(1, value) for value in (mix, within)]
    moved = max(found, key=lambda kind: sign[0] * kind.mix)
    changed = max(found, key=lambda kind: sign[1] * kind.within)
    first = f"{points(mix)} points come from the mix of tasks"
    if abs(moved.mix) >= _LEAST:
        more = "more" if moved.shares[1] > moved.shares[0] else "fewer"
        known = [rate for rate in moved.rates if rate is not None]
        first += (
            f" (most: {more} of {moved.name}, {percent(moved.shares[0])} → {percent(moved.shares[1])} of the "
            f"rollouts, {percent(fmean(known))} solved)"
        )
    second = f"{points(within)} from success within kinds"
    return first + ", " + second + (f" (most at {_within(changed)})" if abs(changed.within) >= _LEAST else "")


def _within(kind: Kind) -> str:
    before, after = map(percent, kind.rates)
    return f"{kind.name}, {before} → {after} solved"


_OF_ROUND = """SELECT tasks.id, one.origin, one.round, tasks.skills, rates.tried, rates.solved
    FROM side.rates AS rates CROSS JOIN side.tasks AS one ON one.n = rates.n
         CROSS JOIN main.tasks AS tasks ON tasks.n = rates.n
    WHERE rates.round = ? ORDER BY rates.n LIMIT ?"""
_EVALUATED = """SELECT task_id, success, skills FROM evaluations CROSS JOIN tasks ON tasks.id = task_id
    WHERE evaluations.round = ? ORDER BY position LIMIT ?"""
_TEXTS = f"SELECT id, {ASKED} AS asked FROM tasks WHERE id IN (SELECT value FROM json_each(?))"  # noqa: S608


def compared(db: Database, numbers: tuple[int, int], by: str) -> Compared:
    """Return what is compared in the rollouts of two rounds.

    Args:
        db: the store, with the side file as `side`.
        numbers: the earlier and the later round.
        by: a key of `SPLITS`; anything else: whichever fits the tasks.
    """
    sides = [
        [_played(row, number) for row in db.rows(_OF_ROUND, (number, _MOST_TASKS + 1))] for number in numbers
    ]
    before, after = (side[:_MOST_TASKS] for side in sides)
    by = by if by in SPLITS else _fitting(before, after)
    is_cut = any(len(side) > _MOST_TASKS for side in sides)
    return _with_texts(db, Compared(numbers=numbers, before=before, after=after, by=by, is_cut=is_cut))


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
    one, other = (
        {
            str(id_): Played(
                id=str(id_), origin="held_out", skills=_skills(skills), tried=1, solved=int(bool(solved))
            )
            for id_, solved, skills in db.rows(_EVALUATED, (number, _MOST_TASKS))
        }
        for number in numbers
    )
    shared = [id_ for id_ in one if id_ in other]
    before, after = ([side[id_] for id_ in shared] for side in (one, other))
    return _with_texts(db, Compared(numbers=numbers, before=before, after=after))


def _with_texts(db: Database, found: Compared) -> Compared:
    """Add the texts of the tasks that the page shows."""
    shown = [one.id for one in (*found.hardest, *found.lost[:SHOWN], *found.won[:SHOWN])]
    rows = db.rows(_TEXTS, (json.dumps(shown),))
    return replace(found, asked={str(row["id"]): str(row["asked"] or "") for row in rows})


def evaluations_of(run: Run, before: int, number: int) -> tuple[int, int] | None:
    """Return the rounds of the last evaluations up to two rounds, and of that before if both are one.

    None if there are no two evaluations.
    """
    taken = sorted(run.series("agent/eval_success"))
    later = [one for one in taken if one <= number]
    earlier = [one for one in later[:-1] if one <= before] or later[:-1]
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
        found += sorted(family) if name.endswith("/") else [name]
    return found


def _measured(run: Run, name: str, before: int, number: int) -> Measured:
    line = run.series(name)
    steps = [abs(later - earlier) for earlier, later in pairwise(list(line.values())[-_STEPS:])]
    usual = median(steps) if len(steps) >= _FEWEST else None
    unit, about = described(name)
    return Measured(
        name=name, unit=unit, about=about, before=line.get(before), after=line.get(number), usual=usual
    )


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
        ]
        sizes.sort(key=lambda fall: (-fall.size, fall.number))
        if kept := [fall for fall in sizes[:_FALLS] if fall.size >= _LEAST]:
            found[label] = kept
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """How often the gate refused a generation for a reason."""

    reason: str
    count: int
    share: float
    """Of all refusals."""
    early: float | None
    late: float | None
    """Share of the refusals in the first and in the last third of the rounds; None without any."""
    line: Markup
    """A small picture: refusals by round."""


def refusals(run: Run) -> list[Refusals]:
    """Return the refusals of a run by reason, the most frequent first; without reasons that do not occur."""
    prefix = "simulator/rejected/"
    names, lines = family(run, prefix)
    rounds = sorted({number for name in names for number in lines[name]})
    third = -(-len(rounds) // 3)
    totals = {number: sum(lines[name].get(number, 0.0) for name in names) for number in rounds}

    def share(name: str, some: Sequence[int]) -> float | None:
        total = sum(totals[number] for number in some)
        return sum(lines[name].get(number, 0.0) for number in some) / total if total else None

    return [
        Refusals(
            reason=name.removeprefix(prefix),
            count=round(sum(lines[name].values())),
            share=share(name, rounds) or 0.0,
            early=share(name, rounds[:third]),
            late=share(name, rounds[-third:]),
            line=picture(lines[name], f"refusals as {plain(name, prefix)} by round", least_span=1.0),
        )
        for name in names
    ]
