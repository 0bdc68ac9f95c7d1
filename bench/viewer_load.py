"""How fast the pages of `genenv view` are over a run of a million tasks that is being written.

    python bench/viewer_load.py --tasks 100000 --run runs/load
    python bench/viewer_load.py --tasks 100000 --run runs/load --rounds 10     # measures; the run is there

Writes a run of made-up tasks by the store's own commits, 1000 tasks and 8 rollouts of each in a round, unless
the run is there. Then serves it from a process of its own and asks for every page, one after the other, by
readers at the same time, while this process commits rounds. Prints a JSON line per page: milliseconds to the
first byte, and how many answers had another status than 200. The last lines are the memory of the server,
how long its index took, and the seconds of a commit without and with readers.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import random
import re
import sqlite3
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import quote, urlencode

from genenv.runs.folder import RunFolder, metrics_line
from genenv.runs.metrics import _METRICS
from genenv.runs.store.records import Evaluation, RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.types import (
    Context,
    Generation,
    Group,
    Lineage,
    Message,
    Origin,
    Proposal,
    Rejection,
    RejectReason,
    Seed,
    SimulatorSample,
    StopReason,
    Task,
    TaskBatch,
    Trace,
)

CONTEXTS, PER_CONTEXT, REFUSED, ROLLOUTS = 125, 8, 2, 8
"""Contexts of a round, tasks and refused generations of each, and rollouts of a task."""
SEEDS, HELD_OUT, TOKENS = 400, 100, 24
WORDS = tuple(
    "".join(parts) for parts in itertools.product("bdfgklmnprst", "aeiou", "lmnrs", "aeiou", ("", "k", "t"))
)
SKILLS = tuple(f"skill-{number}" for number in range(12))
SYSTEM = Message(
    role="system", content="You have tools: get_weather(city), send_mail(to, text). " + "Call them. " * 8
)
CONFIG = """[run]
rounds = 100000
seed = 1
[environment]
name = "tool_calling"
[policy]
model = "made-up/7B"
[agent]
advantage = "centred"
"""


def text(rng: random.Random, count: int) -> str:
    """Return made-up words, the first ones more often."""
    return " ".join(WORDS[int(len(WORDS) * rng.random() ** 2)] for _ in range(count))


def base() -> tuple[list[Seed], list[Task]]:
    """Return the seeds, and the base and held-out tasks."""
    rng = random.Random(0)
    seeds = [
        Seed(
            id=f"seed-{n}", environment="tool_calling", spec={"text": text(rng, 8)}, skills=(SKILLS[n % 12],)
        )
        for n in range(SEEDS)
    ]
    tasks = [
        task(rng, f"base-{n}", Lineage(origin=Origin.SEED, seed_id=seed.id)) for n, seed in enumerate(seeds)
    ]
    held = [task(rng, f"held-{n}", Lineage(origin=Origin.HELD_OUT)) for n in range(HELD_OUT)]
    return seeds, [*tasks, *held]


def task(rng: random.Random, name: str, lineage: Lineage) -> Task:
    """Return a made-up task."""
    city = rng.choice(WORDS)
    return Task(
        id=name,
        environment="tool_calling",
        skills=(SKILLS[min(11, int(rng.expovariate(0.4)))], "calls:1"),
        messages=(SYSTEM, Message(role="user", content=f"{text(rng, 24)} in {city}?")),
        spec={"calls": 1, "city": city},
        payload={"expected": [{"name": "get_weather", "arguments": {"city": city}}]},
        oracle=(call(city),),
        lineage=lineage,
    )


def call(city: str) -> str:
    """Return a reply that calls a tool."""
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'


def record(number: int, seeds: list[Seed], contexts: int) -> RoundRecord:
    """Return a made-up round; the same for the same number."""
    rng = random.Random(number)
    batches = [
        batch(rng, f"r{number:05}-c{place:03}", number, rng.choice(seeds)) for place in range(contexts)
    ]
    samples = [
        SimulatorSample(generation=one.proposals[0].generation, weight=1 / len(batches)) for one in batches
    ]
    evaluations = [
        Evaluation(
            task_id=f"held-{n}",
            success=rng.random() < 0.3 + n / 300,
            reward=0.5,
            replies=("x",),
            explanation="y",
        )
        for n in range(HELD_OUT)
        if number % 10 == 0
    ]
    metrics = {one.name: rng.random() for one in _METRICS if "*" not in one.name and "{" not in one.name}
    metrics |= {f"simulator/rejected/{one}": rng.random() * 20 for one in RejectReason}
    return RoundRecord(
        number=number,
        metrics=metrics,
        state={},
        batches=batches,
        groups=[group for one in batches for group in one.groups],
        samples=samples,
        evaluations=evaluations,
    )


def batch(rng: random.Random, name: str, number: int, seed: Seed) -> TaskBatch:
    """Return a context with its tasks, their rollouts, and its refused generations."""
    context = Context(
        id=name,
        round=number,
        seed=seed,
        messages=(Message(role="user", content=f"Write a task. {text(rng, 12)}"),),
    )
    proposals, groups = list[Proposal](), list[Group]()
    for n in range(PER_CONTEXT + REFUSED):
        generation = Generation(
            id=f"{name}-g{n}",
            context_id=name,
            prompt_ids=(1, 2, 3, 4),
            token_ids=(5,) * 8,
            logprobs=(-0.5,) * 8,
            text=json.dumps({"task": text(rng, 16)}),
            finished=True,
        )
        if n < REFUSED:
            reason = rng.choice([*RejectReason][:11] + [RejectReason.DUPLICATE] * 20)
            outcome: Task | Rejection = Rejection(reason=reason, explanation=f"it replays to {text(rng, 6)}")
        else:
            outcome = task(
                rng,
                generation.id,
                Lineage(
                    origin=Origin.GENERATED, seed_id=seed.id, context_id=name, generation_id=generation.id
                ),
            )
            groups.append(Group(task=outcome, traces=rollouts(rng, outcome, number)))
        proposals.append(Proposal(generation=generation, outcome=outcome, novelty=rng.random()))
    solved = sum(group.successes for group in groups)
    return TaskBatch(
        context=context,
        proposals=tuple(proposals),
        groups=tuple(groups),
        p_hat=solved / (len(groups) * ROLLOUTS),
        env_reward=rng.random(),
    )


def rollouts(rng: random.Random, of: Task, number: int) -> tuple[Trace, ...]:
    """Return the rollouts of a task."""
    rate, found = rng.random(), list[Trace]()
    ids = tuple(rng.randrange(50_000) for _ in range(TOKENS))
    for n in range(ROLLOUTS):
        success = rng.random() < rate
        found.append(
            Trace(
                id=f"{of.id}/{n}",
                task_id=of.id,
                token_ids=ids,
                sampled=(False,) * 8 + (True,) * (TOKENS - 8),
                logprobs=(0.0,) * 8 + (-0.05, -1.5) * ((TOKENS - 8) // 2),
                prompt_tokens=8,
                messages=(Message(role="assistant", content=call(rng.choice(WORDS))),),
                reward=float(success),
                success=success,
                explanation="the calls are those that were expected"
                if success
                else "another city was asked for",
                stop_reason=StopReason.DONE,
                version=number,
                readable=True,
            )
        )
    return tuple(found)


def generate(path: Path, tasks: int, contexts: int) -> None:
    """Write a run with so many tasks."""
    folder = RunFolder.create(path, CONFIG)
    seeds, held = base()
    rounds = max(1, round(tasks / (contexts * PER_CONTEXT)))
    with folder.lock(), PoolStore.open(folder.pool, create=False) as store, folder.metrics.open("a") as file:
        store._db.run("PRAGMA synchronous = OFF")
        store.put_base(seeds, held)
        for number in range(1, rounds + 1):
            made = record(number, seeds, contexts)
            store.commit_round(made)
            file.write(metrics_line(number, made.metrics))
            if number % 50 == 0:
                say({"written": number, "of": rounds})


def paths(folder: Path, name: str) -> dict[str, list[str]]:
    """Return the addresses of each kind of page, several of it, so that not always the same rows are read."""
    with closing(sqlite3.connect(f"file:{folder / 'pool.db'}?mode=ro", uri=True)) as db:
        last = db.execute("SELECT max(number) FROM rounds").fetchone()[0]
        top = db.execute("SELECT max(n) FROM tasks").fetchone()[0]
        rng = random.Random(1)
        drawn = [rng.randrange(600, top) if top > 700 else top for _ in range(40)]
        ids = [db.execute("SELECT id FROM tasks WHERE n >= ?", (n,)).fetchone()[0] for n in drawn]

    def run(page: str, **query: object) -> str:
        return f"/runs/{quote(name)}/-/{page}" + (f"?{urlencode(query)}" if query else "")

    rounds = [rng.randrange(1, last + 1) for _ in range(20)]
    words = [rng.choice(WORDS[:300]) for _ in range(20)]
    pairs = [f"{rng.choice(WORDS[:200])} {rng.choice(WORDS[:200])}" for _ in range(20)]
    reasons = [*RejectReason]
    return {
        "runs": ["/"],
        "run": [run("")],
        "curves": [run("curves")],
        "config": [run("config")],
        "tasks": [run("tasks")],
        "two rounds": [run("rounds", round=one) for one in rounds if one > 1],
        "rounds far apart": [run("rounds", round=one, before=1, by="skill") for one in rounds if one > 1],
        "tasks of a round": [run("tasks", round=one) for one in rounds],
        "hardest of a round": [run("tasks", round=one, sort="hard") for one in rounds],
        "hardest": [run("tasks", sort="hard")],
        "easiest": [run("tasks", sort="easy")],
        "of a rate": [run("tasks", low=0.4, high=0.6)],
        "of a skill": [run("tasks", skill=one) for one in SKILLS],
        "hardest of a skill": [run("tasks", skill=one, sort="hard") for one in SKILLS],
        "base": [run("tasks", origin="seed")],
        "hardest generated": [run("tasks", origin="generated", sort="hard")],
        "unlearned": [run("tasks", change="unlearned")],
        "learned": [run("tasks", change="learned")],
        "with a word": [run("tasks", text=one) for one in words],
        "with two words": [run("tasks", text=one) for one in pairs],
        "hardest with a word": [run("tasks", text=one, sort="hard") for one in words],
        "with no such text": [run("tasks", text="zzz nothing")],
        "a task": [run("task", id=one) for one in ids],
        "a held-out task": [run("task", id=f"held-{n}") for n in range(20)],
        "a trajectory": [run("trace", id=f"{one}/3") for one in ids],
        "refused": [run("refused")],
        "refused for a reason": [run("refused", reason=one) for one in reasons],
        "refused in a round": [run("refused", round=one) for one in rounds],
        "SQL on a round": [
            run(
                "sql",
                sql=f"SELECT task_id, avg(success) FROM traces WHERE round = {one} GROUP BY 1",  # noqa: S608
            )
            for one in rounds
        ],
        "evaluations": ["/evaluations"],
        "refused with a word": [run("refused", text=one) for one in words],
    }


def ask(port: int, path: str) -> tuple[float, int]:
    """Return the milliseconds to the first byte of an answer, and its status."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        start = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read(1)
        took = time.perf_counter() - start
        answer.read()
        return took * 1000, answer.status


