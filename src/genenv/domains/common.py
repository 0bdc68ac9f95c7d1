"""What domains share: the profile in one line, episodes of one question, held-out tasks built from specs."""

from __future__ import annotations

import random
from collections.abc import Iterable

from pydantic import BaseModel

from genenv.domains.base import Ask, Domain
from genenv.types import Lineage, Origin, Profile, Rejection, Task


def profile_line(profile: Profile, skills: tuple[str, ...]) -> str:
    """The agent's success in one line: overall, the seed's skills, the best, the worst. Empty at first."""
    if profile.overall is None:
        return ""
    rates = profile.success
    parts = [f"{skill} {rates[skill]:.0%}" for skill in skills if skill in rates]
    ranked = sorted(rates, key=lambda skill: (rates[skill], skill))
    for rank, skill in (("best", ranked[-1:]), ("worst", ranked[:1])):
        parts += [f"{rank} {name} {rates[name]:.0%}" for name in skill if name not in skills]
    return f"It solves {', '.join([f'{profile.overall:.0%} now', *parts])}.\n"


class OneQuestion:
    """An episode of one question and one reply."""

    max_turns = 1

    def __init__(self, task: Task) -> None:
        self._task = task

    async def run(self, ask: Ask) -> None:
        """Ask, once."""
        await ask(self._task.messages)


def held_out_tasks(domain: Domain, specs: Iterable[tuple[str, BaseModel]]) -> list[Task]:
    """Held-out specs, by id, as tasks.

    Raises:
        ValueError: a spec is not a task; the base data is broken.
    """
    tasks: list[Task] = []
    for name, spec in specs:
        lineage = Lineage(origin=Origin.HELD_OUT)
        task = domain.build(spec, task_id=name, lineage=lineage, rng=random.Random(name))
        if isinstance(task, Rejection):
            raise ValueError(f"held-out spec {name} is not a task: {task.explanation}")
        tasks.append(task)
    return tasks
