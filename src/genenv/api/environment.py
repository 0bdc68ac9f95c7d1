"""Environments in Python: view tasks, roll them out step by step, check the environment, train on it."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from genenv.cli.console import BANDIT
from genenv.cli.progress import ConsoleReporter
from genenv.config.run import RunConfig, load_config
from genenv.config.tables import bundled_configs, toml_value
from genenv.environments import close_environment, is_folder, load_environment
from genenv.environments.base import SeatView
from genenv.environments.stepwise import StepwiseRollout
from genenv.errors import UsageError
from genenv.evaluation.environment_check import Finding, check_environment
from genenv.files import check_writable, write_whole
from genenv.gate.gate import base_tasks, examined
from genenv.progress import Reporter
from genenv.texts import json_line
from genenv.threads import run_with_own_loop
from genenv.tools.bundle import as_typed
from genenv.tools.generate.make_bundle import Wanted, make, warnings
from genenv.tools.generate.training_config import TRAINING, USUAL_CALLS
from genenv.tools.language.model_wordings import Added, Writer, write_wordings
from genenv.tools.language.model_wordings import Wanted as Wording
from genenv.tools.worlds.limits import USUAL, Limits
from genenv.tools.worlds.openapi.service import Service
from genenv.tools.worlds.origins import CodeOrigin, configure, origin_of
from genenv.tools.worlds.source_text import Tool, written_out
from genenv.tools.worlds.sources import ToolOrigin
from genenv.types import Json, Task, Verdict

if TYPE_CHECKING:
    from genenv.environments.base import Environment as World


Values = Mapping[str, object]
"""Settings by dotted key, such as `{"run.rounds": 4, "policy.model": "smollm2-135m"}`."""


class Environment:
    """An environment for programs: its tasks, rollouts, checks, and the settings of a run on it.

    Args:
        name: an environment of genenv (`"household"`), the folder of a bundle (`"./desk"`), or
            `"package.module:Class"`.
        settings: settings of the environment, such as `{"mode": "single"}`. Missing ones have the values of
            the bundle's `train.toml`.

    Raises:
        UsageError: there is no such environment, or a setting is not allowed.
    """

    def __init__(self, name: str | Path, settings: Mapping[str, object] | None = None) -> None:
        self.name = as_typed(name) if isinstance(name, Path) else name
        self.overrides = _selecting(self.name, settings or {})
        """Settings that select this environment, in the form of `--set`."""
        self._config = load_config(self.suggested, self.overrides)
        self._seat: str | None = None

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
        given: Mapping[str, str] | None = None,
        writer: str | None = None,
        limits: Limits | None = None,
        reporter: Reporter | None = None,
    ) -> Environment:
        """Make an environment from your tools: find out how to call them, then generate, run and check tasks.

        The tools are called in a separate process, on copies of their state. Tools of a `server`, and of an
        MCP server with an address, are called for real, and their answers are saved.

        Args:
            tools: functions with type hints, or a class whose methods are the tools; or text, as for `genenv
                env new --from`: a Python file, an OpenAPI document, `mcp:COMMAND`.
            folder: the folder of the new bundle; it must not exist. `Environment(folder)` opens it later.
            tasks: number of training tasks.
            held_out: number of held-out tasks.
            most_calls: maximum number of calls in a task's solution.
            seed: seed of all random draws.
            only: for an OpenAPI document: prefixes of the paths of operations to use.
            files: folder that is copied: the working folder of an MCP server that is started, or a folder
                above a Python file that the file reads from.
            server: address of the service of an OpenAPI document; None: mock tables replace the service.
            headers: headers of requests to it, `"Authorization: Bearer $TOKEN"`. The bundle stores the
                variable's name, never its value.
            most_requests: maximum number of requests to a service on the network.
            allow_writes: also call tools of such a service that may write, for real.
            may_write: folders in which local tools may write, besides a private copy.
            given: of a Python file: arguments that the agent does not choose, such as a framework's context
                or a database: the parameter's name, and `"MODULE:NAME"` of the value or what makes it.
            writer: model that writes the tasks, `openai:BASE_URL#MODEL` or as for `load_agent`; None: rules.
            limits: limits on total time and bytes; None: an hour and a GiB.
            reporter: shows the progress; None: on standard error.

        Raises:
            UsageError: the folder exists, no tool can be called, no task is found, or an argument does not
                apply to this kind of tools.
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
            origin = CodeOrigin(written_out(_listed(tools)))
        configure(origin, may_write, given or {})
        shape: dict[str, Any] = {"base": tasks, "held_out": held_out, "most_calls": most_calls}
        by = Writer(by=writer, seed=seed) if writer else None
        wanted = Wanted(origin=origin, writer=by, seed=seed, limits=limits or USUAL, **shape)
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
    def from_dataset(  # noqa: PLR0913 - each says what is made
        cls,
        rows: Iterable[object] | str | Path,
        reward: Callable[..., object] | str,
        folder: str | Path = "dataset",
        *,
        columns: Sequence[str] = (),
        eval_rows: Iterable[object] | str | Path = "",
        tools: Tool | Sequence[Tool] | str = "",
        settings: Mapping[str, object] | None = None,
    ) -> Environment:
        """Make an environment from prompts and a reward function.

        Args:
            rows: a file (JSON Lines, a JSON list, Parquet), or mappings such as those of a
                `datasets.Dataset`. Each has a `prompt`, a text or chat messages, and any other columns.
            reward: the reward function, `FILE.py:NAME` or a function. It takes `prompt`, `completion` and
                columns by name, and returns a number from 0 to 1; it may be asynchronous. One that takes
                `prompts` and `completions` is called as TRL does.
            folder: where rows and functions that are not in files are written, so that a run can go on.
            columns: columns of which a task bandit learns which values to train on.
            eval_rows: the held-out rows; empty: a tenth of `rows`, by a hash of the prompt.
            tools: tools that the agent may call: functions, a class, or a Python file.
            settings: further settings of the environment, such as `{"success_at": 0.5}`.

        Raises:
            UsageError: a row lacks something, or a row or a function cannot be written.
        """
        place = Path(folder)
        if not isinstance(reward, str) and not inspect.isfunction(reward):
            raise UsageError(
                f"the reward is {reward!r:.80}; give a function that is written with def, or FILE.py:NAME; "
                "of several rewards, one function that combines them"
            )
        given: dict[str, Json] = {
            "data": _in_file(rows, place / "tasks.jsonl"),
            "reward": reward
            if isinstance(reward, str)
            else _in_code([reward], place / "reward.py", getattr(reward, "__name__", "")),
            "eval_data": _in_file(eval_rows, place / "held_out.jsonl"),
            "columns": list(columns),
        }
        if tools:
            given["tools"] = tools if isinstance(tools, str) else _in_code(_listed(tools), place / "tools.py")
        made = cls("dataset", {key: one for key, one in {**given, **(settings or {})}.items() if one != ""})
        if columns:
            made.overrides = (*made.overrides, BANDIT)
        _ = made.world  # finds what is wrong with a row
        return made

    @classmethod
    def of_run(cls, config: RunConfig, agent: str | None = None) -> Environment:
        """Return the environment of a run with the run's settings; with an agent, as at its first seat."""
        made, of = cls.__new__(cls), config.environment
        made.name, made._config, made._seat = of.name, config, config.seat_of(agent)
        made.overrides = _selecting(of.name, of.settings.model_dump(mode="json", exclude_none=True))
        return made

    @cached_property
    def world(self) -> World:
        """The underlying `genenv.environments.base.Environment`."""
        env = load_environment(self._config.environment.name, self._config.environment.settings)
        return env if self._seat is None else cast("World", SeatView(env, self._seat))

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The base data as tasks."""
        return tuple(base_tasks(self.world, self.world.seeds(), seed=self._config.run.seed).values())

    @cached_property
    def held_out(self) -> tuple[Task, ...]:
        """Held-out tasks, for evaluation only."""
        return tuple(self.world.held_out())

    def attempt(self, task: Task) -> StepwiseRollout:
        """Start a step-by-step rollout of a task."""
        return StepwiseRollout(self.world, task)

    def grade(self, task: Task, replies: str | Sequence[str]) -> Verdict:
        """Return the checker's verdict on the agent's reply, or replies, to a task."""
        return self.world.check(task, [replies] if isinstance(replies, str) else replies)

    def check(self, n: int = 100) -> tuple[Finding, ...]:
        """Check the contract of environments, as `genenv check` does; return the findings.

        Args:
            n: number of tasks of each kind to check.
        """
        return run_with_own_loop(lambda: tuple(check_environment(self.world, self._config, n=n)))

    def words(
        self, by: str, *, each: int = 6, seed: int = 0, reporter: Reporter | None = None
    ) -> Sequence[Added]:
        """Have a model write alternative user requests for a bundle's tools; add and return those that pass.

        Args:
            by: the model, as for `load_agent`, or `BASE_URL#MODEL`.
            each: number of wordings that each tool should have in the end.
            seed: seed of all random draws.
            reporter: shows the progress; None: on standard error.

        Raises:
            UsageError: the environment is not a bundle, the model cannot be loaded, or no wording passes.
            GenenvError: the model stopped answering. Wordings that had passed are kept.
        """
        self.close()
        for found in ("world", "tasks", "held_out"):
            vars(self).pop(found, None)  # their wording changes
        wanted = Wording(by=by, each=each, seed=seed)
        return write_wordings(Path(self.name), wanted, reporter or ConsoleReporter())

    @property
    def suggested(self) -> Path | None:
        """The file with the settings that suit a run on a bundle or dataset; None for other environments."""
        if self.name == "dataset":
            return bundled_configs()["dataset"]
        file = Path(self.name) / TRAINING
        return file if is_folder(self.name) and file.is_file() else None

    def run_config(self, overrides: Sequence[str] = (), *, variant: str = "") -> RunConfig:
        """Return settings of a run on this environment: its bundle's suggestion, or the defaults.

        Args:
            overrides: settings as `key=value`, which override the suggested ones.
            variant: named overrides.
        """
        return load_config(self.suggested, [*self.overrides, *overrides], variant=variant)

    def close(self) -> None:
        """Stop the processes that run the environment's tools, if any."""
        if "world" in self.__dict__:
            close_environment(self.world)

    def __enter__(self) -> Self:
        """Return the environment. It is closed when the block ends."""
        return self

    def __exit__(self, *_: object) -> None:
        """See `close`."""
        self.close()

    def __repr__(self) -> str:
        """Return the call that opens the environment."""
        return f"Environment({self.name!r})"


