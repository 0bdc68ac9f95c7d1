"""Draws the tasks of a bundle: programs that pass the gate, the tools in turn."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from genenv.domains.base import Domain
from genenv.domains.common import Refused
from genenv.domains.tools.bundle import Bundle, program_line
from genenv.domains.tools.domain import Tools
from genenv.domains.tools.spec import Program, ToolsParameters
from genenv.runs.progress import Reporter
from genenv.types import Lineage, Origin, Rejection, Task

Examine = Callable[[Domain, Task, random.Random], Rejection | None]
"""The gate: what is wrong with a task by itself (`genenv.gate.gate.examined`)."""


_TRIES_PER_TASK = 12
_FILES = {False: "base", True: "held-out"}
"""Of each side, for measuring or not."""


class Drawing:
    """Draws programs, each other than those before."""

    def __init__(self, domain: Tools, examine: Examine, rng: random.Random) -> None:
        self._domain, self._examine, self._rng = domain, examine, rng
        self._known: set[str] = set()
        self.is_over: Callable[[], bool] = lambda: False
        """Whether no more is to be drawn."""
        self.refused = Counter[str]()
        """Drawn programs that are no tasks, by reason."""

    def parameters(self) -> Iterator[ToolsParameters]:
        """Parameters at random, the tools in turn; none where no tool can be called."""
        while self._domain.graph.recipes:
            for subject in self._domain.graph.recipes:
                one = self._rng.choice(list(self._domain.options(subject)))
                chosen = {name: self._rng.choice(list(values)) for name, values in one.items()}
                yield ToolsParameters.model_validate(chosen)

    def sides(self, asked: Mapping[bool, int], reporter: Reporter) -> dict[bool, list[Program]]:
        """Programs that pass the gate, for measuring and not, as many as are asked for or as are found.

        Where the two have nothing of their own, such as states or values, a program's calls tell which it is.
        """
        found: dict[bool, list[Program]] = {False: [], True: []}
        runs = [[False], [True]] if _differ(self._domain.bundle) else [[False, True]]
        with reporter.stage("drawing tasks", items=sum(asked.values()), unit="tasks") as stage:
            for run in runs:
                tries = _TRIES_PER_TASK * sum(asked[side] for side in run)
                for parameters in itertools.islice(self.parameters(), tries):
                    if self.is_over():
                        break
                    program = self.passing(parameters, measuring=run[0])
                    side = program is not None and self._domain.is_for_measuring(program)
                    if program is None or side not in run or len(found[side]) >= asked[side]:
                        continue
                    found[side].append(program)
                    stage(0, 1)
                    if all(len(found[side]) == asked[side] for side in run):
                        break
        return found

    def passing(self, parameters: ToolsParameters, *, measuring: bool = False) -> Program | None:
        """A new program that passes the gate, with the states and the values of one side."""
        domain, refused, rng = self._domain, self.refused, self._rng
        try:
            program = domain.walker(measuring=measuring).drawn(parameters, rng)
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


def _differ(bundle: Bundle) -> bool:
    """Whether tasks for measuring have states, values, wordings or circles of tools of their own."""
    about = bundle.about
    own = bundle.measuring_sayings.values or bundle.measuring_wordings
    return bool(about.starts or about.together or own)


def write_tasks(bundle: Bundle, found: Mapping[bool, Sequence[Program]]) -> None:
    """Write the tasks of both sides, in the stead of those that are there."""
    folder = bundle.path / "tasks"
    folder.mkdir(exist_ok=True)
    for side, name in _FILES.items():
        lines = "".join(program_line(one) + "\n" for one in found[side])
        (folder / f".{name}.new").write_text(lines, encoding="utf-8")
    for name in _FILES.values():
        (folder / f".{name}.new").replace(folder / f"{name}.jsonl")
