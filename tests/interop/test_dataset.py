"""A dataset with a reward function as an environment: rows, rewards, the held-out part, tools, whole runs."""

from __future__ import annotations

import asyncio
import gzip
import importlib
import io
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from genenv.backends.scripted import ScriptedSampler
from genenv.chat.assistant import Reply
from genenv.cli.app import app
from genenv.config.run import load_config
from genenv.environments import close_environment, environment_config, load_environment
from genenv.environments.stepwise import StepwiseRollout
from genenv.errors import EnvironmentCodeError, UsageError
from genenv.evaluation.data import DataFolder
from genenv.evaluation.held_out import HeldOut, HeldOutConfig
from genenv.gate.gate import base_tasks
from genenv.interop.exported import Exported
from genenv.interop.imported.dataset import Dataset, Reward
from genenv.rollout.driver import Sampling, roll_out
from genenv.runs.store.store import PoolStore
from genenv.threads import run_with_own_loop
from genenv.types import Group, StopReason, Task
from genenv.viewer.frozen import write_report
from recited import Recited
from typed import refused, run, succeeds

SUMS: list[dict[str, Any]] = [
    {"prompt": f"What is {a} + {b}?", "answer": str(a + b), "level": len(str(a + b)), "topic": f"plus {b}"}
    for a in range(1, 9)
    for b in (1, 5)
]
EXACT = """
def score(completion, answer):
    return float(completion == answer)
"""
SHORT = [
    "policy.backend=scripted",
    "run.rounds=2",
    "run.eval_every=1",
    "simulator.contexts=4",
    "agent.rollouts=2",
]


def rows_in(file: Path, rows: Sequence[Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def opened(folder: Path, code: str = EXACT, rows: Sequence[Any] = SUMS, **settings: object) -> Dataset:
    (folder / "reward.py").write_text(code, encoding="utf-8")
    given = {"data": str(rows_in(folder / "tasks.jsonl", rows)), "reward": f"{folder}/reward.py:score"}
    config = environment_config("dataset").model_validate({**given, **settings})
    return cast(Dataset, load_environment("dataset", config))


def tasks_of(env: Dataset) -> list[Task]:
    return list(base_tasks(env, env.seeds(), seed=0).values())


def rolled_out(env: Dataset, task: Task, reply: str = "no", rollouts: int = 2) -> Group:
    sampling = Sampling(temperature=1.0, max_new_tokens=1000, timeout_s=60, seed=0)
    sampler = ScriptedSampler(lambda prompt, rng: reply)
    (group,) = asyncio.run(roll_out(env, sampler, [task], rollouts=rollouts, sampling=sampling))
    return group


def one(reward: str, folder: Path, **row: object) -> float:
    """The reward of the reply "no" to one row, from an event loop and without one."""
    env = opened(folder, reward, [{"prompt": "Yes or no?", **row}], held_out=0.0)
    (task,) = tasks_of(env)
    found = {env.check(task, ["no"]).reward, *(trace.reward for trace in rolled_out(env, task).traces)}
    assert len(found) == 1
    return found.pop()


# rows


def test_a_row_is_a_task_and_its_columns_are_skills_that_a_bandit_learns(tmp_path: Path) -> None:
    env = opened(tmp_path, columns=("level", "topic"), held_out=0.0)
    tasks = tasks_of(env)
    assert [task.messages[0].content for task in tasks] == [row["prompt"] for row in SUMS]
    assert [seed.id for seed in env.seeds()][:2] == ["line1", "line2"]
    assert tasks[0].skills == ("level=1", "topic=plus_1")
    assert env.check(tasks[1], ["6"]).success
    assert not env.check(tasks[1], ["7"]).success
    assert not env.check(tasks[1], []).readable
    assert opened(tmp_path).seeds()[0].skills == ("dataset",)


def test_a_prompt_may_be_a_conversation_and_the_reward_gets_messages_then(tmp_path: Path) -> None:
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    reward = (
        "def score(prompt, completion):\n"
        "    assert prompt[0]['role'] == 'system' and prompt[1]['content'] == 'Hi'\n"
        "    return completion == [{'role': 'assistant', 'content': 'no'}]\n"
    )
    assert one(reward, tmp_path, prompt=talk) == 1.0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "x"', "tasks.jsonl, line 3 is not valid JSON: "),
        ("[1]", "tasks.jsonl, line 3 is no row: it needs a prompt"),
        (
            '{"question": "x", "answer": 1}',
            "line 3 is no row: it needs a prompt, and has question, answer; write",
        ),
        (
            '{"prompt": null, "answer": 1}',
            "line 3 is no row: its prompt is None; a prompt is a text that is not",
        ),
        ('{"prompt": [{"role": "tool", "content": "x"}]}', "each with a role (system, user or assistant)"),
        ('{"prompt": "  ", "answer": 1}', "line 3 is no row"),
        ('{"prompt": [], "answer": 1}', "line 3: the last message of its prompt is not the user's"),
        ('{"prompt": [{"role": "user", "content": null}], "answer": 1}', "line 3 is no row"),
        ('{"prompt": [{"role": "assistant", "content": "x"}], "answer": 1}', "line 3: the last message"),
        (
            '{"prompt": "x", "reply": 1}',
            "line 3 has no column 'answer', which {folder}/reward.py:score needs; it has prompt, reply",
        ),
    ],
)
def test_a_line_that_is_no_row_is_named(tmp_path: Path, line: str, words: str) -> None:
    opened(tmp_path)
    (tmp_path / "tasks.jsonl").write_text(f"{json.dumps(SUMS[0])}\n\n{line}\n", encoding="utf-8")
    config = {"data": str(tmp_path / "tasks.jsonl"), "reward": f"{tmp_path}/reward.py:score"}
    settings = environment_config("dataset").model_validate(config)
    with pytest.raises(UsageError) as told:
        load_environment("dataset", settings)
    assert words.format(folder=tmp_path) in str(told.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data": ""}, "environment.data is not set; name it, such as tasks.jsonl"),
        ({"reward": ""}, "environment.reward is not set; name it, such as reward.py:score"),
        ({"data": "none.jsonl"}, "none.jsonl cannot be read (No such file or directory)"),
        (
            {"columns": ("size",)},
            "line 1 has no column 'size', which environment.columns needs; it has prompt",
        ),
        ({"demonstration": "a"}, "line 1 has no column 'a', which environment.demonstration needs"),
        ({"reward": "none.py:score"}, "there is no Python file none.py"),
        ({"reward": "score"}, "is named as module:name or FILE.py:name"),
        ({"reward": "{folder}/reward.py:other"}, "has no function or class 'other'"),
        ({"reward": "no_such_module:score"}, "there is no module 'no_such_module'"),
        ({"reward": "decimal:Decimal"}, "environment.reward is 'decimal:Decimal', which is a class; name a"),
        ({"tools": "none.py"}, "there is no file none.py"),
    ],
)
def test_a_setting_that_names_nothing_is_one_sentence(
    tmp_path: Path, settings: Mapping[str, Any], words: str
) -> None:
    settings = {
        key: value.format(folder=tmp_path) if isinstance(value, str) else value
        for key, value in settings.items()
    }
    with pytest.raises(UsageError) as told:
        tasks_of(opened(tmp_path, **settings))
    assert words in str(told.value)