def named(env: Environment | str | Path) -> Environment:
    """Return an environment object unchanged, or open the environment with this name.

    Raises:
        UsageError: there is no environment with this name.
    """
    return env if isinstance(env, Environment) else Environment(env)


def _listed(tools: Tool | Sequence[Tool]) -> Sequence[Tool]:
    return cast("Sequence[Tool]", tools) if isinstance(tools, Sequence) else [tools]


def _in_file(rows: Iterable[object] | str | Path, file: Path) -> str:
    """Return the path of rows, after writing those that are not in a file.

    Raises:
        UsageError: a row is no mapping, or has no form in JSON.
    """
    if isinstance(rows, str | Path):
        return str(rows)
    if isinstance(rows, Mapping):
        keys = ", ".join(map(str, cast("Mapping[object, object]", rows)))
        raise UsageError(
            f"rows are a mapping ({keys:.80}); give a sequence of rows, such as one split of a DatasetDict"
        )
    if not isinstance(cast(object, rows), Iterable):
        raise UsageError(f"rows are {type(rows).__name__}; give a file, or mappings of columns to values")
    lines: list[str] = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise UsageError(
                f"row {number} is {type(row).__name__}, not a mapping of columns to values; of a pandas "
                'DataFrame give df.to_dict("records")'
            )
        values = {str(name): value for name, value in cast("Mapping[object, object]", row).items()}
        try:
            lines.append(json_line({name: _in_json(name, value) for name, value in values.items()}))
        except (TypeError, ValueError) as error:
            raise UsageError(f"row {number} cannot be written as JSON: {error}") from error
    return _written("".join(f"{line}\n" for line in lines), file)


