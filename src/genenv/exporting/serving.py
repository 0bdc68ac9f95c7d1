"""The commands that serve an exported agent, and those that ask it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from genenv.chat.template import Turns


class Form(StrEnum):
    """What was written."""

    MODEL = "model"
    ADAPTER = "adapter"
    GGUF = "gguf"


GREEDY = '{"temperature": 0}'
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for the largest rank of an adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the commands depend on."""

    form: Form
    name: str
    """What the model is called by those who ask it."""
    folder: str
    base: str
    """Under which name or folder others load the base."""
    rank: int
    run: str
    context_tokens: int
    example: bool
    """Whether there is a request to send."""
    own_tools: bool
    """Whether the run is of a user's own tools, for which there is `genenv try`."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve or to ask: a line of words, and commands."""

    words: str
    commands: Sequence[str]


def ways(served: Served) -> list[Way]:
    """All ways, servers first."""
    return [*_servers(served), *_asked(served)]


def _servers(served: Served) -> list[Way]:
    folder, name = shlex.quote(served.folder), shlex.quote(served.name)
    greedy = f"--override-generation-config {shlex.quote(GREEDY)}"
    if served.form is Form.MODEL:
        return [Way("vLLM", [f"vllm serve {folder} --served-model-name {name} {greedy}"])]
    if served.form is Form.ADAPTER:
        rank = next((one for one in _RANKS if one >= served.rank), served.rank)
        template = shlex.quote(f"{served.folder}/chat_template.jinja")
        command = (
            f"vllm serve {shlex.quote(served.base)} --enable-lora --max-lora-rank {rank} "
            f"--lora-modules {shlex.quote(f'{served.name}={served.folder}')} "
            f"--chat-template {template} {greedy}"
        )
        return [Way("vLLM, beside other adapters of the same base", [command])]
    file = shlex.quote(f"{served.folder}/{served.name}.gguf")
    made = f"ollama create {name} -f {shlex.quote(f'{served.folder}/Modelfile')}"
    return [
        Way("Ollama", [made, f"ollama run {name}"]),
        Way(
            "llama.cpp",
            [f"llama-server -m {file} --alias {name} --jinja --ctx-size {served.context_tokens} --temp 0"],
        ),
    ]


def _asked(served: Served) -> list[Way]:
    found: list[Way] = []
    port = 11434 if served.form is Form.GGUF else 8000
    endpoint = f"http://localhost:{port}/v1"
    note = " (llama.cpp listens at 8080)" if served.form is Form.GGUF else ""
    if served.example:
        example = shlex.quote(f"@{served.folder}/example.json")
        command = f"curl {endpoint}/chat/completions -H 'Content-Type: application/json' -d {example}"
        found.append(Way(f"one of the run's own tasks, to a server{note}", [command]))
    of_run = f"--set {shlex.quote(f'held_out.run={served.run}')}"
    server = shlex.quote(f"openai:{endpoint}#{served.name}")
    measured = [f"genenv eval held-out --policy {server} {of_run}"]
    tried = [f"genenv try {shlex.quote(served.run)} --policy {server}"] if served.own_tools else []
    found.append(Way(f"from genenv, a server{note}; needs: pip install 'genenv[api]'", measured + tried))
    if served.form is Form.MODEL:
        folder = shlex.quote(served.folder)
        measured = [f"genenv eval held-out --policy {folder} {of_run}"]
        tried = [f"genenv try {shlex.quote(served.run)} --policy {folder}"] if served.own_tools else []
        found.append(Way("from genenv, without a server", measured + tried))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelfileContent:
    """What goes into the file."""

    gguf: str
    """Name of the file beside it."""
    turns: Turns | None
    """None where they depend on more than roles: Ollama then takes what it makes of the GGUF file."""
    end: str
    """The token that ends a turn."""
    context_tokens: int


def modelfile(told: ModelfileContent) -> str:
    """The text of a Modelfile."""
    lines = [f"FROM ./{told.gguf}"]
    if told.turns is not None:
        lines.append(f'TEMPLATE """{go_template(told.turns)}"""')
    lines += [
        "PARAMETER temperature 0",
        "PARAMETER repeat_penalty 1",
        f"PARAMETER num_ctx {told.context_tokens}",
        f"PARAMETER stop {_quoted(told.end)}",
    ]
    return "\n".join(lines) + "\n"


def go_template(turns: Turns) -> str:
    """What stands around messages as a template of Go; line ends between its parts are no part of texts."""
    parts = [_literal(turns.first)]
    if turns.unasked:
        parts.append("{{- if not .System }}" + _literal(turns.unasked) + "{{- end }}")
    parts.append("{{- range .Messages }}")
    for index, (role, (before, after)) in enumerate(turns.around.items()):
        parts.append(f"{{{{- {'else ' if index else ''}if eq .Role {_quoted(role)} }}}}")
        parts.append(_literal(before) + "{{- .Content }}" + _literal(after))
    parts += ["{{- end }}", "{{- end }}", _literal(turns.reply)]
    return "\n".join(filter(None, parts))


def _literal(text: str) -> str:
    return f"{{{{- {_quoted(text)} }}}}" if text else ""


def _quoted(text: str) -> str:
    """A string as Go and Ollama read it."""
    return json.dumps(text, ensure_ascii=False)