def test_a_file_without_rows_and_a_reward_that_cannot_be_loaded_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no rows; write a JSON object a line"):
        opened(tmp_path, rows=[])
    with pytest.raises(EnvironmentCodeError, match="cannot be loaded: ZeroDivisionError: division by zero"):
        opened(tmp_path, "1 / 0")
    with pytest.raises(EnvironmentCodeError, match="cannot be loaded: SystemExit"):
        opened(tmp_path, "raise SystemExit")


def _parquet(rows: Sequence[Any]) -> bytes:
    pyarrow, to = pytest.importorskip("pyarrow"), io.BytesIO()
    importlib.import_module("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), to)
    return to.getvalue()


def _lines(rows: Sequence[Any], end: str = "\n") -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + end for row in rows).encode()


FORMATS: Mapping[str, Callable[[Sequence[Any]], bytes]] = {
    "CRLF": lambda rows: _lines(rows, "\r\n"),
    "CR": lambda rows: _lines(rows, "\r"),
    "a byte order mark": lambda rows: b"\xef\xbb\xbf" + _lines(rows),
    "gzip": lambda rows: gzip.compress(_lines(rows)),
    "a list": lambda rows: json.dumps(rows).encode(),
    "a list, indented and compressed": lambda rows: gzip.compress(json.dumps(rows, indent=2).encode()),
    "Parquet": _parquet,
}


@pytest.mark.parametrize("written", FORMATS.values(), ids=FORMATS)
def test_rows_are_read_from_the_formats_that_people_have(
    tmp_path: Path, written: Callable[[Sequence[Any]], bytes]
) -> None:
    rows = [{**row, "prompt": f"说 {row['prompt']} 🎉", "more": {"x": [1.5, None]}} for row in SUMS]
    plain = opened(tmp_path, rows=rows, held_out=0.0)
    (tmp_path / "rows").write_bytes(written(rows))
    env = opened(tmp_path, data=str(tmp_path / "rows"), held_out=0.0)
    asked = [task.messages for task in tasks_of(env)]
    assert asked == [task.messages for task in tasks_of(plain)]
    assert env.check(tasks_of(env)[1], ["6"]).success


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.csv", b"prompt,answer\nx,1\n", "is a table, not JSON Lines; convert it by pandas.read_csv("),
        ("a.jsonl", '{"prompt": "x"}'.encode("utf-16"), "is no text in UTF-8; save it so"),
        ("a.jsonl", b"\x1f\x8bnot gzip", "cannot be read ("),
        ("a.parquet", b"PAR1 broken", "is a damaged Parquet file ("),
        (
            "a.json",
            b'[{"prompt": "x", "answer": 1}, {"prompt": 5}]',
            "a.json, row 2 is no row: its prompt is 5",
        ),
        ("a.json", b'[{"prompt": "x"},', "a.json is not valid JSON"),
        ("a.json", b'{"data": [{"prompt": "x"}]}', "line 1 is no row: it needs a prompt, and has data"),
    ],
)
def test_another_format_is_one_sentence(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError) as told:
        opened(tmp_path, data=str(tmp_path / name))
    assert words in str(told.value)


