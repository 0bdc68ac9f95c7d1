"""Do worlds come back with the verdicts they left with? Exported ones, played as environments of others.

    genenv export-env ./desk --out desk_env
    python bench/portability.py desk_env record --out desk.jsonl --n 200
    python bench/imported.py desk_env desk.jsonl --through openenv --python PYTHON
    python bench/imported.py desk_env desk.jsonl --through verifiers --python PYTHON

PYTHON is one that has openenv-core or verifiers, and can import genenv. The environment is opened as an
environment (`openenv:ADDRESS` of a server on loopback, or `verifiers:FOLDER`), every row is a task of it, and
each recorded attempt is played and graded there. A line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from genenv.environments import close_environment, environment_config, load_environment
from genenv.environments.base import Environment
from genenv.environments.stepwise import StepwiseRollout
from genenv.gate.gate import base_tasks
from genenv.interop.exported import Exported, reply_text
from genenv.types import Task

_TURNS = 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="what `genenv export-env` wrote")
    parser.add_argument("logs", type=Path, help="what `bench/portability.py` recorded")
    parser.add_argument("--through", choices=("openenv", "verifiers"), required=True)
    parser.add_argument("--python", default=sys.executable, help="a Python that has the other package")
    chosen = parser.parse_args()
    (package,) = [path.parent.name for path in chosen.folder.glob("*/data")]
    exported = Exported(chosen.folder / package / "data")
    logs = [json.loads(line) for line in chosen.logs.read_text(encoding="utf-8").splitlines()]
    with _opened(chosen.through, chosen.folder.resolve(), package, chosen.python, exported) as env:
        print(json.dumps({"through": chosen.through, **_played(env, exported, logs)}))


@contextlib.contextmanager
def _opened(
    through: str, folder: Path, package: str, python: str, exported: Exported
) -> Iterator[Environment]:
    """The environment as an environment."""
    counts = {split: len(exported.rows(split)) for split in ("train", "held_out")}
    settings: dict[str, Any] = {
        "base": counts["train"],
        "held_out": counts["held_out"],
        "given": {"split": "train"},
        "given_held_out": {"split": "held_out"},
        "max_turns": _TURNS,
    }
    with contextlib.ExitStack() as stack:
        if through == "openenv":
            settings["seeds"] = counts["train"]
            name = f"openenv:{stack.enter_context(_served(folder, package, python))}"
        else:
            settings |= {"rows": counts["train"], "python": python}
            name = f"verifiers:{folder}"
        env = load_environment(name, environment_config(name).model_validate(settings))
        stack.callback(close_environment, env)
        yield env


@contextlib.contextmanager
def _served(folder: Path, package: str, python: str) -> Iterator[str]:
    """Its OpenEnv server, on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [python, "-m", "uvicorn", f"{package}.openenv_app:app", "--port", str(port)]
    paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    server = subprocess.Popen(  # noqa: S603 - as it was asked for
        [*command, "--log-level", "error"], env={**os.environ, "PYTHONPATH": paths}
    )
    try:
        for _ in range(1200):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health")
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def _played(env: Environment, exported: Exported, logs: list[Any]) -> Mapping[str, object]:
    tasks = _tasks(env, exported)
    differ = sayings = steps = solved = 0
    start = time.monotonic()
    for log in logs:
        attempt = StepwiseRollout(env, tasks[log["task"]])
        for turn in log["turns"]:
            calls = [{"function": call} for call in turn["calls"]]
            attempt.reply(reply_text(turn["content"], calls))
            steps += 1
        found, wanted = attempt.verdict(), log["verdict"]
        if not attempt.done or (found.reward, found.success) != (wanted["reward"], wanted["success"]):
            differ += 1
            print(json.dumps({"turns": log["turns"], "genenv": wanted, "here": str(found)}))
        sayings += found.explanation == wanted["explanation"]
        solved += found.success
    return {
        "attempts": len(logs),
        "differ": differ,
        "same_explanation": sayings,
        "solved": solved,
        "steps_per_s": round(steps / (time.monotonic() - start)),
    }


def _tasks(env: Environment, exported: Exported) -> dict[str, Task]:
    """The environment's tasks, by what the row says of which they are; they begin as the row's task does."""
    seeds = env.seeds()
    built = base_tasks(env, seeds, seed=0)
    found: dict[str, Task] = {}
    for split, tasks in (
        ("train", [built[seed.id] for seed in seeds]),
        ("held_out", list(env.held_out())),
    ):
        for row, task in zip(exported.rows(split), tasks, strict=True):
            prompt: Any = row["prompt"]
            said = [(one["role"], one["content"]) for one in prompt]
            if said != [(one.role, one.content) for one in task.messages]:
                raise SystemExit(f"{row['id']} begins otherwise: {task.messages}")
            found[str(row["task"])] = task
    return found


if __name__ == "__main__":
    main()
