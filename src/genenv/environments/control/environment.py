"""The environment `control`: mechanical systems whose physics the simulator sets.

A task gives physics, goal and first state; a reply is the whole trajectory, one number a time step, which the
environment executes. A policy network (`policy.backend = "ppo"`) chooses each number from the state that the
earlier ones led to. The checker, the gate and `genenv eval --regrade` run the same physics.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from genenv.environments.base import Options, failed
from genenv.environments.common import QuestionEnvironment, held_out_tasks, once, profile_line, seeds_of
from genenv.environments.control.simulation import Level, read_actions, replay, written
from genenv.environments.control.systems import Pendulum, Physics, System, find_system, label_of
from genenv.errors import UsageError
from genenv.seeding import generator
from genenv.settings import Settings
from genenv.types import (
    JsonObject,
    Lineage,
    Message,
    Origin,
    Profile,
    Rejection,
    RejectReason,
    Seed,
    Task,
    Verdict,
)

HELD_OUT_MULTIPLE = 7
"""Starts whose thousandths sum to a multiple of this occur in held-out tasks only."""
_SHOWN = 1000
"""Starts are drawn in units of one over this."""
_LARGEST = 1e9
"""The largest number of a first state."""
_DRAWS = 1000
"""The most draws of a first state of one split, of which one in seven is held out."""


class ControlConfig(Settings, frozen=True):
    """Settings of the environment of mechanical systems."""

    system: str = Field(default="pendulum", min_length=1)
    """`pendulum`, `cartpole`, `mountain_car` or `arm`; `maze`, which is none of mechanics; by MuJoCo
    `inverted_pendulum` or `inverted_double_pendulum`; or a class of your own, `module:Class` or
    `FILE.py:Class` (`System`, `GymnasiumSystem`)."""
    values: dict[str, list[Annotated[float, Field(ge=-1e6, le=1e6)]]] = Field(default_factory=dict)
    """Values that a simulator may set, by parameter, easiest first, where they differ from the system's:
    `{lift = [1.6, 0.4, 0.2]}`. Base tasks and held-out tasks are drawn uniformly from the same values, but
    those of `maze`, whose walls, agent and goal are anywhere."""
    base_tasks: int = Field(default=64, ge=1, le=10_000)
    """Number of base tasks."""
    held_out_tasks: int = Field(default=300, ge=1, le=10_000)
    """Number of held-out tasks with uniformly drawn parameters; the named levels come before them."""

    @model_validator(mode="after")
    def _values_are_physics(self) -> ControlConfig:
        try:
            known = find_system(self.system).parameters
        except UsageError as error:
            raise ValueError(str(error)) from error
        for name, values in self.values.items():
            if name not in known:
                raise ValueError(
                    f"values: {self.system} has no parameter {name!r}; it has {', '.join(known)}"
                )
            low, high = known[name].low, known[name].high
            if not values or not all(low <= value <= high for value in values):
                raise ValueError(
                    f"values: {name} is {values}, but takes one number or more from {low:g} to {high:g}"
                )
        return self


_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@functools.cache
def _spec_model(system: type[System]) -> type[BaseModel]:
    """Return the model of a system's specs: parameters and first state."""
    fields: dict[str, Any] = {
        name: (Annotated[float, Field(ge=one.low, le=one.high)], ...)
        for name, one in system.parameters.items()
    }
    start = (tuple[float, ...], Field(min_length=1, max_length=32))
    return create_model("ControlSpec", __config__=_STRICT, **fields, start=start)


@functools.cache
def _parameter_model(sizes: tuple[tuple[str, int], ...]) -> type[BaseModel]:
    """Return the model of the parameters that a simulator writes, from the number of values of each.

    A value is written as its place, from 1: places have neighbors, and every grammar writes them alike.
    """
    fields: dict[str, Any] = {name: (Annotated[int, Field(ge=1, le=size)], ...) for name, size in sizes}
    return create_model("ControlParameters", __config__=_STRICT, **fields)


