"""Make a bundle: copy the tools' files, explore the tools, and draw tasks that pass the gate."""

from __future__ import annotations

import contextlib
import json
import random
import re
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from datetime import date as Day
from pathlib import Path

from genenv.environments import FOLDER_MARK
from genenv.errors import RolloutError, UsageError
from genenv.files import filled
from genenv.progress import Reporter, staged
from genenv.threads import run_with_own_loop as apart
from genenv.tools.bundle import (
    About,
    Bundle,
    StateRules,
    about_toml,
    comparable,
    graph_json,
    program_line,
    values_toml,
    wordings_toml,
)
from genenv.tools.discover.asking import first_call, observed, said_of_unseen, unjudged, with_questions
from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.nondeterminism import (
    Nondeterminism,
    find_nondeterminism,
    refusing_past,
    traces,
    without_nondeterminism,
)
from genenv.tools.discover.recipes import Graph, found_by
from genenv.tools.environment import Tools
from genenv.tools.generate.drawing import Drawing, Drawn, Examine
from genenv.tools.generate.named_texts import dates_from
from genenv.tools.generate.training_config import TRAINING, USUAL_CALLS, tokens_needed, training_toml
from genenv.tools.generate.written_tasks import TaskWriting, written_values
from genenv.tools.language.model_wordings import Model, Writer
from genenv.tools.language.wording import beginnings, is_documented
from genenv.tools.language.words import SpokenValues
from genenv.tools.settings import Style, ToolsConfig
from genenv.tools.spec import Program
from genenv.tools.worlds.base import NOT_CHOSEN, LoadedWorld, chosen
from genenv.tools.worlds.limits import USUAL, BoundedWorld, Budget, Limits
from genenv.tools.worlds.mcp.world import McpWorld
from genenv.tools.worlds.openapi.mock_world import MockWorld
from genenv.tools.worlds.python import PythonWorld
from genenv.tools.worlds.recorded import RecordedWorld
from genenv.tools.worlds.sources import Source, ToolOrigin

_EXPLORING, _EXPLORING_AGAIN = 0.5, 0.65
"""Shares of the time after which no more ways to call tools are tried, the second for tools that were opened
in another way."""
_EXPLORING_S = 180.0
"""Time in seconds after which no more are tried, as what takes longer is rarely found at all."""
_AHEAD = timedelta(days=30)
"""Days after the making of a bundle on which made-up dates begin: until then none of them is past."""
_FILES = {False: "base", True: "held-out"}
"""File name of the programs for training (False) and for held-out tasks (True)."""


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
    world: LoadedWorld
    """The tools as they were explored, closed."""
    traces: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """What tools change that are called like lookups, as kinds of values in the state."""
    aging: Sequence[str] = ()
    """Tools that refuse dates of the past."""
    drawn: Drawn = field(default_factory=Drawn)
    """Counts of the drawn tasks."""
    stopped: bool = False
    """Whether the user interrupted the drawing of tasks."""
    written: TaskWriting | None = None
    """What a model wrote of the tasks; None: rules drew all."""
    seconds: float = 0.0

    @property
    def graph(self) -> Graph:
        """The recipes and links of the tools, and why others failed."""
        return self.bundle.graph

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
    user_answers: bool = False
    """Whether in some tasks the user omits a value and gives it when the agent asks."""
    refusals: bool = False
    """Whether some tasks ask for what the tools refuse."""
    first_day: Day = field(default_factory=lambda: datetime.now(tz=UTC).date() + _AHEAD)
    """The first day of made-up dates."""


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
    if (writer := wanted.writer) is None:
        with dates_from(wanted.first_day):
            return _new(folder, wanted, examine, reporter, None)

    def work() -> Made:
        with dates_from(wanted.first_day), writer.model(reporter) as model:
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
        world, hidden = _opened(origin, source, files)
    try:
        explorer, graph = _explored(world, wanted, reporter, budget)
        while (completed := origin.complete(world, source, files)) is not None:
            source = completed
            world.close()
            world, hidden = _opened(origin, source, files)
            explorer, graph = _explored(world, wanted, reporter, budget, graph)
        begins = graph.begins_with
        spoken = SpokenValues()
        if model is not None and (failed := [name for name in graph.failures if name not in graph.recipes]):
            with (
                staged(reporter, "asking for values", items=None, unit=""),
                contextlib.suppress(RolloutError),
            ):
                spoken = written_values(world, failed, model)  # a model that stopped is named by its tasks
            if spoken.values:
                explorer.also = lambda _: spoken.kinds(None)
                graph = explorer.explore()
        explorer, graph = with_questions(explorer, graph, world, wanted.seed, reporter)
        found, left, aging = Nondeterminism((), ()), dict[str, tuple[str, ...]](), list[str]()
        if graph.recipes:
            explorer.seconds_left = lambda: budget.left(_EXPLORING_AGAIN)
            with staged(reporter, "calling the tools twice", items=None, unit="programs"):
                bounded = observed(BoundedWorld(source.open(files), budget), graph.questions, begins)
                with contextlib.closing(bounded) as again:
                    found = find_nondeterminism(explorer, again, graph, random.Random(f"{wanted.seed} twice"))
            graph = replace(without_nondeterminism(graph, found), asked=graph.asked)
            if volatile := frozenset(found.state):
                graph = explorer.with_untraced(graph, lambda state: comparable(state, volatile))
                graph = explorer.without_traces(graph, lambda state: comparable(state, volatile))
            rng = random.Random(f"{wanted.seed} traces")
            left, aging = traces(explorer, graph, rng), refusing_past(explorer, graph, rng)
        graph = replace(graph, begins_with=begins)
        if not graph.recipes:
            reasons = "; ".join(f"{tool}: {error}" for tool, error in graph.failures.items())
            raise UsageError(
                f"no tool of {origin.label} could be called with success ({reasons[:400]}); "
                f"{_remedy(reasons)}"
            )
        rules = StateRules(volatile=found.state, results=found.results)
        about = About(
            name=name,
            source=source,
            leave_out=(*unjudged(graph), *hidden),
            user_answers=wanted.user_answers,
            refusals=wanted.refusals,
            first_day=wanted.first_day,
            state=rules,
        )
        wordings = beginnings(world.tools, {tool: one.writes for tool, one in graph.recipes.items()})
    finally:
        world.close()
    (folder / FOLDER_MARK).write_text(about_toml(about), encoding="utf-8")
    (folder / "graph.json").write_text(graph_json(graph), encoding="utf-8")
    (folder / "wordings.toml").write_text(wordings_toml(wordings), encoding="utf-8")
    if spoken.values:
        (folder / "values.toml").write_text(values_toml(spoken), encoding="utf-8")
    return Made(bundle=Bundle.open(folder), world=world, traces=left, aging=aging)