def test_repeated_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    env = opened(tmp_path, rows=[*SUMS, SUMS[3], SUMS[3]], held_out=0.0)
    assert len(env.seeds()) == len(SUMS)
    assert env.omitted == "2 rows repeat earlier ones and are left out (first: tasks.jsonl, line 17)"
    assert opened(tmp_path, held_out=0.0).omitted is None


def test_values_that_a_skill_cannot_hold_are_told_apart(tmp_path: Path) -> None:
    topics = ["代数", "几何", "x" * 80, "x" * 81, "<10", ">10", "C#", "C/", "word problems"]
    rows = [{"prompt": f"{n}", "answer": "", "topic": topic} for n, topic in enumerate(topics)]
    env = opened(tmp_path, rows=rows, columns=("topic",), held_out=0.0)
    skills = [seed.skills[0] for seed in env.seeds()]
    assert len(set(skills)) == 9
    assert all(len(skill) <= 64 for skill in skills)
    assert skills[-1] == "topic=word_problems"


# the held-out part


def test_the_held_out_rows_stay_the_same_when_rows_are_added_and_share_no_prompt(tmp_path: Path) -> None:
    def prompts(rows: Sequence[Any], **settings: Any) -> tuple[set[str], set[str]]:
        env = opened(tmp_path, rows=rows, **settings)
        sides = tasks_of(env), env.held_out()
        first, second = ({task.messages[0].content for task in side} for side in sides)
        return first, second

    many = [{"prompt": f"Say {n}", "answer": str(n)} for n in range(400)]
    train, held_out = prompts(many)
    assert train.isdisjoint(held_out)
    assert 20 <= len(held_out) <= 60, "a tenth of 400, give or take three standard deviations"
    assert held_out <= prompts([*SUMS, *reversed(many)])[1]
    assert held_out <= prompts(many, held_out=0.3)[1]
    assert len(prompts(SUMS[:3])[1]) == 1, "one at least"
    assert prompts(many, held_out=0.0)[1] == set()
    other_answers = [{**row, "answer": "?"} for row in many]
    assert prompts([*many, *other_answers]) == (train, held_out)
    with pytest.raises(UsageError, match=r"all rows of .* are held out"):
        prompts(SUMS[:1])


def test_rows_for_evaluation_may_have_a_file_and_their_prompts_are_not_trained_on(tmp_path: Path) -> None:
    apart = rows_in(tmp_path / "test.jsonl", SUMS[:3])
    env = opened(tmp_path, eval_data=str(apart))
    assert [task.messages[0].content for task in env.held_out()] == [row["prompt"] for row in SUMS[:3]]
    assert len(env.seeds()) == len(SUMS) - 3
    assert env.omitted == "3 rows are left out, as their prompts are held out"
    assert env.check(env.held_out()[1], ["6"]).success


# rewards


