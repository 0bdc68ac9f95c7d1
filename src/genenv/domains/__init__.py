"""The worlds in which tasks are written, attempted and checked.

A domain of this package is one line here; a bundle of your own tools is named by its folder,
`path/to/bundle`, a class of your own by where it is, `package.module:Class`, and an environment of others by
its kind, `openenv:http://HOST:PORT` or `verifiers:TASKSET`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator
from pathlib import Path
from typing import cast

from pydantic import BaseModel

from genenv.domains.base import Domain
from genenv.domains.guard import guarded
from genenv.domains.tools.bundle import is_bundle
from genenv.domains.tools.domain import Tools
from genenv.domains.tools.settings import ToolsConfig
from genenv.errors import DomainError, GenenvError, UsageError, first_line, spelled, unknown_name

_DOMAINS = {
    "household": "genenv.domains.household.domain:Household",
    "multihop_qa": "genenv.domains.multihop_qa.domain:MultihopQA",
    "programs": "genenv.domains.programs.domain:Programs",
    "tool_calling": "genenv.domains.tool_calling.domain:ToolCalling",
    "travel": "genenv.domains.travel.domain:Travel",
}

_IMPORTED = {
    "openenv": "genenv.environments.imported.openenv:OpenEnv",
    "verifiers": "genenv.environments.imported.verifiers:Verifiers",
}
"""Kinds of environments of others; the class takes settings, and what stands behind the colon."""

_PARTS = {*Domain.__annotations__, *(name for name in vars(Domain) if not name.startswith("_"))}
"""What a domain's class must have."""


def domain_names() -> tuple[str, ...]:
    """Every domain, in alphabetical order."""
    return tuple(sorted(_DOMAINS))


def domain_name(name: str) -> str:
    """A domain's registered name, `tool_calling` for `tool-calling`; any other name as it is."""
    return name if is_bundle(name) else spelled(name, _DOMAINS)


def domain_config(name: str) -> type[BaseModel]:
    """The settings of a domain: the attribute `config` of its class.

    Raises:
        UsageError: no such domain.
    """
    name = domain_name(name)
    if (kind := imported_kind(name)) is not None:
        return cast(type[BaseModel], getattr(_named(_IMPORTED[kind]), "config"))  # noqa: B009
    if name not in _DOMAINS and is_bundle(name):
        return ToolsConfig
    return cast(type[BaseModel], getattr(_domain_class(name), "config"))  # noqa: B009


def load_domain(name: str, settings: BaseModel | None = None) -> Domain:
    """A domain, ready for use; one of a user's own stands behind a guard.

    Args:
        name: one of `domain_names()`, the folder of a bundle of tools, `package.module:Class`, or an
            environment of others.
        settings: the domain's own settings; left out, their defaults.

    Raises:
        UsageError: no such domain, or something that it needs is not installed.
        DomainError: a user's own cannot be made.
    """
    name = domain_name(name)
    if (kind := imported_kind(name)) is not None:
        where = name.partition(":")[2]
        return cast(Domain, _named(_IMPORTED[kind])(settings or domain_config(name)(), where))
    if name not in _DOMAINS and is_bundle(name):
        return Tools(cast(ToolsConfig | None, settings), Path(name))
    made = _domain_class(name)
    chosen = settings or domain_config(name)()
    if name in _DOMAINS:
        return cast(Domain, made(chosen))
    with _sentence(name, "cannot be made"):
        own = made(chosen)
    return guarded(own)


def imported_kind(name: str) -> str | None:
    """The kind of an environment of others, `openenv` or `verifiers`; None for any other domain.

    Raises:
        UsageError: the name ends with the kind.
    """
    kind, colon, where = name.partition(":")
    if not colon or kind not in _IMPORTED:
        return None
    if not where.strip():
        raise UsageError(
            f"domain {name!r}: say which one, {'http://HOST:PORT' if kind == 'openenv' else 'a taskset'}"
        )
    return kind


def _named(where: str) -> type:
    """A class by `package.module:Class`."""
    module, _, attribute = where.partition(":")
    return cast(type, getattr(importlib.import_module(module), attribute))


def close_domain(domain: Domain) -> None:
    """End the processes that hold a domain's tools, where there are any."""
    ended = getattr(getattr(domain, "world", None), "close", None)
    if ended is not None:
        ended()


def _domain_class(name: str) -> type:
    where = name if ":" in name else _DOMAINS.get(name)
    if where is None:
        raise unknown_name("domain", name, _DOMAINS)
    module, _, attribute = where.partition(":")
    try:
        with _sentence(name, f"its module {module!r} cannot be loaded"):
            loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if name in _DOMAINS:
            raise
        if not f"{module}.".startswith(f"{error.name}."):
            raise UsageError(
                f"domain {name!r}: its module {module!r} needs {error.name!r}, which is not installed"
            ) from error
        raise UsageError(
            f"domain {name!r}: there is no module {error.name!r}; is it on PYTHONPATH?"
        ) from error
    except (TypeError, ValueError) as error:  # a relative or an empty name
        raise UsageError(f"domain {name!r} is not of the form package.module:Class") from error
    found = getattr(loaded, attribute, None)
    if not isinstance(found, type):
        raise UsageError(f"domain {name!r}: module {module!r} has no class {attribute!r}")
    if missing := sorted(part for part in _PARTS if not hasattr(found, part)):
        raise UsageError(
            f"domain {name!r} lacks {', '.join(missing)}; genenv.domains.base says what a domain is"
        )
    for part, kind in (("spec", BaseModel), ("config", BaseModel)):
        if not (isinstance(of_class := getattr(found, part), type) and issubclass(of_class, kind)):
            raise UsageError(f"domain {name!r}: its {part} is no class of pydantic's BaseModel")
    return found


@contextlib.contextmanager
def _sentence(name: str, what: str) -> Generator[None]:
    """What a user's own code raises while it is loaded, as one sentence; of genenv's own it is a bug.

    Raises:
        DomainError: names the domain, what was tried and the error.
    """
    try:
        yield
    except (GenenvError, ModuleNotFoundError):
        raise
    except Exception as error:
        if name in _DOMAINS or (not name.partition(":")[0].strip(".") or name.startswith(".")):
            raise
        raise DomainError(
            f"domain {name!r}: {what}: {type(error).__name__}: {first_line(error)}; mend it"
        ) from error
