"""Make a bundle: copy the tools' files, explore the tools, and draw tasks that pass the gate."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from pydantic import JsonValue

from genenv.environments import FOLDER_MARK
from genenv.environments.base import Environment
from genenv.environments.common import Refused
from genenv.errors import UsageError
from genenv.files import filled
from genenv.progress import Reporter, staged
from genenv.texts import tallied
from genenv.threads import run_with_own_loop as apart
from genenv.tools.bundle import (
    About,
    Bundle,
    StateRules,
    about_toml,
    graph_json,
    program_line,
    values_toml,
    wordings_toml,
)
from genenv.tools.discover.asking import said_of_unseen, unjudged, with_questions
from genenv.tools.discover.exploring import (
    Explorer,
    find_nondeterminism,
    without_nondeterminism,
)
from genenv.tools.discover.recipes import Graph
from genenv.tools.environment import Tools
from genenv.tools.generate.plans import Plan
from genenv.tools.generate.training_config import TRAINING, USUAL_CALLS, tokens_needed, training_toml
from genenv.tools.generate.written_tasks import Model, TaskWriting, Writer, written_values
from genenv.tools.language.wording import beginnings, is_documented
from genenv.tools.language.words import SpokenValues
from genenv.tools.settings import Style, ToolsConfig
from genenv.tools.spec import Program, ToolsParameters
from genenv.tools.worlds.base import LoadedWorld
from genenv.tools.worlds.limits import USUAL, BoundedWorld, Budget, Limits
from genenv.tools.worlds.observed import observed
from genenv.tools.worlds.openapi.mock_world import MockWorld
from genenv.tools.worlds.origins import ToolOrigin
from genenv.tools.worlds.recorded import RecordedWorld
from genenv.types import Lineage, Origin, Rejection, RejectReason, Task

Examine = Callable[[Environment, Task, random.Random], Rejection | None]
"""The gate: returns a rejection for a bad task, else None (`genenv.gate.gate.examined`)."""


_TRIES_PER_TASK = 12
_MOST_BARREN = 400
"""Number of tries in a row without a new program after which drawing stops."""
_FILES = {False: "base", True: "held-out"}
"""File name of the programs for training (False) and for held-out tasks (True)."""


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
"""Advice by rejection reason, for the reason that rejected the most programs."""


class Drawing:
    """Draws distinct programs for training and for held-out tasks."""

    def __init__(self, env: Tools, examine: Examine, rng: random.Random) -> None:
        self._env, self._examine, self._rng = env, examine, rng
        self._known: set[str] = set()
        self.found: dict[bool, list[Program]] = {False: [], True: []}
        """Accepted programs, for training (False) and for held-out tasks (True)."""
        self.is_over: Callable[[], bool] = lambda: False
        """Returns whether drawing has to stop."""
        self.refused = Counter[str]()
        """Number of refused programs by reason."""
        self.refused_of: dict[str, Counter[str]] = {}
        """Number of refused programs by reason, for each tool that they call."""

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
                    program = self.passing(parameters, measuring=run[0])
                    side = program is not None and self._env.is_for_measuring(program)
                    if program is None or side not in run or len(found[side]) >= asked[side]:
                        continue
                    found[side].append(program)
                    stage(0, 1)
                    if all(len(found[side]) == asked[side] for side in run):
                        break
        return found

    def written(self, asked: Mapping[bool, int], model: Model, reporter: Reporter) -> TaskWriting:
        """Have a model write programs that pass; return what it wrote, and why programs were refused."""
        writing = TaskWriting(self._env, model)
        with reporter.stage("writing tasks", items=sum(asked.values()), unit="tasks") as stage:
            self.found |= writing.write(asked, self.judged, stage)
        return writing

    def passing(self, parameters: ToolsParameters, *, measuring: bool = False) -> Program | None:
        """Return a new program that passes the gate, drawn for one side; None if it is refused."""
        program = self._examined(parameters, measuring=measuring)
        if isinstance(program, Program):
            return program
        self.refused[program] += 1
        for tool in dict.fromkeys(Plan.read(parameters.tools).tools):
            self.refused_of.setdefault(tool, Counter())[program] += 1
        return None

    def _examined(self, parameters: ToolsParameters, *, measuring: bool) -> Program | RejectReason:
        """Return a new program that passes the gate, or the reason for refusing what was drawn."""
        env, rng = self._env, self._rng
        try:
            program = env.walker(measuring=measuring).drawn(parameters, rng)
        except Refused as error:
            return error.rejection.reason
        task = self.judged(program)
        return program if isinstance(task, Task) else task

    def judged(self, program: Program) -> Task | RejectReason:
        """Return the task of a new program that passes the gate, or the reason for refusing it."""
        env = self._env
        key = repr([(step.tool, step.args, step.uses) for step in program.calls])
        if key in self._known:
            return RejectReason.DUPLICATE
        self._known.add(key)
        lineage = Lineage(origin=Origin.HELD_OUT if env.is_for_measuring(program) else Origin.SEED)
        name = f"{env.bundle.name}-{len(self._known)}"
        task = env.build(program, task_id=name, lineage=lineage, rng=self._rng)
        verdict = task if isinstance(task, Rejection) else self._examine(env, task, self._rng)
        return verdict.reason if isinstance(verdict, Rejection) else cast(Task, task)


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

    @classmethod
    def of(cls, drawing: Drawing, asked: tuple[int, int]) -> Drawn:
        """Count the results of a drawing.

        Args:
            drawing: the finished drawing.
            asked: the requested numbers of training and held-out tasks.
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

    @staticmethod
    def _why(reasons: Counter[str]) -> str:
        """Return a count of the reasons for refusing programs, and advice."""
        if not reasons:
            return "no program of calls could be drawn"
        (most, _), *_ = reasons.most_common(1)
        advice = _ADVICE.get(most, "README.md of the bundle says how its tools were called")
        return f"{reasons.total()} programs of calls were tried and refused ({tallied(reasons)}); {advice}"


