"""Finds runs below a folder and reads them without changing anything, also while they are written."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import fmean
from typing import TypeVar, cast

from genenv.environments import shown_name
from genenv.errors import DataError, UsageError
from genenv.files import is_held
from genenv.progress import LiveState, read_live
from genenv.runs.folder import RunFolder
from genenv.runs.metrics import target_band
from genenv.runs.store.database import Database
from genenv.untrusted.documents import read_toml

FoundT = TypeVar("FoundT")
KeyT = TypeVar("KeyT")

_DEEPEST, _MOST_FOLDERS = 4, 20_000
"""How deep runs are searched, and in how many folders."""
_MOST_BYTES = 64 << 20
"""The largest file of metrics that is read."""
_MOST_FILES = 512
"""Files of metrics that are kept in memory."""
_MOST_ROUNDS, _LARGEST = 10**9, 1e100
"""Numbers of rounds, and metrics, beyond are damage."""
_BRANCH = re.compile(r"# goes on from (.+)@([0-9]{1,9}): ")
"""The first line of a branch's settings (`genenv.training.branching`)."""
_LOCK, _LAST = ".lock", 5
"""The lock of a run. Rounds whose mean time says how long the next ones take."""
LIMIT_S = 2.0
"""Seconds that the queries of one page may take together."""


class NotFound(UsageError):
    """Raised if a page, or what it should show, does not exist."""


