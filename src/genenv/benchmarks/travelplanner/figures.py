"""The authors' six numbers, and the share of plans that meet each constraint.

As in `evaluation/eval.py` of OSU-NLP-Group/TravelPlanner. Over N plans, each with 8 commonsense constraints
and with as many hard ones as its query asks for:

    delivery rate           plans that there are / N
    commonsense micro       commonsense constraints met / 8 N  (validation: 1440, train: 360)
    commonsense macro       plans that meet all 8 / N
    hard micro              hard constraints met / those asked for  (validation: 420, train: 105)
    hard macro              plans that meet all that are asked for / N
    final pass rate         plans that meet everything / N

Hard constraints count as met only in plans that are complete and within the sandbox. The headline is the mean
of the two micro and the two macro rates, as GenEnv (arXiv:2512.19682) reports the benchmark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from genenv.environments.travel.constraints import COMMONSENSE, HARD
from genenv.evaluation.base import Grade, Graded
from genenv.statistics import Figure, Part, rate, weighted

DELIVERED: Final = "delivered"
COMMONSENSE_MET: Final = "commonsense_met"
COMMONSENSE_ASKED: Final = "commonsense_asked"
HARD_MET: Final = "hard_met"
HARD_ASKED: Final = "hard_asked"
PASSED: Final = "passed"
_FAMILIES = ((COMMONSENSE_MET, COMMONSENSE_ASKED), (HARD_MET, HARD_ASKED))


def figures(graded: Sequence[Graded]) -> list[Figure]:
    """Everything there is to say of these grades, the headline first."""
    grades = [grade for _, grade in graded]
    found = list(_numbers(grades, ""))
    for key in ("level", "days"):
        for label, members in _by(key, graded):
            found += _numbers(members, label)
    found += _constraints(grades, "")
    for label, members in _by("level", graded):
        found += _constraints(members, label)
    return found


def _by(key: str, graded: Sequence[Graded]) -> Iterator[tuple[str, list[Grade]]]:
    """Labels and grades of the groups."""
    for value in dict.fromkeys(item.groups[key] for item, _ in graded):
        yield f"{key}={value}", [grade for item, grade in graded if item.groups[key] == value]


def _numbers(grades: Sequence[Grade], group: str) -> Iterator[Figure]:
    (met, asked), (hard_met, hard_asked) = _FAMILIES
    yield _average(grades, group)
    yield rate("delivery_rate", _column(grades, DELIVERED), group=group)
    yield weighted("commonsense_micro", [_micro(grades, met, asked)], group=group)
    yield rate("commonsense_macro", _macro(grades, met, asked), group=group)
    yield weighted("hard_micro", [_micro(grades, hard_met, hard_asked)], group=group)
    yield rate("hard_macro", _macro(grades, hard_met, hard_asked), group=group)
    yield rate("final_pass_rate", _column(grades, PASSED), group=group)


def _average(grades: Sequence[Grade], group: str) -> Figure:
    """The mean of the four rates.

    One bootstrap over plans, as all four are of the same plans: each plan's part of the four numerators over
    their denominators, times N. The denominators stand, as the authors' do.
    """
    parts = [0.0] * len(grades)
    for met, asked in _FAMILIES:
        whole = math.fsum(_column(grades, asked))
        for index, (over, all_met) in enumerate(
            zip(_column(grades, met), _macro(grades, met, asked), strict=True)
        ):
            parts[index] += (over * len(grades) / whole + all_met) / 4
    return weighted("average", [Part(parts)], group=group)


def _column(grades: Sequence[Grade], name: str) -> list[float]:
    return [grade.measures[name] for grade in grades]


def _micro(grades: Sequence[Grade], met: str, asked: str) -> Part:
    return Part(_column(grades, met), _column(grades, asked))


def _macro(grades: Sequence[Grade], met: str, asked: str) -> list[float]:
    """1 for each plan that meets all of a family."""
    return [float(grade.measures[met] == grade.measures[asked]) for grade in grades]


def _constraints(grades: Sequence[Grade], group: str) -> Iterator[Figure]:
    """Of each constraint the share of plans that meet it, among those whose query asks for it."""
    for name in (*COMMONSENSE, *HARD):
        asked = [grade.measures[name] for grade in grades if name in grade.measures]
        if asked:
            yield rate(name, asked, group=group)
