"""A bundle: the folder that holds an environment made of your own tools. All files in it can be edited.

bundle.toml    the source of the tools, and the parts of the state that checks ignore
files/         the tools' own files
graph.json     the recipes and links of the tools
wordings.toml  how users ask for each tool; wordings-measuring.toml: in held-out tasks, if these differ
values.toml    values that users state, if given; values-measuring.toml: in held-out tasks
tasks/         base data and held-out tasks, one program a line
train.toml     initial settings of a training run
README.md      a summary of what exploration found
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import os
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date as Day
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from genenv.config.tables import toml_value
from genenv.environments import FOLDER_MARK
from genenv.errors import DataError, UsageError, first_line, first_problem
from genenv.files import read_model
from genenv.texts import inert
from genenv.tools.discover.asking import observed
from genenv.tools.discover.recipes import Graph, parsed_result
from genenv.tools.discover.state_values import ANY, KEY
from genenv.tools.language.words import SpokenValues, with_words_of
from genenv.tools.spec import SIZES, Program, Size
from genenv.tools.worlds.base import Call, LimitedWorld, World
from genenv.tools.worlds.folder import content_of
from genenv.tools.worlds.jsonable import state_of
from genenv.tools.worlds.mcp.world import McpSource
from genenv.tools.worlds.sources import PythonSource, Source
from genenv.types import Json
from genenv.untrusted.documents import read_toml


class Starts(BaseModel, frozen=True, extra="forbid"):
    """Several initial states of rollouts; a hidden tool sets the state by its number.

    The first states are for training, the others for held-out tasks.
    """

    tool: str
    argument: str = "state"
    training: int = Field(ge=1)
    measuring: int = Field(ge=1)

    def call(self, state: int) -> Call:
        """Return the call that sets the initial state to a numbered one."""
        return Call(tool=self.tool, args={self.argument: state})

    def states(self, *, measuring: bool = False) -> range:
        """Return the numbers of the states for training or for held-out tasks (`measuring`)."""
        return range(self.training, self.training + self.measuring) if measuring else range(self.training)

    def state_of(self, program: Program) -> int | None:
        """Return the number of the state that a program starts in; None if its calls set no known state."""
        first = program.before[0] if program.before else None
        if first is None or first.tool != self.tool:
            return None
        state = first.args.get(self.argument)
        return state if isinstance(state, int) and 0 <= state < self.training + self.measuring else None


class ToolCircles(BaseModel, frozen=True, extra="forbid"):
    """Circles: groups of tools that plausibly occur in one request. All calls of a task are of one circle.

    Two tools of a held-out circle never occur together in a training task.
    """

    training: tuple[str, ...] = ()
    """Each circle as tool names separated by spaces."""
    measuring: tuple[str, ...] = ()

    @cached_property
    def _kept(self) -> frozenset[frozenset[str]]:
        return frozenset(
            frozenset(pair) for circle in self.measuring for pair in itertools.combinations(circle.split(), 2)
        )

    def allows(self, tools: Collection[str], *, measuring: bool = False) -> bool:
        """Whether tools may occur together in a training task, or in a held-out task (`measuring`)."""
        pairs = [frozenset(pair) for pair in itertools.combinations(sorted(set(tools)), 2)]
        return all((pair in self._kept) is measuring for pair in pairs)

    def groups(
        self, subject: str, n: int, rng: random.Random, *, most: int, measuring: bool = False
    ) -> list[list[str]]:
        """Return groups of `n` tools that may occur together, each with a given tool and in random order.

        Args:
            subject: the tool that is in every group.
            n: number of tools in a group.
            rng: samples groups if there are more than `most`, and shuffles each.
            most: maximum number of groups.
            measuring: whether the groups are for held-out tasks.
        """
        found = list(dict.fromkeys(self._groups(subject, n, measuring=measuring)))
        picked = rng.sample(found, min(most, len(found)))
        return [rng.sample(group, n) for group in picked]

    def _groups(self, subject: str, n: int, *, measuring: bool) -> Iterator[tuple[str, ...]]:
        for circle in self.measuring if measuring else self.training:
            names = circle.split()
            if subject in names:
                rest = [name for name in names if name != subject]
                for others in itertools.combinations(rest, n - 1):
                    group = tuple(sorted((subject, *others)))
                    if self.allows(group, measuring=measuring):
                        yield group


def companions(together: ToolCircles, chain: Sequence[str], *, measuring: bool = False) -> list[str]:
    """Return the tools that share a circle with a tool of a chain and may occur with the whole chain."""
    circles = [one.split() for one in (together.measuring if measuring else together.training)]
    names = dict.fromkeys(one for circle in circles if not set(chain).isdisjoint(circle) for one in circle)
    return [
        name for name in names if name not in chain and together.allows((*chain, name), measuring=measuring)
    ]


VERSION = 1
T = TypeVar("T")
_LOG = logging.getLogger(__name__)


class StateRules(BaseModel, frozen=True, extra="forbid"):
    """Values that checks ignore because they differ between equal executions."""

    volatile: tuple[str, ...] = ()
    """Kinds of values that may differ, such as `tickets.*.created_at`; `tickets.#`: names of records;
    `files.logs/`: all files of a folder."""
    results: tuple[str, ...] = ()
    """`TOOL.KIND`: values in the results of tools that may differ, such as `get_time.now`."""


class About(BaseModel, frozen=True, extra="forbid"):
    """The content of `bundle.toml`."""

    version: int = Field(default=VERSION, ge=1, le=VERSION)
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    source: Source
    state: StateRules = StateRules()
    leave_out: tuple[str, ...] = ()
    """Tools that are never shown and that no task calls."""
    quoted: bool = True
    """Whether texts in user requests are put in quotation marks; if not, wordings contain the marks."""
    today: str = ""
    """The top-level value of the state that is today's date; the agent's prompt states this date."""
    starts: Starts | None = None
    """Initial states of rollouts, if there are several."""
    groups: dict[str, tuple[str, ...]] = {}
    """Groups of related tools, such as those of an app. A simulator's prompt shows a group together, and each
    group is a skill."""
    alike: tuple[tuple[str, ...], ...] = ()
    """Tools that can replace each other: if one of them is withheld, the others are not shown either. Tasks
    whose tool is withheld exist only if this is set."""
    first_day: Day | None = None
    """The first day of made-up dates; None: that of bundles that were made before there was this setting."""
    user_answers: bool = False
    """Whether there are tasks whose request omits a value, which the user gives when the agent asks."""
    refusals: bool = False
    """Whether there are tasks whose call the tool refuses, of which the agent has to report that."""
    shown: tuple[Size, ...] = SIZES
    """Numbers of tools that a task may show."""
    together: ToolCircles | None = None
    """Tools that may occur together in a task; None: any tools."""


@cache
def _say_that_nothing_confines() -> None:
    """Warn once per process that tools are not confined to their folder."""
    _LOG.warning(
        "this system cannot keep tools from writing outside their folder (it has no Landlock): what they "
        "are asked to write or delete elsewhere, they do"
    )


def as_typed(folder: Path) -> str:
    """Return the path of a bundle in a form that is not mistaken for an environment name."""
    return str(folder) if "/" in str(folder) else f"./{folder}"


class Bundle:
    """A bundle on disk.

    Args:
        path: the folder of the bundle.
        about: the content of its `bundle.toml`.
    """

    def __init__(self, path: Path, about: About) -> None:
        self.path, self.about = path, about
        self.name = about.name

    @classmethod
    def open(cls, path: Path) -> Bundle:
        """Open a bundle and read its `bundle.toml`.

        Raises:
            UsageError: the file is missing or not valid.
        """
        file = path / FOLDER_MARK
        if not file.is_file():
            why = (
                f"is no bundle of tools: it has no {FOLDER_MARK}"
                if path.is_dir()
                else "is no folder; a bundle of tools is one"
            )
            raise UsageError(f"{path} {why}; make one with `genenv env new NAME --from tools.py`")
        try:
            about = About.model_validate(read_toml(file.read_text(encoding="utf-8"), str(file)))
            return cls(path, _with_texts(about, path / "files"))
        except UnicodeDecodeError as error:
            raise UsageError(f"{file} is not valid TOML: {error}") from error
        except ValidationError as error:
            raise UsageError(f"{file}: {first_problem(error)}") from error

    def world(self, call_s: float) -> World:
        """Return the tools, ready to be called.

        Raises:
            UsageError: they cannot be loaded.
        """
        self._say_that_it_is_code()
        opened, starts = self.about.source.open(self.path / "files", call_s), self.about.starts
        if not opened.confined:
            _say_that_nothing_confines()
        hidden = (*self.about.leave_out, *([starts.tool] if starts else []))
        graph = self.graph if (self.path / "graph.json").is_file() else Graph()
        world = observed(opened, graph.questions, graph.begins_with)
        return LimitedWorld(world, hidden) if hidden else world

    def opened_before(self) -> bool:
        """Whether this machine opened the bundle before with the same files; also record that it does now."""
        digest = hashlib.sha256(cast(Any, self.about.source).model_dump_json().encode())
        files = self.path / "files"
        for file in sorted(path for path in files.rglob("*") if path.is_file()):
            digest.update(f"\0{file.relative_to(files)}\0".encode("utf-8", "replace"))
            digest.update(file.read_bytes())
        try:
            usual = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
            mark = Path(usual, "genenv", "opened", digest.hexdigest()[:32])
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch(exist_ok=False)
        except FileExistsError:
            return True
        except (OSError, RuntimeError):  # no home directory, or it is not writable
            return False
        return False

    def _say_that_it_is_code(self) -> None:
        """Warn that the bundle runs code on this machine, once for each content of its files."""
        source = self.about.source
        if not isinstance(source, PythonSource | McpSource) or self.opened_before():
            return
        may = ["reach the network"] if isinstance(source, McpSource) and source.network else []
        may += [f"write in {', '.join(source.may_write)}"] if source.may_write else []
        beyond = f"; beyond its own folder it may {' and '.join(may)}" if may else ""
        _LOG.warning(
            "%s runs code on this machine: %s%s; if it is not your own, look at it before you go on "
            "(this is said once)",
            *(inert(one) for one in (as_typed(self.path), source.code, beyond)),
        )

    @cached_property
    def graph(self) -> Graph:
        """The recipe of each tool, and the links between tools."""
        return read_model(self.path / "graph.json", Graph)

    @cached_property
    def wordings(self) -> dict[str, list[str]]:
        """The wordings of each tool."""
        return _toml(self.path / "wordings.toml", dict[str, list[str]], "lists of wordings by tool")

    @cached_property
    def measuring_wordings(self) -> dict[str, list[str]] | None:
        """The wordings of each tool in held-out tasks; None: those of training tasks."""
        file = self.path / "wordings-measuring.toml"
        return _toml(file, dict[str, list[str]], "lists of wordings by tool") if file.is_file() else None

    @cached_property
    def spoken_values(self) -> SpokenValues:
        """The values that users state in training tasks, and words for all values."""
        own, other = (self._spoken_values(name) for name in ("values", "values-measuring"))
        return with_words_of(own, other)

    @cached_property
    def measuring_spoken_values(self) -> SpokenValues:
        """The values that users state in held-out tasks."""
        return self._spoken_values("values-measuring")

    def _spoken_values(self, name: str) -> SpokenValues:
        file = self.path / f"{name}.toml"
        return _toml(file, SpokenValues, "lists of values by name") if file.is_file() else SpokenValues()

    @cached_property
    def base(self) -> dict[str, Program]:
        """Training programs by id."""
        return self._programs("base")

    @cached_property
    def held_out(self) -> dict[str, Program]:
        """Held-out programs by id."""
        return self._programs("held-out")

    def _programs(self, which: str) -> dict[str, Program]:
        file = self.path / "tasks" / f"{which}.jsonl"
        found: dict[str, Program] = {}
        try:
            lines = file.read_text(encoding="utf-8").split("\n")
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from error
        for number, line in enumerate(lines):
            if not line:
                continue
            try:
                found[f"{self.name}-{which}-{len(found):04d}"] = Program.model_validate_json(line)
            except ValidationError as error:
                raise DataError(f"{file}, line {number + 1}: {first_problem(error)}") from error
        return found

    def comparable(self, state: Json) -> Json:
        """Return a state without the values that the bundle declares volatile."""
        return comparable(state, frozenset(self.about.state.volatile)) if self.about.state.volatile else state

    def is_unsteady(self, tool: str) -> bool:
        """Whether nothing of a tool's results counts, as with a text that has the time in it."""
        return f"{tool}." in self.about.state.results

    def found(self, tool: str, result: Json) -> Json:
        """Return what counts of a tool's result: as of a state, and without values declared volatile."""
        own = (one.removeprefix(f"{tool}.") for one in self.about.state.results if one.startswith(f"{tool}."))
        kinds = frozenset(own)
        return state_of(comparable(parsed_result(result), kinds) if kinds else result)