class Rounds(dict[int, Mapping[str, float]]):
    """The metrics by round, in order. They are not changed once they are read."""

    @cached_property
    def made(self) -> dict[object, bytes]:
        """Answers that were made of them, which several readers of a page ask for."""
        return {}

    @cached_property
    def by_metric(self) -> Mapping[str, Mapping[int, float]]:
        """Each metric by round; sorting them out takes a moment in a long run."""
        found: dict[str, dict[int, float]] = {}
        for number, values in self.items():
            for name, value in values.items():
                found.setdefault(name, {})[number] = value
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The folder of a run, with what is known of it without its store."""

    name: str
    """The path below the folder that is served, with slashes."""
    path: Path
    settings: Mapping[str, object]
    """The settings by dotted name, such as `run.seed`; empty if they cannot be read."""
    rounds: Mapping[int, Mapping[str, float]]
    """The metrics by round, in order."""
    notes: tuple[str, ...]
    """Sentences about parts that cannot be read."""

    @property
    def agents(self) -> list[str]:
        """The names of its agents, if it has several."""
        return self._named if len(self._named) > 1 else []

    @property
    def _named(self) -> list[str]:
        """The names of the agents that its settings name."""
        prefix = "agents."
        return [name.removeprefix(prefix) for name in self.settings if name.startswith(prefix)]

    @property
    def branch_of(self) -> tuple[str, int] | None:
        """The run that it goes on from, as its settings say, and the last round that both share."""
        found = _BRANCH.match(_first_line(RunFolder(self.path).config))
        return None if found is None else (found[1], int(found[2]))

    @property
    def shift(self) -> int | None:
        """The first round in another environment; None if there is none yet."""
        return min(self.series("agent/eval_at_shift"), default=None)

    @property
    def has_seats(self) -> bool:
        """Whether agents play seats of one episode; then the leading one's success is that of the run."""
        return bool(self.settings.get("environment.seats"))

    @property
    def weak_agent(self) -> str:
        """The agent whose held-out success is that of a run with a regret: the weak one, if it is trained.

        "" if there is no regret, or no such agent. It is then that of all agents.
        """
        named = cast(object, self.settings.get("curriculum.regret_agents"))
        if self.text("curriculum.agents_reward") != "regret" or not isinstance(named, list | tuple):
            return ""
        weak = str(cast("list[object]", named)[-1]) if named else ""
        return weak if self._of_agent(weak).get("train", True) and weak in self._named else ""

    def advantage_of(self, agent: str) -> str:
        """Return the setting `advantage` of an agent; "" where the rewards in the store do not determine it.

        So it is where a value network computes advantages, or rewards of other seats count too.
        """
        own = self._of_agent(agent)

        def of(name: str) -> object:
            return own.get(name, self.settings.get(f"agent.{name}"))

        if of("algorithm") == "ppo" or of("advantage_of") == "success" or of("team_weight"):
            return ""
        return str(of("advantage") or "")

    def tokens_of(self, agent: str) -> tuple[str, str]:
        """Return the backend and the model whose tokens an agent's trajectories are in.

        Those of a model behind an endpoint are in the tokens of the first agent that is on a backend, and if
        there is none, in those of the simulator.
        """
        here = [name for name in self._named if not self._of_agent(name).get("address")]
        own = self._of_agent(agent)
        if own.get("address"):
            own = self._of_agent(here[0] if here else "")
        backend, model = own.get("backend"), own.get("model")
        usual = ("policy.model",) if here or not self._named else ("policy.simulator_model", "policy.model")
        return str(backend or self.text("policy.backend")), str(model or self.text(*usual))

    def _of_agent(self, agent: str) -> Mapping[str, object]:
        """Return the settings of one of several agents; empty if there is none of that name."""
        own = cast(object, self.settings.get(f"agents.{agent}"))
        if not isinstance(own, Mapping):
            return {}
        return cast(Mapping[str, object], own)

    @property
    def done(self) -> int:
        """The last round with metrics; 0 before the first."""
        return max(self.rounds, default=0)

    @property
    def planned(self) -> int | None:
        """The number of rounds in the settings."""
        found = self.settings.get("run.rounds")
        return found if isinstance(found, int) else None

    @property
    def state(self) -> str:
        """`running`, `finished`, or `stopped`: no process writes a run that is not finished."""
        if is_held(self.path / _LOCK):
            return "running"
        return "finished" if self.planned is not None and self.done >= self.planned else "stopped"

    @property
    def live(self) -> LiveState | None:
        """Where the process that wrote the run last is inside a round, or was when it was killed."""
        file = RunFolder(self.path).live
        with suppress(OSError):
            # A process takes the lock before it writes; a file that is older is of a process before it.
            if file.lstat().st_mtime_ns >= (self.path / _LOCK).lstat().st_mtime_ns:
                return read_live(file)
        return None

    def left_s(self, live: LiveState) -> float | None:
        """Return the seconds left at the speed of the last rounds; None before the first."""
        times = [value for number, value in self.series("time/round_s").items() if number > 0][-_LAST:]
        if self.planned is None or not times:
            return None
        stages_s = max((stage.left_s or 0.0 for stage in live.stages), default=0.0)
        return max(stages_s, fmean(times) * (self.planned - self.done) - live.round_s)

    @property
    def band(self) -> tuple[float, float] | None:
        """The target band of the last planned round; None if there is none."""
        return self.band_in(self.planned or 1)

    @property
    def has_moving_band(self) -> bool:
        """Whether the target band is another one in each round."""
        return self.band is not None and self.band != self.band_in(1)

    def band_in(self, number: int) -> tuple[float, float] | None:
        """Return the range in which the mean success rate of a round should be; None if there is none.

        Alpha moves linearly from `curriculum.alpha`, in round 1, to `curriculum.alpha_last`. There is none if
        the reward is no mean of success rates.
        """
        first, last, rounds = (
            float(value) if isinstance(value, int | float) else 0.0
            for value in map(self.settings.get, ("curriculum.alpha", "curriculum.alpha_last", "run.rounds"))
        )
        if (
            self.text("curriculum.agents_reward") not in ("", "mean")
            or "curriculum.alpha" not in self.settings
        ):
            return None
        way = min(1.0, max(0.0, (number - 1) / (rounds - 1))) if last and rounds > 1 else 0.0
        alpha = first + way * (last - first)
        return target_band(alpha) if 0 <= alpha <= 1 else None

    def within(self, first: int | None, last: int | None) -> Run:
        """Return the run with the metrics of a range of rounds alone; None leaves an end open."""
        low, high = (0 if first is None else first), (_MOST_ROUNDS if last is None else last)
        if first is last is None:
            return self
        kept = {n: values for n, values in self.rounds.items() if low <= n <= high}
        return replace(self, rounds=Rounds(kept))

    def text(self, *names: str) -> str:
        """Return the first of these settings that is given, as text; "" if none is."""
        return next((str(self.settings[name]) for name in names if self.settings.get(name) is not None), "")

    @property
    def environment(self) -> str:
        """The environment's name for people; "" if the settings name none."""
        return shown_name(self.text("environment.name"))

    def series(self, metric: str) -> Mapping[int, float]:
        """Return a metric by round, for the rounds that have it."""
        return self.metrics.get(metric, {})

    @property
    def metrics(self) -> Mapping[str, Mapping[int, float]]:
        """Each metric by round."""
        return self.rounds.by_metric if isinstance(self.rounds, Rounds) else Rounds(self.rounds).by_metric


