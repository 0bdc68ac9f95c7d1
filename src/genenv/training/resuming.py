"""The settings of a resumed run: the saved ones, with the requested changes that affect no result.

A run has two files: `config.toml`, all settings with automatic values decided, and `started.toml`, the
contents of its CONFIG at the start. A CONFIG that has not changed since requests nothing, whatever `--set`
added at the start. Changes in it are requests, and so are values of `--set` and edits of `config.toml`, which
are seen by its copy `trained.toml`. A request takes effect if it affects no result, and is otherwise refused
by name.

Another file, `files.json`, has a digest of each file of the user's own that the settings name, such as a
reward function. A file that has changed is used as it is now; the run says so, also in `config.toml`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from genenv.agent.policy import NamedAgentConfig
from genenv.backends.settings import AUTOMATIC, WEIGHTS
from genenv.config.resolved import (
    ARITHMETIC,
    FREE,
    absolute_environment,
    anchored,
    by_key,
    with_values,
)
from genenv.config.run import RunConfig, dump_toml, load_config
from genenv.config.tables import apply_override, dump_tables, flat, read_tables, toml_value
from genenv.environments import is_folder
from genenv.errors import DataError, UsageError
from genenv.files import read_model, write_whole
from genenv.plugins import own_file
from genenv.runs.folder import RunFolder
from genenv.settings import is_own, walk, why_it_may_change
from genenv.texts import listed
from genenv.training.branching import is_pinned
from genenv.types import Json

_FREE_OF_AGENTS = {key for key, field in walk(NamedAgentConfig) if why_it_may_change(field) is not None}
"""Settings of `[agents.NAME]` that may change."""
_OF_WEIGHTS = re.compile(r"agents\.[^.]+\.checkpoint")
_AUTOMATIC: Mapping[str, Json] = {f"policy.{name}": value for name, value in AUTOMATIC.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """The saved settings of a run, and the settings with which it is resumed."""

    saved: RunConfig
    asked: RunConfig
    refused: Sequence[str]
    """Settings whose change was requested but is not allowed. `asked` has their old values."""
    edited: frozenset[str] = frozenset()
    """Settings that have another value in the run's `config.toml` than they were trained with."""

    def changes(self) -> dict[str, tuple[Json, Json]]:
        """Return the differing settings, by dotted key: (before, after)."""
        before, after = by_key(self.saved), by_key(self.asked)
        keys = sorted(before.keys() | after.keys())
        return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def remember(folder: RunFolder, config_path: Path | None) -> None:
    """Store the present contents of CONFIG in the run's folder, unless CONFIG is the run's `config.toml`."""
    if config_path is not None and config_path.resolve() != folder.config.resolve():
        write_whole(folder.started, dump_tables(read_tables(config_path)))


FILES = "files.json"
"""File in a run's folder: setting -> digest of the user's file or folder that it names."""


def digests(config: RunConfig) -> dict[str, str]:
    """Return a SHA-256 digest of every file or folder of the user's own that decides about results.

    These are the files of user-defined functions and classes, of data and of the environment, by the setting
    that names them. Weights and the modules that a file imports are not read.
    """
    return {key: _digest(place) for key, place in _own_places(config).items()}


def _own_places(config: RunConfig) -> dict[str, Path]:
    """Return the user's files and folders that decide about results, by the setting that names them."""
    found: dict[str, Path] = {}
    for key, value in by_key(config).items():
        if isinstance(value, str) and (is_own(value) or key.startswith(_OF_TASKS)):
            place = own_file(value) if is_own(value) else Path(value)
            if place is not None and place.is_absolute() and place.exists():
                found[key] = place
    return found


_OF_TASKS = ("environment.", "shift.environment.", "simulator.file")


def _digest(place: Path) -> str:
    """Return the digest of a file, or of the names and contents of the files of a folder."""
    digest = hashlib.sha256()
    for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"\0{path.relative_to(place)}\0".encode("utf-8", "surrogateescape"))
            with suppress(OSError), path.open("rb") as file:  # what cannot be read decides nothing either
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def stored_digests(run: Path) -> dict[str, str]:
    """Return the digests that a run has of the user's files; none if it was started by an older version.

    Raises:
        DataError: the file with them is damaged.
    """
    path = run / FILES
    if not path.is_file():
        return {}
    try:
        return read_model(path, dict[str, str])
    except DataError as error:
        raise DataError(
            f"{path} is damaged; delete it: changes of your own files before now then go unnoticed"
        ) from error


def changed_files(config: RunConfig, edited: Sequence[str]) -> Iterator[str]:
    """Yield each of the user's files that has changed, with the settings that name it.

    Args:
        config: the settings of the run.
        edited: what `remember_files` returned.
    """
    places, by_file = _own_places(config), dict[Path, list[str]]()
    for key in edited:
        by_file.setdefault(places[key], []).append(key)
    yield from (f"{file} ({', '.join(keys)})" for file, keys in by_file.items())


