"""Tasks in TRL: tools as its trainer finds them, rewards, and a step of training with the real trainer."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from genenv.environments.base import Environment
from genenv.errors import UsageError
from genenv.gate.gate import base_tasks
from genenv.interop import trl
from genenv.interop.export import Export, native, write
from genenv.interop.exported import Exported
from genenv.progress import Silent
from genenv.types import Task
from interop.conftest import opened
from interop.test_openenv_world import Shop
from openenv_server import OpenEnvServer

pytestmark = pytest.mark.filterwarnings("ignore")


def called(environment: Any, tool: str, **arguments: Any) -> str:
    """As TRL calls a tool."""
    assert tool in {found for found, _ in inspect.getmembers(type(environment), inspect.isfunction)}
    return getattr(environment, tool)(**arguments)


@pytest.mark.long
def test_tools_are_methods_with_their_own_schemas(importable: Path) -> None:
    module = importlib.import_module("desk_env.trl_env")
    environment = module.Environment()
    public = {
        name
        for name, _ in inspect.getmembers(type(environment), inspect.isfunction)
        if not name.startswith("_") and name != "reset"
    }
    exported = opened(importable, "desk_env")
    assert public == {tool["function"]["name"] for tool in exported.tools}  # type: ignore[index]
    assert environment.get_order in exported.tools


def test_a_solution_by_calls_is_rewarded_and_nothing_is_not(importable: Path) -> None:
    module = importlib.import_module("desk_env.trl_env")
    for row, task in zip(
        module.dataset("held_out"), opened(importable, "desk_env").tasks("held_out"), strict=True
    ):
        environment, nothing = module.Environment(), module.Environment()
        environment.reset(**row)
        nothing.reset(**row)
        for at_once in (False, True):
            said = completion(environment, task.oracle, at_once=at_once)
            silent = [{"role": "assistant", "content": ""}]
            assert module.reward(completions=[said, silent], environments=[environment, nothing]) == [
                1.0,
                0.0,
            ]
            environment.reset(**row)
    assert called(module.Environment(), "get_order", order_id="O-5001") == trl.OVER
    assert module.reward(completions=[[]], environments=[module.Environment()]) == [0.0]


def completion(environment: Any, replies: Sequence[str], *, at_once: bool = False) -> list[dict[str, Any]]:
    """Replies as TRL plays them: their calls, what is heard, words; all calls in one turn or a turn each."""
    turns = [trl_calls(reply) for reply in replies]
    if at_once:
        turns = [[call for turn in turns for call in turn], []]
    said: list[dict[str, Any]] = []
    for turn in turns:
        words = "" if turn else replies[-1]
        said.append(
            {"role": "assistant", "content": words, "tool_calls": [{"function": call} for call in turn]}
        )
        for call in turn:
            heard = called(environment, call["name"], **call["arguments"])
            said.append({"role": "tool", "name": call["name"], "content": heard})
    return said


def trl_calls(reply: str) -> list[dict[str, Any]]:
    from genenv.chat.tool_calls import read_calls

    return [{"name": call.name, "arguments": dict(call.arguments)} for call in read_calls(reply)[1]]


def test_a_conversation_in_text_has_one_tool(importable: Path) -> None:
    exported = opened(importable, "home_env")
    module = importlib.import_module("home_env.trl_env")
    task = exported.tasks()[0]
    environment = module.Environment()
    environment.reset(task=exported.rows()[0]["task"])
    for reply in task.oracle:
        heard = called(environment, "act", text=reply)
        assert heard
    assert heard == trl.OVER
    last = [{"role": "assistant", "content": "I am done."}]
    assert module.reward(completions=[last], environments=[environment]) == [1.0]


def test_a_single_question_is_graded_from_the_completion(importable: Path) -> None:
    module = importlib.import_module("programs_env.trl_env")
    exported = opened(importable, "programs_env")
    tasks = exported.tasks("held_out")
    said = [[{"role": "assistant", "content": task.oracle[0]}] for task in tasks]
    rows = [str(row["task"]) for row in exported.rows("held_out")]
    assert module.reward(completions=said, task=rows) == [1.0] * len(tasks)
    with pytest.raises(UsageError, match="the reward function gets no column 'task'"):
        module.reward(prompts=[[]], completions=said[:1])


@pytest.mark.long
def test_calls_of_a_task_of_one_reply_are_kept_for_it(desk_bundle: Path, tmp_path: Path) -> None:
    from bundles import fewer
    from typed import succeeds

    fewer(desk_bundle, tmp_path / "desk", base=16, held_out=2)
    words = ("--out", tmp_path / "single", "--set", "environment.mode=single")
    succeeds("export-env", f"{tmp_path}/desk", *words)
    folder = tmp_path / "single" / "single" / "data"
    environment, task = trl.environment_class(folder)(), trl.Exported(folder).tasks()[0]
    environment.reset(task=str(trl.Exported(folder).rows()[0]["task"]))
    said = completion(environment, task.oracle)
    assert trl.reward_function(folder)(completions=[said], environments=[environment]) == [1.0]


def test_a_tool_that_is_called_as_trl_calls_something_is_refused(
    importable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = opened(importable, "desk_env")
    tools = [{"type": "function", "function": {"name": "reset"}}]
    monkeypatch.setattr(trl.Exported, "tools", tools)
    with pytest.raises(UsageError, match="its tool 'reset' has a name that TRL keeps for itself"):
        trl.environment_class(exported.folder)


@pytest.mark.long
def test_a_model_that_knows_chatml_gets_a_template_that_offers_tools() -> None:
    from trl.chat_template_utils import add_response_schema, supports_tool_calling

    folder, tokens = trl.with_tools("smollm2-135m")
    assert supports_tool_calling(add_response_schema(tokens))
    assert Path(folder).is_dir()
    said = tokens.apply_chat_template(
        [{"role": "user", "content": "refund it"}],
        tools=[trl.ACT],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert '"name": "act"' in said
    assert said.endswith("<|im_start|>assistant\n")
    with pytest.raises(UsageError, match="the chat template of tiny offers no tools, and its tokens are not"):
        trl.with_tools("tiny")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """An exported environment of a server of MCP tools with room for one session, and what its tools do."""
    done: list[str] = []

    class Counting(Shop):
        def step(self, **action: Any) -> Any:
            done.extend([action["arguments"]["fruit"]] if action["type"] == "call_tool" else [])
            return super().step(**action)

    with OpenEnvServer(room=1) as server:
        fields = ("type", "tool_name", "arguments", "metadata")
        server.action = {"title": "Action", "properties": {name: {} for name in fields}}
        server.make = Counting
        export = Export(environment=f"openenv:{server.url}", settings={"sessions": 1}, train=2, held_out=1)
        write(
            tmp_path / "shop_env",
            export,
            lambda env: base_tasks(env, env.seeds()[:2], seed=0).values(),
            Silent(),
        )
        yield tmp_path / "shop_env" / "shop_env" / "data", done


def test_a_thought_is_left_out_of_words_and_not_of_arguments() -> None:
    call = {"function": {"name": "note", "arguments": {"text": "a </think> b"}}}
    (reply,) = trl._replies([{"role": "assistant", "content": "<think>?</think>Well.", "tool_calls": [call]}])
    assert reply.startswith("Well.")
    assert "a </think> b" in reply


def test_a_call_of_a_servers_tool_is_made_once(shop: tuple[Path, list[str]]) -> None:
    folder, done = shop
    rows, reward = Exported(folder).rows(), trl.reward_function(folder)
    made = trl.environment_class(folder)()
    made.reset(**rows[0])
    assert called(made, "buy", fruit="fig") == "Sold out."
    cut = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "buy"}}]}]
    assert reward(completions=[cut], environments=[made]) == [0.0]
    assert called(made, "buy", fruit="pear") == trl.OVER, "it was bought, which ends the task"
    assert done == ["fig", "pear"]
    assert reward(completions=[cut], environments=[made]) == [1.0]
    made.reset(**rows[1])
    called(made, "buy", fruit="fig")
    assert reward(completions=[[{"role": "assistant", "content": "No."}]], environments=[made]) == [0.0]
    assert called(made, "buy", fruit="pear") == trl.OVER, "words alone end the conversation"
    assert done == ["fig", "pear", "fig"]


def test_lack_of_a_session_is_no_reward_though_trl_takes_errors_for_results(
    shop: tuple[Path, list[str]],
) -> None:
    (row, other), made = Exported(shop[0]).rows(), trl.environment_class(shop[0])
    one, two = made(), made()
    one.reset(**row)
    two.reset(**other)
    called(one, "buy", fruit="fig")
    with pytest.raises(UsageError, match=r"set environment\.sessions"):
        called(two, "buy", fruit="fig")
    with pytest.raises(UsageError, match=r"set environment\.sessions"):
        trl.reward_function(shop[0])(completions=[[], []], environments=[one, two])


@pytest.mark.long
def test_its_trainer_takes_a_step(importable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampling is from random weights, but for one reply that calls a tool, so that the whole loop runs."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import trl as theirs
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(["a call of a tool"], learner)
    tokens = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=special[1], pad_token=special[2])
    tokens.padding_side = "left"
    template = Path(theirs.__file__).parent / "chat_templates" / "qwen3_instruct_2507.jinja"
    tokens.chat_template = template.read_text(encoding="utf-8")
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 8192}
    ids = {"eos_token_id": tokens.eos_token_id, "pad_token_id": tokens.pad_token_id, "bos_token_id": None}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokens), **shape, **heads, **ids))
    module = importlib.import_module("desk_env.trl_env")
    config = theirs.GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=1,
        num_generations=2,
        per_device_train_batch_size=2,
        max_completion_length=400,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = theirs.GRPOTrainer(
        model=model,
        reward_funcs=module.reward,
        args=config,
        train_dataset=module.dataset(),
        processing_class=tokens,
        environment_factory=module.Environment,
    )
    replies = iter(
        [
            '<tool_call>\n{"name": "get_order", "arguments": {"order_id": "O-5001"}}\n</tool_call>',
            "It is there.",
        ]
    )

    def said(prompts: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        text = next(replies, "That is all.")
        return [tokens(text + special[1])["input_ids"] for _ in prompts], None

    monkeypatch.setattr(trainer, "_generate_single_turn", said)
    trainer.train()
    (logged,) = [one for one in trainer.state.log_history if "reward" in one]
    assert logged["tools/call_frequency"] == 1.0
    assert logged["tools/failure_frequency"] == 0.0
    assert 0.0 <= logged["reward"] <= 1.0


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of a text game, single questions, and tools whose calls are text there."""
    members = {
        "game": {"name": "guess_who"},
        "question": {"name": "programs"},
        "tools": {"name": "tool_calling", "style": "json", "mode": "multi"},
    }
    folder = tmp_path_factory.mktemp("mixture")

    def tasks(env: Environment) -> list[Task]:
        seeds = [next(seed for seed in env.seeds() if seed.id.startswith(f"{name}:")) for name in members]
        return list(base_tasks(env, seeds, seed=0).values())

    export = Export(environment="mixture", settings={"members": members}, train=3, held_out=0)
    write(folder / "mixed", export, tasks, Silent())
    return folder / "mixed" / "mixed" / "data"


