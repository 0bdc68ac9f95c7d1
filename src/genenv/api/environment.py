"""Environments in Python: look at tasks, attempt them step by step, check the environment, train on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

from genenv.cli.progress import ConsoleReporter
from genenv.config.run import RunConfig, load_config
from genenv.config.tables import toml_value
from genenv.environments import close_environment, load_environment
from genenv.environments import is_folder as is_folder
from genenv.environments.stepwise import StepwiseRollout
from genenv.errors import UsageError
from genenv.evaluation.environment_check import Finding, check_environment
from genenv.files import check_writable
from genenv.gate.gate import base_tasks, examined
from genenv.progress import Reporter
from genenv.threads import run_with_own_loop
from genenv.tools.bundle import as_typed
from genenv.tools.generate.make_bundle import Wanted, make, warnings
from genenv.tools.generate.training_config import TRAINING, USUAL_CALLS
from genenv.tools.language.model_wordings import Added, write_wordings
from genenv.tools.language.model_wordings import Wanted as Wording
from genenv.tools.worlds.limits import USUAL, Limits
from genenv.tools.worlds.openapi.service import Service
from genenv.tools.worlds.origins import CodeOrigin, ToolOrigin, let_write, origin_of
from genenv.tools.worlds.source_text import Tool, written_out
from genenv.types import Json, Task, Verdict

if TYPE_CHECKING:
    from genenv.environments.base import Environment as World


Values = Mapping[str, object]
"""Such as `{"run.rounds": 4, "policy.model": "smollm2-135m"}`."""


class Environment:
    """An environment in which tasks are written, attempted and checked.

    Args:
        name: one that comes with genenv (`"household"`), the folder of a bundle (`"./desk"`), or
            `"package.module:Class"`.
        settings: the environment's own, such as `{"mode": "single"}`; those left out are as a bundle's own
            `train.toml` has them.

    Raises:
        UsageError: there is no such environment, or a setting is not allowed.
    """

    def __init__(self, name: str | Path, settings: Mapping[str, object] | None = None) -> None:
        self.name = as_typed(name) if isinstance(name, Path) else name
        own: Values = {f"environment.{key}": value for key, value in (settings or {}).items()}
        self.overrides = tuple(words({"environment.name": self.name, **own}))
        """Which environment it is, as for `--set`."""
        self._config: RunConfig = load_config(self.suggested, self.overrides)

    @classmethod
    def from_tools(  # noqa: PLR0913 - each says what is made
        cls,
        tools: Tool | Sequence[Tool] | str | Path,
        folder: str | Path = "tools",
        *,
        tasks: int = 200,
        held_out: int = 100,
        most_calls: int = USUAL_CALLS,
        seed: int = 0,
        only: Sequence[str] = (),
        files: str | Path | None = None,
        server: str | None = None,
        headers: Sequence[str] = (),
        most_requests: int | None = None,
        allow_writes: bool = False,
        may_write: Sequence[str | Path] = (),
        limits: Limits | None = None,
        reporter: Reporter | None = None,
    ) -> Environment:
        """Make an environment of your own tools: find out how to call them, draw tasks, run and check them.

        The tools are called, in a process of their own and on copies of their state; those of a `server`, or
        of an MCP server with an address, for real, and their answers are kept.

        Args:
            tools: functions with type hints, or a class whose methods are the tools; or text, as for
                `genenv env new --from`: a Python file, an OpenAPI document, `mcp:COMMAND`.
            folder: where the bundle is made; it must not be there yet. `Environment(folder)` opens it again.
            tasks: how many for training.
            held_out: how many for measuring.
            most_calls: so many calls at most solve one of them.
            seed: of all that is drawn.
            only: of an OpenAPI document: operations whose path begins like one of these.
            files: folder whose copy an MCP server that is started works in.
            server: address of an OpenAPI document's service; left out, mock tables take its place.
            headers: go along with requests there, `"Authorization: Bearer $TOKEN"`; the bundle keeps the
                variable's name, never what it holds.
            most_requests: so many at most are sent to a service on the network.
            allow_writes: call tools there too that may write, for real.
            may_write: folders, beside the copy of their own, in which tools that are run here may write.
            limits: of the time and bytes that all of it may take; left out, an hour and a GiB.
            reporter: shows the progress; left out, on standard error.

        Raises:
            UsageError: the folder is there already, nothing of the tools can be called, no task is found, or
                something is said that is not of such tools.
        """
        shown = reporter or ConsoleReporter()
        of_text = (tuple(only), files, server, tuple(headers), most_requests, allow_writes)
        if isinstance(tools, str | Path):
            origin = _origin(str(tools), *of_text)
            shown.note(origin.warning)
        elif any(of_text):
            raise UsageError(
                "only, files, server, headers, most_requests and allow_writes are of an OpenAPI document or "
                "an MCP server, and the tools are functions"
            )
        else:
            listed = cast("Sequence[Tool]", tools) if isinstance(tools, Sequence) else [tools]
            origin = CodeOrigin(written_out(listed))
        let_write(origin, may_write)
        shape = {"base": tasks, "held_out": held_out, "most_calls": most_calls}
        wanted = Wanted(origin=origin, seed=seed, limits=limits or USUAL, **shape)
        check_writable(Path(folder), "folder")
        made = make(Path(folder), wanted, examined, shown)
        for warning in warnings(made):
            shown.note(warning)
        if made.stopped:
            raise KeyboardInterrupt
        if made.drawn.lacking is not None:
            raise UsageError(f"{made.drawn.lacking}; {folder} keeps what was found out, README.md says more")
        return cls(Path(folder))

    @classmethod
    def of_run(cls, config: RunConfig) -> Environment:
        """The environment of a run's settings."""
        own = config.environment.settings.model_dump(mode="json", exclude_none=True)
        return cls(config.environment.name, own)

    @cached_property
    def world(self) -> World:
        """The environment itself: see `genenv.environments.base.Environment`."""
        return load_environment(self._config.environment.name, self._config.environment.settings)

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The base data as tasks."""
        return tuple(base_tasks(self.world, self.world.seeds(), seed=self._config.run.seed).values())

    @cached_property
    def held_out(self) -> tuple[Task, ...]:
        """Tasks for measuring only."""
        return tuple(self.world.held_out())

    def attempt(self, task: Task) -> StepwiseRollout:
        """Start an attempt at a task, step by step."""
        return StepwiseRollout(self.world, task)

    def grade(self, task: Task, replies: Sequence[str]) -> Verdict:
        """The verdict on an attempt, from the agent's replies."""
        return self.world.check(task, replies)

    def check(self, n: int = 100) -> tuple[Finding, ...]:
        """Check what every environment promises, as `genenv check` does.

        Args:
            n: number of tasks of each kind to look at.
        """
        return run_with_own_loop(lambda: tuple(check_environment(self.world, self._config, n=n)))

    def words(
        self, by: str, *, each: int = 6, seed: int = 0, reporter: Reporter | None = None
    ) -> Sequence[Added]:
        """Have a model write ways in which users ask for the tools of a bundle, and add those that pass.

        Args:
            by: who writes them, as for `load_agent`, or `BASE_URL#MODEL`.
            each: so many each tool is to have in the end.
            seed: of all that is drawn.
            reporter: shows the progress; left out, on standard error.

        Raises:
            UsageError: it is no bundle, the model cannot be had, or nothing that it wrote passes.
            GenenvError: it stopped answering; what had passed is kept.
        """
        self.close()
        for found in ("world", "tasks", "held_out"):
            vars(self).pop(found, None)  # their wording changes
        wanted = Wording(by=by, each=each, seed=seed)
        return write_wordings(Path(self.name), wanted, reporter or ConsoleReporter())

    @property
    def suggested(self) -> Path | None:
        """The file with a bundle's own settings of a run; None for other environments."""
        file = Path(self.name) / TRAINING
        return file if is_folder(self.name) and file.is_file() else None

    def run_config(self, overrides: Sequence[str] = (), *, variant: str = "") -> RunConfig:
        """Settings of a run on this environment: those that its bundle suggests, or the defaults.

        Args:
            overrides: `key=value` each; they win.
            variant: named overrides.
        """
        return load_config(self.suggested, [*self.overrides, *overrides], variant=variant)

    def close(self) -> None:
        """Stop the processes that run its tools, if any."""
        if "world" in self.__dict__:
            close_environment(self.world)

    def __enter__(self) -> Self:
        """Close the environment when the block ends."""
        return self

    def __exit__(self, *_: object) -> None:
        """See `close`."""
        self.close()

    def __repr__(self) -> str:
        """The call that opens it."""
        return f"Environment({self.name!r})"


