"""The command `genenv export-env`: writes an environment's tasks as a Python package for other trainers.

The package holds the tasks as rows, the environment's settings, and a short module for each trainer.
"""

from __future__ import annotations

import json
import keyword
import random
import re
import shutil
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, cast

import typer
from pydantic import BaseModel

from genenv.cli.console import Overrides, begin
from genenv.cli.environment import config_of
from genenv.cli.progress import ConsoleReporter
from genenv.config.resolved import anchored
from genenv.environments import (
    FOLDER_MARK,
    close_environment,
    environment_config,
    environment_name,
    environment_names,
    is_folder,
    shown_name,
)
from genenv.environments.base import Environment, tools_of
from genenv.environments.mixture import NAME as MIXTURE
from genenv.errors import UsageError
from genenv.files import check_writable, filled
from genenv.gate.gate import each_base_task
from genenv.interop.exported import ABOUT, BUNDLE, CALLS, About, Exported, row_of
from genenv.progress import Reporter, staged
from genenv.runs.folder import RunFolder
from genenv.runs.store.store import PoolStore
from genenv.settings import with_places
from genenv.texts import json_line
from genenv.types import Origin, Rejection, Task

_INIT = '''"""Written by `genenv export-env`. As a module of verifiers: a taskset and its harness."""

from pathlib import Path
from typing import Any

__all__ = ["GenenvHarness", "GenenvTaskset"]

FOLDER = Path(__file__).parent / "data"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from genenv.interop.verifiers import classes

    globals()["GenenvTaskset"], globals()["GenenvHarness"] = classes(FOLDER)
    return globals()[name]
'''
_TRL = '''"""For TRL: GRPOTrainer(..., reward_funcs=reward, environment_factory=Environment)."""

from functools import partial

from genenv.interop import trl

from . import FOLDER

Environment = trl.environment_class(FOLDER)
reward = trl.reward_function(FOLDER)
dataset = partial(trl.dataset, FOLDER)
with_tools = trl.with_tools
'''
_OPENENV = '''"""For OpenEnv: uvicorn PACKAGE.openenv_app:app --port 8000"""

from genenv.interop import openenv

from . import FOLDER

app = openenv.app(FOLDER)
'''
_GYM = '''"""For Gymnasium: import PACKAGE.gym_env; gymnasium.make("genenv/PACKAGE-v0")"""

from genenv.interop import gym

from . import FOLDER

ENV_ID = gym.register("PACKAGE", FOLDER)
'''
_PYPROJECT = """\
[project]
name = "PACKAGE"
version = "0.1.0"
description = "An environment that genenv export-env wrote"
requires-python = ">=3.11"
dependencies = ["genenv"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["PACKAGE"]
"""
_OPENENV_YAML = """\
spec_version: 1
name: PACKAGE
type: space
runtime: fastapi
app: PACKAGE.openenv_app:app
port: 8000
"""

FILES: Mapping[str, str] = {
    "{package}/__init__.py": _INIT,
    "{package}/trl_env.py": _TRL,
    "{package}/openenv_app.py": _OPENENV,
    "{package}/gym_env.py": _GYM,
    "pyproject.toml": _PYPROJECT,
    "openenv.yaml": _OPENENV_YAML,
}
"""The text of each generated file by path; PACKAGE in a text is replaced by the package's name."""


def _readme(about: About, environment: str, counts: tuple[int, int], replies: str) -> str:
    """Return the README of an exported package.

    Args:
        about: its name and settings.
        environment: the environment's name for people.
        counts: the numbers of tasks, for training and held out.
        replies: sentences for the reader about how a reply to a task is written.
    """
    settings = (
        ", ".join(f"{key} = {json.dumps(value)}" for key, value in about.settings.items()) or "defaults"
    )
    package, (train, held_out) = about.name, counts
    return f"""\
# {package}

Written by `genenv export-env` of the environment `{environment}` ({settings}): {train} tasks for
training, {held_out} for measuring. A row (`{package}/data/*.jsonl`) holds everything that an
attempt begins with, and code grades it: equal rows and equal replies get equal verdicts, in genenv and in
each of these.

```sh
pip install -e .    # beside genenv, without its extra mcp: verifiers and OpenEnv want another one
```

**TRL**

```python
from {package}.trl_env import Environment, dataset, reward, with_tools
from trl import GRPOConfig, GRPOTrainer

model, tokenizer = with_tools("smollm2-135m")    # or a folder, or a name on the hub: Qwen/Qwen3-0.6B
trainer = GRPOTrainer(model, processing_class=tokenizer, reward_funcs=reward, train_dataset=dataset(),
                      environment_factory=Environment, args=GRPOConfig(output_dir="out"))
trainer.train()
```

TRL refuses a model whose chat template offers no tools, such as SmolLM2's. `with_tools` gives one that knows
ChatML the template of Qwen3. Where a task is one reply without tools, leave `environment_factory` out.

**verifiers**

```sh
vf-eval {package} --env.agent.runtime.type subprocess --model MODEL --client.base-url URL --no-push
```

**OpenEnv**

```sh
uvicorn {package}.openenv_app:app --port 8000
```

A WebSocket is a session: `reset(seed=3)` or `reset(task_id=..., split="held_out")`, then
`step({{"content": ..., "tool_calls": [...]}})` until `done`.

**Gymnasium**

```python
import gymnasium
import {package}.gym_env

env = gymnasium.make("genenv/{package}-v0")
text, info = env.reset(seed=3)
text, reward, terminated, truncated, info = env.step(reply)
```

{replies}
"""


