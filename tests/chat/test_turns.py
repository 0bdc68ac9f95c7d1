"""What a chat template writes around messages, found out by applying it."""

from __future__ import annotations

from typing import Any

import pytest

from genenv.chat.template import ChatTemplate, turns_of, with_variables


def template_of(tiny: Any, text: str) -> ChatTemplate:
    return ChatTemplate(tiny.tokenizer(text))


def test_turns_are_what_stands_around_what_is_said(tiny: Any) -> None:
    text = (
        "{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    found = turns_of(template_of(tiny, text), "")
    assert found is not None
    assert found.first == ""
    assert found.unasked == "<|im_start|>system\nBe kind.<|im_end|>\n"
    assert found.around["user"] == ("<|im_start|>user\n", "<|im_end|>\n")
    assert found.around["tool"] == ("<|im_start|>tool\n", "<|im_end|>\n")
    assert found.reply == "<|im_start|>assistant\n"


def test_the_token_that_begins_all_texts_stands_apart(tiny: Any) -> None:
    text = (
        "{{ '<|im_start|>' }}{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    found = turns_of(template_of(tiny, text), "<|im_start|>")
    assert found is not None
    assert (found.first, found.unasked) == ("<|im_start|>", "")
    assert found.around["system"] == ("[system]", "<|im_end|>")


@pytest.mark.parametrize(("name", "known"), [("qwen", True), ("llama", True), ("mistral", False)])
def test_known_templates(tiny: Any, templates: dict[str, str], name: str, known: bool) -> None:
    assert (turns_of(template_of(tiny, templates[name]), "") is not None) is known


def test_a_template_that_counts_has_no_turns(tiny: Any) -> None:
    text = "{% for m in messages %}{{ loop.index }}{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}"
    assert turns_of(template_of(tiny, text), "") is None


@pytest.mark.parametrize("value", [False, 3, 0.5, 'say "so"\n{{ x }} %} ü'])
def test_a_variable_that_nobody_gives_has_the_value_that_was_fixed(tiny: Any, value: Any) -> None:
    text = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}{{ thought }}"
    tokenizer = tiny.tokenizer(with_variables(text, {"thought": value}))
    asked = [{"role": "user", "content": "u"}]
    assert tokenizer.apply_chat_template(asked, tokenize=False) == f"u<|im_end|>{value}"
    assert tokenizer.apply_chat_template(asked, tokenize=False, thought="mine") == "u<|im_end|>mine"


def test_templates_by_name_are_fixed_each() -> None:
    found = with_variables({"default": "a", "tools": "b"}, {"x": None})
    assert found == {
        "default": "{%- if x is not defined %}{%- set x = none %}{%- endif %}a",
        "tools": "{%- if x is not defined %}{%- set x = none %}{%- endif %}b",
    }
    assert with_variables("a", {}) == "a"
    assert with_variables(None, {"x": 1}) is None
