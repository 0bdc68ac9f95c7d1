"""Turn after turn, the ids are those of the template applied to the whole conversation."""

from __future__ import annotations

import pytest

from genenv.chat.format import ChatFormat
from genenv.errors import UsageError
from genenv.types import Message

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_TOOLS = (
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + m.role) }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DROPS_TOOLS = (
    "{% for m in messages if m.role != 'tool' %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OTHER_END = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{{ '<|turn_end|>' if m.role == 'assistant' else '<|im_end|>' }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
    "{% endif %}<|im_start|>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)
DROPS_SYSTEM = "{% for m in messages if m.role != 'system' %}" + CHATML.partition("%}")[2]

FIRST = [Message(role="system", content="Be brief."), Message(role="user", content="Who is Zoë? \u2402")]
TURNS = [
    [("I look.\n", [Message(role="tool", content='{"name": "Zoë"}')])],
    [
        ("", [Message(role="tool", content="1"), Message(role="tool", content="2")]),
        (" Two \u2402 spaces  ", [Message(role="user", content="and then? \u2402")]),
        ("done.", [Message(role="user", content="")]),
    ],
]


def conversation(chat: ChatFormat, turns) -> list[int]:
    """Ids put together turn by turn, as an episode does."""
    ids = list(chat.render(FIRST, first=True))
    for reply, messages in turns:
        ids += [*chat.tokenizer.encode(reply, add_special_tokens=False), chat.end_id]
        ids += chat.render(messages, first=False)
    return ids


def whole(chat: ChatFormat, turns, *, tool: str = "tool") -> list[int]:
    """Ids of the template applied once, to everything."""
    messages = list(FIRST)
    for reply, new in turns:
        messages += [Message(role="assistant", content=reply), *new]
    plain = [{"role": tool if m.role == "tool" else m.role, "content": m.content} for m in messages]
    text = chat.tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    return chat.tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("turns", TURNS)
def test_rendering_turn_by_turn_equals_the_template_on_the_whole_conversation(tiny, turns):
    chat = ChatFormat(tiny.tokenizer())
    assert conversation(chat, turns) == whole(chat, turns)


@pytest.mark.parametrize("template", [NO_TOOLS, DROPS_TOOLS])
@pytest.mark.parametrize("turns", TURNS)
def test_where_a_template_has_no_tool_role_what_tools_say_comes_from_the_user(tiny, template, turns):
    chat = ChatFormat(tiny.tokenizer(template))
    assert conversation(chat, turns) == whole(chat, turns, tool="user")


def test_the_token_that_ends_a_turn_is_the_templates_even_if_the_tokenizer_ends_texts_with_another(tiny):
    tokenizer = tiny.tokenizer(OTHER_END)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|turn_end|>"]})
    chat = ChatFormat(tokenizer)
    assert chat.end_id == tokenizer.convert_tokens_to_ids("<|turn_end|>") != tokenizer.eos_token_id
    assert conversation(chat, TURNS[1]) == whole(chat, TURNS[1])


def test_a_turn_also_ends_with_a_special_token_that_the_tokenizer_does_not_list(tiny):
    tokenizer = tiny.tokenizer(OTHER_END)
    tokenizer.add_tokens(["<|turn_end|>"], special_tokens=True)
    assert "<|turn_end|>" not in tokenizer.all_special_tokens
    assert ChatFormat(tokenizer).end_id == tokenizer.convert_tokens_to_ids("<|turn_end|>")


def test_special_tokens_are_not_part_of_the_text_and_spaces_stay(tiny):
    chat = ChatFormat(tiny.tokenizer())
    text = 'say: {"a" : 1 , "b" : "n\'t !"} .'
    assert chat.decode([*chat.tokenizer.encode(text, add_special_tokens=False), chat.end_id]) == text


def test_where_a_template_refuses_a_system_message_it_begins_the_users_and_roles_take_turns(tiny):
    chat = ChatFormat(tiny.tokenizer(GEMMA))
    text = chat.tokenizer.decode(conversation(chat, TURNS[1]))
    assert text == (
        "<|im_start|>user\nBe brief.\n\nWho is Zoë? \u2402<|im_end|>\n<|im_start|>model\n<|im_end|>\n"
        "<|im_start|>user\n1\n\n2<|im_end|>\n<|im_start|>model\n Two \u2402 spaces  <|im_end|>\n"
        "<|im_start|>user\nand then? \u2402<|im_end|>\n<|im_start|>model\ndone.<|im_end|>\n"
        "<|im_start|>user\n<|im_end|>\n<|im_start|>model\n"
    )


def test_a_system_message_that_a_template_leaves_out_begins_the_users(tiny):
    chat = ChatFormat(tiny.tokenizer(DROPS_SYSTEM))
    text = chat.tokenizer.decode(chat.render(FIRST, first=True))
    assert text.startswith("<|im_start|>user\nBe brief.\n\nWho is Zoë?")


@pytest.mark.parametrize(
    ("messages", "user"),
    [
        ([("system", "a"), ("system", "b"), ("user", "c")], "a\n\nb\n\nc"),
        ([("system", "a")], "a"),
        ([("user", "c"), ("system", "a")], "c\n\na"),
    ],
)
def test_whatever_the_system_says_and_wherever_is_said_by_the_user(tiny, messages, user):
    chat = ChatFormat(tiny.tokenizer(GEMMA))
    ids = chat.render([Message(role=role, content=text) for role, text in messages], first=True)
    assert chat.tokenizer.decode(ids) == f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>model\n"


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ raise_exception('no users') }}", "does not accept a user message and a reply: no users"),
        (
            "{% for m in messages %}{{ m.content if m.role == 'user' else m.content[0].text.x }}{% endfor %}",
            "does not accept a user message and a reply: .* has no attribute",
        ),
        ("x", "leaves out what the user says"),
    ],
)
def test_a_template_that_refuses_a_plain_conversation_is_one_sentence(tiny, template, why):
    with pytest.raises(UsageError, match=why):
        ChatFormat(tiny.tokenizer(template))


@pytest.mark.parametrize(("given", "warned"), [({}, 1), ({"date_string": "26 Jul 2024"}, 0)])
def test_a_template_that_writes_todays_date_is_told_of(tiny, caplog, given, warned):
    dated = "{{ date_string if date_string is defined else strftime_now('%d %b %Y') }}" + CHATML
    chat = ChatFormat(tiny.tokenizer(dated), given)
    assert sum("write today's date" in line for line in caplog.messages) == warned
    if given:
        assert chat.tokenizer.decode(chat.render(FIRST, first=True)).startswith("26 Jul 2024<|im_start|>")
