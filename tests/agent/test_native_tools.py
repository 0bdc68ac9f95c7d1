"""Tool calling in the model's own form: what is trained is what is served."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from genenv.backends.local.model import LocalModel
from genenv.backends.local.policy_weights import PolicyWeights
from genenv.backends.local.sampler import LocalAssistant, LocalSampler
from genenv.backends.scripted import ScriptedSampler
from genenv.backends.settings import PolicyConfig, SamplingConfig
from genenv.chat.tool_calls import message_of
from genenv.errors import UsageError
from genenv.gate.gate import base_task
from genenv.rollout.driver import Sampling, demonstration, roll_out
from genenv.tools.tool_calling.environment import ToolCalling, ToolCallingConfig
from genenv.types import Task

SAMPLING = Sampling(temperature=1.0, max_new_tokens=2000, timeout_s=60.0, seed=0)


@pytest.fixture(scope="module")
def env() -> ToolCalling:
    return ToolCalling(ToolCallingConfig(style="native"))


@pytest.fixture(scope="module")
def tasks(env: ToolCalling) -> list[Task]:
    """Of each kind: one reply or several turns, with and without a gap."""
    kinds: dict[Any, Any] = {}
    for seed in env.seeds():
        kinds.setdefault((seed.spec["chained"], seed.spec["gap"], seed.spec["n_calls"]), seed)
    return [base_task(env, seed.id, seed.spec, seed=0) for seed in kinds.values()]


@pytest.fixture
def make(tiny: Any, templates: dict[str, str]) -> Any:
    def made(name: str = "", **config: Any) -> LocalSampler:
        own = {"template": templates[name]} if name else {}
        folder = tiny.folder(**own, max_position_embeddings=30_000)
        settings = PolicyConfig(model=str(folder), device="cpu", threads=1, context_tokens=30_000, **config)
        return LocalSampler(PolicyWeights(LocalModel(str(folder), settings), None, learns=False))

    return made


@pytest.mark.parametrize("name", ["qwen", "thinking", "always", "mistral"])
def test_every_known_solution_passes_in_the_models_own_form(
    make: Any, env: ToolCalling, tasks: list[Task], name: str
) -> None:
    sampler = make(name)
    assert len(tasks) >= 6
    for task in tasks:
        trace = asyncio.run(demonstration(env, sampler, task))
        assert trace.success, trace.explanation
        assert trace.replies == task.oracle


def test_the_template_describes_the_tools_and_the_prompt_does_not(
    make: Any, env: ToolCalling, tasks: list[Task]
) -> None:
    sampler = make("qwen")
    trace = asyncio.run(demonstration(env, sampler, tasks[0]))
    prompt = sampler.model.tokenizer.decode(trace.token_ids[: trace.prompt_tokens])
    for tool in env.offered(tasks[0]):
        assert json.dumps(tool, ensure_ascii=False) in prompt
        assert tool["function"]["name"] not in tasks[0].messages[0].content
    assert "Tools:" not in tasks[0].messages[0].content


def test_an_episode_has_the_ids_that_an_evaluation_would_give_the_model(
    make: Any, env: ToolCalling, tasks: list[Task]
) -> None:
    sampler = make("thinking", chat_template_kwargs={"enable_thinking": False})
    served = LocalAssistant(sampler, SamplingConfig(), name="tiny", weights={})
    assert served.native_tools
    assert served.describe()["chat_template_kwargs"] == {"enable_thinking": False}
    task = next(task for task in tasks if task.payload["mode"] == "single")
    trace = asyncio.run(demonstration(env, sampler, task))
    asked = [{"role": m.role, "content": m.content} for m in task.messages]
    prompt, _ = sampler.model.chat.render_whole(asked, env.offered(task))
    assert trace.token_ids[: trace.prompt_tokens] == prompt
    whole, _ = sampler.model.chat.render_whole([*asked, message_of(task.oracle[0])], env.offered(task))
    assert whole[: len(trace.token_ids)] == trace.token_ids


def test_several_turns_are_the_conversation_that_would_be_served(
    make: Any, env: ToolCalling, tasks: list[Task]
) -> None:
    sampler = make("qwen")
    task = next(task for task in tasks if task.payload["mode"] == "multi" and task.payload["gap"] == "none")
    heard: list[Any] = [{"role": m.role, "content": m.content} for m in task.messages]

    async def play() -> None:
        replies = iter(task.oracle)

        async def ask(messages: Any) -> str:
            if messages is not task.messages:
                heard.extend({"role": m.role, "content": m.content} for m in messages)
            said = next(replies)
            heard.append(message_of(said))
            return said

        await env.episode(task).run(ask)

    asyncio.run(play())
    ids = asyncio.run(demonstration(env, sampler, task)).token_ids
    assert sampler.model.chat.render_whole(heard, env.offered(task))[0][: len(ids)] == ids
    assert len(task.oracle) > 2


def test_an_agents_native_calls_are_checked_as_those_it_meant(env: ToolCalling, tasks: list[Task]) -> None:
    task = next(task for task in tasks if task.payload["mode"] == "single" and task.payload["gap"] == "none")
    calls = message_of(task.oracle[0])["tool_calls"]
    bare = json.dumps(
        [{"name": c["function"]["name"], "parameters": c["function"]["arguments"]} for c in calls]
    )

    def llama(prompt: str, rng: random.Random) -> str:
        assert prompt.startswith('[tool] {"type": "function"')
        return f"<think>\nI could call cancel_event.\n</think>\n\n{bare}"

    (group,) = asyncio.run(roll_out(env, ScriptedSampler(llama), [task], rollouts=1, sampling=SAMPLING))
    assert group.traces[0].success, group.traces[0].explanation
    assert group.traces[0].replies == task.oracle


def test_an_escape_of_half_a_character_becomes_text_that_can_be_written(
    env: ToolCalling, tasks: list[Task]
) -> None:
    """A call can spell half of a surrogate pair as an escape: the trace holds the text that was graded."""
    call = r'[{"name": "send", "parameters": {"to": "\ud800"}}]'
    sampler = ScriptedSampler(lambda prompt, rng: call)
    (group,) = asyncio.run(roll_out(env, sampler, tasks[:1], rollouts=1, sampling=SAMPLING))
    (trace,) = group.traces
    assert trace.replies
    assert all('"to": "\ufffd"' in reply for reply in trace.replies)
    assert (trace.success, trace.explanation) == (
        (verdict := env.check(tasks[0], trace.replies)).success,
        verdict.explanation,
    )


def test_a_template_without_tools_ends_the_run_in_a_sentence(
    make: Any, env: ToolCalling, tasks: list[Task]
) -> None:
    with pytest.raises(UsageError, match=r"environment\.style = 'python' or 'json'"):
        asyncio.run(demonstration(env, make(), tasks[0]))
