"""Exported data as the libraries that it is for read it; rows are compared with what the store holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pandas
import pyarrow.parquet
import pytest
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer, apply_chat_template

from genenv.chat.tool_calls import read_calls
from genenv.environments import load_environment
from genenv.environments.mixture import MixtureConfig
from genenv.gate.gate import base_tasks
from genenv.interop import data
from genenv.interop.data_rows import Filters
from genenv.interop.exported import task_of
from genenv.interop.trl import with_tools
from genenv.progress import Silent
from genenv.runs.folder import RunFolder
from genenv.runs.store.records import RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.tools.tool_calling.environment import ToolCalling, ToolCallingConfig
from genenv.types import Group, Lineage, Message, Origin, Seed, StopReason, Task, Trace
from typed import refused, succeeds
from viewer_runs import HOSTILE, write_run

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _no_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rounds 1 to 5, each with a task and four rollouts; 1, 2, 3, 4 and 0 of them solve it."""
    return write_run(tmp_path_factory.mktemp("runs") / "demo", rounds=6, planned=6).path


def exported(run: Path, form: str, out: Path, **filters: Any) -> dict[str, int]:
    found = data.export(run, form, out, Filters(**filters), Silent())
    return {file.path: count for file, count in found}


def test_hugging_face_reads_tasks_and_trajectories(run: Path, tmp_path: Path) -> None:
    succeeds("export-data", run, "--format", "hf", "--out", tmp_path / "out", "--held-out")
    tasks = datasets.load_dataset(str(tmp_path / "out"), "tasks")
    assert {name: len(split) for name, split in tasks.items()} == {"train": 5, "test": 1}
    first = tasks["train"][0]
    assert (first["id"], first["round"], first["attempts"], first["success_rate"]) == (
        "task-1 plain",
        1,
        4,
        0.25,
    )
    assert first["prompt"][-1] == {"role": "user", "content": "2 + 2? plain"}
    assert json.loads(first["payload"]) == {"right": "plain"}
    assert tasks["test"][0]["success_rate"] is None
    tries = datasets.load_dataset(str(tmp_path / "out"), "trajectories", split="train")
    assert len(tries) == 20
    assert sum(tries["success"]) == 10
    assert tries[0]["completion"] == [{"role": "assistant", "content": "4 plain"}]
    frame = pandas.read_parquet(tmp_path / "out" / "trajectories" / "train.parquet")
    assert frame.groupby("round")["reward"].mean().to_dict() == {1: 0.25, 2: 0.5, 3: 0.75, 4: 1.0, 5: 0.0}


def test_filters_choose_rounds_rates_and_solved_tasks(run: Path, tmp_path: Path) -> None:
    assert exported(run, "hf", tmp_path / "a", first=2, last=3) == {
        "tasks/train.parquet": 2,
        "trajectories/train.parquet": 8,
    }
    assert exported(run, "hf", tmp_path / "b", solved=True) == {
        "tasks/train.parquet": 4,
        "trajectories/train.parquet": 10,
    }
    mixed = exported(run, "hf", tmp_path / "c", low=0.2, high=0.8)
    assert mixed == {"tasks/train.parquet": 3, "trajectories/train.parquet": 12}
    succeeds("export-data", run, "--format", "trl", "--out", tmp_path / "d", "--rounds", "5:")
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["README.md", "grpo"]


def test_trl_reads_prompts_completions_and_pairs(run: Path, tmp_path: Path, tiny: Any) -> None:
    out = tmp_path / "out"
    counts = exported(run, "trl", out, held_out=True)
    # equal replies of a group are one example: each group has one solved and one failed reply
    assert counts == {
        "grpo/train.jsonl": 5,
        "grpo/test.jsonl": 1,
        "sft/train.jsonl": 4,
        "preference/train.jsonl": 3,
    }
    grpo = datasets.load_dataset(str(out), "grpo", split="train")
    with PoolStore.open(RunFolder.open(run).pool, create=False) as store:
        assert task_of(grpo[0]["task"]) == store.task("task-1 plain")
    tokenizer = tiny.tokenizer()
    for name in ("grpo", "sft", "preference"):
        row = datasets.load_dataset(str(out), name, split="train")[0]
        texts = apply_chat_template(row, tokenizer)
        assert texts["prompt"].endswith("2 + 2? plain<|im_end|>\n<|im_start|>assistant\n")
        assert all("4 plain" in texts[one] for one in ("completion", "chosen") if one in texts)
        assert "5 plain" in texts.get("rejected", "5 plain")


