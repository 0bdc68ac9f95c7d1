"""Makes a bundle of tools: copies what they need, finds out how to call its tools, draws tasks."""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from genenv.environments import FOLDER_MARK
from genenv.errors import UsageError
from genenv.files import filled
from genenv.progress import Reporter, staged
from genenv.texts import tallied
from genenv.tools.bundle import About, Bundle, StateRules, about_toml, graph_json, wordings_toml
from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.nondeterminism import Unsteady, steady, unsteady
from genenv.tools.discover.recipes import Graph
from genenv.tools.environment import Tools
from genenv.tools.generate.drawing import Drawing, Drawn, Examine, write_tasks
from genenv.tools.generate.training_config import TRAINING, USUAL_CALLS, tokens_needed, training_toml
from genenv.tools.language.wording import beginnings, is_documented
from genenv.tools.settings import ToolsConfig
from genenv.tools.worlds.base import LoadedWorld, World
from genenv.tools.worlds.limits import USUAL, BoundedWorld, Budget, Limits
from genenv.tools.worlds.openapi.mock_world import MockWorld
from genenv.tools.worlds.origins import Origin
from genenv.tools.worlds.recorded import RecordedWorld

_COUNTS = re.compile(r"\d+ tasks for training and \d+ for measuring")


@dataclass(slots=True)
class Made:
    """What was made, and what was found out."""

    bundle: Bundle
    left_out: dict[str, str]
    """Functions that are no tools, and why."""
    graph: Graph
    network: bool
    """Whether the tools can reach the network."""
    undocumented: Sequence[str] = ()
    """Tools without a sentence of documentation."""
    confined: bool = True
    """Whether the tools can write in their own folder only."""
    out_of_time: bool = False
    """Whether no more tasks were drawn because the time was over."""
    ended: str = ""
    """Why a service was asked no more before all was recorded."""
    drawn: Drawn = field(default_factory=Drawn)
    """Its tasks."""
    stopped: bool = False
    """Whether somebody stopped it while tasks were drawn."""
    seconds: float = 0.0
    remarks: Sequence[str] = ()
    """Where the tools say or do less than the document that they come from, a sentence each."""

    @property
    def base(self) -> int:
        """How many tasks for training it has."""
        return self.drawn.base

    @property
    def held_out(self) -> int:
        """How many tasks for measuring it has."""
        return self.drawn.held_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which tasks are drawn."""

    base: int = 200
    """How many for training."""
    held_out: int = 100
    """How many for measuring."""
    seed: int = 0
    """Of all that is drawn."""
    most_calls: int = USUAL_CALLS
    """So many calls at most solve one of them."""
    limits: Limits = USUAL
    """What all of it may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted(Asked):
    """What a bundle is to hold."""

    origin: Origin
    """Where the tools are to be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrawn:
    """What came of drawing anew."""

    drawn: Drawn
    tokens: int
    """So many new tokens `train.toml` should allow."""


def make(folder: Path, wanted: Wanted, examine: Examine, reporter: Reporter) -> Made:
    """Make a bundle. Where no tasks are found, or somebody stops it while they are drawn, it is kept, too.

    Args:
        folder: where; it must not be there yet.
        wanted: of what.
        examine: the gate that its tasks have to pass.
        reporter: is told how far it is.

    Raises:
        UsageError: the folder is there already, or there are no tools that can be called.
    """
    start, budget = time.monotonic(), Budget(wanted.limits)
    if folder.exists():
        raise UsageError(f"{folder} is there already; choose another name, or remove it")
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.name).strip("-.") or "tools"
    with filled(folder) as aside:
        made = _made(aside, name, wanted, reporter, budget)
        made.bundle.opened_before()  # whoever makes it knows what it runs
        _draw(made, wanted, examine, reporter, budget)
        made.seconds = time.monotonic() - start
        (aside / "README.md").write_text(readme(made), encoding="utf-8")
        settings = training_toml(made.bundle, folder, most_calls=wanted.most_calls)
        (aside / TRAINING).write_text(settings, encoding="utf-8")
    made.bundle = Bundle.open(folder)
    return made


def _made(folder: Path, name: str, wanted: Wanted, reporter: Reporter, budget: Budget) -> Made:
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
        if not graph.recipes:
            reasons = "; ".join(f"{tool}: {error}" for tool, error in graph.failures.items())
            raise UsageError(f"no tool of {origin.label} could be called with success ({reasons[:400]})")
        with staged(reporter, "calling the tools twice", items=None, unit="programs"):
            found = _unsteady(explorer, BoundedWorld(source.open(files), budget), graph, wanted.seed)
        graph = steady(graph, found)
        about = About(name=name, source=source, state=StateRules(volatile=found.state, results=found.results))
        wordings = beginnings(world.tools, {tool: one.writes for tool, one in graph.recipes.items()})
    finally:
        world.close()
    (folder / FOLDER_MARK).write_text(about_toml(about), encoding="utf-8")
    (folder / "graph.json").write_text(graph_json(graph), encoding="utf-8")
    (folder / "wordings.toml").write_text(wordings_toml(wordings), encoding="utf-8")
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
    """Find out how the tools of a world can be called."""
    explorer = Explorer(BoundedWorld(world, budget), random.Random(f"{wanted.seed} probing"))
    with staged(reporter, "trying the tools", items=len(world.tools), unit="tools"):
        return explorer, explorer.explore()


def _unsteady(explorer: Explorer, again: World, graph: Graph, seed: int) -> Unsteady:
    try:
        return unsteady(explorer, again, graph, random.Random(f"{seed} twice"))
    finally:
        again.close()


def _draw(made: Made, wanted: Wanted, examine: Examine, reporter: Reporter, budget: Budget) -> None:
    """Programs that pass the gate, as many as are asked for or as are found, or until somebody stops it."""
    write_tasks(made.bundle, {False: [], True: []})
    with _drawing(made.bundle, wanted, examine, budget) as drawing:
        try:
            drawing.sides({False: wanted.base, True: wanted.held_out}, reporter)
        except KeyboardInterrupt:
            made.stopped = True
    write_tasks(made.bundle, drawing.found)
    made.drawn = Drawn.of(drawing, (wanted.base, wanted.held_out))
    made.out_of_time = budget.is_over and made.base + made.held_out < wanted.base + wanted.held_out


@contextlib.contextmanager
def _drawing(bundle: Bundle, wanted: Asked, examine: Examine, budget: Budget) -> Generator[Drawing]:
    env = Tools(ToolsConfig(most_calls=wanted.most_calls), bundle.path)
    try:
        drawing = Drawing(env, examine, random.Random(f"{wanted.seed} tasks"))
        drawing.is_over = lambda: budget.is_over
        yield drawing
    finally:
        env.world.close()


def redraw(folder: Path, wanted: Asked, examine: Examine, reporter: Reporter) -> Redrawn:
    """Draw the tasks of a bundle anew, by what its files say now; those that were there are gone then.

    Args:
        folder: the bundle.
        wanted: how many.
        examine: the gate that they have to pass.
        reporter: is told how far it is.

    Raises:
        UsageError: no task is found for training, or none for measuring.
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
    return Redrawn(drawn=drawn, tokens=needed)


