"""Draws the first tasks of a bundle: programs that pass the gate, the tools in turn."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

from genenv.domains.base import Domain
from genenv.domains.common import Refused
from genenv.domains.tools.domain import Tools
from genenv.domains.tools.spec import Program, ToolsParameters
from genenv.types import Lineage, Origin, Rejection, Task

Examine = Callable[[Domain, Task, random.Random], Rejection | None]
"""The gate: what is wrong with a task by itself (`genenv.gate.gate.examined`)."""


class Drawing:
    """Draws programs, each other than those before."""

    def __init__(self, domain: Tools, examine: Examine, rng: random.Random) -> None:
        self._domain, self._examine, self._rng = domain, examine, rng
        self._known: set[str] = set()
        self.refused = Counter[str]()
        """Drawn programs that are no tasks, by reason."""

    def parameters(self) -> Iterator[ToolsParameters]:
        """Parameters at random, the tools in turn."""
        while True:
            for subject in self._domain.graph.recipes:
                one = self._rng.choice(list(self._domain.options(subject)))
                chosen = {name: self._rng.choice(list(values)) for name, values in one.items()}
                yield ToolsParameters.model_validate(chosen)

    def passing(self, parameters: ToolsParameters) -> Program | None:
        """A new program that passes the gate."""
        domain, refused, rng = self._domain, self.refused, self._rng
        try:
            program = domain.walker().drawn(parameters, rng)
        except Refused as error:
            refused[error.rejection.reason] += 1
            return None
        key = repr([(step.tool, step.args, step.uses) for step in program.calls])
        if key in self._known:
            refused["duplicate"] += 1
            return None
        self._known.add(key)
        lineage = Lineage(origin=Origin.HELD_OUT if domain.is_for_measuring(program) else Origin.SEED)
        task = domain.build(
            program, task_id=f"{domain.bundle.name}-{len(self._known)}", lineage=lineage, rng=rng
        )
        verdict = task if isinstance(task, Rejection) else self._examine(domain, task, rng)
        if isinstance(verdict, Rejection):
            refused[verdict.reason] += 1
            return None
        return program