def _with_texts(about: About, files: Path) -> About:
    """Have a volatile name that is that of a text file without its ending mean the file, as it once did."""
    volatile = about.state.volatile
    if not volatile or not isinstance(about.source, PythonSource):
        return about
    names = {file: file.relative_to(files) for file in sorted(files.rglob("*"))}
    called = {file: name for file, name in names.items() if str(name.with_suffix("")) in volatile}
    texts = [f"files.{name}" for file, name in called.items() if isinstance(content_of(file), str)]
    rules = about.state.model_copy(update={"volatile": (*dict.fromkeys((*volatile, *texts)),)})
    return about.model_copy(update={"state": rules})


def comparable(state: Json, volatile: frozenset[str], kind: str = "") -> Json:
    """Return a state without volatile values; records with volatile names become a list sorted by content.

    Of a table whose values are volatile, the names of its records still count.
    """

    def inner(name: str) -> str:
        return f"{kind}.{name}" if kind else name

    if isinstance(state, Mapping):
        folders = tuple(one for one in volatile if one.endswith("/"))
        if inner(ANY) in volatile:
            state = dict.fromkeys(state)
        if inner(KEY) in volatile:
            kept = [comparable(one, volatile, inner(ANY)) for one in state.values()]
            return sorted(kept, key=lambda one: json.dumps(one, sort_keys=True))
        return {
            key: comparable(one, volatile, _kind_of(kind, key, volatile))
            for key, one in state.items()
            if inner(key) not in volatile and not (folders and inner(key).startswith(folders))
        }
    if isinstance(state, list):
        if inner(ANY) in volatile:  # how many there are still counts
            return [None for _ in state]
        return [comparable(one, volatile, inner(ANY)) for one in state]
    return state