def remember_files(folder: RunFolder, config: RunConfig) -> list[str]:
    """Store the digests of the user's files, and return the settings whose file has changed since the last.

    Args:
        folder: the run.
        config: its settings with absolute paths.
    """
    path, now = folder.path / FILES, digests(config)
    before = stored_digests(folder.path)
    if now != before:
        write_whole(path, json.dumps(now, indent=2) + "\n")
    return sorted(key for key in now.keys() & before.keys() if now[key] != before[key])


def continued(
    folder: RunFolder,
    config_path: Path | None,
    overrides: Sequence[str],
    *,
    may_change: Callable[[str], bool],
) -> Continued:
    """Return the settings with which a run is resumed.

    Args:
        folder: the run.
        config_path: a CONFIG that was named again; None if none was.
        overrides: settings as `key=value`.
        may_change: returns whether the setting with a dotted key may differ from the run's.

    Raises:
        UsageError: a file cannot be read, a key is unknown or a value is not allowed.
    """
    saved = anchored(folder.settings())
    before, now = by_key(saved), by_key(anchored(load_config(folder.config)))
    wanted = {key: now.get(key) for key in before.keys() | now.keys() if before.get(key) != now.get(key)}
    edited = frozenset(wanted)
    if config_path is not None:
        wanted |= _changed_in_file(folder, config_path, before)
    wanted |= _in_overrides(folder, overrides, saved)
    taken: dict[str, Json] = {}
    refused: list[str] = []
    for key, value in sorted(wanted.items()):
        if before.get(key) == value or (value == _AUTOMATIC.get(key) and not may_change(key)):
            continue  # automatic is what was decided
        if _OF_WEIGHTS.fullmatch(key) and is_pinned(str(before.get(key)), str(value)):
            continue
        moved = key == "environment.name" and _has_moved(str(before[key]), str(value))
        if (may_change(key) or moved) and value is not None:
            taken[key] = value
        else:
            refused.append(key)
    return Continued(saved=saved, asked=with_values(saved, taken), refused=refused, edited=edited)


def for_training(
    folder: RunFolder, config_path: Path | None, overrides: Sequence[str], *, other_arithmetic: bool
) -> Continued:
    """Return the settings with which training is resumed. Those marked as free to change may change.

    Raises:
        UsageError: the change of a setting that affects results was requested. The message names it.
    """
    saved = folder.settings()
    own = type(saved.environment.settings)
    free = {key for key, field in walk(own, "environment.") if why_it_may_change(field) is not None}
    place = saved.environment.name
    gone = is_folder(place) and not Path(place).exists()

    def may_change(key: str) -> bool:
        section, _, rest = key.partition(".")
        agent, _, of_agent = rest.partition(".")
        if section == "agents" and agent in saved.agents:
            return of_agent in _FREE_OF_AGENTS
        return key in FREE or key in free or (other_arithmetic and key in ARITHMETIC)

    change = continued(folder, config_path, overrides, may_change=may_change)
    if gone and change.asked.environment.name == place:
        raise UsageError(
            f"the environment of {folder.path} was {place}, where nothing is now: put it back, or name its "
            "folder with --set environment.name=FOLDER"
        )
    if change.refused:
        last_digits = ARITHMETIC.issuperset(change.refused)
        by_hand = not change.edited.isdisjoint(change.refused)
        raise UsageError(
            f"{folder.path} was started with other settings: {listed(change.refused, _NAMED)} (see "
            + (f"{folder.trained}; {folder.config} was edited); " if by_hand else f"{folder.config}); ")
            + (
                "they change results in their last digits: add --allow-other-arithmetic, or leave them"
                if last_digits
                else f"continue with those, or start another run from here: genenv train CONFIG --from "
                f"{folder.path} --out ANOTHER"
            )
        )
    return change


_NAMED = 5
"""Maximum number of settings that one sentence lists."""


def possible(change: Continued, folder: RunFolder, *, other_arithmetic: bool) -> RunConfig:
    """Return the settings of a resumed run, with choices that this machine lacks set back to automatic.

    Raises:
        UsageError: this machine lacks some, and `other_arithmetic` is off. The message names them.
    """
    own, config = change.saved.policy, change.asked
    lacked = {
        name: why
        for name, why in _lacking(config).items()
        if getattr(config.policy, name) == getattr(own, name)
    }
    if lacked and not other_arithmetic:
        reasons = "; ".join(f"policy.{name}: {reason}" for name, reason in lacked.items())
        raise UsageError(
            f"{folder.path} was computed with what is not here ({reasons}); --allow-other-arithmetic goes on "
            f"with what is, its results then differ in their last digits, and {folder.config} says since when"
        )
    return _without(config, lacked)


