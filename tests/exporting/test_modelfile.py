"""What Ollama reads: a template in Go's language, and how to sample."""

from __future__ import annotations

from genenv.chat.template import Turns
from genenv.exporting.exporters import modelfile

TURNS = Turns(
    first="",
    unasked='<s>system\nSay "so".<e>\n',
    around={"system": ("<s>system\n", "<e>\n"), "user": ("<s>user\n", "<e>\n")},
    reply="<s>assistant\n",
)
EXPECTED = '''\
FROM ./mine.gguf
TEMPLATE """{{- if not .System }}{{- "<s>system\\nSay \\"so\\".<e>\\n" }}{{- end }}
{{- range .Messages }}
{{- if eq .Role "system" }}
{{- "<s>system\\n" }}{{- .Content }}{{- "<e>\\n" }}
{{- else if eq .Role "user" }}
{{- "<s>user\\n" }}{{- .Content }}{{- "<e>\\n" }}
{{- end }}
{{- end }}
{{- "<s>assistant\\n" }}"""
PARAMETER temperature 0
PARAMETER repeat_penalty 1
PARAMETER num_ctx 512
PARAMETER stop "<e>"
'''


def test_turns_become_a_template_of_go() -> None:
    assert modelfile("mine.gguf", turns=TURNS, end="<e>", context_tokens=512) == EXPECTED


def test_without_turns_ollama_is_left_to_find_out() -> None:
    text = modelfile("mine.gguf", turns=None, end="<e>", context_tokens=512)
    assert "TEMPLATE" not in text
    assert text.startswith("FROM ./mine.gguf\nPARAMETER temperature 0\n")


def test_the_token_that_begins_all_texts_is_left_to_the_gguf_file() -> None:
    """With `add_bos_token` in the file, Ollama would put two of them first."""
    turns = Turns(first="<b>", unasked="", around={"user": ("", "")}, reply="")
    text = modelfile("mine.gguf", turns=turns, end="<e>", context_tokens=8)
    assert 'TEMPLATE """{{- range .Messages }}\n{{- if eq .Role "user" }}\n' in text
    assert "<b>" not in text
