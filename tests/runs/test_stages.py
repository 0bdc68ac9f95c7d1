"""Stages of a round: shown and timed in one, told by whoever works inside."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from itertools import count

from genenv.progress import Silent, Stage, advance
from genenv.runs.metrics import Stages


class Shown(Silent):
    """A reporter that remembers what it was asked to show."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int | None, str]] = []
        self.told: list[tuple[int, int, str]] = []

    @contextlib.contextmanager
    def stage(self, name: str, *, items: int | None, unit: str) -> Generator[Stage]:
        self.stages.append((name, items, unit))
        yield lambda tokens, items, note="": self.told.append((tokens, items, note))


def ticking() -> Callable[[], float]:
    """A clock that is one second later each time it is read."""
    seconds = count(0.0, 1.0)
    return lambda: next(seconds)


def test_a_stage_is_shown_with_its_round_and_timed_under_its_metric() -> None:
    shown = Shown()
    stage = Stages(shown, 3, 8, clock=ticking())  # at 0 s
    with stage("rollout", "attempting", items=96, unit="attempts"):  # 1 s to 2 s
        pass
    with stage("gate"):  # 3 s to 4 s
        pass
    assert shown.stages == [("round 3/8: attempting", 96, "attempts")], "the gate takes no time worth telling"
    assert stage.metrics() == {"time/rollout_s": 1.0, "time/gate_s": 1.0, "time/round_s": 5.0}


def test_what_precedes_the_first_round_is_shown_without_a_number() -> None:
    shown = Shown()
    with Stages(shown, 0, 8)("eval", "held-out tasks", unit="tasks"):
        pass
    assert shown.stages == [("held-out tasks", None, "tasks")]


def test_seconds_of_stages_of_one_name_add_up() -> None:
    stage = Stages(Silent(), 1, 1, clock=ticking())
    for _ in range(2):
        with stage("gate"):
            pass
    assert stage.metrics()["time/gate_s"] == 2.0


def test_the_stage_is_told_by_whoever_works_inside_and_by_nobody_outside() -> None:
    shown = Shown()
    with Stages(shown, 1, 1)("rollout", "attempting", items=1, unit="attempts"):
        advance(tokens=20, items=1)
    advance(tokens=5)
    assert shown.told == [(20, 1, "")]
