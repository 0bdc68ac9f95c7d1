"""Find environments by name, read their settings class, and open them.

A name takes one of four forms: the name that a distribution registers (`genenv.plugins`), such as
`household`; the path of an environment's folder, `path/to/folder`; a class, `package.module:Class` or
`path/to/file.py:Class`; or an environment of another library, `openenv:http://HOST:PORT`, `verifiers:TASKSET`
or `textarena:GAME`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pydantic import BaseModel

from genenv.environments.base import Environment, EnvironmentWrapper
from genenv.environments.guard import guarded
from genenv.errors import EnvironmentCodeError, GenenvError, UsageError, first_line, spelled, unknown_name
from genenv.plugins import load, own_part, parts
from genenv.settings import holds_secret, is_own

FOLDER_MARK = "bundle.toml"
"""A folder that contains this file holds an environment."""

_FOLDER = "folder"
"""The registered kind of environments that are named by their folder."""

_ENVIRONMENTS: Mapping[str, str] = parts("environments")
_KINDS: Mapping[str, str] = parts("environment_kinds")
"""Kind -> class, called with the settings and with the folder or the text after the colon."""

_PLACES = {"openenv": "http://HOST:PORT", "verifiers": "a taskset", "textarena": "a game"}

_PARTS = {*Environment.__annotations__, *(name for name in vars(Environment) if not name.startswith("_"))}
"""Attributes and methods that the class of an environment must have."""


def environment_names() -> tuple[str, ...]:
    """Return the names of all registered environments in alphabetical order."""
    return tuple(sorted(_ENVIRONMENTS))


def environment_name(name: str) -> str:
    """Return the registered spelling of a name (`tool_calling` for `tool-calling`) or the name unchanged."""
    return name if is_folder(name) else spelled(name, _ENVIRONMENTS)


def is_folder(name: str) -> bool:
    """Return whether a name is the path of a folder that holds an environment."""
    if ":" in name.partition("/")[0] or is_own(name):  # of another library by its address, or a class
        return False
    return "/" in name or name in (".", "..") or (Path(name) / FOLDER_MARK).is_file()


def shown_name(name: str) -> str:
    """Return an environment's name for people: of a folder, the last part of its path."""
    return Path(name).name if is_folder(name) else name


def environment_config(name: str) -> type[BaseModel]:
    """Return the settings class of an environment: the attribute `config` of its class.

    Raises:
        UsageError: there is no such environment.
    """
    return cast(type[BaseModel], getattr(_class_of(name), "config"))  # noqa: B009


def environment_seats(name: str, settings: BaseModel | None = None) -> tuple[str, ...]:
    """Return the seats of an environment: the attribute `seats` of its class; empty if it has one agent.

    Args:
        name: the environment.
        settings: its settings, on which the seats of some environments depend; None for the defaults.

    Raises:
        UsageError: there is no such environment.
    """
    made = _class_of(name)
    if (by_settings := getattr(made, "seats_by", None)) is not None:
        return () if settings is None else tuple(by_settings(settings))
    of_place = getattr(made, "seats_of", None)
    return tuple(
        getattr(made, "seats", ())
        if of_place is None
        else of_place(_kind_and_place(environment_name(name))[1])
    )


def code_plays_seats(name: str) -> bool:
    """Return whether an environment's code can play its seats: the attribute `plays_seats` of its class.

    Raises:
        UsageError: there is no such environment.
    """
    return bool(getattr(_class_of(name), "plays_seats", True))


def load_environment(name: str, settings: BaseModel | None = None) -> Environment:
    """Create an environment; the environment of a user is wrapped in a guard (`genenv.environments.guard`).

    Args:
        name: one of `environment_names()`, a folder, `package.module:Class` or `FILE.py:Class`, or an
            environment of another library.
        settings: an instance of the environment's settings class; None for the defaults.

    Raises:
        UsageError: there is no such environment, or something that it needs is not installed.
        EnvironmentCodeError: the constructor of a user's environment raised an error.
    """
    name = environment_name(name)
    chosen = settings or environment_config(name)()
    kind, where = _kind_and_place(name)
    if kind is not None:
        return cast(Environment, cast(type, load(_KINDS[kind]))(chosen, where))
    made = _environment_class(name)
    if _is_ours(name):
        return cast(Environment, made(chosen))
    try:
        return guarded(made(chosen))
    except GenenvError:
        raise
    except Exception as error:
        raise EnvironmentCodeError(
            f"environment {name!r}: cannot be made: {type(error).__name__}: {first_line(error)}; mend it"
        ) from error


def _class_of(name: str) -> object:
    """Import the class of an environment, or of its kind.

    Raises:
        UsageError: there is no such environment.
    """
    name = environment_name(name)
    kind, _ = _kind_and_place(name)
    return _environment_class(name) if kind is None else load(_KINDS[kind])


def _kind_and_place(name: str) -> tuple[str | None, str]:
    """Return the kind and address in the name of a folder or in `kind:address`; (None, "") for other names.

    Raises:
        UsageError: there is no address after the kind, or it holds a secret.
    """
    if name not in _ENVIRONMENTS and is_folder(name):
        return _FOLDER, name
    kind, colon, where = name.partition(":")
    if not colon or kind not in _KINDS or kind == _FOLDER:
        return None, ""
    if not where.strip():
        raise UsageError(
            f"environment {name!r}: say which one, {_PLACES.get(kind, 'its name')}, after the colon"
        )
    if holds_secret(where):
        raise UsageError(
            f"an environment of kind {kind!r}: its address holds a user name, a password or a query, which "
            f"would be written into files; leave it out, as in {kind}:{_PLACES.get(kind)}"
        )
    return kind, where


def close_environment(env: Environment) -> None:
    """End the processes that run an environment's tools, if it has any."""
    with contextlib.ExitStack() as closed:
        if isinstance(env, EnvironmentWrapper):
            for inner in env.wrapped:
                closed.callback(close_environment, inner)
        elif (ended := getattr(getattr(env, "world", None), "close", None)) is not None:
            ended()


def _is_ours(name: str) -> bool:
    """Return whether an environment is part of genenv; all other environments are guarded."""
    return _ENVIRONMENTS.get(name, "").startswith("genenv.")


def _environment_class(name: str) -> type:
    where = name if ":" in name else _ENVIRONMENTS.get(name)
    if where is None:
        raise unknown_name("environment", name, _ENVIRONMENTS)
    if _is_ours(name):
        return cast(type, load(where))
    if not is_own(where):
        raise UsageError(f"environment {name!r} is not of the form package.module:Class or FILE.py:Class")
    found = cast(type, own_part("environment.name", where, takes=None, methods=sorted(_PARTS)))
    for part in ("spec", "config"):
        if not (isinstance(of_class := getattr(found, part), type) and issubclass(of_class, BaseModel)):
            raise UsageError(f"environment {name!r}: its {part} is no class of pydantic's BaseModel")
    return found
