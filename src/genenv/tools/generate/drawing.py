"""Draws the tasks of a bundle: programs that pass the gate, the tools in turn."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from genenv.environments.base import Environment
from genenv.environments.common import Refused
from genenv.progress import Reporter
from genenv.texts import tallied
from genenv.tools.bundle import Bundle, program_line
from genenv.tools.environment import Tools
from genenv.tools.generate.plans import Plan
from genenv.tools.spec import Program, ToolsParameters
from genenv.types import Lineage, Origin, Rejection, RejectReason, Task

Examine = Callable[[Environment, Task, random.Random], Rejection | None]
"""The gate: what is wrong with a task by itself (`genenv.gate.gate.examined`)."""


_TRIES_PER_TASK = 12
_MOST_BARREN = 400
"""After so many tries in a row that found no program that is new, there are hardly any left."""
_FILES = {False: "base", True: "held-out"}
"""Of each side, for measuring or not."""


_ADVICE: Mapping[str, str] = {
    RejectReason.DUPLICATE: "few different calls succeed: let the tools begin with more records",
    RejectReason.TRIVIAL: "calls change nothing, and find nothing that one could ask for: let tools keep "
    "what they change, and return what they find",
    RejectReason.EXECUTION: "calls fail, or succeed too seldom: begin with records on which they succeed",
    RejectReason.ORACLE_FAILS: "calls fail when they are repeated: let tools do the same each time",
    RejectReason.CHECKS_DISAGREE: "calls do not end in the same state twice: leave clocks and chance out of "
    "the tools, or list what differs as volatile in bundle.toml",
    RejectReason.UNSTATED: "texts lack a value of their calls: give it a blank in wordings.toml",
    RejectReason.LEAK: "texts give the solution away: change wordings.toml, or the tools' documentation",
    RejectReason.HELD_OUT: "what there is belongs to the other side: let the tools begin with more records",
}
"""What may help where most of what was drawn is refused for a reason."""


class Drawing:
    """Draws programs, each other than those before."""

    def __init__(self, env: Tools, examine: Examine, rng: random.Random) -> None:
        self._env, self._examine, self._rng = env, examine, rng
        self._known: set[str] = set()
        self.found: dict[bool, list[Program]] = {False: [], True: []}
        """Programs that passed so far, for measuring or not."""
        self.is_over: Callable[[], bool] = lambda: False
        """Whether no more is to be drawn."""
        self.refused = Counter[str]()
        """Drawn programs that are no tasks, by reason."""
        self.refused_of: dict[str, Counter[str]] = {}
        """The same for each tool that they call."""

    @property
    def subjects(self) -> Iterable[str]:
        """Tools that tasks can be about."""
        return self._env.graph.recipes

    def parameters(self) -> Iterator[ToolsParameters]:
        """Parameters at random, the tools in turn; none where no tool can be called."""
        while self._env.graph.recipes:
            for subject in self._env.graph.recipes:
                one = self._rng.choice(list(self._env.options(subject)))
                chosen = {name: self._rng.choice(list(values)) for name, values in one.items()}
                yield ToolsParameters.model_validate(chosen)

    def sides(self, asked: Mapping[bool, int], reporter: Reporter) -> dict[bool, list[Program]]:
        """Programs that pass the gate, for measuring and not, as many as are asked for or as are found.

        Where the two have nothing of their own, such as states or values, a program's calls tell which it is.
        """
        found = self.found
        runs = [[False], [True]] if _differ(self._env.bundle) else [[False, True]]
        with reporter.stage("drawing tasks", items=sum(asked.values()), unit="tasks") as stage:
            for run in runs:
                tries, known, barren = _TRIES_PER_TASK * sum(asked[side] for side in run), 0, 0
                for parameters in itertools.islice(self.parameters(), tries):
                    if (barren := barren + 1 if len(self._known) == known else 0) > _MOST_BARREN:
                        break
                    known = len(self._known)
                    if self.is_over():
                        break
                    program = self.passing(parameters, measuring=run[0])
                    side = program is not None and self._env.is_for_measuring(program)
                    if program is None or side not in run or len(found[side]) >= asked[side]:
                        continue
                    found[side].append(program)
                    stage(0, 1)
                    if all(len(found[side]) == asked[side] for side in run):
                        break
        return found

    def passing(self, parameters: ToolsParameters, *, measuring: bool = False) -> Program | None:
        """A new program that passes the gate, with the states and the values of one side."""
        program = self._examined(parameters, measuring=measuring)
        if isinstance(program, Program):
            return program
        self.refused[program] += 1
        for tool in dict.fromkeys(Plan.read(parameters.tools).tools):
            self.refused_of.setdefault(tool, Counter())[program] += 1
        return None

    def _examined(self, parameters: ToolsParameters, *, measuring: bool) -> Program | RejectReason:
        """A new program that passes, or why what was drawn does not."""
        env, rng = self._env, self._rng
        try:
            program = env.walker(measuring=measuring).drawn(parameters, rng)
        except Refused as error:
            return error.rejection.reason
        key = repr([(step.tool, step.args, step.uses) for step in program.calls])
        if key in self._known:
            return RejectReason.DUPLICATE
        self._known.add(key)
        lineage = Lineage(origin=Origin.HELD_OUT if env.is_for_measuring(program) else Origin.SEED)
        task = env.build(program, task_id=f"{env.bundle.name}-{len(self._known)}", lineage=lineage, rng=rng)
        verdict = task if isinstance(task, Rejection) else self._examine(env, task, rng)
        return verdict.reason if isinstance(verdict, Rejection) else program


def _differ(bundle: Bundle) -> bool:
    """Whether tasks for measuring have states, values, wordings or circles of tools of their own."""
    about = bundle.about
    own = bundle.measuring_sayings.values or bundle.measuring_wordings
    return bool(about.starts or about.together or own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What came of drawing tasks."""

    base: int = 0
    """How many there are for training."""
    held_out: int = 0
    """How many for measuring."""
    asked: tuple[int, int] = (0, 0)
    """How many of each were wanted."""
    refused: Counter[str] = field(default_factory=Counter[str])
    """Drawn programs that are no tasks, by reason."""
    unused: Mapping[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    """Tools that can be called and are in no task; by reason, programs with them that are no tasks."""

    @classmethod
    def of(cls, drawing: Drawing, asked: tuple[int, int]) -> Drawn:
        """Count what there is.

        Args:
            drawing: it.
            asked: how many tasks for training, and for measuring, were wanted.
        """
        found, refused = drawing.found, drawing.refused_of
        used = {step.tool for side in found.values() for program in side for step in program.calls}
        return cls(
            base=len(found[False]),
            held_out=len(found[True]),
            asked=asked,
            refused=drawing.refused,
            unused={tool: refused.get(tool, Counter()) for tool in drawing.subjects if tool not in used},
        )

    @property
    def lacking(self) -> str | None:
        """Why nothing can be trained or measured on what was drawn, and what to change; None if it can."""
        if self.base and self.held_out:
            return None
        side = "training" if not self.base else "measuring"
        return f"no task for {side} was found: {self._why(self.refused)}"

    @property
    def warnings(self) -> list[str]:
        """What somebody should know who trains on this: sentences, none where all is well."""
        sides = zip((self.base, self.held_out), self.asked, ("training", "measuring"), strict=True)
        few = [f"{found} of {asked} for {side}" for found, asked, side in sides if found < asked / 2]
        said = (
            [f"only so many tasks were found: {' and '.join(few)}; {self._why(self.refused)}"] if few else []
        )
        said += [
            f"{tool} can be called, and is in no task: {self._why(reasons)}"
            for tool, reasons in self.unused.items()
        ]
        return said

    @staticmethod
    def _why(reasons: Counter[str]) -> str:
        """What became of programs that were tried, and what may help."""
        if not reasons:
            return "no program of calls could be drawn"
        (most, _), *_ = reasons.most_common(1)
        advice = _ADVICE.get(most, "README.md of the bundle says how its tools were called")
        return f"{reasons.total()} programs of calls were tried and refused ({tallied(reasons)}); {advice}"


def write_tasks(bundle: Bundle, found: Mapping[bool, Sequence[Program]]) -> None:
    """Write the tasks of both sides, in the stead of those that are there."""
    folder = bundle.path / "tasks"
    folder.mkdir(exist_ok=True)
    for side, name in _FILES.items():
        lines = "".join(program_line(one) + "\n" for one in found[side])
        (folder / f".{name}.new").write_text(lines, encoding="utf-8")
    for name in _FILES.values():
        (folder / f".{name}.new").replace(folder / f"{name}.jsonl")