def named(env: Environment | str | Path) -> Environment:
    """The environment itself, or the one of that name.

    Raises:
        UsageError: there is none of that name.
    """
    return env if isinstance(env, Environment) else Environment(env)


def _origin(  # noqa: PLR0913 - each is an argument of `from_tools`
    text: str,
    only: Sequence[str],
    files: str | Path | None,
    server: str | None,
    headers: Sequence[str],
    most: int | None,
    writes: bool,
) -> ToolOrigin:
    """Where the tools come from that a text names.

    Raises:
        UsageError: it is nothing that tools can come from, or something is said that is not of it.
    """
    if headers and server is None:
        raise UsageError("headers go along with requests to a server, and none is given")
    service = None if server is None else Service(address=server, headers=tuple(headers))
    folder = None if files is None else Path(files)
    return origin_of(text, only, folder, writes=writes, service=service, most=most)


def words(values: Values) -> list[str]:
    """Settings by key as `key=value` texts, as for `--set`.

    Raises:
        UsageError: a value has no form in TOML.
    """
    return [f"{key}={toml_value(_plain(key, value))}" for key, value in values.items()]


def _plain(key: str, value: object) -> Json:
    """A value as JSON; paths and numbers of numpy are converted."""
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {str(name): _plain(key, one) for name, one in table.items()}
    if isinstance(value, list | tuple):
        return [_plain(key, one) for one in cast("Sequence[object]", value)]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise UsageError(f"{key} cannot be {value!r}; give text, a number, true or false, or a list of these")