@pytest.mark.parametrize(
    ("reward", "value"),
    [
        ("def score(completion): return 0.25", 0.25),
        ("def score(completion, *, answer='no', **others): return answer == completion", 1.0),
        ("def score(**given): return sorted(given) == ['answer', 'completion', 'level', 'prompt']", 1.0),
        ("async def score(prompt, completion): return completion == 'no' and prompt == 'Yes or no?'", 1.0),
        ("import asyncio\nasync def score(answer):\n    await asyncio.sleep(0)\n    return 0.5", 0.5),
        (
            "def score(completions, answer, **kwargs):\n"
            "    return [float(c == a) for c, a in zip(completions, answer)]",
            1.0,
        ),
        ("async def score(prompts, completions): return [len(prompts) / len(completions)]", 1.0),
        ("import numpy as np\ndef score(completion): return np.float32(0.5)", 0.5),
        ("import numpy as np\ndef score(completions): return np.array([0.5])", 0.5),
        ("import numpy as np\ndef score(completion): return np.array([0.5])", 0.5),
        ("import numpy as np\ndef score(completion): return np.bool_(True)", 1.0),
        ("from decimal import Decimal\ndef score(completion): return Decimal('0.5')", 0.5),
        ("def score(completions, **given): return (True,)", 1.0),
        ("def score(completion): return 0.7 * 1 + 0.2 * 1 + 0.1 * 1", 1.0),
        ("def score(completion): return 0.05 + 0.55 + 0.3 + 0.1", 1.0),
        (
            "import asyncio\nasync def f(): return 0.5\ndef score(completion): return asyncio.run(f())",
            0.5,
        ),
    ],
)
def test_a_reward_function_takes_what_it_names_and_may_be_one_of_trl(
    tmp_path: Path, reward: str, value: float
) -> None:
    assert one(reward, tmp_path, answer="no", level=3) == value


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return 1.5", "returned 1.5 for tasks.jsonl, line 1; a reward is a number from 0 to 1"),
        ("return -0.1", "returned -0.1 for tasks.jsonl, line 1"),
        ("return float('nan')", "returned nan for tasks.jsonl, line 1"),
        ("return None", "returned None for tasks.jsonl, line 1"),
        ("return '1'", "returned '1' for tasks.jsonl, line 1"),
        ("return [1.0]", "returned [1.0] for tasks.jsonl, line 1"),
        ("return {}['x']", "raised KeyError: 'x' (reward.py, line 1) for tasks.jsonl, line 1; mend it"),
        ("raise TimeoutError('slow')", "raised TimeoutError: slow (reward.py, line 1) for tasks.jsonl"),
        ("raise SystemExit(3)", "raised SystemExit: 3 (reward.py, line 1) for tasks.jsonl, line 1; mend it"),
        ("return 10 ** 400", "returned 1000"),
        ("return {'reward': 1}", "returned {'reward': 1} for tasks.jsonl, line 1; a reward is a number"),
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_wrong_reward_is_one_sentence_that_names_the_row(
    tmp_path: Path, body: str, words: str, kind: str
) -> None:
    env = opened(tmp_path, f"{kind} score(completion): {body}", SUMS[:1], held_out=0.0)
    (task,) = tasks_of(env)
    with pytest.raises(EnvironmentCodeError) as told:
        env.check(task, ["x"])
    assert words in str(told.value)
    with pytest.raises(EnvironmentCodeError) as again:
        rolled_out(env, task)
    assert str(again.value) == str(told.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "return 1.0",
            "returned 1.0 for tasks.jsonl, line 1; it gets lists of one rollout, and returns a list",
        ),
        ("return [1.0, 0.0]", "returned [1.0, 0.0] for tasks.jsonl, line 1; it gets lists of one rollout"),
        ("return [None]", "returned [None] for tasks.jsonl, line 1; a reward is a number from 0 to 1"),
        ("return [1.5]", "returned [1.5] for tasks.jsonl, line 1; a reward is a number from 0 to 1"),
    ],
)
def test_a_wrong_reward_of_trl_is_one_sentence(tmp_path: Path, body: str, words: str) -> None:
    env = opened(tmp_path, f"def score(completions, **kwargs): {body}", SUMS[:1], held_out=0.0)
    with pytest.raises(EnvironmentCodeError) as told:
        env.check(tasks_of(env)[0], ["x"])
    assert words in str(told.value)


def test_a_reward_function_may_let_a_rollout_fail(tmp_path: Path) -> None:
    away = "def score(completion): raise RolloutError('The judge is away.')"
    env = opened(tmp_path, f"from genenv.errors import RolloutError\n{away}")
    group = rolled_out(env, tasks_of(env)[0])
    assert group.valid == ()
    assert {trace.explanation for trace in group.traces} == {"The judge is away."}


HANGS = {
    "a loop": "while True: str(1)",
    "a loop that catches errors": (
        "while True:\n        try:\n            while True: str(1)\n        except Exception: pass"
    ),
    "an error that is caught": "try:\n        while True: str(1)\n    except BaseException: return 0.0",
    "a regular expression": "import re\n    return re.match('(a+)+$', 'a' * 40 + 'b') is None",
    "a wait": "import time\n    time.sleep(60)",
    "a process": "import subprocess\n    subprocess.run(['sleep', '60'])",
}
TOO_LONG = (
    "reward.py:score took longer than 0.1 s for tasks.jsonl, line 1; mend it, or allow more with "
    "environment.reward_s"
)


@pytest.mark.parametrize("body", HANGS.values(), ids=HANGS)
def test_a_reward_function_that_hangs_is_ended_and_the_row_and_the_setting_named(
    tmp_path: Path, body: str
) -> None:
    env = opened(tmp_path, f"def score(completion):\n    {body}", SUMS[:1], held_out=0.0, reward_s=0.1)
    (task,) = tasks_of(env)
    start = time.monotonic()
    with pytest.raises(EnvironmentCodeError, match=TOO_LONG):
        env.check(task, ["x"])
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("body", ["while True: pass", "await asyncio.sleep(60)"])
def test_an_asynchronous_reward_function_that_hangs_is_ended_outside_of_a_loop(
    tmp_path: Path, body: str
) -> None:
    code = f"import asyncio\nasync def score(completion):\n    {body}"
    env = opened(tmp_path, code, SUMS[:1], held_out=0.0, reward_s=0.1)
    (task,) = tasks_of(env)
    with pytest.raises(EnvironmentCodeError, match=TOO_LONG):
        env.check(task, ["x"])
    if "while" in body:
        with pytest.raises(EnvironmentCodeError, match=TOO_LONG):
            rolled_out(env, task)


