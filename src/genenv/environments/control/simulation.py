"""Simulation of levels: many trajectories at once for a policy in closed loop, and one from its actions.

    reward = c mean quality + (1 - c) success, and every step after success counts with quality 1

c is `System.dense`, 0.75 for mechanical systems.

An episode ends as soon as the goal has held for `hold` steps in a row, where the state fails, or after the
system's number of steps. Actions are shares of the largest torque or force, in thousandths, so that text
holds them exactly. States are rounded to 1e-7 after each step: a trajectory that is computed again, in
another batch or on another processor, does not drift away from unstable states.

Shapes: N = trajectories, T = steps of a trajectory, D = observed numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from genenv.environments.control.systems import (
    SCALARS,
    Controller,
    Line,
    Number,
    Physics,
    State,
    System,
    find_system,
    label_of,
    labelled,
)
from genenv.errors import EnvironmentCodeError, GenenvError
from genenv.settings import is_own

Floats = NDArray[np.float64]

GRID = 1e7
"""States are whole multiples of one over this."""
UNIT = 1000
"""Actions are whole multiples of one over this."""
MOST = 9 * UNIT
"""The largest action that is written; everything beyond 1 acts like 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What a task fixes: the system, its parameters, and the first state."""

    system: str
    physics: Mapping[str, float]
    start: tuple[float, ...]

    def text(self) -> str:
        """Return the level as a line of JSON, from which `read` makes an equal one."""
        whole = find_system(self.system).whole  # a maze is shorter without ".0"
        start = [int(one) if whole else one for one in self.start]
        return json.dumps({"system": label_of(self.system), **self.physics, "start": start})

    @staticmethod
    def read(prompt: str) -> Level:
        """Return the level that the last line of JSON in a prompt describes.

        Raises:
            ValueError: there is none.
        """
        line = next((line for line in reversed(prompt.splitlines()) if line.startswith("{")), "")
        try:
            found = cast("dict[str, Any]", json.loads(line))
            system, start = str(found.pop("system")), tuple(map(float, found.pop("start")))
            physics = {name: float(value) for name, value in found.items()}
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ValueError("the prompt describes no level") from error
        return Level(system=labelled(system), physics=physics, start=start)


def advance(
    system: System,
    state: State,
    held: Number,
    action: Number,
    physics: Physics,
    xp: Any,  # noqa: ANN401
) -> tuple[State, Number, Number, Number]:
    """Take one step; return the new state, its steps in a row at the goal, its quality, and if it diverges.

    Where the state would not be finite, it stays as it is. There, and where the quality is not finite, the
    quality is 0 and the episode ends.
    """
    before, state = state, system.step(state, xp.clip(action, -1.0, 1.0), physics, xp)
    diverges: Number = False
    if not system.whole:
        scaled = [one * GRID for one in state]
        finite = xp.isfinite(sum(scaled))
        if finite is not True and not np.asarray(finite).all():
            diverges = np.logical_not(finite)
            scaled = [xp.where(diverges, one * GRID, new) for one, new in zip(before, scaled, strict=True)]
        state = tuple([xp.rint(one) / GRID for one in scaled])
    held = xp.where(system.reached(state, physics, xp), held + 1, 0)
    quality = system.quality(state, physics, xp)
    finite = xp.isfinite(quality)
    if finite is not True and not np.asarray(finite).all():
        diverges = np.logical_or(diverges, np.logical_not(finite))
    if diverges is not False:
        held, quality = xp.where(diverges, 0, held), xp.where(diverges, 0.0, quality)
    return state, held, quality, diverges


def step_reward(system: System, step: int, quality: Number, success: Number) -> Number:
    """Return the part of the reward that a step earns; the parts of a trajectory sum to its reward.

    Args:
        system: says how many steps an episode has.
        step: index of the step.
        quality: of the state after it, in [0, 1].
        success: whether the step ends the episode in success; then all later steps count with quality 1.
    """
    left, dense = (system.steps - 1 - step) / system.steps, system.dense
    return dense * quality / system.steps + success * (dense * left + 1 - dense)


class Simulation:
    """Steps many levels of one system at once. Trajectories that have ended stay as they are.

    Args:
        system: the system.
        levels: [N] levels, at least one.
    """

    def __init__(self, system: System, levels: Sequence[Level]) -> None:
        self.system, self.t = system, 0
        names = system.parameters
        self.physics = {name: np.array([level.physics[name] for level in levels]) for name in names}
        self.state: State = tuple(
            np.array(column, dtype=float) for column in zip(*(one.start for one in levels), strict=True)
        )
        self.held, self.done = np.zeros(len(levels)), np.zeros(len(levels), dtype=bool)
        self._fixed = [
            _scaled(self.physics[name], min(one.values), max(one.values))
            for name, one in names.items()
            if not system.start_is_level
        ]

    def observe(self) -> NDArray[np.float32]:
        """Return [N, D] what a policy network sees: state, parameters, time, and progress at the goal.

        No parameters if the state holds the level (`System.start_is_level`).
        """
        steps = self.system.steps
        hold = self.physics.get("hold", np.ones_like(self.held))
        more = [*self._fixed, np.full(len(self.held), 2 * self.t / steps - 1), self.held / hold]
        seen_DN = np.concatenate(
            [np.array(self.system.observe(self.state, self.physics, np)), np.array(more)]
        )
        return np.ascontiguousarray(seen_DN.T, dtype=np.float32)

    def step(self, actions_N: Floats) -> Floats:
        """Take one step; return [N] rewards, 0 for trajectories that had ended."""
        going = ~self.done  # the others are not stepped: a step of another simulator may take long
        if not going.any():
            return np.zeros(len(going))
        own = {name: value[going] for name, value in self.physics.items()}
        with np.errstate(all="ignore"):
            state, held, quality, diverges = advance(
                self.system,
                tuple([one[going] for one in self.state]),
                self.held[going],
                actions_N[going],
                own,
                np,
            )
        success, rewards_N = held >= own.get("hold", 1), np.zeros(len(going))
        rewards_N[going] = step_reward(self.system, self.t, quality, success)
        ended = success | diverges | self.system.failed(state, own) | (self.t + 1 >= self.system.steps)
        for column, new in zip((*self.state, self.held, self.done), (*state, held, ended), strict=True):
            column[going] = new
        self.t += 1
        return rewards_N


def _scaled(value: Floats, low: float, high: float) -> Floats:
    """Return values with [low, high] mapped to [-1, 1]."""
    return 2 * (value - low) / (high - low) - 1 if high > low else np.zeros_like(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What became of a trajectory."""

    reward: float
    success: bool
    actions: tuple[float, ...]
    """The actions up to the end of the episode."""
    why: str
    """How it ended, in a sentence."""
    states: tuple[State, ...]
    """The first state, and the state after each action."""