def measure(folder: Path, given: argparse.Namespace) -> None:
    """Ask for every page while rounds are committed, and print what it took."""
    command = [sys.executable, "-m", "genenv", "view", str(folder.parent), "--port", "0"]
    place = os.environ | {"GENENV_CACHE": str(folder.parent / ".cache")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=place) as server:  # noqa: S603
        try:
            port = int(re.findall(r"127\.0\.0\.1:(\d+)", (server.stdout or sys.stdin).readline())[0])
            kinds = paths(folder, folder.name)
            start = time.perf_counter()
            while b"being built" in page(port, kinds["hardest"][0]):
                time.sleep(0.5)
            say({"index_s": round(time.perf_counter() - start, 1), "rss_mib": memory(server.pid)})
            alone = [one for _ in range(given.rounds) for one in commits(folder, given.contexts, given.every)]
            say({"readers": 0, "commits_s": alone, "median": statistics.median(alone)})
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                reading = pool.submit(asked, port, kinds, given.readers, given.asks, given.pause)
                beside = list[float]()
                while not reading.done():
                    beside += commits(folder, given.contexts, given.every)
                took, wrong = reading.result()
            say({"readers": given.readers, "commits_s": beside, "median": statistics.median(beside)})
            every = [one for found in took.values() for one in found]
            for kind, times in {**took, "every page": every}.items():
                p50, p95 = statistics.median(times), statistics.quantiles(times, n=20)[-1]
                bad = wrong.get(kind, 0)
                say(
                    {
                        "page": kind,
                        "p50_ms": round(p50),
                        "p95_ms": round(p95),
                        "asks": len(times),
                        "wrong": bad,
                    }
                )
            say({"rss_mib": memory(server.pid)})
        finally:
            server.terminate()