@pytest.mark.parametrize("body", ["while True: pass", "time.sleep(60)"])
def test_in_a_notebooks_thread_a_reward_function_that_hangs_is_left_behind(tmp_path: Path, body: str) -> None:
    code = f"import time\ndef score(completion):\n    {body}"
    env = opened(tmp_path, code, SUMS[:1], held_out=0.0, reward_s=0.1)
    (task,) = tasks_of(env)

    async def notebook() -> None:
        run_with_own_loop(lambda: rolled_out(env, task))

    with pytest.raises(EnvironmentCodeError, match=TOO_LONG):
        asyncio.run(notebook())


def test_a_time_limit_costs_less_than_a_millisecond_a_call(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text("def score(completion): return 1", encoding="utf-8")
    reward = Reward(f"{tmp_path}/reward.py:score", 60.0)

    async def calls() -> float:
        start = time.process_time()
        for _ in range(200):
            await reward.of({"prompt": "x", "completion": "y"}, "line 1")
        return (time.process_time() - start) / 200

    spent = [asyncio.run(calls())]
    thread = threading.Thread(target=lambda: spent.append(asyncio.run(calls())))
    thread.start()
    thread.join()
    assert max(spent) < 0.001


COUNTED = """
from pathlib import Path

def score(completion, answer):
    with Path(__file__).with_name("calls.txt").open("a") as file:
        file.write(completion + "\\n")
    return float(completion == answer)
"""


def test_an_evaluation_calls_the_reward_once_a_reply(folder: Path) -> None:
    (folder / "reward.py").write_text(COUNTED, encoding="utf-8")
    (folder / "run.toml").write_text(
        '[environment]\nname = "dataset"\ndata = "tasks.jsonl"\nreward = "reward.py:score"\nheld_out = 0.5\n',
        encoding="utf-8",
    )
    benchmark = HeldOut(HeldOutConfig(config="run.toml"))
    items = benchmark.load(DataFolder.from_environment(folder), "main")
    assert len(items) > 1
    for item in items:
        answer = asyncio.run(benchmark.attempt(item, Recited(Reply(text="6"))))
        first = benchmark.grade(item, answer)
        assert first == benchmark.grade(item, answer), "a stored answer is graded again"
        assert benchmark.grade(item, {"replies": ["other"], "cut": False}).score == 0.0
    asked = (folder / "calls.txt").read_text(encoding="utf-8").split()
    assert asked == ["6", "6", "other"] * len(items)


def test_a_person_who_attempts_a_row_is_graded_once(folder: Path) -> None:
    (folder / "reward.py").write_text(COUNTED, encoding="utf-8")
    words = ["environment.data=tasks.jsonl", "environment.reward=reward.py:score"]
    told = [word for one in words for word in ("--set", one)]
    done = CliRunner().invoke(app, ["play", "dataset", *told], input="no\n\n")
    assert "not solved: The reward function gives 0." in done.stdout
    assert (folder / "calls.txt").read_text(encoding="utf-8").split() == ["no"]


def test_asynchronous_rewards_are_awaited_together(tmp_path: Path) -> None:
    reward = """
import asyncio
here, most = 0, 0

async def score(completion):
    global here, most
    here += 1
    most = max(most, here)
    await asyncio.sleep(0.01)
    here -= 1
    return most / 8
"""
    env = opened(tmp_path, reward)
    rewards = [trace.reward for trace in rolled_out(env, tasks_of(env)[0], rollouts=8).traces]
    assert rewards == [1.0] * 8


def test_what_a_reward_function_changes_of_a_row_is_as_in_the_file_in_its_next_call(tmp_path: Path) -> None:
    env = opened(
        tmp_path,
        "def score(completion, tags): return float(tags.pop() in completion)",
        rows=[{"prompt": "?", "tags": ["a"]}],
        held_out=0.0,
    )
    task = tasks_of(env)[0]
    assert [env.check(task, ["a"]).reward for _ in range(2)] == [1.0, 1.0]
    assert [trace.reward for trace in rolled_out(env, task, rollouts=2).traces] == [0.0, 0.0]


def test_a_reward_function_may_begin_a_task_of_the_loop_that_runs(tmp_path: Path) -> None:
    code = """
import asyncio

async def later():
    return 0.5

def score(completion):
    return asyncio.get_running_loop().create_task(later())
"""
    env = opened(tmp_path, code)
    assert [trace.reward for trace in rolled_out(env, tasks_of(env)[0], rollouts=2).traces] == [0.5, 0.5]


LOOPS = """
import asyncio
seen = []

async def score(completion):
    seen.append(asyncio.get_running_loop())
    await asyncio.sleep(0)
    return float(len(set(seen)) == 1)
"""


def test_calls_outside_of_training_have_one_event_loop(tmp_path: Path) -> None:
    env = opened(tmp_path, LOOPS)
    assert [env.check(tasks_of(env)[0], ["a"]).reward for _ in range(3)] == [1.0] * 3


def test_success_begins_at_a_threshold(tmp_path: Path) -> None:
    reward = "def score(completion): return float(completion)"
    for at, successes in ((1.0, [False, False, True]), (0.5, [False, True, True])):
        env = opened(tmp_path, reward, success_at=at)
        task = tasks_of(env)[0]
        verdicts = [env.check(task, [reply]) for reply in ("0.4", "0.5", "1")]
        assert [one.success for one in verdicts] == successes
        assert [one.reward for one in verdicts] == [0.4, 0.5, 1.0]


def test_a_file_imports_what_lies_beside_it_and_two_files_of_a_name_stay_apart(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, value in ((first, 0.25), (second, 0.75)):
        folder.mkdir()
        (folder / f"value_of_{folder.name}.py").write_text(f"VALUE = {value}", encoding="utf-8")
    rewards = [
        opened(one, f"import value_of_{one.name} as beside\ndef score(completion): return beside.VALUE")
        for one in (first, second)
    ]
    assert [env.check(tasks_of(env)[0], ["x"]).reward for env in rewards] == [0.25, 0.75]


# tools

TOOLS = """
STOCK = {"pens": 3}


def count(thing: str) -> int:
    \"\"\"Count a thing.\"\"\"
    return STOCK[thing]


def buy(thing: str, number: int) -> int:
    \"\"\"Buy some more of a thing.\"\"\"
    STOCK[thing] += number
    return STOCK[thing]
"""
STATE = """
def score(prompt, completion, state, pens):
    assert [one["role"] for one in completion][:2] == ["assistant", "tool"], completion
    assert prompt == [{"role": "user", "content": "Buy 2 pens."}]
    return pens == 5 and "5" in str(state)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    (tmp_path / "shop.py").write_text(TOOLS, encoding="utf-8")
    envs: list[Dataset] = []

    def make(reward: str = STATE, **settings: object) -> tuple[Dataset, Task]:
        rows = [{"prompt": "Buy 2 pens.", "pens": 5}]
        tools = f"{tmp_path}/shop.py"
        envs.append(opened(tmp_path, reward, rows, tools=tools, held_out=0.0, **settings))
        return envs[-1], tasks_of(envs[-1])[0]

    yield make
    for env in envs:
        close_environment(env)


CALL = '<tool_call>\n{"name": "buy", "arguments": {"thing": "pens", "number": 2}}\n</tool_call>'


@pytest.mark.long
def test_tools_are_called_in_a_session_of_each_rollout_and_the_reward_sees_its_state(shop: Any) -> None:
    env, task = shop()
    for _ in range(2):  # from the same state
        made = StepwiseRollout(env, task)
        assert [tool["function"]["name"] for tool in cast(Any, made.tools)] == ["count", "buy"]
        assert [one.content for one in made.reply(CALL)] == ["5"]
        made.reply("Done.")
        assert made.done
        assert made.verdict().success
    assert env.check(task, [CALL]).explanation == "The episode has not ended."


@pytest.mark.long
def test_a_small_model_is_told_of_tools_in_the_prompt(shop: Any) -> None:
    env, task = shop(style="python")
    assert task.messages[0].role == "system"
    assert "buy(thing, number: integer)  # Buy some more of a thing." in task.messages[0].content
    assert "Answer:" not in task.messages[0].content, "the reward is the user's"
    assert env.check(task, ['buy(thing="pens", number=2)', "Done."]).success
    assert env.check(task, ['buy(thing="pens")', 'buy(thing="pens", number=2)', "Done."]).success


@pytest.mark.long
def test_a_rollout_that_uses_up_its_turns_is_graded_as_it_stands(shop: Any) -> None:
    env, task = shop("def score(completion): return len(completion) / 4", max_turns=2)
    group = rolled_out(env, task, CALL, rollouts=1)
    assert [(one.stop_reason, one.reward) for one in group.traces] == [(StopReason.MAX_TURNS, 1.0)]
    assert env.check(task, [CALL, CALL]).reward == 1.0


# runs


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows_in(tmp_path / "tasks.jsonl", SUMS)
    (tmp_path / "reward.py").write_text(EXACT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


TYPED = ["train", "--data", "tasks.jsonl", "--reward", "reward.py:score", "--columns", "level, topic"]
SETTINGS = [word for one in SHORT for word in ("--set", one)]


@pytest.mark.long
def test_a_run_from_the_command_line_says_its_data_and_goes_on_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_in(folder / "tasks.jsonl", [*SUMS, SUMS[0]])
    said = ["--set", "environment.demonstration=answer"]  # scripted policies look the answers up
    result = succeeds(*TYPED, *SETTINGS, *said, "--out", "run")
    assert "dataset: 1 rows repeat earlier ones and are left out" in result.stderr
    config = load_config(folder / "run/config.toml")
    found = config.environment.settings.model_dump()
    assert (config.environment.name, config.curriculum.candidates) == ("dataset", 8)
    assert found["data"] == str(folder / "tasks.jsonl")
    assert found["reward"] == f"{folder}/reward.py:score"
    assert found["columns"] == ("level", "topic")
    (folder / "other").mkdir()
    monkeypatch.chdir(folder / "other")
    succeeds("train", "--resume", "--out", "../run", "--set", "run.rounds=3")
    with PoolStore.open(folder / "run/pool.db", create=False) as store:
        assert store.rounds() == (0, 1, 2, 3)
        attempted = store.metrics(3)
    assert attempted["agent/attempts"] == 8.0
    assert "probe/error" in attempted
    assert "agent/skill/level=1" in attempted
    result = succeeds("report", "../run")


def test_a_run_on_other_rows_is_not_continued(folder: Path) -> None:
    succeeds(*TYPED, *SETTINGS, "--out", "run")
    rows_in(folder / "tasks.jsonl", [{**SUMS[0], "answer": "3"}, *SUMS[1:]])
    sentence = refused("train", "--resume", "--out", "run", "--set", "run.rounds=3")
    assert "was made with other base data" in sentence
    rows_in(folder / "more.jsonl", SUMS)
    sentence = refused("train", "--data", "more.jsonl", "--resume", "--out", "run")
    assert "was started with other settings: environment.data" in sentence


@pytest.mark.long
def test_a_run_whose_tools_are_others_is_not_continued_before_a_round_is_computed(folder: Path) -> None:
    (folder / "shop.py").write_text(TOOLS, encoding="utf-8")
    own = ["environment.tools=shop.py", "environment.style=python", "environment.held_out=0.0"]
    words = [word for one in own for word in ("--set", one)]
    succeeds(*TYPED[:5], *SETTINGS, *words, "--out", "run")
    before = (folder / "run/config.toml").read_bytes()
    (folder / "shop.py").write_text(TOOLS.replace("some more", "a lot more"), encoding="utf-8")
    sentence = refused("train", "--resume", "--out", "run", "--set", "run.rounds=3")
    assert "was made with other base data (task 'base-line" in sentence
    assert (folder / "run/config.toml").read_bytes() == before


def test_rows_have_the_same_chance_where_no_column_is_named_and_few_rows_suffice(folder: Path) -> None:
    rows_in(folder / "tasks.jsonl", SUMS[:3])
    succeeds(*TYPED[:5], *SETTINGS, "--out", "run")
    config = load_config(folder / "run/config.toml")
    assert (config.curriculum.candidates, config.simulator.source) == (1, "none")
    with PoolStore.open(folder / "run/pool.db", create=False) as store:
        assert store.metrics(2)["agent/attempts"] == 4.0, "two rows are left for training"


def test_likelihoods_choose_rows_where_a_column_has_demonstrations(folder: Path) -> None:
    settings = ["curriculum.candidates=2", "curriculum.foretold_by=likelihoods"]
    words = [word for one in settings for word in ("--set", one)]
    told = ["--set", "environment.demonstration=answer"]
    succeeds(*TYPED[:5], *SETTINGS, *words, *told, "--out", "run")
    with PoolStore.open(folder / "run/pool.db", create=False) as store:
        assert store.metrics(2)["probe/candidates"] == 8.0
    assert "nobody knows solutions" in refused(*TYPED[:5], *SETTINGS, *words, "--out", "other")


def test_a_row_without_a_demonstration_is_a_task_without_one(tmp_path: Path) -> None:
    rows = [row | {"solution": row["answer"] if row["answer"] > "3" else None} for row in SUMS]
    env = opened(tmp_path, EXACT, rows, demonstration="solution", held_out=0.0)
    oracles = {task.messages[-1].content: task.oracle for task in tasks_of(env)}
    assert oracles == {row["prompt"]: (row["solution"],) * (row["solution"] is not None) for row in rows}
    number, texts = {"prompt": "1 + 1?", "answer": 2}, {"prompt": "1 + 1?", "answer": ["2"]}
    numbers = opened(tmp_path, EXACT, [number], demonstration="answer", held_out=0.0)
    assert [task.oracle for task in tasks_of(numbers)] == [("2",)]
    with pytest.raises(UsageError, match=r"tasks.jsonl, line 1: 'answer' .* is \[\"2\"\], no text"):
        opened(tmp_path, EXACT, [texts], demonstration="answer", held_out=0.0)


def test_a_run_says_how_few_rows_are_held_out(tmp_path: Path) -> None:
    assert "only 1 row held out" in str(opened(tmp_path, EXACT, SUMS, held_out=0.01).omitted)
    many = [{"prompt": f"Say {n}.", "answer": str(n)} for n in range(400)]
    assert opened(tmp_path, EXACT, many, held_out=0.2).omitted is None
    assert opened(tmp_path, EXACT, SUMS, held_out=0.0).omitted is None


def test_a_run_on_rows_tells_nothing_of_a_simulator(folder: Path) -> None:
    done = succeeds(*TYPED[:5], *SETTINGS, "--set", "environment.demonstration=answer", "--out", "run")
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "held-out success",
        "success in training",
        "tasks whose rollouts differ in reward, the only ones with a GRPO signal",
        "rounds",
        "time",
        "pictures and tasks",
    ]
    assert lines[3].startswith("rounds: 2, rollouts: 16, tokens sampled: ")
    heads = [line.split() for line in done.stderr.splitlines() if line.split()[:1] == ["round"]]
    shown = ["success", "reward", "agent", "KL", "sampled", "trained", "seconds"]
    assert heads == [["round", "held-out", *shown]]
    assert "specs" not in done.stderr
    with PoolStore.open(folder / "run/pool.db", create=False) as store:
        assert not [name for name in store.metrics(2) if name.startswith(("simulator/", "curriculum/p_hat"))]
    page = write_report(folder / "run").read_text(encoding="utf-8")
    told = re.sub('<details class="glossary">.*?</details>', "", page, flags=re.DOTALL)
    for absent in ("valid rate", "mean p̂", "simulator KL", "accepted", "generations that the gate refused"):
        assert absent not in told.partition("</script>")[0].partition("<body")[2].partition("<script")[0]
    for present in ("success in training", "Early tasks", "training success"):
        assert present in page


def test_rows_and_a_settings_file_for_another_environment_is_one_sentence(folder: Path) -> None:
    typed = ["--data", "tasks.jsonl", "--reward", "reward.py:score"]
    sentence = refused("train", "quickstart", *typed)
    assert sentence == (
        "quickstart is for the environment tool_calling, not for rows of a file: leave it out (genenv train "
        "--data tasks.jsonl --reward reward.py:score), and change settings with --set"
    )
    (folder / "own.toml").write_text('[environment]\nname = "travel"\nmode = "x"\n', encoding="utf-8")
    assert "own.toml is for the environment travel" in refused("train", "own.toml", *typed)
    (folder / "own.toml").write_text("[simulator]\nsource = 'none'\n", encoding="utf-8")
    succeeds("train", "own.toml", *typed, *SETTINGS, "--out", "run")
    assert "environment.data is not set" in refused("train", "--reward", "reward.py:score", *SETTINGS)


def test_the_time_limit_of_a_reward_may_change_when_a_run_goes_on(folder: Path) -> None:
    (folder / "reward.py").write_text("def score(completion):\n    while True: pass", encoding="utf-8")
    sentence = refused(*TYPED, *SETTINGS, "--set", "environment.reward_s=0.1", "--out", "run")
    assert "took longer than 0.1 s for tasks.jsonl, line " in sentence
    (folder / "reward.py").write_text(EXACT, encoding="utf-8")
    succeeds("train", "--resume", "--out", "run", "--set", "environment.reward_s=60")
    assert load_config(folder / "run/config.toml").environment.settings.model_dump()["reward_s"] == 60.0
    sentence = refused("train", "--resume", "--out", "run", "--set", "environment.success_at=0.5")
    assert "was started with other settings: environment.success_at" in sentence


def test_what_is_wrong_on_the_command_line_is_one_sentence(folder: Path) -> None:
    out = [*SETTINGS, "--out", "run"]
    assert "environment.reward is not set" in refused("train", "--data", "tasks.jsonl", *out)
    assert "environment.data is not set" in refused("train", "dataset", *out)
    (folder / "reward.py").write_text("def score(completion): return 2", encoding="utf-8")
    assert "returned 2 for tasks.jsonl, line " in refused(*TYPED, *SETTINGS, "--out", "run")
    (folder / "reward.py").write_text("def score(completion): return 0", encoding="utf-8")
    succeeds("train", "--resume", "--out", "run")


def test_a_dataset_is_exported_with_whole_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["environment.data=tasks.jsonl", "environment.reward=reward.py:score"]
    told = [word for one in words for word in ("--set", one)]
    succeeds("export-env", "dataset", *told, "--out", "sums_env", "--tasks", 4, "--held-out", 1)
    (folder / "other").mkdir()
    monkeypatch.chdir(folder / "other")
    exported = Exported(folder / "sums_env/sums_env/data")
    task = exported.tasks()[0]
    row = SUMS[cast(int, task.spec["line"]) - 1]
    assert task.messages[0].content == row["prompt"]
    assert exported.grade(task, [row["answer"]]).success


def test_held_out_rows_are_measured_and_checked(folder: Path) -> None:
    words = ["environment.data=tasks.jsonl", "environment.reward=reward.py:score", "environment.held_out=0.3"]
    told = [word for one in words for word in ("--set", one)]
    result = run("check", "dataset", *told, "--set", "environment.demonstration=answer")
    assert result.exit_code == 0, result.stdout
    assert "broken" not in result.stdout
