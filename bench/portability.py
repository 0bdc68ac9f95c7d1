# pyright: basic, reportMissingImports=false
"""Do other trainers give the verdicts that genenv gives? Plays recorded attempts at an exported environment.

    genenv export-env ./desk --out desk_env
    python bench/portability.py desk_env record --out desk.jsonl --n 1000
    python bench/portability.py desk_env play desk.jsonl --through trl

An attempt is a list of replies: a task's solution, a piece of it, one with a call spoiled, all its calls at
once, random replies, or nonsense. `record` plays them in genenv and writes down what its check says. `play`
runs in whatever Python has the other package (trl, verifiers, openenv or openenv-core, gymnasium), plays the
same replies through it, and counts verdicts that differ. A line of JSON each.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import itertools
import json
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from genenv.chat.tool_calls import read_calls
from genenv.interop.exported import Exported, task_text
from genenv.types import Task

Turn = dict[str, Any]
"""`content` and `calls`."""
Log = dict[str, Any]
"""`task`: a row's; `turns`; `verdict`: reward, success, explanation."""
NONSENSE = ("", "I cannot do that.", "<tool_call>\n{not json\n</tool_call>", '{"name": 3}', "0" * 3000)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="what `genenv export-env` wrote")
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record")
    record.add_argument("--out", type=Path, required=True)
    record.add_argument("--n", type=int, default=1000)
    record.add_argument("--seed", type=int, default=0)
    play = commands.add_parser("play")
    play.add_argument("logs", type=Path)
    play.add_argument("--through", choices=sorted(THROUGH), required=True)
    chosen = parser.parse_args()
    (package,) = [path.parent for path in chosen.folder.glob("*/data")]
    if chosen.command == "record":
        _record(Exported(package / "data"), chosen.out, chosen.n, random.Random(chosen.seed))
    else:
        sys.path.insert(0, str(chosen.folder.resolve()))
        _play(package.name, chosen.logs, chosen.through)


# --- recording ---


def _record(exported: Exported, out: Path, n: int, rng: random.Random) -> None:
    tasks = [task for split in ("train", "held_out") for task in exported.tasks(split)]
    kinds: Counter[str] = Counter()
    successes = 0
    with out.open("w", encoding="utf-8") as file:
        for _ in range(n):
            task = rng.choice(tasks)
            kind = rng.choice(sorted(KINDS))
            turns, verdict = _through_genenv(exported, task, KINDS[kind](exported, task, rng))
            kinds[kind] += 1
            successes += verdict["success"]
            file.write(json.dumps({"task": task_text(task), "turns": turns, "verdict": verdict}) + "\n")
    print(json.dumps({"recorded": n, "kinds": dict(kinds), "successes": successes}))


def _through_genenv(exported: Exported, task: Task, turns: Sequence[Turn]) -> tuple[list[Turn], Any]:
    """What was heard of the replies, silence to the end, and the verdict on them, by the check alone."""
    session, said = exported.session(task), list[Turn]()
    for turn in itertools.chain(turns, itertools.repeat({"content": "", "calls": []})):
        if session.done:
            break
        session.send(turn["content"], [{"function": call} for call in turn["calls"]])
        said.append(turn)
    found = exported.env.check(task, session.replies)
    return said, {"reward": found.reward, "success": found.success, "explanation": found.explanation}


def _turns(exported: Exported, replies: Sequence[str]) -> list[Turn]:
    """Replies as they go over a wire: words, and calls apart from them."""
    turns: list[Turn] = []
    for text in replies:
        words, calls = read_calls(text) if exported.tools else (text, ())
        called = [{"name": call.name, "arguments": call.arguments} for call in calls]
        turns.append({"content": words, "calls": called})
    return turns


def _crowded(exported: Exported, task: Task, rng: random.Random) -> list[Turn]:
    """All calls of a solution in one turn, some of them after others that are of no use."""
    turns = _solution(exported, task, rng)
    calls = [call for turn in turns for call in turn["calls"]]
    if not calls:
        return turns
    idle = [calls[0]] * rng.choice((0, 0, 7))
    return [{"content": "", "calls": [*idle, *calls]}, turns[-1]]


def _solution(exported: Exported, task: Task, rng: random.Random) -> list[Turn]:
    return _turns(exported, task.oracle)


def _piece(exported: Exported, task: Task, rng: random.Random) -> list[Turn]:
    turns = _solution(exported, task, rng)
    return turns[: rng.randrange(len(turns) + 1)]