def write_tasks(bundle: Bundle, found: Mapping[bool, Sequence[Program]]) -> None:
    """Write the programs of both sides to the bundle, replacing the existing files."""
    folder = bundle.path / "tasks"
    folder.mkdir(exist_ok=True)
    for side, name in _FILES.items():
        lines = "".join(program_line(one) + "\n" for one in found[side])
        (folder / f".{name}.new").write_text(lines, encoding="utf-8")
    for name in _FILES.values():
        (folder / f".{name}.new").replace(folder / f"{name}.jsonl")


_COUNTS = re.compile(r"\d+ tasks for training and \d+ for measuring")


@dataclass(slots=True)
class Made:
    """A new bundle, and the findings about its tools."""

    bundle: Bundle
    left_out: dict[str, str]
    """Functions that cannot be tools, with the reasons."""
    graph: Graph
    network: bool
    """Whether the tools can reach the network."""
    undocumented: Sequence[str] = ()
    """Tools without a sentence of documentation."""
    confined: bool = True
    """Whether the tools can write in their own folder only."""
    out_of_time: bool = False
    """Whether the time limit ended the drawing of tasks."""
    ended: str = ""
    """Why recording of a service ended early; empty if it was complete."""
    drawn: Drawn = field(default_factory=Drawn)
    """Counts of the drawn tasks."""
    stopped: bool = False
    """Whether the user interrupted the drawing of tasks."""
    written: TaskWriting | None = None
    """What a model wrote of the tasks; None: rules drew all."""
    seconds: float = 0.0
    remarks: Sequence[str] = ()
    """Sentences about what the tools omit of their document."""

    @property
    def base(self) -> int:
        """Number of training tasks."""
        return self.drawn.base

    @property
    def held_out(self) -> int:
        """Number of held-out tasks."""
        return self.drawn.held_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How many tasks to draw, from which seed, within which limits."""

    base: int = 200
    """Number of training tasks."""
    held_out: int = 100
    """Number of held-out tasks."""
    seed: int = 0
    """Seed of all random draws."""
    most_calls: int = USUAL_CALLS
    """Maximum number of calls in a task's solution."""
    limits: Limits = USUAL
    """Limits of time and received bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted(Asked):
    """How a new bundle is to be made: the tools' origin, and settings for drawing tasks."""

    origin: ToolOrigin
    """The origin that provides the tools."""
    writer: Writer | None = None
    """The model that writes the tasks; None: rules draw them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrawResult:
    """The result of `redraw`."""

    drawn: Drawn
    tokens: int
    """The number of new tokens that `train.toml` should allow per reply."""


def make(folder: Path, wanted: Wanted, examine: Examine, reporter: Reporter) -> Made:
    """Make a bundle. The folder is kept even if no tasks are found or the user interrupts drawing.

    Args:
        folder: the new folder, which must not exist.
        wanted: the tools' origin and the drawing settings.
        examine: the gate that tasks have to pass.
        reporter: shows the progress.

    Raises:
        UsageError: the folder exists, or no tool can be called.
    """
    if folder.exists():
        raise UsageError(f"{folder} is there already; choose another name, or remove it")
    if wanted.writer is None:
        return _new(folder, wanted, examine, reporter, None)
    writer = wanted.writer

    def work() -> Made:
        with writer.model(reporter) as model:
            return _new(folder, wanted, examine, reporter, model)

    return apart(work)


def _new(folder: Path, wanted: Wanted, examine: Examine, reporter: Reporter, model: Model | None) -> Made:
    start, budget = time.monotonic(), Budget(wanted.limits)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.name).strip("-.") or "tools"
    with filled(folder) as aside:
        made = _made(aside, name, wanted, reporter, budget, model)
        made.bundle.opened_before()  # suppresses the warning about code: the maker knows the code
        _draw(made, wanted, examine, reporter, budget, model)
        made.seconds = time.monotonic() - start
        (aside / "README.md").write_text(readme(made), encoding="utf-8")
        settings = training_toml(made.bundle, folder, most_calls=wanted.most_calls)
        (aside / TRAINING).write_text(settings, encoding="utf-8")
    made.bundle = Bundle.open(folder)
    return made


def _made(
    folder: Path, name: str, wanted: Wanted, reporter: Reporter, budget: Budget, model: Model | None
) -> Made:
    origin, files = wanted.origin, folder / "files"
    with staged(reporter, f"loading {origin.label}", items=None, unit=""):
        source = origin.bring(files, budget)
        world = source.open(files)
    try:
        explorer, graph = _explored(world, wanted, reporter, budget)
        while (completed := origin.complete(world, source, files)) is not None:
            source = completed
            world.close()
            world = source.open(files)
            explorer, graph = _explored(world, wanted, reporter, budget)
        spoken = SpokenValues()
        if model is not None and (failed := [name for name in graph.failures if name not in graph.recipes]):
            with staged(reporter, "asking for values", items=None, unit=""):
                written = written_values(world, failed, model)
            spoken = SpokenValues(
                values={name: tuple(cast("list[JsonValue]", one)) for name, one in written.items()}
            )
            explorer.also = lambda _: spoken.kinds(None)
            graph = explorer.explore()
        explorer, graph = with_questions(explorer, graph, world, wanted.seed, reporter)
        if not graph.recipes:
            reasons = "; ".join(f"{tool}: {error}" for tool, error in graph.failures.items())
            raise UsageError(f"no tool of {origin.label} could be called with success ({reasons[:400]})")
        with staged(reporter, "calling the tools twice", items=None, unit="programs"):
            bounded = observed(BoundedWorld(source.open(files), budget), graph.questions)
            with contextlib.closing(bounded) as again:
                found = find_nondeterminism(explorer, again, graph, random.Random(f"{wanted.seed} twice"))
        graph = replace(without_nondeterminism(graph, found), asked=graph.asked)
        rules = StateRules(volatile=found.state, results=found.results)
        about = About(name=name, source=source, leave_out=unjudged(graph), state=rules)
        wordings = beginnings(world.tools, {tool: one.writes for tool, one in graph.recipes.items()})
    finally:
        world.close()
    (folder / FOLDER_MARK).write_text(about_toml(about), encoding="utf-8")
    (folder / "graph.json").write_text(graph_json(graph), encoding="utf-8")
    (folder / "wordings.toml").write_text(wordings_toml(wordings), encoding="utf-8")
    if spoken.values:
        (folder / "values.toml").write_text(values_toml(spoken), encoding="utf-8")
    return Made(
        bundle=Bundle.open(folder),
        left_out=dict(world.left_out),
        graph=graph,
        network=world.network,
        confined=world.confined,
        undocumented=[tool for tool in graph.recipes if not is_documented(world.tools[tool])],
        ended=world.ended if isinstance(world, RecordedWorld) else "",
        remarks=world.remarks if isinstance(world, MockWorld) else (),
    )


def _explored(
    world: LoadedWorld, wanted: Wanted, reporter: Reporter, budget: Budget
) -> tuple[Explorer, Graph]:
    """Explore the tools of a world, and return the explorer and the graph."""
    explorer = Explorer(BoundedWorld(world, budget), random.Random(f"{wanted.seed} probing"))
    with staged(reporter, "trying the tools", items=len(world.tools), unit="tools"):
        return explorer, explorer.explore()


def _draw(
    made: Made, wanted: Wanted, examine: Examine, reporter: Reporter, budget: Budget, model: Model | None
) -> None:
    """Write the bundle's tasks until there are enough, none are left, or the user interrupts.

    A model writes them, if there is one; what it leaves is drawn.
    """
    write_tasks(made.bundle, {False: [], True: []})
    asked = {False: wanted.base, True: wanted.held_out}
    with _drawing(made.bundle, wanted, examine, budget, "python" if model is None else "json") as drawing:
        try:
            if model is not None:
                made.written = drawing.written(asked, model, reporter)
            drawing.sides(asked, reporter)
        except KeyboardInterrupt:
            made.stopped = True
    write_tasks(made.bundle, drawing.found)
    made.drawn = Drawn.of(drawing, (wanted.base, wanted.held_out))
    made.out_of_time = budget.is_over and made.base + made.held_out < wanted.base + wanted.held_out


@contextlib.contextmanager
def _drawing(
    bundle: Bundle, wanted: Asked, examine: Examine, budget: Budget, style: Style = "python"
) -> Generator[Drawing]:
    env = Tools(ToolsConfig(most_calls=wanted.most_calls, style=style), bundle.path)
    try:
        drawing = Drawing(env, examine, random.Random(f"{wanted.seed} tasks"))
        drawing.is_over = lambda: budget.is_over
        yield drawing
    finally:
        env.world.close()


def redraw(folder: Path, wanted: Asked, examine: Examine, reporter: Reporter) -> RedrawResult:
    """Draw the tasks of a bundle again from its current files, replacing its existing tasks.

    Args:
        folder: the bundle.
        wanted: the numbers of tasks, the seed and the limits.
        examine: the gate that tasks have to pass.
        reporter: shows the progress.

    Raises:
        UsageError: no training task or no held-out task is found.
        DataError: a file of the bundle is damaged.
    """
    bundle = Bundle.open(folder)
    if not bundle.graph.recipes:
        raise UsageError(f"{folder / 'graph.json'} names no tool that can be called; {folder} is as it was")
    with _drawing(bundle, wanted, examine, Budget(wanted.limits)) as drawing:
        found = drawing.sides({False: wanted.base, True: wanted.held_out}, reporter)
        drawn = Drawn.of(drawing, (wanted.base, wanted.held_out))
    if drawn.lacking is not None:
        raise UsageError(f"{drawn.lacking}; {folder} is as it was")
    write_tasks(bundle, found)
    _retell(folder / "README.md", drawn.base, drawn.held_out)
    needed = tokens_needed(Bundle.open(folder), most_calls=wanted.most_calls)
    return RedrawResult(drawn=drawn, tokens=needed)


def _retell(readme: Path, base: int, held_out: int) -> None:
    """Update the numbers of tasks in a bundle's README, if it states them."""
    if readme.is_file():
        told = f"{base} tasks for training and {held_out} for measuring"
        text = readme.read_text(encoding="utf-8")
        readme.write_text(_COUNTS.sub(told, text, count=1), encoding="utf-8")