def _opened(origin: ToolOrigin, source: Source, files: Path) -> tuple[LoadedWorld, list[str]]:
    """Return the opened tools, and the names of those that the user does not want (`ToolOrigin.only`)."""
    world = source.open(files)
    try:
        wanted = chosen((*world.tools, *world.left_out), origin.only, origin.label)
        hidden = [name for name in world.tools if name not in wanted]
        world.hide(hidden, NOT_CHOSEN)
        if not world.tools:
            reasons = "; ".join(f"{name}: {world.left_out[name]}" for name in wanted)
            raise UsageError(f"--only chooses nothing that can be a tool ({reasons[:400]})")
    except BaseException:
        world.close()
        raise
    return world, hidden


def _explored(
    world: LoadedWorld, wanted: Wanted, reporter: Reporter, budget: Budget, before: Graph | None = None
) -> tuple[Explorer, Graph]:
    """Explore the tools of a world, and return the explorer and the graph.

    Args:
        world: the tools.
        wanted: what the bundle is to have.
        reporter: shows the progress.
        budget: limits time and received bytes.
        before: the graph that was found when the same tools were opened in another way.
    """
    bounded = BoundedWorld(world, budget)
    begins = first_call(bounded) if isinstance(world, PythonWorld | McpWorld) else ""
    explorer = Explorer(observed(bounded, (), begins), random.Random(f"{wanted.seed} probing"))
    until = budget.seconds + _EXPLORING_S
    share = _EXPLORING if before is None else _EXPLORING_AGAIN
    explorer.seconds_left = lambda: min(budget.left(share), until - budget.seconds)
    again = " again, opened in another way" if before is not None else ""
    with staged(reporter, f"trying the tools{again}", items=len(world.tools), unit="tools"):
        return explorer, replace(explorer.explore(other=before), begins_with=begins)


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
                drawing.write(asked, model, reporter)
            drawing.sides(asked, reporter)
        except KeyboardInterrupt:
            made.stopped = True
    write_tasks(made.bundle, drawing.found)
    made.written = drawing.writing
    made.drawn = Drawn.of(drawing, (wanted.base, wanted.held_out))


