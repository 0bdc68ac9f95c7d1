"""Write an environment as a Python package: rows, settings, and a few lines for each trainer."""

from __future__ import annotations

import json
import keyword
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from genenv.environments import close_environment, environment_config, environment_names, load_environment
from genenv.environments import is_folder as is_folder
from genenv.environments.base import Environment
from genenv.errors import UsageError
from genenv.files import check_writable, filled
from genenv.interop.exported import ABOUT, BUNDLE, CALLS, About, row_of
from genenv.interop.templates import FILES, Told, readme
from genenv.progress import Reporter, staged
from genenv.texts import json_line
from genenv.types import Rejection, Task

_NATIVE: Mapping[str, str] = {"style": "native", "mode": "multi"}
"""What other trainers expect where an environment can do it: native tools, results in later turns."""


_TAKEN = frozenset({"datasets", "genenv", "gymnasium", "openenv", "trl", "verifiers"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What is written."""

    environment: str
    """An environment's name, the folder of a bundle, or `package.module:Class`."""
    settings: Mapping[str, object]
    """The environment's own."""
    asked: frozenset[str] = frozenset()
    """Which of them somebody has asked for; others give way to what trainers want."""
    train: int | None = None
    """At most so many tasks for training; None: all."""
    held_out: int | None = None
    """At most so many for measuring."""
    generated: Sequence[Task] = ()
    """Tasks that a run's simulator wrote; their specs are built anew with these settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What was written."""

    package: str
    """The name of the Python package."""
    train: int
    held_out: int
    refused: int
    """Specs of a run that are no tasks with these settings."""


def write(
    folder: Path, export: Export, tasks: Callable[[Environment], Iterable[Task]], reporter: Reporter
) -> Written:
    """Write an environment.

    Args:
        folder: where; it must not be there yet.
        export: of what.
        tasks: the base tasks of an environment.
        reporter: is told how far it is.

    Raises:
        UsageError: the folder is there already, or there are no tasks.
    """
    if folder.exists():
        raise UsageError(f"{folder} is there already; choose another name, or remove it")
    check_writable(folder)
    package = _package(folder.name)
    settings = native(export)
    with filled(folder) as aside:
        data = aside / package / "data"
        data.mkdir(parents=True)
        name = _carried(export.environment, data)
        env = load_environment(name, environment_config(name).model_validate(settings))
        with staged(reporter, "building tasks", items=len(env.seeds()), unit="tasks"):
            train = list(tasks(env))[: export.train]
            again = [one for one in (_again(env, task) for task in export.generated) if one is not None]
            held_out = list(env.held_out())[: export.held_out]
        if not train and not again:
            raise UsageError(f"{export.environment} has no tasks with these settings")
        counts = (
            _rows(data / "train.jsonl", env, [*train, *again]),
            _rows(data / "held_out.jsonl", env, held_out),
        )
        inside = BUNDLE if is_folder(name) else name
        about = About(name=package, environment=inside, settings=settings)
        (data / ABOUT).write_text(json.dumps(about.model_dump(), indent=1) + "\n", encoding="utf-8")
        told = Told(
            package=package,
            environment=export.environment,
            train=counts[0],
            held_out=counts[1],
            settings=settings,
            replies=_how_to_reply(env, [*train, *again][0]),
        )
        for path, text in FILES.items():
            file = aside / path.format(package=package)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("PACKAGE", package), encoding="utf-8")
        (aside / "README.md").write_text(readme(told), encoding="utf-8")
        close_environment(env)
    return Written(
        package=package, train=counts[0], held_out=counts[1], refused=len(export.generated) - len(again)
    )


def native(export: Export) -> dict[str, object]:
    """The environment's settings that are not its defaults; unset ones are as trainers expect them."""
    kind = environment_config(export.environment)
    ours = export.environment in environment_names() or is_folder(export.environment)
    fits = ours and "style" in kind.model_fields
    wanted = {key: value for key, value in _NATIVE.items() if fits and key not in export.asked}
    chosen = kind.model_validate({**export.settings, **wanted})
    return chosen.model_dump(mode="json", exclude_none=True, exclude_defaults=True)


def _how_to_reply(env: Environment, task: Task) -> str:
    """How a reply in text is written, with one to a task as an example where a solution is known."""
    how = CALLS if getattr(env.episode(task), "tools", ()) else "A reply is text, as the messages ask for it."
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


def _carried(env: str, data: Path) -> str:
    """A bundle is copied along; returns the name under which the environment is opened."""
    if not is_folder(env):
        return env
    shutil.copytree(env, data / BUNDLE, ignore=shutil.ignore_patterns("__pycache__", "train.toml"))
    return str(data / BUNDLE)


def _again(env: Environment, task: Task) -> Task | None:
    """A generated task, built anew: with other settings its messages are others."""
    spec = env.spec.model_validate(task.spec)
    built = env.build(spec, task_id=task.id, lineage=task.lineage, rng=random.Random(task.id))
    return None if isinstance(built, Rejection) else built


def _rows(file: Path, env: Environment, tasks: Sequence[Task]) -> int:
    with file.open("w", encoding="utf-8") as to:
        for task in tasks:
            to.write(json_line(row_of(env, task)) + "\n")
    return len(tasks)