def _spoiled(exported: Exported, task: Task, rng: random.Random) -> list[Turn]:
    """One call has another value, comes twice, or not at all; without calls, a reply is another task's."""
    turns = _solution(exported, task, rng)
    place = rng.randrange(len(turns))
    if not turns[place]["calls"]:
        other = rng.choice(exported.tasks("train"))
        return [*turns[:place], *_turns(exported, [rng.choice(other.oracle)]), *turns[place + 1 :]]
    how = rng.choice(("value", "twice", "gone"))
    if how == "twice":
        return [*turns[: place + 1], *turns[place:]]
    if how == "gone":
        return [*turns[:place], *turns[place + 1 :]]
    call = json.loads(json.dumps(turns[place]["calls"][0]))
    for name, value in call["arguments"].items():
        call["arguments"][name] = value + 1 if isinstance(value, int) else f"{value}x"
        break
    return [*turns[:place], {"content": "", "calls": [call]}, *turns[place + 1 :]]


def _random(exported: Exported, task: Task, rng: random.Random) -> list[Turn]:
    return _turns(exported, exported.env.random_replies(task, rng))


def _nonsense(exported: Exported, task: Task, rng: random.Random) -> list[Turn]:
    return [{"content": rng.choice(NONSENSE), "calls": []} for _ in range(rng.randrange(1, 4))]


KINDS: Mapping[str, Callable[[Exported, Task, random.Random], list[Turn]]] = {
    "crowded": _crowded,
    "nonsense": _nonsense,
    "piece": _piece,
    "random": _random,
    "solution": _solution,
    "spoiled": _spoiled,
}


# --- playing ---


def _play(package: str, logs: Path, through: str) -> None:
    found: list[Log] = [json.loads(line) for line in logs.read_text(encoding="utf-8").splitlines()]
    start = time.monotonic()
    rewards = THROUGH[through](package, found)
    seconds = time.monotonic() - start
    played = [(log, reward) for log, reward in zip(found, rewards, strict=True) if reward is not None]
    differ = [
        {"turns": log["turns"], "genenv": log["verdict"], through: reward}
        for log, reward in played
        if reward != log["verdict"]["reward"]
    ]
    for one in differ[:5]:
        print(json.dumps(one))
    steps = sum(len(log["turns"]) for log, _ in played)
    print(
        json.dumps(
            {
                "through": through,
                "version": _version(through),
                "attempts": len(played),
                "not_playable": len(found) - len(played),
                "differ": len(differ),
                "solved": sum(log["verdict"]["success"] for log, _ in played),
                "steps_per_s": round(steps / seconds),
            }
        )
    )


def _version(through: str) -> str:
    from importlib import metadata

    for name in {"openenv": ("openenv", "openenv-core")}.get(through, (through,)):
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "?"


def _trl(package: str, logs: Sequence[Log]) -> list[float | None]:
    """As `GRPOTrainer` does it: methods are tools, a turn without calls ends it, rewards come at the end."""
    module = importlib.import_module(f"{package}.trl_env")
    made = module.Environment()
    named = {name for name, _ in inspect.getmembers(type(made), inspect.isfunction)}
    rewards: list[float | None] = []
    for log in logs:
        made.reset(task=log["task"], id="", prompt=[])
        completion: list[dict[str, Any]] = []
        playable = True
        for turn in log["turns"]:
            calls = turn["calls"]
            if "act" in named:
                calls = [{"name": "act", "arguments": {"text": turn["content"]}}]
            completion.append({"role": "assistant", "content": "" if "act" in named else turn["content"]})
            if calls:
                completion[-1]["tool_calls"] = [{"type": "function", "function": call} for call in calls]
            for call in calls:
                if call["name"] not in named:
                    playable = False  # TRL itself answers such a call
                    continue
                heard = getattr(made, call["name"])(**call["arguments"])
                completion.append({"role": "tool", "name": call["name"], "content": heard})
            if not calls:
                break
        (reward,) = module.reward(completions=[completion], environments=[made], prompts=[[]], task=[""])
        rewards.append(reward if playable else None)
    return rewards