def test_a_style_that_the_user_asks_for_is_kept_in_a_member_too() -> None:
    members = {
        "a": {"name": "tool_calling", "style": "python"},
        "b": {"name": "tool_calling", "style": "json"},
    }
    export = Export(
        environment="mixture", settings={"members": members}, asked=frozenset({"members.a.style"})
    )
    assert native(export)["members"] == {
        "a": {**members["a"], "mode": "multi"},
        "b": {**members["b"], "style": "native", "mode": "multi"},
    }


@pytest.mark.long
def test_each_task_of_a_mixture_is_played_in_its_own_way(mixed: Path) -> None:
    exported, reward = trl.Exported(mixed), trl.reward_function(mixed)
    assert exported.about.settings["members"]["tools"].get("style") == "native"
    offered = {tool["function"]["name"] for tool in exported.tools}  # type: ignore[index]
    for row, task in zip(exported.rows(), exported.tasks(), strict=True):
        environment = trl.environment_class(mixed)()
        environment.reset(**row)
        if task.id.startswith("base-game"):
            assert "has no tool" in called(environment, sorted(offered)[0])
            for reply in task.oracle:
                called(environment, "act", text=reply)
            said = [{"role": "assistant", "content": ""}]
        elif task.id.startswith("base-question"):
            said = [{"role": "assistant", "content": task.oracle[0]}]
        else:
            said = completion(environment, task.oracle)
        due = exported.grade(task, task.oracle).reward
        assert due > 0
        assert reward(completions=[said], environments=[environment]) == [due], task.id
    exported.close()