@contextlib.contextmanager
def _drawing(
    bundle: Bundle, wanted: Asked, examine: Examine, budget: Budget, style: Style = "python"
) -> Generator[Drawing]:
    env = Tools(ToolsConfig(most_calls=wanted.most_calls, style=style), bundle.path)
    try:
        drawing = Drawing(env, examine, random.Random(f"{wanted.seed} tasks"))
        drawing.is_over = lambda: budget.is_over
        with dates_from(bundle.about.first_day):
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
        before, graph = bundle.graph, drawing.compare()
        found = drawing.sides({False: wanted.base, True: wanted.held_out}, reporter)
        drawn = Drawn.of(drawing, (wanted.base, wanted.held_out))
    if drawn.lacking is not None:
        raise UsageError(f"{drawn.lacking}; {folder} is as it was")
    write_tasks(bundle, found)
    if graph != before:
        (folder / "graph.json").write_text(graph_json(graph), encoding="utf-8")
    if (file := folder / "README.md").is_file():  # it may state the numbers of tasks
        told = f"{drawn.base} tasks for training and {drawn.held_out} for measuring"
        text = _COUNTS.sub(told, file.read_text(encoding="utf-8"), count=1)
        for one in graph.recipes.values():
            text = text if one.writes else text.replace(f"| {one.tool} | writes |", f"| {one.tool} | reads |")
        file.write_text(text, encoding="utf-8")
    needed = tokens_needed(Bundle.open(folder), most_calls=wanted.most_calls)
    return RedrawResult(drawn=drawn, tokens=needed)


_SOURCES = (
    "`orders.#` are the keys of the records of `orders`, `orders.*.status` a field of them, `stock.{}` the "
    "keys of a mapping, `rows.[]` the indices of a list, `list_all().id` what a tool answers, `add(name)` "
    "what an earlier call was given, `new` new values. By name: the name of the parameter suggests the "
    "source. By trying: of all that the state and the answers of tools hold, calls succeed with these values."
)


def readme(made: Made) -> str:
    """Return the text of the bundle's README: the recipes and the findings."""
    return "\n".join([*_head(made), *_table(made), "", _SOURCES, "", *_notes(made), ""])


def _head(made: Made) -> list[str]:
    graph, name = made.graph, made.bundle.name
    tools = "1 tool" if len(graph.recipes) == 1 else f"{len(graph.recipes)} tools"
    return [
        f"# {name}",
        "",
        f"Made by `genenv env new` from `{made.bundle.about.source.label}`: {tools}, "
        f"{made.base} tasks for training and {made.held_out} for measuring, in {made.seconds:.0f} s. Each "
        "task was played: its solution leads to the same end twice, nothing and random calls do not, and no "
        "call that writes can be left out.",
        "",
    ]


def _table(made: Made) -> list[str]:
    lines = ["| tool | | its arguments come from | succeeds |", "|---|---|---|---|"]
    for one in made.graph.recipes.values():
        tool = made.world.tools[one.tool]
        named = [f"{slot}: {way} ({found_by(tool, slot, way)})" for slot, way in one.ways.items()]
        ways = ", ".join([*named, *(f"{name}: never given" for name in one.unused)])
        lines.append(f"| {one.tool} | {'writes' if one.writes else 'reads'} | {ways} | {one.success:.0%} |")
    return lines


def _never_given(made: Made) -> Iterator[str]:
    """Yield a line for each optional argument that no task gives, with the reason."""
    used = {tool for tool, _ in made.drawn.given}
    for one in made.graph.recipes.values():
        unused = {**one.unused}
        for name in made.world.tools[one.tool].properties if one.tool in used else ():
            if name in one.ways and (one.tool, name) not in made.drawn.given:
                unused[name] = "no drawn task has it"
        for name, why in unused.items():
            yield f"- `{name}` of `{one.tool}` is never given: {why}"


_DENIED = re.compile(r"EACCES|EROFS|EPERM|[Pp]ermission denied|Read-only file system")


def _remedy(reasons: str) -> str:
    """Return what to do if no tool succeeds, given what the tools answered."""
    if _DENIED.search(reasons):
        return (
            "tools may write in their own folder only: let them keep their files there (a server gets its "
            "path by {folder} in its command, or in a variable before it: 'mcp:FILE={folder}/data.json node "
            "server.js'), or allow another folder with --may-write"
        )
    return (
        "let the tools begin with records, say in their schema which values they take (enum, examples), or "
        "have a model look for values (--writer)"
    )