class Runs:
    """The runs below a folder. Links are not followed, so nothing outside of the folder is read."""

    def __init__(self, root: Path) -> None:
        """Serve a folder of runs, or the folder of one run.

        Raises:
            UsageError: it is not a folder.
        """
        if not root.is_dir():
            raise UsageError(f"{root} is not a folder; name the folder that holds your runs, such as runs")
        root = root.resolve()
        self._only = root.name if _is_run(root) else None
        self.root = root if self._only is None else root.parent
        self.served = root
        """The folder that was named: of all runs, or of the only one."""

    def all(self, below: str = "") -> list[Run]:
        """Return all runs, those written last first; or those in a folder, by its name with a slash."""
        if self._only is not None:
            return [self.find(self._only)]
        found = [
            (name, path)
            for name, path in folders_below(self.root)
            if name.startswith(below) and _is_run(path)
        ]
        return [
            _run(name, path)
            for name, path in sorted(found, key=lambda one: (-written(RunFolder(one[1]).metrics), one[0]))
        ]

    def find(self, name: str) -> Run:
        """Return a run by its name.

        Raises:
            NotFound: there is no such run.
        """
        parts, path = name.split("/"), self.root
        plain = len(parts) <= _DEEPEST and all(map(_is_plain, parts))
        if plain if self._only is None else name == self._only:
            for part in parts:
                path = path / part
                if not is_kind(path, stat.S_ISDIR):
                    break
            else:
                if _is_run(path):
                    return _run(name, path)
        raise NotFound(f"{name!r} is not the folder of a run")


def reading(run: Run, query: Callable[[Database], FoundT], *, side: Path | None = None) -> FoundT:
    """Answer a query from the store of a run, in one state of the file and within `LIMIT_S` seconds.

    Args:
        run: the run.
        query: what to ask.
        side: another SQLite file, whose tables the query finds in the schema `side`.

    A connection lives for one page: opening takes less than a millisecond, a store that is replaced is read
    anew, and the run can close its store as if nobody read it.

    Raises:
        DataError: the store is missing, damaged, in use, of another version, or too large for the query.
    """
    path = RunFolder(run.path).pool
    if not is_kind(path, stat.S_ISREG):
        raise DataError(f"{path.name} is missing, or it is a link")
    # Without a `-wal` file the store is read as one that nobody writes. If a run opens it meanwhile, what was
    # read may be half of a commit, and is read again.
    before = state_of(path)
    try:
        found = _queried(path, query, side)
    except DataError:
        if state_of(path) == before:
            raise
    else:
        if len(before) > 1 or state_of(path) == before:
            return found
    return _queried(path, query, side)


def _queried(path: Path, query: Callable[[Database], FoundT], side: Path | None) -> FoundT:
    try:
        with Database.peek(path, limit_s=LIMIT_S) as db:
            if db.is_empty:
                raise DataError(f"{path} is not a store of genenv yet: it is being created")
            if side is not None:
                db.run("ATTACH ? AS side", (f"{side.as_uri()}?mode=ro",))
            with db.snapshot():
                return query(db)
    except (DataError, sqlite3.DatabaseError) as error:
        raise DataError(str(error).replace(str(path), path.name)) from error


def state_of(path: Path) -> list[tuple[int, int, int]]:
    """Return what changes when another process opens or writes a store, of it and of its `-wal` file."""
    found: list[tuple[int, int, int]] = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        with suppress(OSError):
            at = file.stat()
            found.append((at.st_ino, at.st_size, at.st_mtime_ns))
    return found


def _run(name: str, path: Path) -> Run:
    folder, notes = RunFolder(path), list[str]()
    settings = _parsed(folder.config, _settings, notes)
    rounds = _parsed(folder.metrics, _metrics, notes)
    return Run(name=name, path=path, settings=settings, rounds=rounds, notes=tuple(notes))


def _parsed(
    file: Path, parse: Callable[..., Mapping[KeyT, FoundT]], notes: list[str]
) -> Mapping[KeyT, FoundT]:
    """Return the contents of a file; if it cannot be read, nothing, and a sentence more in `notes`."""
    try:
        at = file.lstat()
        if stat.S_ISREG(at.st_mode) and at.st_size <= _MOST_BYTES:
            return parse(file, at.st_ino, at.st_size, at.st_mtime_ns)
        notes.append(f"{file.name} is a link, or too large to be shown")
    except FileNotFoundError:
        notes.append(f"there is no {file.name} yet")
    except (OSError, UsageError, ValueError) as error:
        notes.append(f"{file.name} cannot be read: {error}")
    return {}


