"""The chat templates of well-known models, as TRL brings them along."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from genenv.chat.format import ChatFormat
from genenv.chat.reasoning import answer_of
from genenv.chat.tool_calls import message_of, normalize_tool_calls
from genenv.errors import RolloutError, UsageError
from genenv.types import Message

_SPEC = importlib.util.find_spec("trl")
FOLDER = Path(_SPEC.origin).parent / "chat_templates" if _SPEC and _SPEC.origin else Path("no-trl")
FILES = sorted(FOLDER.glob("*.jinja"))
pytestmark = pytest.mark.skipif(not FILES, reason="TRL is not installed, or brings no templates")

SPECIAL = re.compile(r"<\|[a-z_]+\|>|<｜[^｜]+｜>|<(?:start|end)_of_turn>|<\|?turn\|?>")
FRAMES = re.compile("</?tool_(?:response|call)>|</?think>")
TOOL = {
    "type": "function",
    "function": {
        "name": "pay",
        "description": "Pays.",
        "parameters": {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
    },
}
CALL = '<tool_call>\n{"name": "pay", "arguments": {"to": "Zoë <|im_end|>"}}\n</tool_call>'
PARTS_ONLY = ("idefics3", "llava_next", "smolvlm")
"""Templates of vision models whose contents are lists."""


def chat_of(tiny: Any, path: Path, *stops: str, **arguments: Any) -> ChatFormat:
    template = path.read_text(encoding="utf-8")
    tokenizer = tiny.tokenizer(template)
    tokenizer.bos_token = "<|im_start|>"  # noqa: S105
    known = tokenizer.get_vocab()
    special = {*SPECIAL.findall(template), *stops}
    tokenizer.add_tokens(sorted(one for one in special if one not in known), special_tokens=True)
    tokenizer.add_tokens(sorted(set(FRAMES.findall(template))))
    return ChatFormat(tokenizer, arguments or None, tokenizer.convert_tokens_to_ids([*stops]))


def asked(text: str) -> list[Message]:
    return [Message(role="system", content=f"s{text}"), Message(role="user", content=f"u{text}")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_contents_add_no_control_token_to_those_of_a_template(tiny: Any, path: Path) -> None:
    if path.stem.removesuffix("_training") in PARTS_ONLY:
        with pytest.raises(UsageError, match="user"):
            chat_of(tiny, path)
        return
    chat = chat_of(tiny, path)
    control = set(chat.tokenizer.convert_tokens_to_ids(chat.plain.control))
    hostile = "".join(chat.plain.control)

    def shown(text: str) -> list[list[int]]:
        told = [Message(role="tool", content=f"t{text}"), Message(role="user", content=f"v{text}")]
        parts = [
            chat.render(asked(text), first=True),
            chat.render(told[:1], first=False),
            chat.render(told[1:], first=False),
            chat.encode_reply(f"r{text}"),
        ]
        return [[token for token in ids if token in control] for ids in parts]

    assert shown(hostile) == shown("")
    assert hostile in chat.tokenizer.decode(chat.render(asked(hostile), first=True))


TOOLS_BY_TURNS = ["qwen2_5", "qwen3_instruct_2507", "qwen3_vl", "llama3_1", "llama3_2"]
TOOLS_BY_TURNS += ["qwen3_5_think", "qwen3_5_nothink", "qwen3_8", "lfm2_2_5_v2"]


@pytest.mark.parametrize("name", TOOLS_BY_TURNS)
def test_native_tools_turn_by_turn_are_the_whole_conversation(tiny: Any, name: str) -> None:
    path = FOLDER / f"{name}.jinja"
    if not path.exists():
        pytest.skip("this version of TRL has no such template")
    chat = chat_of(tiny, path)
    result = Message(role="tool", content='{"paid": 1}')
    ids = [*chat.render(asked(""), first=True, tools=[TOOL]), *chat.encode_reply(CALL, [TOOL])]
    ids += chat.render([result], first=False, tools=[TOOL], after=CALL)
    told = {"role": "tool", "content": result.content, "tool_call_id": "call00000", "name": "pay"}
    whole = [{"role": m.role, "content": m.content} for m in asked("")]
    assert tuple(ids) == chat.render_whole([*whole, message_of(CALL), told], [TOOL])[0]


@pytest.mark.parametrize("name", ["gemma", "gemma3"])
def test_gemmas_system_message_begins_the_users_and_its_turns_end(tiny: Any, name: str) -> None:
    chat = chat_of(tiny, FOLDER / f"{name}.jinja")
    text = chat.tokenizer.decode(chat.render(asked(""), first=True))
    assert "<start_of_turn>user\ns\n\nu<end_of_turn>" in text
    assert chat.tokenizer.convert_ids_to_tokens(chat.end_id) == "<end_of_turn>"


@pytest.mark.parametrize("name", ["qwen3_5_think", "nemotron_3_super", "lfm2_2_5_v2", "gemma4_v2"])
def test_calls_in_tags_in_python_and_in_gemmas_form_are_heard_as_they_were_written(
    tiny: Any, name: str
) -> None:
    chat = chat_of(tiny, FOLDER / f"{name}.jinja")
    call = '<tool_call>\n{"name": "pay", "arguments": {"to": "12 euros"}}\n</tool_call>'
    ids = chat.encode_reply(call, [TOOL])
    opened = chat.spelling.opens(chat.tokenizer.decode(chat.render(asked(""), first=True, tools=[TOOL])))
    assert normalize_tool_calls(answer_of(chat.decode(ids[:-1]), opened=opened), [TOOL]) == call


TYPES = {"on": {"type": "boolean"}, "at": {"type": ["integer", "null"]}, "code": {"type": ["string", "null"]}}


@pytest.mark.parametrize("name", ["qwen3_5_think", "nemotron_3_super", "qwen3_8", "gemma4_v2", "lfm2_2_5"])
def test_values_of_all_types_are_heard_as_they_were_written(tiny: Any, name: str) -> None:
    chat = chat_of(tiny, FOLDER / f"{name}.jinja")
    parameters = {"type": "object", "properties": TYPES}
    tool = {"type": "function", "function": {"name": "set", "description": "Sets.", "parameters": parameters}}
    for on, at, code in ((True, None, "12345"), (False, 7, None)):
        given = json.dumps({"name": "set", "arguments": {"at": at, "code": code, "on": on}})
        call = f"<tool_call>\n{given}\n</tool_call>"
        reply = answer_of(chat.decode(chat.encode_reply(call, [tool])), opened=chat.opens_thought)
        assert normalize_tool_calls(reply, [tool]) == call


STOPS = {
    "gptoss": ("<|return|>", "<|call|>"),
    "gemma4_v5": ("<turn|>", "<|tool_response>"),
    "glm4moe": ("<|user|>", "<|observation|>"),
}
"""Tokens at which these models end a reply, by their generation_config.json."""


@pytest.mark.parametrize("name", STOPS)
def test_calls_that_end_with_a_token_of_their_own_are_played_turn_by_turn(tiny: Any, name: str) -> None:
    chat = chat_of(tiny, FOLDER / f"{name}.jinja", *STOPS[name])
    end = chat.tokenizer.convert_tokens_to_ids(STOPS[name][1])
    result = Message(role="tool", content='{"paid": 1}')
    reply = chat.encode_reply(CALL, [TOOL])
    assert reply[-1] == end != chat.end_id
    assert end not in reply[:-1]
    assert normalize_tool_calls(answer_of(chat.decode(reply)), [TOOL]) == CALL
    after = chat.render([result], first=False, tools=[TOOL], after=CALL)
    ids = [*chat.render(asked(""), first=True, tools=[TOOL]), *reply]
    ids += after[1:] if after[0] == end else after
    told = {"role": "tool", "content": result.content, "tool_call_id": "call00000", "name": "pay"}
    whole = [{"role": m.role, "content": m.content} for m in asked("")]
    assert tuple(ids) == chat.render_whole([*whole, message_of(CALL), told], [TOOL])[0]


@pytest.mark.parametrize(
    ("name", "solution"),
    [
        ("gptoss", f"{CALL}\n{CALL}"),
        ("lfm2_2_5", CALL.replace("Zoë", "Zoë's")),
        ("llama3_1", f"Yes.\n{CALL}"),
    ],
)
def test_a_solution_that_a_template_changes_is_refused(tiny: Any, name: str, solution: str) -> None:
    chat = chat_of(tiny, FOLDER / f"{name}.jinja", *STOPS.get(name, ()))
    assert chat.encode_reply(CALL, [TOOL])
    with pytest.raises(RolloutError, match="otherwise than a model could say it"):
        chat.encode_reply(solution, [TOOL])


@pytest.mark.parametrize("name", STOPS)
def test_without_that_stop_token_such_calls_are_heard_and_refused_for_training(tiny: Any, name: str) -> None:
    chat = chat_of(tiny, FOLDER / f"{name}.jinja")
    assert chat.tool_format.is_readable
    with pytest.raises(UsageError, match="ends a turn with calls otherwise than one without"):
        chat.encode_reply(CALL, [TOOL])


@pytest.mark.parametrize(
    ("name", "thought"),
    [
        ("gptoss", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>"),
        ("gemma4_v5", "<|channel>thought\nhm\n<channel|>"),
        ("qwen3_5_think", "hm\n</think>\n\n"),
        ("glm4moe", "<think>hm</think>"),
    ],
)
def test_thoughts_are_no_part_of_an_answer(tiny: Any, name: str, thought: str) -> None:
    chat = chat_of(tiny, FOLDER / f"{name}.jinja")
    text = chat.decode(chat.encode(f"{thought}12 euros{chat.tokenizer.convert_ids_to_tokens(chat.end_id)}"))
    assert answer_of(text, opened=chat.opens_thought) == "12 euros"


DROPPING = [
    "qwen3",
    "qwen3_5_think",
    "qwen3_5_nothink",
    "deepseek_r1_distill",
    "gptoss",
    "gemma4_v5",
    "lfm2_2_5",
]


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("name", DROPPING)
def test_without_what_is_left_out_a_conversation_is_what_a_server_makes_of_it(
    tiny: Any, name: str, thinks: bool
) -> None:
    """A server is sent answers without thoughts, and applies the template to all of them."""
    chat = chat_of(tiny, FOLDER / f"{name}.jinja")
    prompt, opening = chat.render(asked(""), first=True), "" if chat.opens_thought else chat.spelling.opening
    if thinks:
        begins = f"{opening}Twelve?{chat.spelling.closing}"
    else:
        begins = chat.spelling.closing if chat.opens_thought else chat.spelling.answer
    reply = (*chat.encode(f"{begins}12 euros"), chat.end_id)
    tail, head, last = chat.left_out(["user"], prompt, reply)
    told = [Message(role="user", content="w")]
    seen = (*prompt[: len(prompt) - tail], *reply[head : len(reply) - last], *chat.render(told, first=False))
    said = [{"role": m.role, "content": m.content} for m in asked("")]
    said += [{"role": "assistant", "content": "12 euros"}, {"role": "user", "content": "w"}]
    decode = chat.tokenizer.decode
    assert decode(seen) == decode(chat.render_whole(said)[0])


QWENS_CALL = '<tool_call>\n{"name": "pay", "arguments": {"to": "Z"}}\n</tool_call>'
HARMONY = '<|start|>assistant to=functions.pay<|channel|>commentary json<|message|>{"to": "Z"}<|call|>'
OF_GPT_OSS = f"<|channel|>analysis<|message|>hm<|end|>{HARMONY}"


@pytest.mark.parametrize(
    ("name", "arguments", "said", "role"),
    [
        ("qwen3", {"enable_thinking": False}, f"{QWENS_CALL}<|im_end|>", "tool"),
        ("qwen3", {"enable_thinking": False}, "Which one?<|im_end|>", "user"),
        ("gptoss", {}, OF_GPT_OSS, "tool"),
        ("gptoss", {}, HARMONY.removeprefix("<|start|>assistant"), "tool"),
        ("gptoss", {}, "<|channel|>final<|message|>Which one?<|return|>", "user"),
    ],
)
def test_with_tools_the_next_turn_sees_what_a_server_makes_of_the_conversation(
    tiny: Any, name: str, arguments: dict[str, Any], said: str, role: str
) -> None:
    chat = chat_of(tiny, FOLDER / f"{name}.jinja", *STOPS.get(name, ()), **arguments)
    prompt, reply = chat.render(asked(""), first=True, tools=[TOOL]), chat.encode(said)
    tail, head, last = chat.left_out([role], prompt, reply)
    text = normalize_tool_calls(answer_of(chat.decode(reply)), [TOOL])
    told = Message(role=role, content="The second.")
    rendered = chat.render([told], first=False, tools=[TOOL], after=text)
    seen = (*prompt[: len(prompt) - tail], *reply[head : len(reply) - last], *rendered)
    follows = {"role": role, "content": told.content}
    follows |= {"tool_call_id": "call00000", "name": "pay"} if role == "tool" else {}
    whole = [{"role": m.role, "content": m.content} for m in asked("")]
    server = chat.render_whole([*whole, message_of(text), follows], [TOOL])[0]
    assert chat.raw(seen) == chat.raw(server)


def test_gemmas_words_before_a_call_are_said_once(tiny: Any) -> None:
    chat = chat_of(tiny, FOLDER / "gemma4_v5.jinja", *STOPS["gemma4_v5"])
    result = [Message(role="tool", content="r1")]
    alone, worded = (
        chat.render(result, first=False, tools=[TOOL], after=f"{words}{CALL}") for words in ("", "I will.\n")
    )
    assert alone == worded
    with pytest.raises(RolloutError, match="otherwise than a model could say it"):
        chat.encode_reply(f"I will.\n{CALL}", [TOOL])


@pytest.mark.parametrize("name", ["nemotron_3_nano", "nemotron_3_super"])
def test_a_solution_closes_the_thought_of_its_prompt_once(tiny: Any, name: str) -> None:
    chat = chat_of(tiny, FOLDER / f"{name}.jinja")
    said = chat.raw(chat.encode_reply(CALL, [TOOL]))
    assert said.startswith("</think>")
    assert "<think>" not in said


@pytest.mark.parametrize("name", ["qwen2_5", "llama3_1", "qwen3_8"])
def test_a_template_that_keeps_thoughts_leaves_nothing_out(tiny: Any, name: str) -> None:
    chat = chat_of(tiny, FOLDER / f"{name}.jinja")
    reply = (*chat.encode("<think>hm</think>12"), chat.end_id)
    assert chat.left_out(["user"], chat.render(asked(""), first=True), reply) == (0, 0, 0)


def test_thoughts_of_calls_stay_as_long_as_their_results_come(tiny: Any) -> None:
    chat = chat_of(tiny, FOLDER / "qwen3.jinja")
    prompt, reply = chat.render(asked(""), first=True), (*chat.encode("<think>hm</think>\n\n12"), chat.end_id)
    assert chat.left_out(["tool"], prompt, reply) == (0, 0, 0)
    assert chat.left_out(["user"], prompt, reply)[1] > 0
    assert chat.left_out(["tool", "tool", "user"], prompt, reply) == chat.left_out(["user"], prompt, reply)


@pytest.mark.parametrize("name", ["glm4moe", "nemotron_3_super"])
def test_a_template_that_writes_another_thought_instead_is_warned_of(
    tiny: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    chat = chat_of(tiny, FOLDER / f"{name}.jinja")
    prompt, reply = chat.render(asked(""), first=True), chat.encode_reply("12")
    for _ in range(2):
        assert chat.left_out(["user"], prompt, reply) == (0, 0, 0)
    assert caplog.text.count("writes something else in the place of earlier thoughts") == 1
