"""What a bundle of your own tools costs and holds: making it, starting an attempt, grading, refusing.

    python bench/own_tools.py tests/tools/examples/desk.py
    python bench/own_tools.py tools.py:Class --tasks 200 --mutations 500
    python bench/own_tools.py 'mcp:my-server {folder}' --files folder --mutations 120
    python bench/own_tools.py --bundle m-git --mutations 120
    python bench/own_tools.py --bundle m-git --no-times --mutations 0 --wrong 0 --hedged 200

Makes a bundle in a temporary folder, then times it alone, and spoils programs of its tasks in ways that each
make a program that is none: another tool, an argument that is missing, of another type or not there, a use or
a question of nothing, difficulty that is not true. Then it plays episodes that solve a task but for one
thing: one more call that writes, one such call left out, or the answers of another task; and counts those
that pass. With `--hedged`, episodes make the calls of a task that asks for one value, and then say this value
among others, or as what is not so. A line of JSON each.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError
from turns import machine, say

from genenv.environments.base import OutOfTurns
from genenv.gate.gate import base_tasks, examined
from genenv.progress import Silent
from genenv.tools.calls import format_calls
from genenv.tools.check import calls_of
from genenv.tools.discover.exploring import Explorer
from genenv.tools.environment import Tools, ToolsEpisode
from genenv.tools.generate.make_bundle import Wanted, make
from genenv.tools.settings import ToolsConfig
from genenv.tools.spec import Program
from genenv.tools.worlds.base import Call
from genenv.tools.worlds.origins import origin_of
from genenv.types import Lineage, Message, Origin, Rejection, Task, Verdict

Spec = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", metavar="FILE.py[:CLASS] | OPENAPI | mcp:COMMAND", nargs="?")
    parser.add_argument("--files", type=Path, help="of an MCP server")
    parser.add_argument("--bundle", type=Path, help="one that was made already")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--held-out", type=int, default=100)
    parser.add_argument("--mutations", type=int, default=500)
    parser.add_argument("--wrong", type=int, default=100, help="episodes that do more or less than asked")
    parser.add_argument("--hedged", type=int, default=0, help="episodes that say the answer among others")
    parser.add_argument(
        "--times", action=argparse.BooleanOptionalAction, default=True, help="time the bundle"
    )
    chosen = parser.parse_args()
    say(machine=machine())
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.bundle or Path(scratch) / "bundle"
        if chosen.bundle is None:
            making(folder, chosen)
        env = Tools(ToolsConfig(), folder)
        try:
            tasks = list(base_tasks(env, env.seeds(), seed=0).values())
            if chosen.times:
                times(env, tasks)
            refusals(env, chosen.mutations)
            asyncio.run(wrong_episodes(env, tasks, chosen.wrong))
            asyncio.run(hedged_episodes(env, tasks, chosen.hedged))
        finally:
            env.world.close()


def making(folder: Path, chosen: argparse.Namespace) -> None:
    origin = origin_of(chosen.source, folder=chosen.files)
    wanted = Wanted(origin=origin, base=chosen.tasks, held_out=chosen.held_out)
    made = make(folder, wanted, examined, Silent())
    say(
        made_s=round(made.seconds, 1),
        tools=len(made.graph.recipes),
        links=len(made.graph.links),
        tasks=made.base,
        held_out=made.held_out,
        drawn_and_refused=dict(made.drawn.refused),
    )


def times(env: Tools, tasks: list[Task]) -> None:
    """Medians."""
    say(start_ms=median_ms(lambda: env.world.play_uncached([]), 100))
    graded = median_ms(lambda: [env.check(task, task.oracle) for task in tasks], 5) / len(tasks)
    calls = sum(env.steps(task) for task in tasks) / len(tasks)
    say(graded_ms=round(graded, 2), calls_a_task=round(calls, 2))
    gate = median_ms(lambda: [examined(env, task, random.Random(0)) for task in tasks], 3) / len(tasks)
    say(gate_ms=round(gate, 2))


def median_ms(what: Callable[[], object], times: int) -> float:
    took: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        what()
        took.append(1e3 * (time.perf_counter() - start))
    return round(statistics.median(took), 3)


def refusals(env: Tools, mutations: int) -> None:
    """How many spoiled programs are refused, by how they were spoiled."""
    rng = random.Random(0)
    specs = [dict(seed.spec) for seed in env.seeds()]
    kinds = list(SPOILERS)
    tried, refused, passed = Counter[str](), Counter[str](), list[Spec]()
    while sum(tried.values()) < mutations:
        kind = kinds[sum(tried.values()) % len(kinds)]
        spec = copy.deepcopy(rng.choice(specs))
        SPOILERS[kind](spec, rng)
        tried[kind] += 1
        if is_refused(env, spec):
            refused[kind] += 1
        else:
            passed.append({"spoiled": kind, **spec})
    say(
        mutations=sum(tried.values()),
        refused=sum(refused.values()),
        by_kind={k: f"{refused[k]}/{tried[k]}" for k in kinds},
    )
    for spec in passed[:10]:
        say(passed=json.dumps(spec))


async def wrong_episodes(env: Tools, tasks: list[Task], most: int) -> None:
    """How many episodes pass that make one more call that writes, or leave one out.

    A further call that succeeds may leave everything as it is ("set the volume to 5" twice). Those are
    counted apart, as unchanged, by what the tools that read find with arguments of the tasks.
    """
    rng = random.Random(0)
    counts, passed = Counter[str](), list[object]()
    for turn in range(20 * most):
        if counts.total() >= most:
            break
        task = rng.choice(tasks)
        if task.payload["gap"] != "none":
            continue
        before, calls = calls_of(task.payload, "before"), calls_of(task.payload, "calls")
        shown = [
            env.graph.recipes[name]
            for name in cast("list[str]", task.payload["tools"])
            if name in env.graph.recipes
        ]
        writers = [one for one in shown if one.writes]
        explorer = Explorer.of(env.world, env.graph, rng)
        kind, made = "less", calls
        told = cast("list[object]", task.payload["answers"])
        other = rng.choice(tasks)
        others = cast("list[object]", other.payload["answers"])
        if told and others and not set(map(repr, told)) & set(map(repr, others)):
            counts["answer"] += 1
            if (await played_through(env, task, calls, other.oracle[-1])).success:
                counts["answer, passed"] += 1
                passed.append({"task": task.id, "said": other.oracle[-1]})
            continue
        if turn % 2 and writers:
            more = explorer.attempt(rng.choice(writers), [*before, *calls], rng)
            kind, made = "more", [*calls, more] if more else calls
        elif any(env.graph.recipes[call.tool].writes for call in calls):
            made = list(calls)
            made.pop(rng.choice([n for n, call in enumerate(calls) if env.graph.recipes[call.tool].writes]))
        if made == calls:
            continue
        verdict = await played_through(env, task, made, task.oracle[-1])
        if verdict.success and found(env, [*before, *made]) == found(env, [*before, *calls]):
            kind = "unchanged"
        counts[kind] += 1
        if verdict.success:
            counts[f"{kind}, passed"] += 1
            passed.append({"task": task.id, "calls": [call.json for call in made]})
    say(wrong_episodes=dict(counts))
    for one in passed[:5]:
        say(passed=json.dumps(one))


async def hedged_episodes(env: Tools, tasks: Sequence[Task], most: int) -> None:
    """How many episodes pass whose last reply says the right value in a way that commits to nothing."""
    rng = random.Random(0)
    asked = [task for task in tasks if len(cast("list[object]", task.payload["answers"])) == 1]
    counts, passed, right = Counter[str](), list[object](), Counter[str]()
    for task in rng.sample(asked, min(most, len(asked))):
        (answer,) = cast("list[object]", task.payload["answers"])
        alike = [
            other
            for one in asked
            for other in cast("list[object]", one.payload["answers"])
            if isinstance(other, type(answer)) and str(other).casefold() != str(answer).casefold()
        ]
        if not alike:
            continue
        before, calls = calls_of(task.payload, "before"), calls_of(task.payload, "calls")
        verdict = await played_through(env, task, calls, task.oracle[-1])
        right["the solution, passed" if verdict.success else "the solution, refused"] += 1
        shown = env.world.play([*before, *calls]).outcomes[-1].text
        for kind, said in hedges(str(answer), str(rng.choice(alike)), shown).items():
            for form in ("It is {}.", "Answer: {}"):
                counts[kind] += 1
                if (await played_through(env, task, calls, form.format(said))).success:
                    counts[f"{kind}, passed"] += 1
                    passed.append({"task": task.id, "said": form.format(said)})
    say(hedged_episodes=dict(counts), solutions=dict(right))
    for one in passed[:5]:
        say(passed=json.dumps(one))


def hedges(right: str, wrong: str, shown: str) -> dict[str, str]:
    """What an agent may say that does not know which value is asked for."""
    return {
        "the whole result": shown,
        "one of two": f"{right} or {wrong}",
        "both": f"{wrong}, {right}",
        "denied": f"not {right}",
        "said of something else": f"{wrong}, and the other one is {right}",
        "unsure": f"perhaps {right}",
    }


async def played_through(env: Tools, task: Task, calls: Sequence[Call], words: str) -> Verdict:
    """The verdict on an episode that makes calls, and then says something."""
    style = env.settings.style
    single = task.payload["mode"] == "single"
    replies = [format_calls(calls, style)] if single else [format_calls([c], style) for c in calls] + [words]
    left = iter(replies)

    async def ask(messages: Sequence[Message]) -> str:
        return next(left)

    episode = env.episode(task)
    with contextlib.suppress(OutOfTurns):
        await episode.run(ask)
    return cast(ToolsEpisode, episode).verdict()


def found(env: Tools, calls: Sequence[Call]) -> object:
    """What all tools that read find after calls, with arguments of the bundle's tasks."""
    asked: dict[str, Call] = {}
    for program in env.bundle.base.values():
        for step in program.calls:
            if not env.graph.recipes[step.tool].writes and not step.uses:
                asked.setdefault(repr((step.tool, step.args)), Call(tool=step.tool, args=dict(step.args)))
    return [env.world.play([*calls, one]).outcomes[-1] for one in list(asked.values())[:20]]


