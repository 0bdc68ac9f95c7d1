"""Is nothing lost when a run is killed? Kills `genenv train` with SIGKILL at random instants and resumes it.

    python bench/kill_resume.py configs/quickstart.toml --set run.rounds=3 --kills 10 --out /tmp/kills

First an unbroken run, then one that is killed and resumed until there were enough kills, and runs to its end.
The instants are uniform over the time of the unbroken run; every second kill waits from there for the next
commit to begin, and falls into it. A run that ends before its kills are used up is followed by another one.

After each kill the store is copied and opened: its rounds must be 0, 1, ... without a gap, and all they hold
must equal the same rounds of the unbroken run. At the end the stores, the metrics (`time/*` aside) and the
files of the last checkpoint must be equal, bit for bit. Prints a table and a line of JSON; exit status 1 when
anything differs.

    python bench/kill_resume.py configs/tiny.toml --set policy.tuning=lora --fleet 2 --kills 10 --out /tmp/k

With `--fleet N` the run samples on so many processes of `genenv serve`. Half-way to each kill of the run a
server is killed, too, and it is started anew, at another address, when the run is. What servers answer
depends in its last digits on which requests they had at the same time, so two such runs differ. Here all that
was committed before a kill must still be there after the next one, equal bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import random
import re
import shlex
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from genenv.backends.vllm.client import remove_address, write_address
from genenv.config.run import load_config
from genenv.runs.checkpoint import MANIFEST, checkpoints
from genenv.runs.store.store import PoolStore

POLL_S = 0.0005


@dataclass(frozen=True)
class Command:
    """How a run is started."""

    words: Sequence[str]
    config: str
    overrides: Sequence[str]

    def start(self, folder: Path, log: Path) -> subprocess.Popen[bytes]:
        """Start the run in a folder, or continue it when there is one."""
        words = [*self.words, "train", self.config, "--out", str(folder)]
        words += [word for override in self.overrides for word in ("--set", override)]
        if (folder / "config.toml").exists():
            words.append("--resume")
        with log.open("ab") as file:
            return subprocess.Popen(words, stdout=file, stderr=file)  # noqa: S603 - our own program


class Servers:
    """Processes of `genenv serve` that say in a folder where they are; none where the run needs none."""

    def __init__(self, count: int, out: Path, policy: Sequence[str], model: str) -> None:
        self.out, self.count = out, count
        self._words = [sys.executable, "-m", "genenv", "serve", "--model", model, "--port", "0"]
        self._words += ["--adapters", str(out / "adapters"), *policy]
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._starts = 0

    @property
    def overrides(self) -> list[str]:
        """What the run must know of them."""
        if not self.count:
            return []
        places = {"addresses_folder": self.out / "addresses", "folder": self.out / "adapters"}
        return ["policy.backend=vllm", *(f"policy.vllm.{name}={path}" for name, path in places.items())]

    def __enter__(self) -> Servers:
        (self.out / "adapters").mkdir(exist_ok=True)
        for which in range(self.count):
            self.start(which)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def start(self, which: int) -> None:
        """Start one, and wait until it says where it is."""
        log = self.out / f"server-{which}-{self._starts}.log"
        self._starts += 1
        with log.open("wb") as file:
            process = subprocess.Popen(self._words, stdout=file, stderr=file)  # noqa: S603 - our own program
        self._running[which] = process
        while not (found := re.search(r" at (http://\S+?);", log.read_text(encoding="utf-8"))):
            if process.poll() is not None:
                sys.exit(f"genenv serve ended with status {process.returncode}; see {log}")
            time.sleep(0.1)
        write_address(self.out / "addresses", f"server-{which}", found[1])

    def kill_into(self, gone: list[int], number: int) -> None:
        """Kill one of them, another one each time, and note which."""
        if self.count:
            which = number % self.count
            self._running[which].kill()
            self._running[which].wait()
            gone.append(which)

    def start_anew(self, which: int) -> None:
        """Start one that was killed, at another address."""
        remove_address(self.out / "addresses", f"server-{which}")
        self.start(which)


@dataclass
class Timeline:
    """When the unbroken run did what, in seconds since it was started."""

    start_s: float = 0.0
    """From here on the run has a folder."""
    committed_s: dict[int, float] = field(default_factory=dict)
    commits_s: list[float] = field(default_factory=list)
    """How long each commit took."""
    total_s: float = 0.0

    @property
    def commit_s(self) -> float:
        """How long a commit usually takes."""
        return statistics.median(self.commits_s) if self.commits_s else 0.0


@dataclass(frozen=True)
class Kill:
    """One kill, and what was found afterwards."""

    run: int
    after_s: float
    aimed_at_commit: bool
    last_round: int | None
    found: str
    """What the kill left on the disk beside whole rounds."""
    gap_free: bool
    prefix_equal: bool
    lost: int
    doubled: int


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    out: Path = options.out
    if out.exists() and any(out.iterdir()):
        sys.exit(f"{out} is not empty; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    policy = [word for one in options.overrides if one.startswith("policy.") for word in ("--set", one)]
    with Servers(options.fleet, out.resolve(), policy, _model(options)) as servers:
        return held(options, out, servers)


def _model(options: argparse.Namespace) -> str:
    """What servers are to serve."""
    return load_config(Path(options.config), options.overrides).policy.model if options.fleet else ""


def held(options: argparse.Namespace, out: Path, servers: Servers) -> int:
    """Run, kill and compare; the exit status."""
    command = Command(
        shlex.split(options.command) or [sys.executable, "-m", "genenv"],
        options.config,
        [*options.overrides, *servers.overrides],
    )
    unbroken = out / "unbroken"
    timeline = run_unbroken(command, unbroken, out / "unbroken.log")
    seconds = f"{timeline.total_s:.1f} s, of which start {timeline.start_s:.1f} s"
    print(f"unbroken: {seconds}; a commit takes {timeline.commit_s:.3f} s")
    # with the device, number format and threads that the unbroken run measured and chose
    command = Command(command.words, str(unbroken / "config.toml"), ())
    kills, runs = run_broken(command, out, timeline, options.kills, random.Random(options.seed), servers)
    comparisons = [{} if options.fleet else compare_ends(unbroken, run) for run in runs]
    result = {
        "kills": len(kills),
        **({"servers": options.fleet} if options.fleet else {}),
        "aimed_at_commit": sum(kill.aimed_at_commit for kill in kills),
        "runs": len(runs),
        "gap_free": all(kill.gap_free for kill in kills),
        "prefix_equal": all(kill.prefix_equal for kill in kills),
        "lost": sum(kill.lost for kill in kills),
        "doubled": sum(kill.doubled for kill in kills),
        **{name: all(c[name] for c in comparisons) for name in comparisons[0]},
        "found": dict(Counter(kill.found for kill in kills)),
        "unbroken_s": round(timeline.total_s, 2),
    }
    print_table(kills)
    result["passed"] = not (result["lost"] or result["doubled"]) and all(
        value for value in result.values() if isinstance(value, bool)
    )
    print(json.dumps(result))
    return 0 if result["passed"] else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("config", help="the settings of the run, TOML")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the instants, not of the run")
    parser.add_argument("--out", type=Path, required=True, help="an empty folder for all runs")
    parser.add_argument("--fleet", type=int, default=0, help="processes of `genenv serve` that sample")
    parser.add_argument("--command", default="", help="the program; default: python -m genenv")
    return parser.parse_args(arguments)


def run_unbroken(command: Command, folder: Path, log: Path) -> Timeline:
    """Run to the end, and note when what happened."""
    timeline, begin = Timeline(), time.monotonic()
    process = command.start(folder, log)
    writing = 0.0
    while process.poll() is None:
        now = time.monotonic() - begin
        if not timeline.start_s and (folder / "config.toml").exists():
            timeline.start_s = now
        if not writing and commit_under_way(folder):
            writing = now
        for number in range(len(timeline.committed_s), metric_lines(folder)):
            timeline.committed_s[number] = now
            if writing:
                timeline.commits_s.append(now - writing)
            writing = 0.0
        time.sleep(POLL_S)
    timeline.total_s = time.monotonic() - begin
    ended_well(process, log)
    return timeline


def run_broken(
    command: Command, out: Path, timeline: Timeline, wanted: int, rng: random.Random, servers: Servers
) -> tuple[list[Kill], list[Path]]:
    """Kill and resume until there were `wanted` kills and every run is at its end."""
    kills: list[Kill] = []
    runs: list[Path] = []
    while len(kills) < wanted or not runs:
        folder = out / f"broken-{len(runs)}"
        runs.append(folder)
        before: Path | None = None  # the store as it was after the last kill, where servers differ in digits
        log = folder.with_suffix(".log")
        for instant in sorted(rng.uniform(0, timeline.total_s) for _ in range(wanted - len(kills))):
            aimed = len(kills) % 2 == 1
            gone: list[int] = []
            kill_one = functools.partial(servers.kill_into, gone, len(kills))
            after_s = start_and_kill(command, folder, timeline, (instant, aimed), rng, kill_one)
            for which in gone:
                servers.start_anew(which)
            if after_s is None:
                break
            kills.append(
                inspect(folder, before or folder, len(runs) - 1, after_s, aimed_at_commit=aimed, cut=False)
                if servers.count
                else inspect(folder, out / "unbroken", len(runs) - 1, after_s, aimed_at_commit=aimed)
            )
            if servers.count and (folder / "config.toml").exists():
                before = out / f"after-{len(kills)}"
                before.mkdir()
                for path in folder.glob("pool.db*"):
                    shutil.copy(path, before)
            print(f"kill {len(kills)}/{wanted}: {kills[-1].found}", file=sys.stderr)
        process = command.start(folder, log)  # a run that has ended stays as it is
        process.wait()
        ended_well(process, log)
    return kills, runs


def start_and_kill(
    command: Command,
    folder: Path,
    timeline: Timeline,
    aim: tuple[float, bool],
    rng: random.Random,
    half_way: Callable[[], object],
) -> float | None:
    """Start or resume, and kill.

    Args:
        command: starts the run.
        folder: the run.
        timeline: of the unbroken run.
        aim: an instant on that timeline, and whether to wait from there for the next commit.
        rng: for where in a commit, or in a start when the run is past the instant already.
        half_way: is called half-way to the instant.

    Returns:
        Seconds from start to kill; None when the run ended before.
    """
    instant, aimed = aim
    wait_s = instant
    if lines := metric_lines(folder):
        wait_s = timeline.start_s + instant - timeline.committed_s[lines - 1]
        if wait_s < timeline.start_s:
            wait_s = rng.uniform(0, timeline.start_s)
    log, begin = folder.with_suffix(".log"), time.monotonic()
    process = command.start(folder, log)
    for waited in ("first half", "second half"):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s / 2)
        if waited == "first half":
            half_way()
    while aimed and process.poll() is None and not commit_under_way(folder):
        time.sleep(POLL_S)
    if aimed:
        time.sleep(rng.uniform(0, 1.2 * timeline.commit_s))
    if process.poll() is not None:
        ended_well(process, log)
        return None
    process.kill()
    process.wait()
    return time.monotonic() - begin


def inspect(
    folder: Path, unbroken: Path, run: int, after_s: float, *, aimed_at_commit: bool, cut: bool = True
) -> Kill:
    """What a kill left."""
    last, lost, doubled, gap_free, equal = None, 0, 0, True, True
    if (folder / "config.toml").exists():
        with copied(folder) as store:
            last = store.last_round()
            gap_free = store.rounds() == tuple(range(len(store.rounds())))
            rounds = 0 if last is None else last + 1
            with copied(unbroken, rounds=rounds if cut else None) as whole:
                if last is not None:  # before, base data may be missing
                    equal = prefix_of(folder, whole) == whole.digest()
                mine, due = Counter(ids(store)), Counter(ids(whole))
            lost, doubled = (due - mine).total(), (mine - Counter(set(mine))).total()
    return Kill(
        run=run,
        after_s=round(after_s, 3),
        aimed_at_commit=aimed_at_commit,
        last_round=last,
        found=leftovers(folder, last),
        gap_free=gap_free,
        prefix_equal=equal,
        lost=lost,
        doubled=doubled,
    )


def prefix_of(folder: Path, whole: PoolStore) -> str:
    """The digest of as many rounds of a run as another store has."""
    due = whole.last_round()
    with copied(folder, rounds=0 if due is None else due + 1) as store:
        return store.digest()


def leftovers(folder: Path, last: int | None) -> str:
    """In which part of a round the kill fell, told by what is on the disk."""
    if not (folder / "config.toml").exists():
        return "no run yet"
    names = [path.name for path in (folder / "checkpoints").iterdir()]
    if any(name.startswith(".writing-") for name in names):
        return "checkpoint half written"
    if any(number > (-1 if last is None else last) for number in checkpoints(folder / "checkpoints")):
        return "checkpoint without its round in the store"
    if metric_lines(folder) < (0 if last is None else last + 1):
        return "round in the store, not in metrics.jsonl"
    if any(name.startswith(".deleting-") for name in names):
        return "old checkpoint half deleted"
    return "between commits"


@contextlib.contextmanager
def copied(run: Path, *, rounds: int | None = None) -> Iterator[PoolStore]:
    """A copy of a run's store: opening the original would mend it before the resumed run has to.

    Args:
        run: the folder.
        rounds: how many the copy keeps, the first ones; all when None.
    """
    with tempfile.TemporaryDirectory() as scratch:
        for path in run.glob("pool.db*"):
            if not path.name.endswith("-shm"):
                shutil.copy(path, scratch)
        copy = Path(scratch, "pool.db")
        if rounds is not None:
            with contextlib.closing(sqlite3.connect(copy)) as database, database:
                database.execute("PRAGMA foreign_keys = ON")
                database.execute("DELETE FROM rounds WHERE number >= ?", (rounds,))
        with PoolStore.open(copy, create=False) as store:
            yield store


def ids(store: PoolStore) -> list[str]:
    """Every generated task and every trace in committed rounds."""
    traces = [t.id for number in store.rounds() for group in store.groups(number) for t in group.traces]
    return traces + [
        task.id for number in store.rounds() for task in store.tasks(rounds=range(number, number + 1))
    ]


def compare_ends(unbroken: Path, broken: Path) -> dict[str, bool]:
    """Whether two finished runs are equal."""
    with copied(unbroken) as a, copied(broken) as b:
        digests = a.digest() == b.digest()
    manifests = []
    for run in (unbroken, broken):
        last = list(checkpoints(run / "checkpoints").values())[-1]
        manifest = json.loads((last / MANIFEST).read_bytes())
        manifest.pop("run")  # random: no two runs have the same
        manifests.append((last.name, manifest))
    return {
        "digest_equal": digests,
        "metrics_equal": timeless(unbroken) == timeless(broken),
        "checkpoint_equal": manifests[0] == manifests[1],
    }


def timeless(run: Path) -> list[dict[str, float]]:
    """The metrics of each round but `time/*`."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


def commit_under_way(folder: Path) -> bool:
    return any((folder / "checkpoints").glob(".writing-*"))


def metric_lines(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (folder / "metrics.jsonl").read_bytes().count(b"\n")
    return 0


def ended_well(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.returncode:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        sys.exit(f"genenv ended with status {process.returncode}; the end of {log}:\n{tail}")


def print_table(kills: Sequence[Kill]) -> None:
    titles = ["kill", "run", "after s", "aimed at", "last round", "found", "lost", "doubled", "equal so far"]
    rows = [
        [
            number,
            kill.run,
            f"{kill.after_s:.2f}",
            "commit" if kill.aimed_at_commit else "instant",
            "none" if kill.last_round is None else kill.last_round,
            kill.found,
            kill.lost,
            kill.doubled,
            "yes" if kill.prefix_equal and kill.gap_free else "NO",
        ]
        for number, kill in enumerate(kills, start=1)
    ]
    for row in [titles, ["---"] * len(titles), *rows]:
        print(f"| {' | '.join(map(str, row))} |")


if __name__ == "__main__":
    sys.exit(main())