def asked(
    port: int, kinds: dict[str, list[str]], readers: int, asks: int, pause: float
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return the milliseconds of each kind of page, and how many answers were wrong."""
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    wrong: dict[str, int] = defaultdict(int)

    def read(which: int) -> None:
        for kind, path in plan(kinds, asks, which):
            ms, status = ask(port, path)
            took[kind].append(ms)
            wrong[kind] += status != 200
            time.sleep(pause)

    with ThreadPoolExecutor(readers) as pool:
        list(pool.map(read, range(readers)))
    return took, dict(wrong)


def plan(kinds: dict[str, list[str]], asks: int, which: int) -> Iterator[tuple[str, str]]:
    """Yield the pages that a reader asks for, in an order of its own."""
    rng = random.Random(which)
    found = [(kind, rng.choice(paths)) for kind, paths in kinds.items() for _ in range(asks)]
    rng.shuffle(found)
    yield from found


def commits(folder: Path, contexts: int, every: float) -> list[float]:
    """Commit a round as a run does, and wait; return the seconds of the commit."""
    opened, (seeds, _) = RunFolder.open(folder), base()
    with opened.lock(), PoolStore.open(opened.pool, create=False, check=False) as store:
        made = record((store.last_round() or 0) + 1, seeds, contexts)
        start = time.perf_counter()
        store.commit_round(made)
        took = round(time.perf_counter() - start, 3)
        with opened.metrics.open("a") as file:
            file.write(metrics_line(made.number, made.metrics))
    time.sleep(every)
    return [took]


def page(port: int, path: str) -> bytes:
    """Return a page."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read()


def memory(pid: int) -> int:
    """Return the largest resident memory of a process so far, MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) // 1024


def say(line: object) -> None:
    """Print a JSON line."""
    print(json.dumps(line), flush=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run, in a folder of its own")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--contexts", type=int, default=CONTEXTS, help="contexts of a round, of 8 tasks each")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that are committed without readers")
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--asks", type=int, default=6, help="times that each reader asks for each page")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds between an answer and the next question"
    )
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two commits")
    parser.add_argument("--only-write", action="store_true")
    given = parser.parse_args()
    if not given.run.exists():
        generate(given.run, given.tasks, given.contexts)
    if not given.only_write:
        measure(given.run, given)


if __name__ == "__main__":
    main()