def replay(level: Level, act: Sequence[float] | Controller) -> Replayed:
    """Run one trajectory, from its actions or by a controller.

    Args:
        level: the level.
        act: the actions in order, or a function of the state that gives the next one.
    """
    system, physics, state, held = find_system(level.system), level.physics, level.start, 0
    hold, reward, taken, states = physics.get("hold", 1), 0.0, list[float](), [state]
    success, why = False, f"The goal is not reached in {system.steps} steps."
    for step in range(system.steps):
        if callable(act):
            action = to_unit(act(state)) / UNIT
        elif step < len(act):
            action = act[step]
        else:
            why = f"It ends after {step} steps."
            break
        try:
            state, held, quality, diverges = advance(system, state, held, action, physics, SCALARS)
        except (ArithmeticError, ValueError, EnvironmentCodeError) as error:
            of_own = isinstance(error, EnvironmentCodeError)
            if of_own and not isinstance(error.__cause__, ArithmeticError | ValueError):
                raise
            held, quality, diverges = 0, 0.0, True  # where arrays would hold infinity or NaN
        taken.append(action)
        states.append(state)
        success = bool(held >= hold)
        reward += step_reward(system, step, float(quality), success)
        if success:
            reward, why = min(1.0, reward), f"The goal is reached after {step + 1} steps."
            break
        if diverges or system.failed(state, physics):
            why = f"It fails after {step + 1} steps."
            break
    return Replayed(reward=reward, success=success, actions=tuple(taken), why=why, states=tuple(states))