@lru_cache(maxsize=512)
def _settings(path: Path, *_: int) -> dict[str, object]:
    """Return the settings of a file by dotted name."""
    found = dict[str, object]()
    for section, table in read_toml(path.read_text(encoding="utf-8"), path.name).items():
        if isinstance(table, Mapping):
            found |= {f"{section}.{key}": value for key, value in table.items()}
        else:
            found[section] = table
    return found


def _first_line(file: Path) -> str:
    """Return the first line of a file, at most 4 KiB; "" if it is a link or cannot be read."""
    with suppress(OSError):
        at = file.lstat()
        if stat.S_ISREG(at.st_mode):
            return _first_line_of(file, at.st_ino, at.st_size, at.st_mtime_ns)
    return ""


@lru_cache(maxsize=4096)
def _first_line_of(file: Path, *_: int) -> str:
    with file.open("rb") as lines:
        return lines.readline(4096).decode(errors="replace")


_LINES: dict[Path, tuple[tuple[int, bytes, int], Rounds]] = {}
"""By file: its inode, its last line that was read, where that ends, and the metrics up to there."""
_PARSING = threading.Lock()


def _metrics(path: Path, inode: int, *_: int) -> Rounds:
    """Return the metrics of a file by round: only lines that are new are parsed.

    A last line that is being written is left out.
    """
    with _PARSING, path.open("rb") as file:
        (known, line, end), found = _LINES.get(path, ((0, b"", 0), Rounds()))
        file.seek(max(0, end - len(line)))
        if known != inode or file.read(len(line)) != line:
            file.seek(0)
            found, line, end = Rounds(), b"", 0
        if later := file.readlines():
            rounds = dict(found)
            for one in later:
                _add(rounds, one)
            whole = [one for one in later if one.endswith(b"\n")]
            found, end = Rounds(sorted(rounds.items())), end + sum(map(len, whole))
            line = whole[-1] if whole else line
        if len(_LINES) > _MOST_FILES:
            _LINES.clear()
        _LINES[path] = ((inode, line, end), found)
        return found


def _add(found: dict[int, Mapping[str, float]], line: bytes) -> None:
    with suppress(ValueError, RecursionError):
        values = cast("object", json.loads(line.decode(errors="replace")))
        if isinstance(values, dict):
            numbers = {key: _number(value) for key, value in cast("dict[str, object]", values).items()}
            kept = {sys.intern(key): value for key, value in numbers.items() if value is not None}
            if 0 <= kept.get("round", -1) < _MOST_ROUNDS:
                found[int(kept.pop("round"))] = kept


def _number(value: object) -> float | None:
    """Return a number that can be drawn and added up; None for anything else."""
    return float(value) if isinstance(value, int | float) and abs(value) < _LARGEST else None


def folders_below(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the folders below a folder, with their names; not those below a run, links and hidden ones."""
    left = [(root, "", _DEEPEST)]
    for _ in range(_MOST_FOLDERS):
        if not left:
            return
        path, name, deeper = left.pop()
        with suppress(OSError), os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                if _is_plain(entry.name) and entry.is_dir(follow_symlinks=False):
                    below, inner = f"{name}{entry.name}", Path(entry.path)
                    yield below, inner
                    if deeper > 1 and not _is_run(inner):
                        left.append((inner, f"{below}/", deeper - 1))


def _is_plain(part: str) -> bool:
    """Return whether a part of a name can be one of a run: hidden folders and our own `-` cannot."""
    return bool(part) and not part.startswith(".") and part != "-" and "\0" not in part and "\\" not in part


def _is_run(path: Path) -> bool:
    folder = RunFolder(path)
    return any(os.path.lexists(file) for file in (folder.pool, folder.metrics))


def is_kind(path: Path, is_wanted: Callable[[int], bool]) -> bool:
    """Return whether a path itself, not what it links to, is of a kind."""
    with suppress(OSError, ValueError):
        return is_wanted(path.lstat().st_mode)
    return False


def written(path: Path) -> float:
    """Return when a file was written last, in seconds since 1970; 0 if there is none."""
    with suppress(OSError):
        return path.lstat().st_mtime
    return 0.0
