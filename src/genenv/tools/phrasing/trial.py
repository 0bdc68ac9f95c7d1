"""Tries a wording where it would be used: in the tasks of its bundle, which the gate must still let pass."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence

from genenv.progress import advance
from genenv.tools.check import misstated
from genenv.tools.environment import Tools
from genenv.tools.fresh import fresh
from genenv.tools.request import said
from genenv.tools.spec import Program
from genenv.tools.wording import ARGUMENTS, Said, blanks_of, clause, instruction
from genenv.types import Json, Lineage, Message, Origin, Task

_SAMPLES = 8


class Trial:
    """The tasks of a bundle, to be said otherwise.

    Args:
        env: the bundle; it has to take all of its programs.
    """

    def __init__(self, env: Tools) -> None:
        self._env = env
        self._tasks: list[tuple[Program, Task]] = []

    @property
    def size(self) -> int:
        """How many tasks there are to play."""
        return len(self._env.bundle.base) + len(self._env.bundle.held_out)

    def play(self) -> None:
        """Play all tasks, once; those count whose text the gate lets pass in the tools' first wordings."""
        self._tasks = list(self._played())

    def _played(self) -> Iterator[tuple[Program, Task]]:
        bundle = self._env.bundle
        for origin, programs in ((Origin.SEED, bundle.base), (Origin.HELD_OUT, bundle.held_out)):
            for name, program in programs.items():
                advance(items=1)
                rng, lineage = random.Random(name), Lineage(origin=origin)
                task = self._env.build(program, task_id=name, lineage=lineage, rng=rng)
                if isinstance(task, Task) and misstated(self._env, self._said(program, task, {})) is None:
                    yield program, task

    def problem(self, name: str, wording: str) -> str | None:
        """Why the gate refuses a task that is said so; None if it refuses none.

        Args:
            name: of the tool.
            wording: of it.
        """
        for program, task in self._tasks:
            if any(step.tool == name for step in program.calls):
                rejection = misstated(self._env, self._said(program, task, {name: [wording]}))
                if rejection is not None:
                    return f"the gate refuses a task of it: {rejection.explanation.rstrip('.')}"
        return None

    def _said(self, program: Program, task: Task, wordings: Mapping[str, Sequence[str]]) -> Task:
        speech = dataclasses.replace(self._env.speech(program), wordings=wordings)
        request = said(self._env.world.tools, program, speech, random.Random(task.id))
        payload = {**task.payload, "implied": [list(names) for names in request.implied]}
        messages = (Message(role="user", content=request.text),)
        return dataclasses.replace(task, messages=messages, payload=payload)

    def sample(self, name: str, wording: str, rng: random.Random) -> str:
        """What a user says who asks for one call so: values of the bundle's own tasks in the blanks.

        Args:
            name: of the tool.
            wording: of it.
            rng: chooses the values.
        """
        tool = self._env.world.tools[name]
        known: list[Mapping[str, Json]] = [
            step.args
            for program in self._env.bundle.base.values()
            for step in program.calls
            if step.tool == name
        ]
        found: dict[str, Json] = {}
        for one in rng.sample(known, min(_SAMPLES, len(known))):
            found = {**one, **found}
        named = dict.fromkeys([*blanks_of(wording), *sorted(tool.required)])
        args = {
            one: found[one] if one in found else fresh(tool, one, rng) for one in named if one != ARGUMENTS
        }
        return instruction([clause(Said(tool=tool, args=args), [wording], rng).text], [], rng)