def is_refused(env: Tools, spec: Spec) -> bool:
    try:
        program = Program.model_validate(spec)
    except ValidationError:
        return True
    for origin in (Origin.SEED, Origin.HELD_OUT):  # which of the two a program is for is no merit of the gate
        task = env.build(program, task_id="t", lineage=Lineage(origin=origin), rng=random.Random(0))
        if isinstance(task, Task) and examined(env, task, random.Random(0)) is None:
            return False
        if isinstance(task, Rejection) and task.reason != "held_out":
            return True
    return True


def any_call(spec: Spec, rng: random.Random) -> Spec:
    return rng.choice(spec["calls"])


def any_argument(spec: Spec, rng: random.Random) -> tuple[Spec, str]:
    calls = [call for call in spec["calls"] if call["args"]]
    call = rng.choice(calls) if calls else spec["calls"][0]
    call["args"] = call["args"] or {"added": 1}
    return call["args"], rng.choice(list(call["args"]))


def no_such_tool(spec: Spec, rng: random.Random) -> None:
    any_call(spec, rng)["tool"] += "_all"


def argument_missing(spec: Spec, rng: random.Random) -> None:
    args, name = any_argument(spec, rng)
    for call in spec["calls"]:
        if call["args"] is args:
            call["args"] = {}
    args.pop(name)


