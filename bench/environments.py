"""Gate, ground truth and speed of each environment: specs drawn from the grammar, and specs made wrong.

    python bench/environments.py household --set mode=single
    python bench/environments.py travel --specs 1000 --mutations 500

Specs are drawn from the grammars of all seeds in turn, and go through the gate of a run. On all that pass,
the oracle and an uninformed agent are graded, and both checks must agree (a part of the gate). Valid specs
are then made wrong (`tests/environments/NAME/mutations.py`), and the gate must refuse them. No model takes
part.
One JSON object is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import runpy
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from genenv.config.run import parse_config
from genenv.curriculum.settings import CurriculumConfig
from genenv.environments import load_environment
from genenv.environments.base import Environment, OutOfTurns
from genenv.errors import UsageError
from genenv.gate.gate import Gate, written
from genenv.simulator.schema_sampling import sample_json
from genenv.types import Context, Generation, Rejection, Seed, Task

_ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("environment")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the environment"
    )
    parser.add_argument("--specs", type=int, default=1000)
    parser.add_argument("--mutations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        env = _loaded(options.environment, options.set)
    except UsageError as error:
        sys.exit(str(error))
    rng = random.Random(options.seed)
    drawn = _drawn(env, options.specs, rng)
    tasks, reasons, examples, seconds = _through_gate(env, drawn)
    texts = {f"task-{generation.id}": generation.text for _, generation in drawn}
    valid = [(task, texts[task.id]) for task in tasks]
    print(
        json.dumps(
            {
                "bench": "environments",
                "environment": options.environment,
                "settings": options.set,
                "seeds": len(env.seeds()),
                "held_out": len(env.held_out()),
                "specs": len(drawn),
                "passed": len(tasks),
                "rejected": dict(reasons.most_common()),
                "build_ms": _spread([s[0] for s in seconds]),
                "gate_ms": _spread([s[1] for s in seconds]),
                "oracle_reward": _mean([env.check(task, task.oracle).reward for task in tasks]),
                "oracle_played": _mean([asyncio.run(_play(env, task, task.oracle))[0] for task in tasks]),
                "random_success": _mean(
                    [
                        env.check(task, env.random_replies(task, random.Random(f"{task.id}/{i}"))).success
                        for task in tasks
                        for i in range(4)
                    ]
                ),
                "steps_per_s": _speed(env, tasks[:100]),
                **_broken(env, options.environment, valid, options.mutations, rng),
                "examples": examples,
            },
            indent=1,
        )
    )


def _loaded(name: str, settings: Sequence[str]) -> Environment:
    values: dict[str, Any] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        try:
            values[key] = json.loads(value)
        except ValueError:
            values[key] = value
    config = parse_config({"environment": {"name": name, **values}})
    return load_environment(name, config.environment.settings)


def _drawn(env: Environment, n: int, rng: random.Random) -> list[tuple[Context, Generation]]:
    seeds = env.seeds()
    chosen = [seeds[i % len(seeds)] for i in rng.sample(range(max(n, len(seeds))), n)]
    found: list[tuple[Context, Generation]] = []
    for number, seed in enumerate(chosen):
        text = json.dumps(sample_json(env.spec_schema(seed), rng), ensure_ascii=False)
        found.append(_written(seed, text, number))
    return found


def _written(seed: Seed, text: str, number: int) -> tuple[Context, Generation]:
    return written(seed, text, context_id=f"c{number}", generation_id=f"g{number}")


def _through_gate(
    env: Environment, drawn: Sequence[tuple[Context, Generation]]
) -> tuple[list[Task], Counter[str], dict[str, str], list[tuple[float, float]]]:
    gate = Gate(env, CurriculumConfig(), seed=0)
    gate.protect(env.held_out())
    tasks: list[Task] = []
    reasons: Counter[str] = Counter()
    examples: dict[str, str] = {}
    seconds: list[tuple[float, float]] = []
    for context, generation in drawn:
        start = time.perf_counter()
        gate._build(context, generation)
        built = time.perf_counter()
        (proposal,) = gate.admit([context], [generation])
        building = built - start
        seconds.append((building, time.perf_counter() - built - building))  # the gate builds once more
        if isinstance(proposal.outcome, Rejection):
            reasons[proposal.outcome.reason.value] += 1
            examples.setdefault(proposal.outcome.reason.value, proposal.outcome.explanation)
        else:
            tasks.append(proposal.outcome)
    return tasks, reasons, examples, seconds


async def _play(env: Environment, task: Task, replies: Sequence[str]) -> tuple[float, int]:
    """An episode with known replies: its reward, and how many steps it took."""
    given: list[str] = []
    left = iter(replies)

    async def ask(messages: object) -> str:
        given.append(next(left, ""))
        return given[-1]

    with contextlib.suppress(OutOfTurns):
        await env.episode(task).run(ask)
    return env.check(task, given).reward, len(given)


def _speed(env: Environment, tasks: Sequence[Task]) -> float:
    """Environment steps a second, with an uninformed agent: episodes and grades, no model."""
    steps, start = 0, time.perf_counter()
    for task in tasks:
        replies = env.random_replies(task, random.Random(task.id))
        steps += asyncio.run(_play(env, task, replies))[1]
    return steps / (time.perf_counter() - start)


def _broken(
    env: Environment, name: str, tasks: Sequence[tuple[Task, str]], n: int, rng: random.Random
) -> dict[str, Any]:
    """Valid specs made wrong, and how many of them the gate refuses."""
    by_id = {seed.id: seed for seed in env.seeds()}
    refused, survivors, kinds = 0, [], Counter[str]()
    made = 0
    for kind, spec, task in _mutants(env, name, tasks, n, rng):
        made += 1
        seed = by_id[str(task.lineage.seed_id)]
        gate = Gate(env, CurriculumConfig(), seed=made)
        context, generation = _written(seed, json.dumps(spec), made)
        (proposal,) = gate.admit([context], [generation])
        kinds[kind] += 1
        if isinstance(proposal.outcome, Rejection):
            refused += 1
        else:
            survivors.append([kind, spec])
    return {"mutations": made, "refused": refused, "kinds": dict(kinds), "survivors": survivors}


def _mutants(
    env: Environment, name: str, tasks: Sequence[tuple[Task, str]], n: int, rng: random.Random
) -> Iterator[tuple[str, Any, Task]]:
    """(kind, spec, the task it was); from specs as they were written, blanks and all."""
    found = [*(_ROOT / "tests").glob(f"*/{name}/mutations.py")]
    if not found or not tasks:
        return
    mutants = runpy.run_path(str(found[0]))["mutants"]
    made = 0
    for task, text in (tasks[i % len(tasks)] for i in range(10 * n)):
        written = env.spec.model_validate_json(text)
        if changed := list(mutants(written, rng)):
            kind, spec = rng.choice(changed)
            yield kind, spec.model_dump(mode="json") if isinstance(spec, BaseModel) else spec, task
            made += 1
        if made == n:
            return


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {"median": 1e3 * statistics.median(ordered), "p99": 1e3 * ordered[int(0.99 * len(ordered))]}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


if __name__ == "__main__":
    main()
