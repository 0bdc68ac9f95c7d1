"""Which of the candidates of a round are attempted, and which may follow those that taught nothing.

`candidate_choice = "foretold"`: those whose foretold success rate is worth most (`probe`). `"attempted"`:
any, and another one for each whose attempts all earned the same, until as many differ as were planned or no
candidate is left. That is DAPO's dynamic sampling (arXiv:2503.14476): it needs no known solution, and pays
with attempts.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from genenv.types import Group, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The tasks of a round that are attempted, new ones and base tasks."""

    new: Sequence[Task]
    base: Sequence[Task]
    _spare: Mapping[str, deque[Task]] = field(default_factory=dict[str, deque[Task]])
    """By the id of each candidate: others of its kind that are not attempted yet."""

    def instead_of(self, groups: Sequence[Group]) -> list[Task]:
        """A candidate for each of the groups whose attempts earned the same, as far as there are any.

        Args:
            groups: attempts at tasks of this choice; others have none in their stead.
        """
        alike = [group.task.id for group in groups if len({trace.reward for trace in group.valid}) < 2]
        return [spare.popleft() for name in alike if (spare := self._spare.get(name))]


def by_attempts(places: Sequence[tuple[Sequence[Task], int]], rng: random.Random) -> Choice:
    """Any of the candidates first, all others to spare.

    Args:
        places: new tasks, then base tasks; each with how many of them are planned.
        rng: the same state gives the same choice.
    """
    spare: dict[str, deque[Task]] = {}
    first: list[Sequence[Task]] = []
    for tasks, most in places:
        mixed = rng.sample(tasks, len(tasks))
        others = deque(mixed[most:])
        spare |= dict.fromkeys((task.id for task in mixed), others)
        first.append(mixed[:most])
    return Choice(new=first[0], base=first[1], _spare=spare)