_NATIVE: Mapping[str, str] = {"style": "native", "mode": "multi"}
"""Settings that other trainers expect, if the environment has them: native tool calls, several turns."""


_TAKEN = frozenset({"datasets", "genenv", "gymnasium", "openenv", "trl", "verifiers"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The parameters of an export, which `write` takes."""

    environment: str
    """The environment's name, the folder of a bundle, or `package.module:Class`."""
    settings: Mapping[str, object]
    """The environment's settings."""
    asked: frozenset[str] = frozenset()
    """Names of the settings that the user set; `_NATIVE` overrides all others."""
    train: int | None = None
    """The most tasks for training; None: all."""
    held_out: int | None = None
    """The most held-out tasks; None: all."""
    generated: Sequence[Task] = ()
    """Tasks written by a run's simulator; their specs are rebuilt with the settings of the export."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The result of an export: the package's name and the numbers of tasks."""

    package: str
    """The name of the Python package."""
    train: int
    held_out: int
    refused: int
    """The number of the run's specs that are rejected under the settings of the export."""


def write(
    folder: Path, export: Export, tasks: Callable[[Environment], Iterable[Task]], reporter: Reporter
) -> Written:
    """Write an exported package into a new folder.

    Args:
        folder: the folder to create; it must not exist.
        export: the environment, its settings and limits.
        tasks: returns the base tasks of an environment, of which no more than `export.train` are taken.
        reporter: receives the progress.

    Raises:
        UsageError: the folder exists, or there are no tasks.
    """
    if folder.exists():
        raise UsageError(f"{folder} is there already; choose another name, or remove it")
    check_writable(folder)
    package = _package(folder.name)
    settings = native(export)
    with filled(folder) as aside:
        data = aside / package / "data"
        data.mkdir(parents=True)
        carried = _Carried(data)
        inside = carried(export.environment)
        config = with_places(environment_config(export.environment).model_validate(settings), carried)
        about = About(name=package, environment=inside, settings=_changed_only(config))
        (data / ABOUT).write_text(json.dumps(about.model_dump(), indent=1) + "\n", encoding="utf-8")
        env = Exported(data).env
        try:
            with staged(reporter, "building tasks", items=len(env.seeds()[: export.train]), unit="tasks"):
                train = list(islice(tasks(env), export.train))
                again = [one for one in (_again(env, task) for task in export.generated) if one is not None]
                held_out = list(env.held_out())[: export.held_out]
            if not train and not again:
                raise UsageError(f"{export.environment} has no tasks with these settings")
            counts = (
                _rows(data / "train.jsonl", env, [*train, *again]),
                _rows(data / "held_out.jsonl", env, held_out),
            )
            replies = _how_to_reply(env, [*train, *again][0])
        finally:
            close_environment(env)
        text = _readme(about, shown_name(export.environment), counts, replies)
        (aside / "README.md").write_text(text, encoding="utf-8")
        for path, text in FILES.items():
            file = aside / path.format(package=package)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("PACKAGE", package), encoding="utf-8")
    return Written(
        package=package, train=counts[0], held_out=counts[1], refused=len(export.generated) - len(again)
    )


def native(export: Export) -> dict[str, object]:
    """Return the settings that differ from the defaults, after applying `_NATIVE` to unset ones."""
    wanted = _natively(export.environment, export.settings, export.asked)
    return _changed_only(environment_config(export.environment).model_validate({**export.settings, **wanted}))


def _natively(
    name: str, settings: Mapping[str, object], asked: Container[str], within: str = ""
) -> dict[str, object]:
    """Return the settings of `_NATIVE` that an environment has; of a mixture, its members with theirs.

    Those that the user set, by their dotted keys, are left out. `within` is what these begin with.
    """
    if not (name in environment_names() or is_folder(name)):
        return {}
    if name == MIXTURE:
        members = cast("Mapping[str, Mapping[str, object]]", settings.get("members", {}))
        return {
            "members": {
                member: {
                    **table,
                    **_natively(environment_name(str(table.get("name"))), table, asked, f"members.{member}."),
                }
                for member, table in members.items()
            }
        }
    fields = environment_config(name).model_fields
    return {
        key: value
        for key, value in _NATIVE.items()
        if "style" in fields and key in fields and f"{within}{key}" not in asked
    }


def _changed_only(settings: BaseModel) -> dict[str, object]:
    """Return the settings that differ from the defaults."""
    return settings.model_dump(mode="json", exclude_none=True, exclude_defaults=True)


def _how_to_reply(env: Environment, task: Task) -> str:
    """Return how a text reply is written, with the first reply of a demonstration if the task has one."""
    how = CALLS if tools_of(env.episode(task)) else "A reply is text, as the messages ask for it."
    if not task.oracle:
        return how
    return f"{how} The first reply of a solution of `{task.id}`:\n\n```\n{task.oracle[0]}\n```"


def _package(name: str) -> str:
    found = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower()
    if not found.isidentifier() or keyword.iskeyword(found):
        raise UsageError(f"{name!r} cannot be the name of a Python package; choose a folder like desk_env")
    if found in _TAKEN or found in sys.stdlib_module_names:
        raise UsageError(f"{found!r} is the name of another Python package; choose a folder like desk_env")
    return found


class _Carried:
    """Copies folders that hold an environment into the data of an export."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._copies: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        """Return the name of a folder's copy, relative to the data; any other text as it is."""
        if not (Path(name) / FOLDER_MARK).is_file():
            return name
        if name not in self._copies:
            self._copies[name] = f"./{BUNDLE}-{len(self._copies) + 1}" if self._copies else f"./{BUNDLE}"
            left_out = shutil.ignore_patterns("__pycache__", "train.toml")
            shutil.copytree(name, self._data / self._copies[name], ignore=left_out)
        return self._copies[name]


def _again(env: Environment, task: Task) -> Task | None:
    """Rebuild a generated task with the export's settings, which change its messages; None if rejected."""
    spec = env.spec.model_validate(task.spec)
    built = env.build(spec, task_id=task.id, lineage=task.lineage, rng=random.Random(task.id))
    return None if isinstance(built, Rejection) else built


def _rows(file: Path, env: Environment, tasks: Sequence[Task]) -> int:
    with file.open("w", encoding="utf-8") as to:
        for task in tasks:
            to.write(json_line(row_of(env, task)) + "\n")
    return len(tasks)


KEPT = "nothing was written"
"""The outcome to report if the command is interrupted."""

Source = Annotated[
    str,
    typer.Argument(
        metavar="ENVIRONMENT|RUN",
        help="An environment's name, a bundle's folder, a run's TOML file, or a run: then the tasks that its "
        "simulator wrote come along.",
    ),
]
Out = Annotated[Path, typer.Option("--out", help="The folder that is made: a Python package.")]
Train = Annotated[
    int | None, typer.Option("--tasks", min=1, help="At most so many base tasks; left out, all.")
]
HeldOut = Annotated[
    int | None, typer.Option("--held-out", min=1, help="At most so many for measuring; left out, all.")
]


def export_env(
    source: Source,
    out: Out,
    tasks: Train = None,
    held_out: HeldOut = None,
    overrides: Overrides = [],  # noqa: B006 - Typer's form
) -> None:
    """Write the tasks of an environment as an environment of TRL, verifiers, OpenEnv and Gymnasium."""
    begin(f"exporting {source}")
    run = Path(source) if (Path(source) / "config.toml").is_file() else None
    config = config_of(source, overrides) if run is None else RunFolder.open(run).settings(overrides)
    given = {word.partition("=")[0].strip().removeprefix("environment.") for word in overrides}
    export = Export(
        environment=config.environment.name,
        settings=anchored(config).environment.settings.model_dump(mode="json", exclude_none=True),
        asked=frozenset(given),
        train=tasks,
        held_out=held_out,
        generated=[] if run is None else _generated(run),
    )

    def base(env: Environment) -> Iterable[Task]:
        return (task for _, task in each_base_task(env, env.seeds(), seed=config.run.seed))

    written = write(out, export, base, ConsoleReporter())
    left = f"; {written.refused} specs of the run are no tasks with these settings" if written.refused else ""
    typer.echo(
        f"{out}: {written.train} tasks for training, {written.held_out} for measuring{left}; "
        f"{out / 'README.md'} says how TRL, verifiers, OpenEnv and Gymnasium use it"
    )


def _generated(run: Path) -> list[Task]:
    with PoolStore.open(RunFolder.open(run).pool, create=False) as store:
        return list(store.tasks(origin=Origin.GENERATED))