def argument_unknown(spec: Spec, rng: random.Random) -> None:
    any_call(spec, rng)["args"]["no_such_argument"] = "x"


def argument_of_another_type(spec: Spec, rng: random.Random) -> None:
    args, name = any_argument(spec, rng)
    args[name] = {"not": ["a", "value"]}


def record_that_is_not_there(spec: Spec, rng: random.Random) -> None:
    named = [(call["args"], name) for call in spec["calls"] for name in call["args"] if name.endswith("id")]
    if not named:
        return no_such_tool(spec, rng)
    args, name = rng.choice(named)
    args[name] = "nobody-0"
    return None


def use_of_nothing(spec: Spec, rng: random.Random) -> None:
    spec["chained"] = True
    call = spec["calls"][-1]
    name = next(iter(call["args"]), "x")
    call["uses"] = [
        {"parameter": name, "call": max(0, len(spec["calls"]) - 2), "path": ["no", "such", "place"]}
    ]


def question_of_nothing(spec: Spec, rng: random.Random) -> None:
    spec["answer"], spec["questions"] = (
        True,
        [{"call": len(spec["calls"]) - 1, "path": ["no", "such", "place"]}],
    )


def untrue_number(spec: Spec, rng: random.Random) -> None:
    spec["n_calls"] = 1 + spec["n_calls"] % 3


def untrue_chain(spec: Spec, rng: random.Random) -> None:
    spec["chained"] = not spec["chained"]


def untrue_answer(spec: Spec, rng: random.Random) -> None:
    spec["answer"] = not spec["answer"]


def same_call_again(spec: Spec, rng: random.Random) -> None:
    """A read that is asked for twice, with the number of calls as it was."""
    spec["calls"].append(copy.deepcopy(spec["calls"][0]))


def more_tools_than_there_are(spec: Spec, rng: random.Random) -> None:
    spec["n_tools"] = 16


SPOILERS: dict[str, Callable[[Spec, random.Random], None]] = {
    one.__name__: one
    for one in (
        *(
            no_such_tool,
            argument_missing,
            argument_unknown,
            argument_of_another_type,
            record_that_is_not_there,
        ),
        *(use_of_nothing, question_of_nothing, untrue_number, untrue_chain, untrue_answer, same_call_again),
        *(more_tools_than_there_are,),
    )
}

if __name__ == "__main__":
    main()