_MOST_SHOWN = 16
"""Maximum number of tools, and of findings, that the summary of a bundle shows."""


def summary(made: Made) -> str:
    """Return what a terminal shows of the README: all of it, or how many lines each long part of it has."""
    tools, notes = len(made.graph.recipes), _notes(made)
    if tools <= _MOST_SHOWN >= len(notes):
        return readme(made)
    parts = [*_head(made), *([*_table(made), ""] if tools <= _MOST_SHOWN else [])]
    for some in ([*_failed(made)], [*_no_tools(made.world.left_out)]):
        parts += some[:_MOST_SHOWN]
        if len(some) > _MOST_SHOWN:
            parts.append(f"- {len(some) - _MOST_SHOWN} more of this kind")
    what = f"{tools} tools with where their arguments come from, and {len(notes)} findings"
    return "\n".join([*parts, "", f"README.md of the bundle lists all: {what}.", ""])


def _failed(made: Made) -> Iterator[str]:
    """Yield a line for each tool that never succeeded."""
    for tool, error in made.graph.failures.items():
        if tool not in made.graph.recipes:
            yield f"- `{tool}` never succeeded, and is in no task: {error}"


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
    return [*said, *_lookups_that_write(made), *made.drawn.warnings]


def _lookups_that_write(made: Made) -> Iterator[str]:
    """Yield a sentence about the tools that look things up by their names and change the state."""
    if made.traces:
        places = dict.fromkeys(place for one in made.traces.values() for place in one)
        named = ", ".join(f"{tool} ({' and '.join(one)})" for tool, one in made.traces.items())
        ignored = json.dumps([*dict.fromkeys((*made.bundle.about.state.volatile, *places))])
        yield (
            "these tools look things up by their names, and change the state, so that looking once more "
            f"fails a task: {named}; if that is no more than a log or a cache, set volatile = {ignored} in "
            "bundle.toml and draw again: genenv env tasks"
        )


def _notes(made: Made) -> Sequence[str]:
    notes = [*_failed(made)]
    for one in made.graph.recipes.values():
        if one.unseen:
            named = ", ".join(f"`{name}`" for name in one.unseen)
            told = "leaves no trace in the state: a call must have what the task states"
            notes.append(f"- {named} of `{one.tool}` {told}")
    notes += [*_never_given(made), *_no_tools(made.world.left_out)]
    if isinstance(made.world, MockWorld | PythonWorld):
        notes += [f"- {one}" for one in made.world.remarks]
    if volatile := made.bundle.about.state.volatile:
        notes.append(f"- These differ from one time to the next and do not count: {', '.join(volatile)}")
    if results := made.bundle.about.state.results:
        notes.append(f"- Of what tools find, these differ and do not count: {', '.join(results)}")
    notes += [f"- {one[:1].upper()}{one[1:]}." for one in _lookups_that_write(made)]
    if made.aging:
        notes.append(
            f"- {', '.join(f'`{tool}`' for tool in made.aging)}: dates of the past are refused, so that "
            "tasks with dates fail when these are over. Made-up dates begin with first_day of bundle.toml: "
            "set a later day then, and draw again: genenv env tasks."
        )
    notes += [f"- {one}" for one in said_of_unseen(made.graph)]
    if isinstance(made.world, RecordedWorld) and (ended := made.world.ended):
        notes.append(f"- Not all was recorded: {ended}. What was is here.")
    if made.world.network:
        notes.append("- The system did not let the tools' process be cut off from the network.")
    notes += [
        f"- `{tool}` has no sentence of documentation: tasks ask for it by the words of its name, "
        "until wordings.toml has better ones"
        for tool in made.graph.recipes
        if not is_documented(made.world.tools[tool])
    ]
    if made.written is not None:
        notes.append(f"- {made.written.said}")
    if made.drawn.refused:
        notes.append(f"- Drawn programs that are no tasks: {made.drawn.no_tasks}")
    if not made.world.confined:
        notes.append("- The system cannot keep the tools from writing outside their folder.")
    if may_write := getattr(made.bundle.about.source, "may_write", ()):
        notes.append(f"- Beside their own folder the tools may write in {', '.join(may_write)}.")
    if made.drawn.out_of_time:
        notes.append("- The time was over before all tasks were drawn; `--most-seconds` allows more.")
    return notes