def readme(made: Made) -> str:
    """Return the text of the bundle's README: the recipes and the findings."""
    graph, name = made.graph, made.bundle.name
    tools = "1 tool" if len(graph.recipes) == 1 else f"{len(graph.recipes)} tools"
    lines = [
        f"# {name}",
        "",
        f"Made by `genenv env new` from `{made.bundle.about.source.label}`: {tools}, "
        f"{made.base} tasks for training and {made.held_out} for measuring, in {made.seconds:.0f} s. Each "
        "task was played: its solution leads to the same end twice, nothing and random calls do not, and no "
        "call that writes can be left out.",
        "",
        "| tool | | its arguments come from | succeeds |",
        "|---|---|---|---|",
    ]
    for one in graph.recipes.values():
        ways = ", ".join(f"{parameter}: {way}" for parameter, way in one.ways.items())
        lines.append(f"| {one.tool} | {'writes' if one.writes else 'reads'} | {ways} | {one.success:.0%} |")
    lines += ["", *_notes(made), ""]
    return "\n".join(lines)


def _no_tools(left_out: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each reason why functions cannot be tools."""
    for why in dict.fromkeys(left_out.values()):
        named = [f"`{tool}`" for tool, one in left_out.items() if one == why]
        if len(named) == 1:
            yield f"- {named[0]} is no tool: {why}"
        else:
            yield f"- {len(named)} are no tools: {why}: {', '.join(named)}"


def warnings(made: Made) -> list[str]:
    """Return warnings about a bundle, as sentences, for users who train on it; may be empty."""
    failed = [tool for tool in made.graph.failures if tool not in made.graph.recipes]
    never = (
        f"{len(failed)} of {len(failed) + len(made.graph.recipes)} tools never succeeded: {', '.join(failed)}"
    )
    said = [f"{never}; no task calls them, and README.md says what they answered"] if failed else []
    return [*said, *made.drawn.warnings]


def _notes(made: Made) -> Sequence[str]:
    notes: list[str] = []
    for tool, error in made.graph.failures.items():
        if tool not in made.graph.recipes:
            notes.append(f"- `{tool}` never succeeded, and is in no task: {error}")
    for one in made.graph.recipes.values():
        if one.unseen:
            named = ", ".join(f"`{name}`" for name in one.unseen)
            notes.append(
                f"- {named} of `{one.tool}` leaves no trace in the state: tasks state it, no check sees it"
            )
    notes += _no_tools(made.left_out)
    notes += [f"- {one}" for one in made.remarks]
    if volatile := made.bundle.about.state.volatile:
        notes.append(f"- These differ from one time to the next and do not count: {', '.join(volatile)}")
    if results := made.bundle.about.state.results:
        notes.append(f"- Of what tools find, these differ and do not count: {', '.join(results)}")
    notes += [f"- {one}" for one in said_of_unseen(made.graph)]
    if made.ended:
        notes.append(f"- Not all was recorded: {made.ended}. What was is here.")
    if made.network:
        notes.append("- The system did not let the tools' process be cut off from the network.")
    notes += [
        f"- `{tool}` has no sentence of documentation: tasks ask for it by the words of its name, "
        "until wordings.toml has better ones"
        for tool in made.undocumented
    ]
    if made.written is not None:
        notes.append(f"- {made.written.said}")
    if made.drawn.refused:
        notes.append(f"- Drawn programs that are no tasks: {tallied(made.drawn.refused)}")
    if not made.confined:
        notes.append("- The system cannot keep the tools from writing outside their folder.")
    if may_write := getattr(made.bundle.about.source, "may_write", ()):
        notes.append(f"- Beside their own folder the tools may write in {', '.join(may_write)}.")
    if made.out_of_time:
        notes.append("- The time was over before all tasks were drawn; `--most-seconds` allows more.")
    return notes