def _kind_of(kind: str, key: str, volatile: frozenset[str]) -> str:
    """Return the kind of the value at a key: by the key itself, or with `*` as the volatile kinds name it.

    Of a file in a folder that is `notes/*`: `notes/*.updated` is that field of every file in `notes`.
    """
    literal, folder = f"{kind}.{key}" if kind else key, key.rpartition("/")[0]
    if not any(one == literal or one.startswith(f"{literal}.") for one in volatile):
        for name in (f"{folder}/{ANY}", ANY) if folder else (ANY,):
            here = f"{kind}.{name}" if kind else name
            if any(one.startswith(f"{here}.") for one in volatile):
                return here
    return literal


def _toml(file: Path, kind: type[T], what: str) -> T:
    try:
        return TypeAdapter(kind).validate_python(read_toml(file.read_text(encoding="utf-8"), str(file)))
    except (OSError, ValueError) as error:  # pydantic's errors are ValueErrors
        raise UsageError(f"{file} cannot be read as {what}: {first_line(error)}") from error


def graph_json(graph: Graph) -> str:
    """Return the graph of recipes and links as the text of `graph.json`."""
    return json.dumps(dataclasses.asdict(graph), ensure_ascii=False, indent=1) + "\n"


def about_toml(about: About) -> str:
    """Return the text of `bundle.toml`, with a line for each setting."""
    told = {key: json.dumps(value) for key, value in about.model_dump(mode="json").items()}
    first = "" if about.first_day is None else f"first_day = {told['first_day']}  # of made-up dates\n"
    source = "\n".join(
        f"{key} = {toml_value(value)}" for key, value in about.source.model_dump(mode="json").items()
    )
    return f"""# A bundle of tools, made by `genenv env new`. All of it can be edited.
version = {about.version}
name = {told["name"]}
leave_out = {told["leave_out"]}  # tools that nobody is shown, and no task calls
user_answers = {told["user_answers"]}  # true: in some tasks users omit a value and give it when asked
refusals = {told["refusals"]}  # true: some tasks ask for what the tools refuse, and the agent has to say so
{first}
# Where the tools come from; files are those of the folder `files`.
[source]
{source}

[state]
# What may differ without being wrong, such as "tickets.*.created_at"; "tickets.#": the names of records;
# "files.logs/": all files of a folder; "notes/*.updated": a field of all JSON files in a folder.
volatile = {json.dumps(about.state.volatile)}
# The same of what tools find, such as "get_time.now".
results = {json.dumps(about.state.results)}
"""


def wordings_toml(wordings: Mapping[str, Sequence[str]]) -> str:
    """Return the text of `wordings.toml`, with a comment on how to edit it."""
    lines = [
        "# How a user asks for each tool. {name} stands for the value of a parameter, {arguments} for all",
        "# values that have no blank of their own. Add your own, such as:",
        '# refund = ["refund {amount} dollars of order {order_id}"]',
        "",
        *(
            f"{toml_key(name)} = {json.dumps(listed, ensure_ascii=False)}"
            for name, listed in wordings.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def toml_key(name: str) -> str:
    """Return a tool's name as a TOML key."""
    bare = name.replace("_", "").replace("-", "").isalnum() and name.isascii()
    return name if bare else json.dumps(name)


def program_line(program: Program) -> str:
    """Return a program as one line of JSON."""
    return cast(Any, program).model_dump_json(exclude_defaults=True)


def values_toml(spoken: SpokenValues) -> str:
    """Return the text of `values.toml`: single values that users state, by name."""
    lines = [
        f"{toml_key(name)} = {json.dumps(values, ensure_ascii=False)}"
        for name, values in spoken.values.items()
    ]
    return "\n".join(["# Values with which calls succeed, as a model found them.", "[values]", *lines, ""])