def for_writing(folder: RunFolder | None, config_path: Path | None, overrides: Sequence[str]) -> RunConfig:
    """Return the settings for writing tasks: the run's, of which all but weights and environment may change.

    Args:
        folder: the run whose simulator writes; None for an untrained one.
        config_path: the settings; None takes the run's.
        overrides: settings as `key=value`.

    Raises:
        UsageError: another model or environment than the run's was requested. The message names the settings.
    """
    if folder is None:
        return anchored(load_config(config_path, overrides))

    def may_change(key: str) -> bool:
        return key not in WEIGHTS and not key.startswith(("environment.", "shift.", "agents."))

    change = continued(folder, config_path, overrides, may_change=may_change)
    if change.refused:
        raise UsageError(
            f"{folder.path} was trained with other settings: {', '.join(change.refused)}; "
            f"generate with its own, {folder.config}"
        )
    return _without(change.asked, _lacking(change.asked))  # nothing here must compute the same digits


def _lacking(config: RunConfig) -> Mapping[str, str]:
    """Return the decided policy settings that this machine cannot follow, with reasons.

    Remote backends have none.
    """
    if not config.learns_here:
        return {}
    from genenv.backends.local.hardware import lacking

    return lacking(config.policy)


def _without(config: RunConfig, lacked: Collection[str]) -> RunConfig:
    """The settings with these choices of the policy automatic again; with all, where the device is lacked."""
    again = AUTOMATIC if "device" in lacked else lacked
    policy = config.policy.model_copy(update={name: AUTOMATIC[name] for name in again})
    return config.model_copy(update={"policy": policy})


def record(
    folder: RunFolder,
    change: Continued,
    edited: Sequence[str] = (),
    others: Sequence[str] = (),
    *,
    since: int,
) -> None:
    """Write the settings of a resumed run, preceded by comments that say what changed in which round.

    Args:
        folder: the run.
        change: the changes; nothing is written if there are none, and nothing else has changed.
        edited: settings that name a file that has changed (`remember_files`).
        others: what else has changed, as words (`note_start`).
        since: the first round that is trained with the new settings.
    """
    old = folder.config.read_text(encoding="utf-8").splitlines()
    notes = [line for line in old if line.startswith("#")]
    was, now = change.changes(), dump_toml(change.asked)
    changes = [
        *(f"{key} = {toml_value(after)} (was {toml_value(before)})" for key, (before, after) in was.items()),
        *(f"the contents of {key}" for key in edited if key not in was),
        *others,
    ]
    if not changes:
        if not folder.trained.exists():  # of an older version
            write_whole(folder.trained, folder.config.read_text(encoding="utf-8"))
        return
    notes.append(f"# from round {since} on: {', '.join(changes)}")
    folder.write_settings("\n".join([*notes, "", now]))


def _changed_in_file(folder: RunFolder, config_path: Path, saved: Mapping[str, Json]) -> dict[str, Json]:
    """Return the settings that changed in CONFIG since the run was started, by dotted key.

    The value is None if CONFIG no longer sets the key. Runs of older versions have no `started.toml`: for
    them, all settings of CONFIG are returned.
    """
    now, said = by_key(anchored(load_config(config_path))), flat(read_tables(config_path))
    if not folder.started.is_file():
        return {key: now.get(key) for key in now.keys() | saved.keys()}
    before = flat(read_tables(folder.started))
    return {key: now.get(key) for key in before.keys() | said.keys() if before.get(key) != said.get(key)}


def _in_overrides(folder: RunFolder, overrides: Sequence[str], saved: RunConfig) -> dict[str, Json]:
    """Return the settings that `--set` names, checked, by dotted key."""
    tables: dict[str, Json] = {}
    for override in overrides:
        apply_override(tables, override)
    said = flat(tables)
    own = saved.environment.name
    name = absolute_environment(str(said.get("environment.name", own)))
    if name != own and not _has_moved(own, name):
        return {"environment.name": name}  # whose settings are others
    checked = by_key(anchored(folder.settings(overrides))) if overrides else {}
    keys = checked.keys() | by_key(saved).keys() if "variant" in said else said  # a variant has settings
    return {key: checked.get(key) for key in keys}


def _has_moved(before: str, now: str) -> bool:
    """Return whether an environment's folder may have moved: nothing is where it was."""
    return is_folder(before) and is_folder(now) and not Path(before).exists() and Path(now).exists()


def check_length(folder: RunFolder, change: Continued) -> str | None:
    """Allow a run to become longer; return a note if its learning rate or alpha depends on its length.

    Raises:
        UsageError: the run would become shorter.
    """
    before, after = change.saved.run.rounds, change.asked.run.rounds
    if after < before:
        raise UsageError(
            f"{folder.path} is a run of {before} rounds, which cannot become {after}; "
            f"add --set run.rounds={before}, or more"
        )
    learning = (*change.saved.population.values(), change.saved.simulator)
    moving = {
        "a learning rate": any(one.lr_schedule == "linear" for one in learning),
        "alpha": bool(change.saved.curriculum.alpha_last),
    }
    named = " and ".join(name for name, moves in moving.items() if moves)
    if named and after > before:
        return (
            f"note: {named} of {folder.path} moves over {before} rounds; with "
            f"{after} it goes on from where it would be in a run of that length"
        )
    return None
