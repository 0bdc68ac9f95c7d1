from __future__ import annotations

import pytest

from genenv.chat.format import ChatFormat
from genenv.chat.reasoning import CLOSING, SPELLINGS, USUAL, answer_of, as_usual, spelling_of

ACT = "<action>go to desk 1</action>"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>a</think>\n\nb", "b"),
        ("a</think>b", "b"),
        ("b", "b"),
        ("  b", "  b"),
        (f"<think>a</think>{ACT}<think>c</think>", ACT),
        (f"<think>I go. {ACT}", f"<think>I go. {ACT}"),
        ("b<think>c</think>", "b"),
    ],
)
def test_a_thought_is_told_from_the_answer(text: str, answer: str) -> None:
    assert answer_of(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [("<think>so far", ""), ("b<think>so far", "b"), ("<think>a</think>b", "b"), ("b", "b")],
)
def test_a_thought_that_the_limit_cut_off_has_no_answer(text: str, answer: str) -> None:
    assert answer_of(text, finished=False) == answer


@pytest.mark.parametrize(
    ("text", "finished", "answer"),
    [
        ("so far", False, ""),
        ("so</think>then", True, "then"),
        ("so</think>then", False, "then"),
        ("done", True, "done"),
    ],
)
def test_a_prompt_may_have_begun_the_thought(text: str, finished: bool, answer: str) -> None:
    assert answer_of(text, opened=True, finished=finished) == answer


HARMONY = SPELLINGS[-1]
SPELT = [
    ("[THINK]a[/THINK]b", "<think>a</think>b"),
    ("a[/THINK]b", "a</think>b"),
    ("[THINK]so far", "<think>so far"),
    ("<seed:think>a</seed:think>b", "<think>a</think>b"),
    ("<|channel>thought\na\n<channel|>b", "<think>a\n</think>b"),
    (
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>",
        "<think>a</think>b",
    ),
    (
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>p<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>c<|end|>"
        "<|start|>assistant<|channel|>final<|message|>b",
        "<think>a</think>p<think>c</think>b",
    ),
    ("<|channel|>analysis<|message|>so far", "<think>so far"),
    ("<|channel|>final<|message|>b", "b"),
    (
        "<|channel|>commentary<|message|>p<|end|><|start|>assistant to=functions.f<|channel|>commentary json",
        "p<|start|>assistant to=functions.f<|channel|>commentary json",
    ),
    ('<|channel|>final <|constrain|>json<|message|>{"a": 1}<|return|>', '{"a": 1}'),
    ("<|channel|>commentary<|constrain|>json<|message|>p", "p"),
    (
        "<|start|>assistant to=functions.f<|channel|>commentary<|message|>{}",
        "<|start|>assistant to=functions.f<|channel|>commentary<|message|>{}",
    ),
    (
        "<|start|>assistant<|channel|>commentary to=functions.f<|message|>{}",
        "<|channel|>commentary to=functions.f<|message|>{}",
    ),
    ("<think>a</think>b", "<think>a</think>b"),
    ("b <|end|> [x]", "b <|end|> [x]"),
]


@pytest.mark.parametrize(("text", "usual"), SPELT)
def test_thoughts_are_read_however_a_model_spells_them(text: str, usual: str) -> None:
    assert as_usual(text) == usual


@pytest.mark.parametrize("spelling", [USUAL, *SPELLINGS], ids=lambda one: one.opening.strip())
def test_a_spelling_is_found_in_its_template_and_its_closing_ends_a_thought(spelling) -> None:
    assert spelling_of(f"... {{{{ '{spelling.opening.strip()}' }}}} ...") is spelling
    assert spelling.opens(f"<|start|>assistant{spelling.opening}")
    assert not spelling.opens("<|start|>assistant")
    assert answer_of(spelling.read(f"{spelling.opening}a{spelling.closing}b")) == "b"


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda one: one.opening.strip())
def test_replies_are_written_and_read_in_the_models_own_spelling(tiny, spelling) -> None:
    """Control tokens are special here, and a reply is decoded with those that say something."""
    template = tiny.tokenizer().chat_template + "{# " + spelling.opening + " #}"
    tokenizer = tiny.tokenizer(template)
    tokenizer.add_tokens(list(spelling.tokens), special_tokens=True)
    chat = ChatFormat(tokenizer)
    ids = chat.encode_reply(f"{CLOSING}[1]")
    assert chat.tokenizer.decode(ids) == f"{spelling.closing}[1]<|im_end|>"
    thought = (*chat.encode(f"{spelling.opening}a <|im_start|>"), *ids)
    assert answer_of(chat.decode(thought)) == "[1]"
    plain = chat.encode_reply("[1]")
    assert chat.tokenizer.decode(plain) == f"{spelling.answer}[1]<|im_end|>"
    assert chat.decode(plain) == "[1]"
    data = chat.encode_reply(spelling.opening)
    assert not set(data[len(chat.encode(spelling.answer)) :]) & set(chat.encode(spelling.opening)[:1])