def _retell(readme: Path, base: int, held_out: int) -> None:
    """Say in a bundle's README how many tasks there are, where it says so."""
    if readme.is_file():
        told = f"{base} tasks for training and {held_out} for measuring"
        text = readme.read_text(encoding="utf-8")
        readme.write_text(_COUNTS.sub(told, text, count=1), encoding="utf-8")


def readme(made: Made) -> str:
    """What was found out, for people."""
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
    """What is no tool, a line for each reason."""
    for why in dict.fromkeys(left_out.values()):
        named = [f"`{tool}`" for tool, one in left_out.items() if one == why]
        if len(named) == 1:
            yield f"- {named[0]} is no tool: {why}"
        else:
            yield f"- {len(named)} are no tools: {why}: {', '.join(named)}"


def warnings(made: Made) -> list[str]:
    """What somebody should know who trains on a bundle: sentences, none where all is well."""
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
    if made.ended:
        notes.append(f"- Not all was recorded: {made.ended}. What was is here.")
    if made.network:
        notes.append("- The system did not let the tools' process be cut off from the network.")
    notes += [
        f"- `{tool}` has no sentence of documentation: tasks ask for it by the words of its name, "
        "until wordings.toml has better ones"
        for tool in made.undocumented
    ]
    if made.drawn.refused:
        notes.append(f"- Drawn programs that are no tasks: {tallied(made.drawn.refused)}")
    if not made.confined:
        notes.append("- The system cannot keep the tools from writing outside their folder.")
    if may_write := getattr(made.bundle.about.source, "may_write", ()):
        notes.append(f"- Beside their own folder the tools may write in {', '.join(may_write)}.")
    if made.out_of_time:
        notes.append("- The time was over before all tasks were drawn; `--most-seconds` allows more.")
    return notes