class Control(QuestionEnvironment):
    """The environment of mechanical systems."""

    name: ClassVar[str] = "control"
    parameters: ClassVar[type[BaseModel]] = _parameter_model(())
    spec: ClassVar[type[BaseModel]] = _spec_model(Pendulum)
    job: ClassVar[str] = Pendulum.job
    config: ClassVar[type[BaseModel]] = ControlConfig

    def __init__(self, settings: ControlConfig | None = None) -> None:
        self.settings: ControlConfig = settings or ControlConfig()
        self.system = find_system(self.settings.system)
        self.values: Mapping[str, tuple[float, ...]] = {
            name: tuple(self.settings.values.get(name, one.values))
            for name, one in self.system.parameters.items()
        }
        parameters = _parameter_model(tuple((name, len(values)) for name, values in self.values.items()))
        spec = _spec_model(type(self.system))
        for name, value in (("job", self.system.job), ("parameters", parameters), ("spec", spec)):
            setattr(self, name, value)  # those of the class are of the default system

    @once
    def seeds(self) -> Sequence[Seed]:
        """Return the base data: tasks that a controller solves, with uniformly drawn parameters."""
        return seeds_of(self, self._drawn("seed", self.settings.base_tasks, held_out=False), self._skills)

    @once
    def held_out(self) -> Sequence[Task]:
        """Return the named levels of the system, then tasks with uniformly drawn parameters.

        The thousandths of their first states sum to a multiple of 7, which `build` rejects for other tasks.
        """
        easiest = {name: one.values[0] for name, one in self.system.parameters.items()}
        named = [
            (f"held-out-{name}", self.spec.model_validate({**easiest, **physics, "start": start}))
            for name, (physics, start) in self.system.levels.items()
        ]
        return held_out_tasks(
            self, [*named, *self._drawn("held-out", self.settings.held_out_tasks, held_out=True)]
        )

    def _drawn(self, name: str, number: int, *, held_out: bool) -> Iterator[tuple[str, BaseModel]]:
        """Yield ids and specs with uniformly drawn parameters that are neither unsolved nor trivial.

        Raises:
            UsageError: hardly any draw is one.
        """
        found = unsolved = 0
        for draw in range(50 * number):
            rng = generator(0, "control", label_of(self.settings.system), name, draw)
            physics, start = self._level(rng, held_out=held_out)
            level = Level(system=self.settings.system, physics=physics, start=start)
            if self._solution(level) is None:
                unsolved += 1
            elif not self._is_trivial(level, rng):
                yield f"{name}-{found:04d}", self.spec.model_validate({**physics, "start": start})
                found += 1
            if found == number:
                return
        raise UsageError(
            f"of {50 * number} tasks of {self.settings.system} with uniformly drawn parameters only {found} "
            f"can be used: none of the system's controllers solves {unsolved}, and random actions solve "
            f"{50 * number - unsolved - found}; write better controllers, or set other environment.values"
        )

    def _level(
        self, rng: random.Random, near: Physics | None = None, *, held_out: bool
    ) -> tuple[Physics, tuple[float, ...]]:
        """Draw parameters, near those of a seed if there is one, and a first state."""
        physics = self.system.randomized(self.values, rng, near)
        start = self._start(physics, rng, held_out=held_out)
        return self.system.measured(physics, start), start

    def _start(
        self, physics: Mapping[str, float], rng: random.Random, *, held_out: bool
    ) -> tuple[float, ...]:
        for _ in range(_DRAWS):
            start = tuple(round(one * _SHOWN) / _SHOWN for one in self.system.start(physics, rng))
            if _is_held_out(start) is held_out:
                return start
        raise self._too_alike("start")

    def _too_alike(self, method: str) -> UsageError:
        return UsageError(
            f"environment.system is {self.settings.system!r}, whose `{method}` returned only first states of "
            f"one split in {_DRAWS} draws: let it draw numbers that differ by some thousandths"
        )

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Return the seed's task with about half of its parameters and the first state drawn anew."""
        near = {name: float(cast(float, seed.spec[name])) for name in self.values}
        physics, start = self._level(rng, near, held_out=False)
        return {**physics, "start": list(start)}

    @property
    def edits(self) -> bool:
        """Whether the system edits levels; those of the others are their parameters. See `HasEdits`."""
        return type(self.system).edited is not System.edited

    def edited(self, spec: JsonObject, rng: random.Random) -> JsonObject:
        """Return a spec with a small change, for `accel` with whole specs; see `HasEdits`."""
        before = cast("Sequence[float]", spec["start"])
        physics = {name: cast(float, spec[name]) for name in self.values}
        for _ in range(_DRAWS):
            changed, start = self.system.edited(physics, before, rng)
            if not _is_held_out(start):
                return {**changed, "start": list(start)}
        raise self._too_alike("edited")

    def parameter_options(self, seed: Seed) -> Options:
        """Return all parameters, the same for every seed; the gate refuses what nobody can solve."""
        return [{name: list(range(1, len(values) + 1)) for name, values in self.values.items()}]

    def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return parameters, target and success rates in about 150 characters; see `HasParameters`.

        Very small simulators read it too: the tiny one has 256 tokens, of one character each.
        """
        ranges = ", ".join(f"{name} 1-{len(values)}" for name, values in self.values.items())
        text = f"{profile_line(profile, ())}Set {ranges} (1 is easiest) to be solved {target:.0%}."
        return (Message(role="user", content=text),)

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """Return a spec with the values at these places and a random first state."""
        places = cast("Mapping[str, int]", parameters.model_dump())
        physics = {name: self.values[name][place - 1] for name, place in places.items()}
        return self.spec.model_validate({**physics, "start": self._start(physics, rng, held_out=False)})

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Search for a controller that solves the level; without one, the task is rejected."""
        physics = spec.model_dump()
        start = physics.pop("start")
        if len(start) != len(self._first_start):
            sentence = f"The first state has {len(start)} numbers, not {len(self._first_start)}."
            return Rejection(RejectReason.SCHEMA, sentence)
        if (wrong := self.system.wrong_start(start)) is not None:
            return Rejection(RejectReason.SCHEMA, wrong)
        if not all(abs(one) <= _LARGEST for one in start):
            return Rejection(
                RejectReason.SCHEMA, f"The first state {start} has a number beyond {_LARGEST:g}."
            )
        if self._is_for_measuring(start) and lineage.origin is not Origin.HELD_OUT:
            return Rejection(RejectReason.HELD_OUT, f"The first state {start} is for measuring.")
        level = Level(system=self.settings.system, physics=physics, start=start)
        solution = self._solution(level)
        if solution is None:
            why = self.system.impossible(physics) or self.system.unsolved
            return Rejection(RejectReason.ORACLE_FAILS, f"Nobody is known to solve it: {why}")
        question = (
            f"{self.job} Reply with at most {self.system.steps} numbers, one for each time step: "
            f"{self.system.reply}"
        )
        return Task(
            id=task_id,
            environment=self.name,
            skills=self._skills(spec),
            lineage=lineage,
            messages=(Message(role="user", content=f"{question}\n{level.text()}"),),
            spec=spec.model_dump(mode="json"),
            payload={"level": level.text()},
            oracle=solution,
        )

    def _is_for_measuring(self, start: Sequence[float]) -> bool:
        """Return whether a first state is of the held-out split, or of a named level."""
        named = (tuple(first) for _, first in self.system.levels.values())
        return _is_held_out(start) or tuple(start) in named

    @functools.cached_property
    def _first_start(self) -> tuple[float, ...]:
        easiest = {name: values[0] for name, values in self.values.items()}
        return self.system.start(easiest, random.Random(0))

    def _solution(self, level: Level) -> tuple[str, ...] | None:
        """Return a demonstration by the first controller that solves a level; empty if it has no controller.

        Returns:
            None if the level is not known to be solvable.
        """
        controllers = list(self.system.controllers(level.physics))
        for controller in controllers:
            found = replay(level, controller)
            if found.success:
                return (written(found.actions),)
        return None if controllers or self.system.impossible(level.physics) else ()

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Execute the numbers of a reply; the goal must be reached."""
        actions = read_actions(replies[0]) if replies else None
        if actions is None:
            return failed("The reply is not a list of finite numbers.")
        level = replace(Level.read(str(task.payload["level"])), system=self.settings.system)
        found = replay(level, actions)
        return Verdict(reward=found.reward, success=found.success, explanation=found.why)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """Return uniformly drawn actions, one for each step."""
        return (written(self._random_actions(rng)),)

    def _random_actions(self, rng: random.Random) -> list[float]:
        return [self.system.random_action(rng) for _ in range(self.system.steps)]

    def _is_trivial(self, level: Level, rng: random.Random) -> bool:
        return any(replay(level, self._random_actions(rng)).success for _ in range(self.system.random_tries))

    def steps(self, task: Task) -> int:
        """Return the number of time steps of the demonstration, or the most there are."""
        return len(task.oracle[0].split()) if task.oracle else self.system.steps

    def surface(self, task: Task) -> str:
        """Return parameters, unless the first state holds the level, and first state as words."""
        start = cast("Sequence[float]", task.spec["start"])
        names = () if self.system.start_is_level else self.system.parameters
        words = [f"{name}{task.spec[name]}" for name in names]
        return " ".join([*words, "".join(f"x{one}" for one in start)]).replace(".", "p").replace("-", "n")

    def _skills(self, spec: BaseModel) -> tuple[str, ...]:
        """Return each parameter with the place of its value among those that can be set: 1 is the easiest."""
        physics = spec.model_dump()
        return tuple(
            f"{name}:{1 + min(range(len(values)), key=lambda i: abs(values[i] - physics[name]))}"
            for name, values in self.values.items()
        )


def _is_held_out(start: Sequence[float]) -> bool:
    """Return whether a first state belongs to held-out tasks."""
    return sum(abs(round(one * _SHOWN)) for one in start) % HELD_OUT_MULTIPLE == 0
