"""What a long run costs beside its models: the store, the report, resuming, and the gate's archive.

    python bench/growth.py
    python bench/growth.py --rounds 100 --distinct 200
    python bench/growth.py --rounds 3000 --run runs/growth

Makes the folder of a run without any model, by the loop of a run: contexts, scores, statistics, replays,
metrics, checkpoints and commits are a run's own. What a model would write is made up: tasks are the
environment's variations, with the halves of their texts put together anew, so that nearly all differ;
attempts are random tokens. Then each question is put in a process of its own, whose seconds (imports left
out) and peak memory are printed, a JSON line each. `--run` keeps the folder, and measures again one that is
there.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from turns import machine, resident_kib, say

from genenv.agent.policy import Agent, AgentConfig
from genenv.algorithms.datum import UpdateBatch
from genenv.backends.scripted import ScriptedSampler, ScriptedTrainer
from genenv.config.run import RunConfig, dump_toml, parse_config
from genenv.environments import load_environment
from genenv.environments.base import Environment
from genenv.gate.gate import written
from genenv.gate.novelty import Archive
from genenv.runs.folder import RunFolder
from genenv.runs.store.store import PoolStore
from genenv.simulator.policy import TaskSource
from genenv.training.loop import CoEvolution
from genenv.training.rounds import Policies
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
    StopReason,
    Task,
    Trace,
)

REJECTED = 0.07
"""Share of the generations that become no task."""


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--environment", default="tool_calling")
    parser.add_argument("--contexts", type=int, default=9, help="a round; four tasks are written for each")
    parser.add_argument("--attempts", type=int, default=4, help="at each task")
    parser.add_argument("--tokens", type=int, default=64, help="of an attempt, a generation and a prompt")
    parser.add_argument("--distinct", type=int, default=4000, help="real tasks, of which the others are made")
    parser.add_argument("--asked", type=int, default=200, help="new tasks that the gate is timed on")
    parser.add_argument("--run", type=Path, help="folder of the run; kept, and not made where it is")
    parser.add_argument("--measure", choices=sorted(MEASURES), help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    if options.measure:
        MEASURES[options.measure](options)
        return
    with tempfile.TemporaryDirectory(prefix="genenv-bench-") as temporary:
        options.run = options.run or Path(temporary) / "run"
        if not options.run.exists():
            make(options)
        for name in MEASURES:
            words = [sys.executable, __file__, *_words(options), "--measure", name]
            subprocess.run(words, check=True)  # noqa: S603 - this program


def _words(options: argparse.Namespace) -> Iterator[str]:
    for name, value in vars(options).items():
        if value is not None:
            yield from (f"--{name}", str(value))


def make(options: argparse.Namespace) -> None:
    """Play the rounds with what is made up in place of models."""
    config = parse_config(
        {
            "run": {"rounds": options.rounds, "eval_every": 5, "eval_tasks": 20},
            "environment": {"name": options.environment},
            "simulator": {"contexts": options.contexts, "variations": 4},
            "agent": {"rollouts": options.attempts, "replayed": 16},
        }
    )
    env = load_environment(config.environment.name, config.environment.settings)
    folder = RunFolder.create(options.run, dump_toml(config))
    begin = time.perf_counter()
    written = tasks_of(env, options.distinct, random.Random(0))
    loop = CoEvolution(config, env, random_players(options), folder)
    loop.pool.gate.admit = admitting(written, random.Random(1))
    loop.run()
    seconds = time.perf_counter() - begin
    with PoolStore.open(folder.pool, create=False) as store:
        rounds = store.rounds()
        say(
            bench="growth",
            of="making",
            rounds=options.rounds,
            tasks=len(store.tasks(origin=Origin.GENERATED)),
            pool_mib=folder.pool.stat().st_size / 2**20,
            state_bytes={n: len(json.dumps(store.state(n))) for n in (rounds[1], rounds[-1])},
            seconds=seconds,
            **machine(),
        )


def tasks_of(env: Environment, distinct: int, rng: random.Random) -> Iterator[Task]:
    """Tasks without end: real ones, their texts joined anew; the id is for the caller to change."""
    seeds, real = env.seeds(), list[Task]()
    for number in itertools.count():
        seed = rng.choice(seeds)
        spec = env.spec.model_validate(env.variation(seed, rng))
        lineage = Lineage(origin=Origin.GENERATED, seed_id=seed.id)
        task = env.build(spec, task_id=f"real-{number}", lineage=lineage, rng=rng)
        real += [task] if isinstance(task, Task) else []
        if len(real) == distinct:
            break
    while True:
        first, second = rng.choice(real), rng.choice(real)
        text = joined(first.messages[-1].content, second.messages[-1].content)
        said = (*first.messages[:-1], Message(role="user", content=text))
        spec = {**first.spec, "instruction": text} if "instruction" in first.spec else first.spec
        yield dataclasses.replace(first, messages=said, spec=spec)


def joined(first: str, second: str) -> str:
    """Half of one text and half of another."""
    one, other = first.split(), second.split()
    return " ".join(one[: (len(one) + 1) // 2] + other[len(other) // 2 :])


def admitting(tasks: Iterator[Task], rng: random.Random) -> Callable[..., list[Proposal]]:
    """Stands for the gate, which would build and compare every task."""

    def admit(contexts: Sequence[Context], generations: Sequence[Generation]) -> list[Proposal]:
        seeds = {context.id: context.seed.id for context in contexts}
        return [proposal(generation, seeds[generation.context_id]) for generation in generations]

    def proposal(generation: Generation, seed_id: str) -> Proposal:
        if rng.random() < REJECTED:
            rejection = Rejection(reason=rng.choice(list(RejectReason)), explanation="It is made up.")
            return Proposal(generation=generation, outcome=rejection)
        lineage = Lineage(
            origin=Origin.GENERATED,
            seed_id=seed_id,
            context_id=generation.context_id,
            generation_id=generation.id,
        )
        task = dataclasses.replace(next(tasks), id=f"task-{generation.id}", lineage=lineage)
        return Proposal(generation=generation, outcome=task, novelty=rng.random())

    return admit


class _Noise:
    """Random tokens and log-probabilities, fifty draws of each."""

    def __init__(self, tokens: int) -> None:
        self.rng = random.Random(2)
        self._ids = [tuple(self.rng.randrange(50_000) for _ in range(tokens)) for _ in range(50)]
        self._logprobs = [tuple(-self.rng.random() for _ in range(tokens)) for _ in range(50)]

    def ids(self) -> tuple[int, ...]:
        return self.rng.choice(self._ids)

    def logprobs(self) -> tuple[float, ...]:
        return self.rng.choice(self._logprobs)


class _RandomSource(TaskSource):
    """A simulator whose tokens are random."""

    def __init__(self, noise: _Noise) -> None:
        self.noise = noise

    async def propose(self, env: Environment, contexts: Sequence[Context]) -> list[Generation]:
        return [
            Generation(
                id=f"{context.id}-g{number}",
                context_id=context.id,
                prompt_ids=self.noise.ids(),
                token_ids=self.noise.ids(),
                logprobs=self.noise.logprobs(),
                text="a spec would stand here",
                finished=True,
            )
            for context in contexts
            for number in range(4)
        ]


class _RandomAgent(Agent):
    """An agent whose tokens are random. It solves each task at a random rate, and learns nothing."""

    def __init__(self, noise: _Noise, config: AgentConfig) -> None:
        super().__init__(ScriptedSampler(lambda prompt, rng: ""), ScriptedTrainer(), config, seed=0)
        self.noise = noise

    async def roll_out(self, env: Environment, tasks: Sequence[Task], *, round_: int) -> list[Group]:
        return [self.group(task, f"r{round_}") for task in tasks]

    async def solve(self, env: Environment, tasks: Sequence[Task]) -> list[Group]:
        return [self.group(task, "eval") for task in tasks]

    async def solutions(
        self, env: Environment, groups: Sequence[Group], others: Sequence[Task] = ()
    ) -> dict[str, Trace]:
        return {}

    async def learn(self, batch: UpdateBatch, *, round_: int, rounds: int) -> Mapping[str, float]:
        return {}

    def group(self, task: Task, of: str) -> Group:
        rate, names = self.noise.rng.random(), [f"{of}-{task.id}-{n}" for n in range(self.config.rollouts)]
        return Group(task=task, traces=tuple(self.trace(task, name, rate) for name in names))

    def trace(self, task: Task, name: str, rate: float) -> Trace:
        ids, success = self.noise.ids(), self.noise.rng.random() < rate
        said = task.oracle if success else ("I do not know.",)
        return Trace(
            id=name,
            task_id=task.id,
            token_ids=ids,
            sampled=(True,) * len(ids),
            logprobs=self.noise.logprobs(),
            prompt_tokens=0,
            messages=tuple(Message(role="assistant", content=reply) for reply in said),
            reward=float(success),
            success=success,
            explanation="right" if success else "wrong",
            stop_reason=StopReason.DONE,
        )


def random_players(options: argparse.Namespace) -> Policies:
    noise = _Noise(options.tokens)
    agent = _RandomAgent(noise, AgentConfig(rollouts=options.attempts))
    return Policies(agent=agent, simulator=_RandomSource(noise))


def measure_report(options: argparse.Namespace) -> None:
    from genenv.viewer.frozen import write_report

    times = timed(lambda: write_report(options.run))
    whole("report", times, page_mib=RunFolder(options.run).report.stat().st_size / 2**20)


def measure_summary(options: argparse.Namespace) -> None:
    from genenv.runs.summary import summarise

    whole("summary", timed(lambda: summarise(options.run)))


def measure_resume(options: argparse.Namespace) -> None:
    """Everything up to where the next round would begin; no model is loaded. Then what a round asks."""
    loops: list[CoEvolution] = []
    whole("resume", timed(lambda: loops.append(resumed(options))))
    loop, gate = loops[0], loops[0].pool.gate
    with PoolStore.open(loop.folder.pool, create=False) as store:
        last = store.last_round() or 0
        times = [timed(lambda n=n: loop.pool.replayed(last + n, [], store)) for n in range(1, 21)]
    say(bench="growth", of="choosing 16 tasks to replay", **spread(times))
    times = [timed(lambda p=p: gate.admit([p[0]], [p[1]])) for p in new_specs(loop.env, options.asked)]
    say(bench="growth", of="gate, a task", **spread(times))


def resumed(options: argparse.Namespace) -> CoEvolution:
    folder = RunFolder.open(options.run)
    config: RunConfig = folder.settings()
    env = load_environment(config.environment.name, config.environment.settings)
    loop = CoEvolution(config, env, random_players(options), folder)
    loop.run()  # all rounds are committed: it resumes, and plays none
    return loop


def new_specs(env: Environment, n: int) -> list[tuple[Context, Generation]]:
    """Variations of seeds, as a simulator would write them."""
    rng, found = random.Random(3), list[tuple[Context, Generation]]()
    for number in range(n):
        seed = rng.choice(env.seeds())
        text = json.dumps(env.variation(seed, rng))
        found.append(written(seed, text, context_id=f"new-c{number}", generation_id=f"new-g{number}"))
    return found


def measure_novelty(options: argparse.Namespace) -> None:
    """The archive alone, at a hundredth, a tenth and all of the run's tasks."""
    with PoolStore.open(RunFolder.open(options.run).pool, create=False) as store:
        surfaces = list(dict(store.surfaces()).items())
    rng = random.Random(4)
    asked = [joined(rng.choice(surfaces)[1], rng.choice(surfaces)[1]) for _ in range(options.asked)]
    for share in (100, 10, 1):
        archive, part = Archive(), surfaces[: max(1, len(surfaces) // share)]
        gc.collect()
        filling = timed(lambda archive=archive, part=part: [archive.add(*item) for item in part])
        times = [timed(lambda archive=archive, text=text: archive.nearest(text)) for text in asked]
        say(bench="growth", of="nearest", tasks=len(part), fill_cpu_s=filling[1], **spread(times))


MEASURES = {
    "report": measure_report,
    "summary": measure_summary,
    "resume": measure_resume,
    "novelty": measure_novelty,
}


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the wall clock, and of the processor, which other work does not disturb."""
    begin, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begin, time.process_time() - used


def whole(of: str, times: tuple[float, float], **more: float) -> None:
    say(bench="growth", of=of, seconds=times[0], cpu_s=times[1], peak_mib=peak_mib(), **more)


def spread(times: Sequence[tuple[float, float]]) -> dict[str, float]:
    wall, cpu = (sorted(1e3 * time[i] for time in times) for i in (0, 1))
    return {
        "median_ms": statistics.median(wall),
        "p99_ms": wall[int(0.99 * len(wall))],
        "cpu_median_ms": statistics.median(cpu),
        "cpu_p99_ms": cpu[int(0.99 * len(cpu))],
    }


def peak_mib() -> float:
    """Resident memory of this process at its peak."""
    return resident_kib(os.getpid(), "VmHWM") / 2**10


if __name__ == "__main__":
    main()
