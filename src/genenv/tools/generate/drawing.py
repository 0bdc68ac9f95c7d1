"""Draw the tasks of a bundle: distinct programs that pass the gate, and why others were refused."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from genenv.environments.base import Environment
from genenv.environments.common import Refused
from genenv.progress import Reporter
from genenv.texts import tallied
from genenv.tools.audit import misstated
from genenv.tools.bundle import Bundle
from genenv.tools.discover.recipes import Graph
from genenv.tools.environment import Tools
from genenv.tools.generate.plans import Plan, ProgramSampler
from genenv.tools.generate.training_config import TRAINING, is_too_long, window
from genenv.tools.generate.written_tasks import TaskWriting
from genenv.tools.language.model_wordings import Model
from genenv.tools.spec import Program, ToolsParameters
from genenv.types import Lineage, Origin, Rejection, RejectReason, Task

Examine = Callable[[Environment, Task, random.Random], Rejection | None]
"""The gate: returns a rejection for a bad task, else None (`genenv.gate.gate.examined`)."""


_TRIES_PER_TASK = 12
_MOST_BARREN = 400
"""Number of tries in a row without a new program after which drawing stops."""

TOO_LONG = "too_long"
"""The reason for refusing a task whose prompt may be longer than the context window of `train.toml`."""
_MEANING: Mapping[str, str] = {
    RejectReason.DUPLICATE: "drawn before",
    RejectReason.TRIVIAL: "a call or a value makes no difference",
    RejectReason.EXECUTION: "a call fails, or nothing can be asked for",
    RejectReason.CHECKS_DISAGREE: "played twice, the ends differ",
    RejectReason.UNSTATED: "the text lacks a value",
    RejectReason.LEAK: "the text gives the solution away",
    RejectReason.HELD_OUT: "of the other side",
}
_ADVICE: Mapping[str, str] = {
    RejectReason.DUPLICATE: "few different calls succeed: let the tools begin with more records",
    RejectReason.TRIVIAL: "calls change nothing, and find nothing that one could ask for: let tools keep "
    "what they change, and return what they find",
    RejectReason.EXECUTION: "no calls were found that succeed one after the other and answer what could be "
    "asked for: begin with records on which they succeed, and return what they find",
    RejectReason.ORACLE_FAILS: "calls fail when they are repeated: let tools do the same each time",
    RejectReason.CHECKS_DISAGREE: "calls do not end in the same state twice: leave clocks and chance out of "
    "the tools, or list what differs as volatile in bundle.toml",
    RejectReason.UNSTATED: "texts lack a value of their calls: give it a blank in wordings.toml",
    RejectReason.LEAK: "texts give the solution away: change wordings.toml, or the tools' documentation",
    TOO_LONG: f"with their tools they may not fit into policy.context_tokens of {TRAINING}: give fewer "
    "tools, or such with fewer parameters",
    RejectReason.HELD_OUT: "what there is belongs to the other side: let the tools begin with more records",
}
"""Advice by rejection reason, for the reason that rejected the most programs."""


class Drawing:
    """Draws distinct programs for training and for held-out tasks."""

    def __init__(self, env: Tools, examine: Examine, rng: random.Random) -> None:
        self._env, self._examine, self._rng = env, examine, rng
        self._known: set[str] = set()
        self._samplers: dict[bool, ProgramSampler] = {}
        """By the side whose states and values they draw from."""
        self._window = window(env.bundle.path)
        self.found: dict[bool, list[Program]] = {False: [], True: []}
        """Accepted programs, for training (False) and for held-out tasks (True)."""
        self.is_over: Callable[[], bool] = lambda: False
        """Returns whether drawing has to stop."""
        self.refused = Counter[str]()
        """Number of refused programs by reason."""
        self.refused_of: dict[str, Counter[str]] = {}
        """Number of refused programs by reason, for each tool that they call."""
        self.writing: TaskWriting | None = None
        """What a model wrote; None: no model was asked."""

    def compare(self) -> Graph:
        """Find the tools that only read, as `bundle.toml` has checks ignore what they change.

        Tasks are then drawn with that; return the graph of the bundle that says so.
        """
        env, bundle = self._env, self._env.bundle
        if bundle.about.state.volatile:
            explorer = env.walker().explorer(random.Random("comparing"))
            env.graph = explorer.without_traces(env.graph, env.comparable, env.beginning)
            recipes = {**bundle.graph.recipes, **env.graph.recipes}
            bundle.graph = replace(bundle.graph, recipes=recipes, links=env.graph.links)
        return bundle.graph

    @property
    def subjects(self) -> Iterable[str]:
        """Tools that tasks can call: those with a recipe."""
        return self._env.graph.recipes

    def parameters(self) -> Iterator[ToolsParameters]:
        """Yield random task parameters, each tool in turn as the subject; none if there is no recipe."""
        while self._env.graph.recipes:
            for subject in self._env.graph.recipes:
                one = self._rng.choice(list(self._env.options(subject)))
                chosen = {name: self._rng.choice(list(values)) for name, values in one.items()}
                yield ToolsParameters.model_validate(chosen)

    def sides(self, asked: Mapping[bool, int], reporter: Reporter) -> dict[bool, list[Program]]:
        """Draw programs that pass the gate, until there are enough on both sides or no more are found.

        The keys of `asked` and of the result are False (training) and True (held-out). If the sides share
        their states and values, a hash of its calls decides to which side a program belongs.
        """
        found = self.found
        runs = [[False], [True]] if _differ(self._env.bundle) else [[False, True]]
        left = sum(asked.values()) - sum(map(len, found.values()))
        if not left:
            return found
        with reporter.stage("drawing tasks", items=left, unit="tasks") as stage:
            for run in runs:
                tries, known, barren = _TRIES_PER_TASK * sum(asked[side] for side in run), 0, 0
                for parameters in itertools.islice(self.parameters(), tries):
                    if (barren := barren + 1 if len(self._known) == known else 0) > _MOST_BARREN:
                        break
                    known = len(self._known)
                    if self.is_over():
                        break
                    open_sides = [side for side in run if len(found[side]) < asked[side]]
                    if not open_sides:
                        break
                    program = self.passing(parameters, open_sides, measuring=run[0])
                    if program is not None:
                        found[self._env.is_for_measuring(program)].append(program)
                        stage(0, 1)
        return found

    def write(self, asked: Mapping[bool, int], model: Model, reporter: Reporter) -> None:
        """Have a model write programs that pass the gate and its round trip."""
        self.writing = TaskWriting(self._env, model, self.judged, self.is_over)
        with reporter.stage("writing tasks", items=sum(asked.values()), unit="tasks") as stage:
            self.writing.write(asked, self.found, stage)

    def passing(
        self, parameters: ToolsParameters, sides: Sequence[bool], *, measuring: bool = False
    ) -> Program | None:
        """Return a new program that passes the gate; None if it is refused, or belongs to no side in need.

        Args:
            parameters: what is drawn.
            sides: the sides that need tasks. A program of another one is not played, and not refused.
            measuring: the side whose states and values it is drawn from.
        """
        try:
            if measuring not in self._samplers:
                self._samplers[measuring] = self._env.walker(measuring=measuring, learning=self._rng)
            program = self._samplers[measuring].drawn(parameters, self._rng)
        except Refused as error:
            found = error.rejection.reason
        else:
            if self._env.is_for_measuring(program) not in sides:
                self._known.add(_key(program))
                return None
            found = self.judged(program)
            if isinstance(found, Task):
                return program
        self.refused[found] += 1
        for tool in dict.fromkeys(Plan.read(parameters.tools).tools):
            self.refused_of.setdefault(tool, Counter())[found] += 1
        return None

    def judged(self, program: Program) -> Task | str:
        """Return the task of a new program that passes the gate, or the reason for refusing it."""
        env = self._env
        if (key := _key(program)) in self._known:
            return RejectReason.DUPLICATE
        self._known.add(key)
        lineage = Lineage(origin=Origin.HELD_OUT if env.is_for_measuring(program) else Origin.SEED)
        name = f"{env.bundle.name}-{len(self._known)}"
        task = env.build(program, task_id=name, lineage=lineage, rng=self._rng)
        if isinstance(task, Task) and is_too_long(task, env.world.tools, self._window):
            return TOO_LONG
        verdict = task if isinstance(task, Rejection) else misstated(env, task)  # before anything is played
        if verdict is None:
            verdict = self._examine(env, cast(Task, task), self._rng)
        return verdict.reason if isinstance(verdict, Rejection) else cast(Task, task)


def _key(program: Program) -> str:
    """Return what two programs have in common that are the same task."""
    return repr([program.omits, *((step.tool, step.args, step.uses) for step in program.calls)])


def _differ(bundle: Bundle) -> bool:
    """Whether held-out tasks have separate states, values, wordings or circles of tools."""
    about = bundle.about
    own = bundle.measuring_spoken_values.values or bundle.measuring_wordings
    return bool(about.starts or about.together or own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """How many tasks were drawn, and why programs were refused."""

    base: int = 0
    """Number of training tasks."""
    held_out: int = 0
    """Number of held-out tasks."""
    asked: tuple[int, int] = (0, 0)
    """Requested numbers of training tasks and held-out tasks."""
    refused: Counter[str] = field(default_factory=Counter[str])
    """Number of refused programs by reason."""
    unused: Mapping[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    """Tools that have a recipe but are in no task, with their numbers of refused programs by reason."""
    given: Collection[tuple[str, str]] = frozenset()
    """The arguments that tasks give, by tool."""
    out_of_time: bool = False
    """Whether the time limit ended the drawing of tasks."""

    @classmethod
    def of(cls, drawing: Drawing, asked: tuple[int, int]) -> Drawn:
        """Count the results of a drawing.

        Args:
            drawing: the finished drawing.
            asked: the requested numbers of training and held-out tasks.
        """
        found, refused = drawing.found, drawing.refused_of
        steps = [step for side in found.values() for program in side for step in program.calls]
        used = {step.tool for step in steps}
        return cls(
            base=len(found[False]),
            held_out=len(found[True]),
            asked=asked,
            refused=drawing.refused,
            unused={tool: refused.get(tool, Counter()) for tool in drawing.subjects if tool not in used},
            given={
                (step.tool, name)
                for step in steps
                for name in (*step.args, *(use.parameter for use in step.uses))
            },
            out_of_time=drawing.is_over() and any(len(found[side]) < asked[side] for side in (False, True)),
        )

    @property
    def lacking(self) -> str | None:
        """Why the bundle cannot be used, and what to change; None if it has training and held-out tasks."""
        if self.base and self.held_out:
            return None
        side = "training" if not self.base else "measuring"
        return f"no task for {side} was found: {self._why(self.refused)}"

    @property
    def warnings(self) -> list[str]:
        """Warnings about the tasks, as sentences, for users who train on them; may be empty."""
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

    @property
    def no_tasks(self) -> str:
        """How many drawn programs are no tasks, by reason, with what the reasons mean; empty if none."""
        said = (
            f"{count} {reason}" + (f" ({_MEANING[reason]})" if reason in _MEANING else "")
            for reason, count in self.refused.most_common()
        )
        return ", ".join(said)

    def _why(self, reasons: Counter[str]) -> str:
        """Return a count of the reasons for refusing programs, and advice."""
        if self.out_of_time:
            tried = f"{reasons.total()} programs of calls were tried and refused until then"
            return f"the time was over ({tried}); --most-seconds allows more"
        if not reasons:
            return "no program of calls could be drawn"
        (most, _), *_ = reasons.most_common(1)
        advice = _ADVICE.get(most, "README.md of the bundle says how its tools were called")
        return f"{reasons.total()} programs of calls were tried and refused ({tallied(reasons)}); {advice}"
