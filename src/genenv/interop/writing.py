"""Writes an environment: a Python package of rows, the domain's settings, a few lines for each trainer."""

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

from genenv.environments import close_domain, domain_config, domain_names, load_domain
from genenv.environments import is_folder as is_folder
from genenv.environments.base import Domain
from genenv.errors import UsageError
from genenv.files import check_writable, filled
from genenv.interop.exported import ABOUT, BUNDLE, CALLS, About, row_of
from genenv.interop.templates import FILES, Told, readme
from genenv.progress import Reporter, staged
from genenv.texts import json_line
from genenv.types import Rejection, Task

_NATIVE: Mapping[str, str] = {"style": "native", "mode": "multi"}
"""What other trainers want where a domain can be set so: tools in the model's form, results are heard."""


_TAKEN = frozenset({"datasets", "genenv", "gymnasium", "openenv", "trl", "verifiers"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What is written."""

    domain: str
    """A domain's name, the folder of a bundle, or `package.module:Class`."""
    settings: Mapping[str, object]
    """The domain's own."""
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
    folder: Path, export: Export, tasks: Callable[[Domain], Iterable[Task]], reporter: Reporter
) -> Written:
    """Write an environment.

    Args:
        folder: where; it must not be there yet.
        export: of what.
        tasks: the base tasks of a domain.
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
        name = _carried(export.domain, data)
        domain = load_domain(name, domain_config(name).model_validate(settings))
        with staged(reporter, "building tasks", items=len(domain.seeds()), unit="tasks"):
            train = list(tasks(domain))[: export.train]
            again = [one for one in (_again(domain, task) for task in export.generated) if one is not None]
            held_out = list(domain.held_out())[: export.held_out]
        if not train and not again:
            raise UsageError(f"{export.domain} has no tasks with these settings")
        counts = (
            _rows(data / "train.jsonl", domain, [*train, *again]),
            _rows(data / "held_out.jsonl", domain, held_out),
        )
        inside = BUNDLE if is_folder(name) else name
        about = About(name=package, domain=inside, settings=settings)
        (data / ABOUT).write_text(json.dumps(about.model_dump(), indent=1) + "\n", encoding="utf-8")
        told = Told(
            package=package,
            domain=export.domain,
            train=counts[0],
            held_out=counts[1],
            settings=settings,
            replies=_how_to_reply(domain, [*train, *again][0]),
        )
        for path, text in FILES.items():
            file = aside / path.format(package=package)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("PACKAGE", package), encoding="utf-8")
        (aside / "README.md").write_text(readme(told), encoding="utf-8")
        close_domain(domain)
    return Written(
        package=package, train=counts[0], held_out=counts[1], refused=len(export.generated) - len(again)
    )


def native(export: Export) -> dict[str, object]:
    """The domain's settings that are not its defaults; where nobody asks otherwise, as trainers want them."""
    kind = domain_config(export.domain)
    ours = export.domain in domain_names() or is_folder(export.domain)
    fits = ours and "style" in kind.model_fields
    wanted = {key: value for key, value in _NATIVE.items() if fits and key not in export.asked}
    chosen = kind.model_validate({**export.settings, **wanted})
    return chosen.model_dump(mode="json", exclude_none=True, exclude_defaults=True)


def _how_to_reply(domain: Domain, task: Task) -> str:
    """How a reply in text is written, with one to a task as an example where a solution is known."""
    how = (
        CALLS
        if getattr(domain.episode(task), "tools", ())
        else "A reply is text, as the messages ask for it."
    )
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


def _carried(domain: str, data: Path) -> str:
    """A bundle is copied along; returns the name under which the domain is opened."""
    if not is_folder(domain):
        return domain
    shutil.copytree(domain, data / BUNDLE, ignore=shutil.ignore_patterns("__pycache__", "train.toml"))
    return str(data / BUNDLE)


def _again(domain: Domain, task: Task) -> Task | None:
    """A generated task, built anew: with other settings its messages are others."""
    spec = domain.spec.model_validate(task.spec)
    built = domain.build(spec, task_id=task.id, lineage=task.lineage, rng=random.Random(task.id))
    return None if isinstance(built, Rejection) else built


def _rows(file: Path, domain: Domain, tasks: Sequence[Task]) -> int:
    with file.open("w", encoding="utf-8") as to:
        for task in tasks:
            to.write(json_line(row_of(domain, task)) + "\n")
    return len(tasks)
