"""Kinds of tasks, by which a change of success is split into parts, and which grouping explains it best.

Success of a round is the share of its rollouts that succeeded, S = sum_k w_k s_k: over kinds of tasks, their
share of the rollouts times their success. From an earlier round 0 to a later round 1 it changes by

    S1 - S0 = sum_k (w1_k - w0_k) ((s0_k + s1_k)/2 - c)  +  sum_k (w0_k + w1_k)/2 (s1_k - s0_k),

the mix of tasks and the success within kinds (Kitagawa 1955). c = (S0 + S1)/2 adds up to nothing, but makes
more of a hard kind a loss. A kind that only one round has counts as mix. The sum is exact for any kinds. But
the parts say something only if the tasks of a kind are alike, which `predicted` measures.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from genenv.texts import listed

_JUDGED = 1000
"""Tasks of a round by which groupings are compared."""
_MOST_FAMILIES = 4
"""Families of skills by which tasks are grouped."""
_NEGLIGIBLE, _LITTLE = 0.005, 0.25
"""A grouping that predicts less says nothing, or little."""
_FITS, _TINY = 8, 1e-9
"""Steps of backfitting, and a number of rollouts that is none."""
_LISTED = 3
"""Skills that are listed by name."""

ORIGINS = {"new": "new tasks", "base": "base tasks", "back": "tasks that came back"}
"""Origin of a task in a round -> its name."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """A way to tell tasks apart."""

    key: str
    """In the address of a page."""
    name: str
    split: Split
    predicted: float
    """See `predicted`."""


def groupings(before: Sequence[Played], after: Sequence[Played]) -> dict[str, Grouping]:
    """Return the groupings of the tasks of two rounds by key.

    By the combination of skills, by each skill, and by origin. Skills such as `length:3` are a family, of
    which a task has one: tasks are then also grouped by the family alone, and by the combination without it.
    A skill that all tasks have tells none apart, so it is left out.
    """
    everywhere = common(before, after)
    known = {skill for side in (before, after) for task in side for skill in task.skills} - everywhere
    families = list(dict.fromkeys(_family(skill) for skill in sorted(known) if _family(skill)))
    only = f"only {' + '.join(sorted(everywhere))}" if everywhere else "none"

    def combination(task: Played, without: str = "") -> list[str]:
        kept = {
            one for one in task.skills if one not in everywhere and not (without and _family(one) == without)
        }
        return [" + ".join(sorted(kept)) or (f"any {without}" if without else only)]

    def each(task: Played, family: str = "") -> list[str]:
        kept = dict.fromkeys(one for one in task.skills if one not in everywhere)
        return [one for one in kept if not family or _family(one) == family] or (
            [f"no {family}"] if family else [only]
        )

    made: dict[str, tuple[str, Split]] = {
        "skills": ("combination of skills", combination),
        "skill": ("skill", each),
        "origin": ("origin", lambda task: [ORIGINS.get(task.origin, task.origin)]),
    }
    for family in families[:_MOST_FAMILIES]:
        made[f"skills-{family}"] = (
            f"combination of skills without {family}",
            lambda task, family=family: combination(task, family),
        )
        made[f"skill-{family}"] = (family, lambda task, family=family: each(task, family))
    some = (before[:_JUDGED], after[:_JUDGED])
    return {
        key: Grouping(key=key, name=name, split=split, predicted=predicted(*some, split))
        for key, (name, split) in made.items()
    }


def common(before: Sequence[Played], after: Sequence[Played]) -> set[str]:
    """Return the skills that all tasks of two rounds have."""
    of_each = [set(task.skills) for side in (before, after) for task in side]
    return set[str].intersection(*of_each) if of_each else set[str]()


def _family(skill: str) -> str:
    name, colon, _ = skill.partition(":")
    return name if colon else ""


def predicted(before: Sequence[Played], after: Sequence[Played], split: Split) -> float:
    """Return how much of the differences in success between tasks of a round their kinds predict, 0 to 1.

    The success of a task is modeled as a level of its round plus the mean of the effects of its kinds, fitted
    by backfitting. Each task is predicted with the effects as the other tasks of both rounds give them; one
    whose kinds no other task has is predicted by the success of its round. It is the share of the squared
    differences from the success of the round, weighted by rollouts, that this removes; 0 if it removes none.
    As a task never predicts itself, finer kinds do not win by being finer.
    """
    rows = [(side, task, split(task)) for side, tasks in enumerate((before, after)) for task in tasks]
    rates = [rate_of(tasks) if tasks else 0.0 for tasks in (before, after)]
    weights = [sum(task.tried for task in tasks) or 1 for tasks in (before, after)]
    levels, effects = list(rates), dict[str, float]()
    for _ in range(_FITS):
        sums = defaultdict[str, list[float]](lambda: [0.0, 0.0])
        for side, task, names in rows:
            for name in names:
                _add(sums[name], task, levels[side], len(names))
        effects = {name: sum_ / tried for name, (tried, sum_) in sums.items()}
        left = [0.0, 0.0]
        for side, task, names in rows:
            left[side] += task.solved - task.tried * fmean(effects[name] for name in names)
        levels = [one / weight for one, weight in zip(left, weights, strict=True)]
    sums = defaultdict[str, list[float]](lambda: [0.0, 0.0])
    own = defaultdict[tuple[str, str], list[float]](lambda: [0.0, 0.0])
    for side, task, names in rows:
        for name in names:  # a task of both rounds does not predict itself either
            _add(sums[name], task, levels[side], len(names))
            _add(own[task.id, name], task, levels[side], len(names))
    whole, wrong = 0.0, 0.0
    for side, task, names in rows:
        parts = list[float]()
        for name in names:
            (tried, sum_), (own_tried, own_sum) = sums[name], own[task.id, name]
            known = tried - own_tried > _TINY
            parts.append((sum_ - own_sum) / (tried - own_tried) if known else rates[side] - levels[side])
        whole += task.tried * (task.rate - rates[side]) ** 2
        wrong += task.tried * (task.rate - levels[side] - fmean(parts)) ** 2
    return max(0.0, 1 - wrong / whole) if whole > 0 else 0.0


def _add(to: list[float], task: Played, level: float, parts: int) -> None:
    """Add a part of the rollouts of a task, and of its successes beyond a level."""
    to[0] += task.tried / parts
    to[1] += (task.solved - task.tried * level) / parts


def best(found: Mapping[str, Grouping]) -> Grouping:
    """Return the grouping that predicts most; of several, the first."""
    return max(found.values(), key=lambda one: one.predicted)


def why(found: Mapping[str, Grouping], chosen: Grouping, left_out: set[str]) -> list[str]:
    """Say by what tasks are grouped, and why."""
    most = best(found)
    share = f"predicts {chosen.predicted:.0%} of the differences in success between tasks of a round"
    words = [f"Tasks are grouped by {chosen.name}."]
    if most.predicted < _NEGLIGIBLE:
        words[0] += " No grouping predicts which tasks are solved, so the parts by kind say little."
    elif chosen is most:
        keys = ["skills", "skill", *(["origin"] if found["origin"].predicted else [])]
        rest = [found[key] for key in keys if found[key] is not chosen]
        others = ", ".join(f"{one.name} {one.predicted:.0%}" for one in rest)
        little = ", which is little, but" if chosen.predicted < _LITTLE else ","
        words[0] += f" It {share}{little} more than the other groupings ({others})."
    else:
        words[0] += f" This {share}; {most.name} predicts most, {most.predicted:.0%}."
    if left_out and chosen.key != "origin":
        words.append(
            f"All tasks need {listed(sorted(left_out), _LISTED)}, so it tells none apart and is left out."
        )
    if chosen.key == "skill":
        words.append(
            "A task with several skills counts for each with an equal part, so shares add up to 100%."
        )
    return words


def kinds(before: Sequence[Played], after: Sequence[Played], split: Split) -> list[Kind]:
    """Return the parts of a change of success by kind, the largest first; see the module for the formula."""
    if not (before and after):
        return []
    sides = (_sums(before, split), _sums(after, split))
    totals = [math.fsum(tried for tried, _ in side.values()) for side in sides]
    c = fmean(rate_of(side) for side in (before, after))
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


def summed(found: Sequence[Kind], numbers: tuple[int, int]) -> list[Kind]:
    """Return kinds added up: those that one of two rounds alone has, and the others."""
    parts: dict[str, list[Kind]] = {}
    for kind in found:
        alone = [number for number, rate in zip(numbers, kind.rates, strict=True) if rate is not None]
        parts.setdefault("of both rounds" if len(alone) == 2 else f"of round {alone[0]} alone", []).append(
            kind
        )
    return [
        Kind(
            name=f"{len(some)} more {'kind' if len(some) == 1 else 'kinds'} {where}",
            shares=(_share(some, 0), _share(some, 1)),
            rates=(_mean_rate(some, 0), _mean_rate(some, 1)),
            mix=math.fsum(kind.mix for kind in some),
            within=math.fsum(kind.within for kind in some),
        )
        for where, some in parts.items()
    ]


def _share(some: Sequence[Kind], side: int) -> float:
    return math.fsum(kind.shares[side] for kind in some)


def _mean_rate(some: Sequence[Kind], side: int) -> float | None:
    """Return the success of several kinds in a round."""
    share = _share(some, side)
    solved = math.fsum(kind.shares[side] * (kind.rates[side] or 0.0) for kind in some)
    return solved / share if share > 0 else None


def alone(found: Sequence[Kind], side: int) -> Kind | None:
    """Return the kinds that one of two rounds alone has, added up; None if there are none."""
    some = [kind for kind in found if kind.rates[1 - side] is None]
    rows = summed(some, (0, 1))
    return rows[0] if rows else None


def _sums(tasks: Sequence[Played], split: Split) -> Mapping[str, tuple[float, float]]:
    """Return rollouts and successes of each kind."""
    found = defaultdict[str, tuple[float, float]](lambda: (0.0, 0.0))
    for task in tasks:
        names = split(task)
        for name in names:
            tried, solved = found[name]
            found[name] = (tried + task.tried / len(names), solved + task.solved / len(names))
    return dict(found)


def rate_of(tasks: Sequence[Played]) -> float:
    """Return the share of all rollouts of some tasks that succeeded."""
    return sum(task.solved for task in tasks) / sum(task.tried for task in tasks)