def film_of(line: str, reply: str = "", *, frames: int = 12) -> str:
    """Return the film strip of a stored trajectory; "" if its level or its actions cannot be read.

    Systems of users are not executed: their code may do anything.
    """
    actions = read_actions(reply)
    try:
        level = Level.read(line)
        return "" if actions is None or is_own(level.system) else film_strip(level, actions, frames=frames)
    except (ArithmeticError, GenenvError, LookupError, TypeError, ValueError):
        return ""


def film_strip(level: Level, actions: Sequence[float], *, frames: int) -> str:
    """Return a trajectory as an SVG image: its states at even distances, and below them its actions.

    Args:
        level: the level.
        actions: the actions in order.
        frames: the most states that are drawn.

    Returns:
        The image; "" for a system that draws nothing.
    """
    system = find_system(level.system)
    if type(system).drawn is System.drawn:
        return ""
    found = replay(level, actions)
    last = len(found.states) - 1
    shown = sorted({round(last * i / max(1, frames - 1)) for i in range(frames)})
    pictures = [system.drawn(found.states[step], level.physics) for step in shown]
    size, width = 80, 80 * len(shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 140" width="{width}" height="140" '
        f'role="img" aria-label="{len(shown)} states of a trajectory of {last} steps. {found.why}">'
    ]
    for place, (step, lines) in enumerate(zip(shown, pictures, strict=True)):
        parts.append(
            f'<g transform="translate({size * place + size / 2:g} {size / 2})">{_svg(lines, size / 2 - 4)}'
        )
        parts.append(
            f'<text y="{size / 2 + 12:g}" text-anchor="middle" font-size="11" fill="currentColor">{step}'
        )
        parts.append("</text></g>")
    each = (width - size) / max(1, last)
    points = " ".join(
        f"{size / 2 + each * (i + 0.5):.1f},{118 - 14 * max(-1.0, min(1.0, action)):.1f}"
        for i, action in enumerate(found.actions)
    )
    parts.append(f'<path d="M{size / 2:g} 118H{width - size / 2:g}" stroke="currentColor" opacity="0.3"/>')
    parts.append(f'<polyline points="{points}" fill="none" stroke="currentColor"/></svg>')
    return "".join(parts)


def _svg(lines: Sequence[Line], scale: float) -> str:
    """Return lines from -1 to 1 as elements of an SVG image; one point is a dot."""
    parts = list[str]()
    for line in lines:
        points = [f"{scale * x:.1f},{-scale * y:.1f}" for x, y in line]
        if len(points) == 1:
            x, y = points[0].split(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="currentColor"/>')
        else:
            parts.append(
                f'<polyline points="{" ".join(points)}" fill="none" stroke="currentColor" stroke-width="2"/>'
            )
    return "".join(parts)


def to_unit(action: float) -> int:
    """Return an action in thousandths, within the bounds of what is written; 0 for NaN."""
    return 0 if math.isnan(action) else round(max(-MOST, min(MOST, action * UNIT)))


def written(actions: Sequence[float]) -> str:
    """Return actions as text, from which `read_actions` reads the same numbers."""
    return " ".join(f"{action:g}" for action in actions)


def read_actions(text: str) -> list[float] | None:
    """Return the numbers of a reply; None if it holds anything else, or a number that is not finite.

    Spaces, line ends, commas and semicolons separate them; brackets are left out.
    """
    try:
        words = (word.strip("[]()") for word in re.split(r"[\s,;]+", text))
        found = [float(word) for word in words if word]
    except ValueError:
        return None
    return found if found and all(map(math.isfinite, found)) else None
