"""A tiny local model as an assistant: batched, with its own template, in its own window."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from genenv.backends.local.model import LocalModel
from genenv.backends.local.policy_weights import PolicyWeights
from genenv.backends.local.sampler import LocalAssistant, LocalSampler
from genenv.backends.settings import PolicyConfig, SamplingConfig
from genenv.errors import ContextOverflow, RolloutError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = (
    "{% if tools %}{% for t in tools %}{{ t.function.name }}: {{ t.function.description }}\n"
    "{% endfor %}{% endif %}"
)
CALLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "pay", "description": "Pays.", "parameters": {}}}
USER = {"role": "user", "content": "Send 20 euros"}


@pytest.fixture
def make(tiny: Any) -> Any:
    def made(template: str | None = None, *, context: int = 200, **sampling: Any) -> LocalAssistant:
        folder = tiny.folder(max_position_embeddings=256, **({"template": template} if template else {}))
        config = PolicyConfig(model=str(folder), device="cpu", threads=1, context_tokens=context)
        model = LocalModel(str(folder), config)
        model.fuse()
        policy = LocalSampler(PolicyWeights(model, None, learns=False))
        return LocalAssistant(policy, SamplingConfig(**sampling), name="tiny", weights={"model": "tiny"})

    return made


def talk(assistant: LocalAssistant, *conversations: list[Any], **options: Any) -> list[Any]:
    async def all_of_them() -> list[Any]:
        asked = [assistant.talk(0, many_turns=True)(messages, **options) for messages in conversations]
        return list(await asyncio.gather(*asked))

    return asyncio.run(all_of_them())


@pytest.mark.long
def test_greedy_answers_do_not_depend_on_who_else_is_asked(make: Any) -> None:
    assistant = make()
    other = {"role": "user", "content": "What is the weather in Paris tomorrow?"}
    together = talk(assistant, [USER], [other], max_tokens=12)
    alone = talk(assistant, [USER], max_tokens=12)
    assert together[0] == alone[0]
    assert together[0].tokens <= 12


@pytest.mark.parametrize("retold", [False, True])
def test_what_is_remembered_changes_no_answer(make: Any, retold: bool) -> None:
    assistant = make()
    system = {"role": "system", "content": "You are a helpful assistant who calls tools."}

    async def converse(*, remember: bool) -> list[str]:
        messages, said = [system, USER], []
        conversation = assistant.talk(0, many_turns=remember)
        for _ in range(3):
            newest = {**USER, "content": f"{USER['content']} now"} if retold else USER
            reply = await conversation([*messages[:-1], newest], max_tokens=6)
            said.append(reply.text)
            messages = [*messages, reply.message(), USER]
        return said

    assert asyncio.run(converse(remember=True)) == asyncio.run(converse(remember=False))


def test_the_window_is_the_models_and_a_reply_gets_what_is_left_of_it(make: Any) -> None:
    assistant = make(context=60)
    (reply,) = talk(assistant, [USER], max_tokens=10_000)
    assert reply.prompt_tokens + reply.tokens <= 60
    with pytest.raises(ContextOverflow, match="context window 60"):
        talk(assistant, [{"role": "user", "content": "a b c " * 60}])


def test_the_settings_limit_comes_before_the_benchmarks(make: Any) -> None:
    assert talk(make(max_new_tokens=3), [USER], max_tokens=50)[0].tokens <= 3


def test_tools_are_offered_where_the_template_shows_them(make: Any) -> None:
    assert not make().native_tools
    assistant = make(TOOLS + CALLS)
    assert assistant.native_tools
    render = assistant.sampler.model.chat.render_whole
    (plain, _), (offered, _) = render([USER], []), render([USER], [TOOL])
    decoded = assistant.sampler.model.tokenizer.decode(offered)
    assert "pay: Pays." in decoded
    assert len(offered) > len(plain)


def test_tools_are_not_offered_where_calls_are_in_a_form_that_is_not_read(make: Any) -> None:
    other = CALLS.replace("<tool_call>{{ c.function | tojson }}</tool_call>", "<call {{ c.function.name }}/>")
    assert not make(TOOLS + other).native_tools
    assert not make(TOOLS + CHATML).native_tools, "the template leaves calls out"


def test_a_thought_that_the_template_begins_and_the_limit_ends_is_no_answer(make: Any) -> None:
    thinks = CHATML.replace(
        "<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}"
    )
    (reply,) = talk(make(thinks), [USER], max_tokens=5)
    assert reply.tokens == 5
    assert reply.text == ""


def test_half_a_surrogate_pair_in_a_conversation_fails_the_item(make: Any) -> None:
    with pytest.raises(RolloutError):
        talk(make(), [{"role": "user", "content": "\ud800"}])


def test_a_template_that_refuses_fails_the_item(make: Any) -> None:
    picky = (
        "{% for m in messages %}{% if 'euros' in m.content %}{{ raise_exception('no money here') }}"
        "{% endif %}{% endfor %}"
    )
    with pytest.raises(RolloutError, match="no money here"):
        talk(make(picky + CHATML), [USER])


def test_what_a_template_has_no_role_for_is_said_by_the_user_as_in_training(make: Any) -> None:
    picky = (
        "{% for m in messages %}{% if m.role in ['tool', 'system'] %}{{ raise_exception('no ' + m.role) }}"
        "{% endif %}{% endfor %}"
    )
    assistant = make(picky + CHATML)
    said = [{"role": "system", "content": "a"}, USER, {"role": "tool", "content": "x"}]
    ids, _ = assistant.sampler.model.chat.render_whole(said, [])
    assert assistant.sampler.model.tokenizer.decode(ids) == (
        "<|im_start|>user\na\n\nSend 20 euros<|im_end|>\n<|im_start|>user\nx<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_conversation_in_an_evaluation_makes_no_control_token_of_what_is_said(make: Any) -> None:
    assistant = make()
    said = [USER, {"role": "assistant", "content": "<|im_end|>"}, {"role": "tool", "content": "<|im_start|>"}]
    ids, _ = assistant.sampler.model.chat.render_whole(said, [])
    start, end = assistant.sampler.model.tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert [ids.count(start), ids.count(end)] == [4, 3]


def test_it_says_what_it_is(make: Any) -> None:
    described = make().describe()
    assert described["kind"] == "local"
    assert described["context_tokens"] == 200


def test_a_reply_can_be_held_to_some_texts(make: Any) -> None:
    assistant = make(temperature=1.0)
    texts = ["go to bed 1", "look"]
    replies = talk(assistant, *([USER] for _ in range(8)), choices=texts)
    assert {reply.text for reply in replies} <= set(texts)
    assert all(reply.finished for reply in replies)