def test_verl_reads_what_its_loaders_want(run: Path, tmp_path: Path) -> None:
    counts = exported(run, "verl", tmp_path / "out", held_out=True)
    assert counts == {"train.parquet": 5, "test.parquet": 1, "sft.parquet": 4}
    # as RLHFDataset reads: datasets, then these fields of each row, and of these the reward manager
    rows = datasets.load_dataset("parquet", data_files=str(tmp_path / "out" / "train.parquet"))["train"]
    row = rows[1]
    assert (row["data_source"], row["ability"]) == ("genenv/sums", "sums")
    assert row["prompt"] == [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": "2 + 2? plain"},
    ]
    assert (row["reward_model"]["style"], row["extra_info"]["index"]) == ("rule", 1)
    assert task_of(row["reward_model"]["ground_truth"]).id == row["extra_info"]["id"] == "task-2 plain"
    # as MultiTurnSFTDataset reads: pandas, and lists of records in `messages`
    frame = pandas.read_parquet(tmp_path / "out" / "sft.parquet")
    assert [one["role"] for one in frame["messages"][0].tolist()] == ["system", "user", "assistant"]
    schema = pyarrow.parquet.read_schema(tmp_path / "out" / "sft.parquet")
    assert "tools" not in schema.names


def test_openai_gets_conversations_that_end_with_the_agent(run: Path, tmp_path: Path) -> None:
    assert exported(run, "openai", tmp_path / "out") == {"train.jsonl": 4}
    rows = [json.loads(line) for line in (tmp_path / "out" / "train.jsonl").read_text().splitlines()]
    assert rows[0] == {
        "messages": [
            {"role": "system", "content": "You add."},
            {"role": "user", "content": "2 + 2? plain"},
            {"role": "assistant", "content": "4 plain"},
        ]
    }


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with offered tools: two tasks of different tools, each solved once and failed once."""
    env = ToolCalling(ToolCallingConfig(style="native"))
    seeds = {
        seed.id: seed for seed in env.seeds() if seed.spec["n_calls"] == 1 and seed.spec["gap"] == "none"
    }
    found: dict[str, Task] = {}
    for task in base_tasks(env, list(seeds.values())[:12], seed=0).values():
        if task.oracle[0].startswith("<tool_call>"):
            found.setdefault(read_calls(task.oracle[0])[1][0].name, task)
    groups = [
        Group(task=task, traces=(_trace(task, "good", task.oracle[0]), _trace(task, "bad", "No.")))
        for task in list(found.values())[:2]
    ]
    base = [seeds[str(one.task.lineage.seed_id)] for one in groups]
    folder = tmp_path_factory.mktemp("native") / "run"
    return _stored(folder, '[environment]\nname = "tool_calling"\nstyle = "native"\n', base, groups)


def _stored(folder: Path, environment: str, base: Sequence[Seed], groups: Sequence[Group]) -> Path:
    made = RunFolder.create(folder, f'{environment}[policy]\nbackend = "scripted"\n')
    with PoolStore.open(made.pool, create=False) as store:
        store.put_base(base)
        record = RoundRecord(number=0, metrics={}, state={}, batches=(), groups=groups, evaluations=())
        with made.committing(store, record):
            pass
    return made.path


def _trace(task: Task, name: str, reply: str) -> Trace:
    called = reply.startswith("<tool_call>")
    later = (Message(role="tool", content="done"), Message(role="assistant", content="It is done."))
    return Trace(
        **{"id": f"{task.id}/{name}", "task_id": task.id, "token_ids": (1, 2), "sampled": (False, True)},
        **{"logprobs": (0.0, -1.0), "prompt_tokens": 1, "reward": float(called), "success": called},
        messages=(Message(role="assistant", content=reply), *(later if called else ())),
        explanation="",
        stop_reason=StopReason.DONE,
    )


@pytest.mark.long
def test_offered_tools_and_calls_go_to_chat_templates_as_data(calling: Path, tmp_path: Path) -> None:
    assert exported(calling, "trl", tmp_path / "out")["sft/train.jsonl"] == 2
    rows = datasets.load_dataset(str(tmp_path / "out"), "sft", split="train")
    calls = [row["completion"][0]["tool_calls"][0]["function"] for row in rows]
    assert len({call["name"] for call in calls}) == 2
    assert len({tuple(call["arguments"]) for call in calls}) == 2  # no argument of the one is in the other
    _, tokenizer = with_tools("smollm2-135m")
    for row, call in zip(rows, calls, strict=True):
        said = apply_chat_template(row, tokenizer, tools=json.loads(row["tools"]))
        assert f'"name": "{call["name"]}"' in said["prompt"]  # the tool is offered
        assert json.dumps({"name": call["name"], "arguments": call["arguments"]}) in said["completion"]
        assert "<tool_response>\ndone" in said["completion"]


@pytest.mark.long
def test_openai_gets_tools_calls_and_their_results(calling: Path, tmp_path: Path) -> None:
    exported(calling, "openai", tmp_path / "out")
    for line in (tmp_path / "out" / "train.jsonl").read_text().splitlines():
        row = json.loads(line)
        call = row["messages"][-3]["tool_calls"][0]
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
        assert call["function"]["name"] in {tool["function"]["name"] for tool in row["tools"]}
        assert row["messages"][-2] == {"role": "tool", "content": "done", "tool_call_id": call["id"]}
        assert row["messages"][-1] == {"role": "assistant", "content": "It is done."}


@pytest.mark.long
def test_verl_gets_no_imitation_file_if_tools_were_offered(calling: Path, tmp_path: Path) -> None:
    assert exported(calling, "verl", tmp_path / "out") == {"train.parquet": 2}


BUY = {"type": "function", "function": {"name": "buy", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "buy", "arguments": {}}\n</tool_call>'


def solved(folder: Path, environment: str, reply: str, **payload: Any) -> Path:
    """A run with a solved task of an environment."""
    seed = Seed(id="one", environment="x", spec={}, skills=("x",))
    task = Task(
        **{"id": "t", "environment": "x", "skills": ("x",), "spec": {}, "payload": payload, "oracle": ()},
        messages=(Message(role="user", content="Buy a pear."),),
        lineage=Lineage(origin=Origin.SEED, seed_id="one"),
    )
    trace = replace(_trace(task, "good", reply), success=True, reward=1.0)
    return _stored(folder, environment, [seed], [Group(task=task, traces=(trace,))])


@pytest.mark.parametrize(
    "environment",
    [
        'name = "openenv:http://127.0.0.1:9"\n',
        'name = "verifiers:shop"\n',
        'name = "mixture"\nmembers = {a = {name = "openenv:http://127.0.0.1:9"}, b = {name = "programs"}}\n',
    ],
)
def test_tools_of_another_library_are_those_of_the_task(tmp_path: Path, environment: str) -> None:
    """No server has to run."""
    run = solved(tmp_path / "run", f"[environment]\n{environment}", CALL, tools=[BUY])
    exported(run, "openai", tmp_path / "openai")
    row = json.loads((tmp_path / "openai" / "train.jsonl").read_text())
    assert row["tools"] == [BUY]
    assert row["messages"][1]["tool_calls"][0]["function"] == {"name": "buy", "arguments": "{}"}
    assert exported(run, "verl", tmp_path / "verl") == {"train.parquet": 1}
    described = solved(tmp_path / "described", f"[environment]\n{environment}", CALL, tools=[])
    assert exported(described, "verl", tmp_path / "described_verl") == {"train.parquet": 1, "sft.parquet": 1}


def _seated(task: Task, seat: str, number: int, *, solved: bool, own: str = "") -> Trace:
    prompt = (Message(role="user", content=own),) if own else ()
    return replace(
        _trace(task, f"{number}/{seat}@{number:016x}", "A move."),
        **{"success": solved, "reward": float(solved)},
        messages=(*prompt, Message(role="assistant", content=CALL if number else "A move.")),
    )


def _game(folder: Path) -> Path:
    """A task of two seats with a tool: the first wins all four, the second, whose prompt is its own, one."""
    seed = Seed(id="one", environment="x", spec={}, skills=("x",))
    task = Task(
        **{"id": "t", "environment": "x", "skills": ("x",), "spec": {}, "oracle": ()},
        payload={"tools": [BUY]},
        messages=(Message(role="user", content="Buy a pear."),),
        lineage=Lineage(origin=Origin.SEED, seed_id="one"),
    )
    first = tuple(_seated(task, "buyer", i, solved=True) for i in range(4))
    second = tuple(_seated(task, "seller", i, solved=i == 1, own="Sell it.") for i in range(4))
    groups = [
        Group(task=task, agent="one", seat="buyer", traces=first),
        Group(task=task, agent="two", seat="seller", traces=second),
    ]
    return _stored(folder, '[environment]\nname = "openenv:http://127.0.0.1:9"\n', [seed], groups)


def test_with_seats_a_tasks_rate_is_that_of_the_leading_one(tmp_path: Path) -> None:
    run = _game(tmp_path / "run")
    assert exported(run, "trl", tmp_path / "out", low=0.9)["grpo/train.jsonl"] == 1
    row = json.loads((tmp_path / "out" / "grpo" / "train.jsonl").read_text())
    assert (row["attempts"], row["success_rate"]) == (4, 1.0)


def test_a_later_seat_is_offered_no_tools_and_is_named(tmp_path: Path) -> None:
    run = _game(tmp_path / "run")
    assert exported(run, "trl", tmp_path / "trl")["sft/train.jsonl"] == 3
    rows = [json.loads(line) for line in (tmp_path / "trl" / "sft" / "train.jsonl").read_text().splitlines()]
    found = [
        (row["seat"], row["prompt"][0]["content"], row["tools"] != "[]", "tool_calls" in row["completion"][0])
        for row in rows
    ]
    assert sorted(found) == [
        ("buyer", "Buy a pear.", True, False),
        ("buyer", "Buy a pear.", True, True),
        ("seller", "Sell it.", False, False),  # what it writes is text
    ]
    loaded = datasets.load_dataset(str(tmp_path / "trl"), "sft", split="train")
    assert loaded["seat"] == [row["seat"] for row in rows]
    exported(run, "hf", tmp_path / "hf")
    tried = datasets.load_dataset(str(tmp_path / "hf"), "trajectories", split="train")
    assert sorted(tried["seat"]) == ["buyer"] * 4 + ["seller"] * 4
    exported(run, "openai", tmp_path / "openai")
    plain = [json.loads(line) for line in (tmp_path / "openai" / "train.jsonl").read_text().splitlines()]
    assert [one.get("tools") for one in plain if one["messages"][0]["content"] == "Sell it."] == [None]


@pytest.mark.long
def test_members_of_a_mixture_have_calls_as_data_or_as_text_as_they_were_sampled(tmp_path: Path) -> None:
    styles = {"a": "native", "b": "json"}
    members = {name: {"name": "tool_calling", "style": style} for name, style in styles.items()}
    env = load_environment("mixture", MixtureConfig(members=members))
    seeds = [next(seed for seed in env.seeds() if seed.id.startswith(f"{name}:")) for name in members]
    tasks = base_tasks(env, seeds, seed=0).values()
    groups = [Group(task=task, traces=(_trace(task, "good", CALL),)) for task in tasks]
    of_members = "".join(
        f'[environment.members.{name}]\nname = "tool_calling"\nstyle = "{style}"\n'
        for name, style in styles.items()
    )
    run = _stored(tmp_path / "run", f'[environment]\nname = "mixture"\n{of_members}', seeds, groups)
    exported(run, "trl", tmp_path / "trl")
    rows = [json.loads(line) for line in (tmp_path / "trl" / "sft" / "train.jsonl").read_text().splitlines()]
    assert ["tool_calls" in row["completion"][0] for row in rows] == [True, False]
    assert [bool(json.loads(row["tools"])) for row in rows] == [True, False]


def test_a_dataset_without_tools_has_none_to_offer(tmp_path: Path) -> None:
    config = '[environment]\nname = "dataset"\nstyle = "native"\n'
    run = solved(tmp_path / "run", config, "It is 4.")
    assert exported(run, "verl", tmp_path / "verl") == {"train.parquet": 1, "sft.parquet": 1}
    assert exported(run, "trl", tmp_path / "trl") == {"grpo/train.jsonl": 1, "sft/train.jsonl": 1}
    assert "tools" not in json.loads((tmp_path / "trl" / "sft" / "train.jsonl").read_text())


@pytest.mark.long
def test_trl_trains_on_it(run: Path, tmp_path: Path, tiny: Any) -> None:
    exported(run, "trl", tmp_path / "out")
    for name, trainer, config in (("sft", SFTTrainer, SFTConfig), ("preference", DPOTrainer, DPOConfig)):
        settings = config(
            output_dir=str(tmp_path / name),
            max_steps=1,
            per_device_train_batch_size=2,
            report_to=[],
            use_cpu=True,
        )
        rows = datasets.load_dataset(str(tmp_path / "out"), name, split="train")
        done = trainer(str(tiny.folder()), args=settings, train_dataset=rows).train()
        assert done.global_step == 1


@pytest.mark.long
def test_the_reward_for_verl_in_the_guide_grades_replies(importable: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "export-data.md").read_text(encoding="utf-8")
    code = guide.split("```py\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    folder = importable / "programs_env" / "programs_env" / "data"
    exec(code.replace("demo_env/demo_env/data", str(folder)), names)  # noqa: S102 - our own guide
    row = names["environment"].rows()[0]
    task = task_of(row["task"])
    assert names["compute_score"]("genenv/programs", task.oracle[0], row["task"]) == 1.0
    assert names["compute_score"]("genenv/programs", "no", row["task"]) == 0.0
    thought = f"<think>\nPerhaps 3.\n</think>\n\n{task.oracle[0]}"
    assert names["compute_score"]("genenv/programs", thought, row["task"]) == 1.0


def test_texts_of_models_stay_data(tmp_path: Path) -> None:
    made = write_run(tmp_path / "run", rounds=4, text=HOSTILE).path
    for form in data.FORMATS:
        counts = exported(made, form, tmp_path / form)
        assert all(counts.values())
    row = datasets.load_dataset(str(tmp_path / "trl"), "sft", split="train")[0]
    assert "<script>alert(1)</script>" in row["completion"][0]["content"]
    assert len((tmp_path / "openai" / "train.jsonl").read_bytes().splitlines()) == 3


def test_wrong_input_is_one_sentence_and_leaves_nothing(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for words, sentence in (
        (("--format", "csv"), "unknown --format"),
        (("--format", "hf", "--rounds", "9:2"), "two numbers that rise"),
        (("--format", "hf", "--rate", "much"), "two numbers that rise"),
        (("--format", "hf", "--rate", "nan:1"), "two numbers that rise"),
        (("--format", "trl", "--rounds", "40:50"), "has nothing to export"),
        (("--format", "openai", "--rounds", "5"), "files to learn from hold only solved ones"),
        (("--format", "openai", "--held-out"), "leave out --held-out"),
    ):
        assert sentence in refused("export-data", run, *words, "--out", out), words
        assert list(tmp_path.iterdir()) == []
    assert "nowhere is not a folder" in refused(
        "export-data", tmp_path / "nowhere", "--format", "hf", "--out", out
    )
    out.mkdir()
    (out / "mine.txt").write_text("mine", encoding="utf-8")
    assert "not empty" in refused("export-data", run, "--format", "hf", "--out", out)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