def _in_json(column: str, value: object) -> Json:
    """Return a value of a row as JSON. Arrays of NumPy become lists; NaN, a missing value, becomes null.

    Raises:
        TypeError: JSON has no such value. The message names the column.
    """
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return {str(name): _in_json(column, one) for name, one in pairs}
    if isinstance(value, list | tuple):
        return [_in_json(column, one) for one in cast("Sequence[object]", value)]
    if value is None or isinstance(value, str | int | float):
        return None if value != value else value  # NaN is no JSON
    if hasattr(value, "tolist"):  # of NumPy and torch
        return _in_json(column, cast(Any, value).tolist())
    raise TypeError(
        f"column {column!r} has {type(value).__name__}; make it text or a number, or leave it out"
    )


def _in_code(functions: Sequence[Tool], file: Path, name: str = "") -> str:
    """Write functions or a class to a Python file; return its path, with the class or this name after it."""
    code = written_out(functions)
    return ":".join(filter(None, (_written(code.text, file), code.made_of or name)))


def _written(text: str, file: Path) -> str:
    """Write a file with a hash of its text in its name, so that none is overwritten; return its path."""
    named = file.with_stem(f"{file.stem}-{hashlib.sha256(text.encode()).hexdigest()[:8]}")
    if not named.is_file():
        named.parent.mkdir(parents=True, exist_ok=True)
        write_whole(named, text)
    return str(named)


def _origin(  # noqa: PLR0913 - each is an argument of `from_tools`
    text: str,
    only: Sequence[str],
    files: str | Path | None,
    server: str | None,
    headers: Sequence[str],
    most: int | None,
    writes: bool,
) -> ToolOrigin:
    """Return the source of tools that a text names.

    Raises:
        UsageError: the text does not name a source of tools, or an argument does not apply to it.
    """
    if headers and server is None:
        raise UsageError("headers go along with requests to a server, and none is given")
    service = None if server is None else Service(address=server, headers=tuple(headers))
    folder = None if files is None else Path(files)
    return origin_of(text, only, folder, writes=writes, service=service, most=most)


def _selecting(name: str, settings: Mapping[str, object]) -> tuple[str, ...]:
    own = {f"environment.{key}": value for key, value in settings.items()}
    return tuple(words({"environment.name": name, **own}))


def words(values: Values) -> list[str]:
    """Return settings by key as `key=value` texts, as for `--set`.

    Raises:
        UsageError: a value cannot be written in TOML.
    """
    return [f"{key}={toml_value(_plain(key, value))}" for key, value in values.items()]


def _plain(key: str, value: object) -> Json:
    """Return a value as JSON; paths and NumPy numbers are converted."""
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