def _gymnasium(package: str, logs: Sequence[Log]) -> list[float | None]:
    """Through `gymnasium.make`, wrappers and all."""
    import gymnasium

    from genenv.chat.assistant import ToolCall
    from genenv.chat.tool_calls import as_text

    name = importlib.import_module(f"{package}.gym_env").ENV_ID
    splits: dict[str, Any] = {split: gymnasium.make(name, split=split) for split in ("train", "held_out")}
    by_task = {
        row["task"]: (made, row["id"])
        for split, made in splits.items()
        for row in made.unwrapped._exported.rows(split)
    }
    rewards: list[float | None] = []
    for log in logs:
        made, task_id = by_task[log["task"]]
        made.reset(options={"task_id": task_id})
        reward, ended = None, False
        for turn in log["turns"]:
            calls = [ToolCall(name=c["name"], arguments=c["arguments"]) for c in turn["calls"]]
            _, reward, ended, _, _ = made.step(as_text(turn["content"], calls))
        rewards.append(float(reward) if ended and reward is not None else None)
    return rewards


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _openenv(package: str, logs: Sequence[Log]) -> list[float | None]:
    """A server on loopback, and the generic client."""
    import uvicorn
    from openenv.core import GenericEnvClient

    app = importlib.import_module(f"{package}.openenv_app").app
    port = _port()
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)

    async def played() -> list[float | None]:
        rewards: list[float | None] = []
        client = GenericEnvClient(base_url=f"http://127.0.0.1:{port}")
        await client.connect()
        for log in logs:
            found = await client.reset(task=log["task"])
            for turn in log["turns"]:
                calls = [{"id": "c", "type": "function", "function": call} for call in turn["calls"]]
                found = await client.step({"content": turn["content"], "tool_calls": calls})
            rewards.append(found.reward if found.done else None)
        await client.close()
        return rewards

    rewards = asyncio.run(played())
    server.should_exit = True
    thread.join(10)
    return rewards


def _verifiers(package: str, logs: Sequence[Log]) -> list[float | None]:
    """Rollouts of verifiers itself; behind its endpoint sits a server that says what was recorded."""
    import verifiers.v1 as vf
    from verifiers.v1.utils.loaders import resolve_env_config

    module = importlib.import_module(package)
    data = importlib.import_module("genenv.interop.verifiers")

    async def played() -> list[float | None]:
        url, stop = await _recited(logs)
        config = {
            "taskset": {"id": package},
            "agent": {"runtime": {"type": "subprocess"}, "max_turns": 64},
        }
        env = vf.load_environment(resolve_env_config(config))
        free = asyncio.Semaphore(32)

        async def one(number: int, log: Log) -> float | None:
            row = {"id": str(number), "prompt": [{"role": "user", "content": "-"}], "task": log["task"]}
            task = data.GenenvTask(data.data_of(row), data.TaskConfig())
            client = vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY")
            ctx = vf.ModelContext(model=f"log-{number}", client=client, sampling=vf.SamplingConfig())
            async with free:
                episode = await env.run_slot(env.slots(task)[0], ctx)
            trace = episode.traces[0]
            for error in [*trace.errors, *episode.errors]:
                print(json.dumps({"log": number, "error": str(error)[:400]}))
            return None if trace.errors or episode.errors else float(trace.reward)

        async with env.serving():
            rewards = list(await asyncio.gather(*(one(i, log) for i, log in enumerate(logs))))
        await stop()
        return rewards

    assert module.GenenvTaskset
    return asyncio.run(played())


async def _recited(logs: Sequence[Log]) -> tuple[str, Callable[[], Any]]:
    """An OpenAI-compatible server on loopback: model `log-7` says what log 7 holds, turn by turn."""
    from aiohttp import web

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        turns = logs[int(body["model"].rpartition("-")[2])]["turns"]
        said = sum(message["role"] == "assistant" for message in body["messages"])
        if said >= len(turns):
            return web.json_response({"error": {"message": "the log has ended"}}, status=400)
        turn = turns[said]
        calls = [
            {
                "id": f"call{said}",
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
            }
            for call in turn["calls"]
        ]
        message = {"role": "assistant", "content": turn["content"] or None}
        message |= {"tool_calls": calls} if calls else {}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        told = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"]}
        return web.json_response({**told, "choices": [choice], "usage": usage})

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    port = _port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return f"http://127.0.0.1:{port}/v1", runner.cleanup


THROUGH: Mapping[str, Callable[[str, Sequence[Log]], list[float | None]]] = {
    "gymnasium": _gymnasium,
    "openenv": _openenv,
    "trl": _trl,
    "verifiers": _verifiers,
}

if __name__ == "__main__":
    main()
