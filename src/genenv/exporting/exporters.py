# pyright: standard
"""The forms in which a trained agent is exported: what is written, and the commands that serve it.

Each is an entry point of the group `genenv.exporters`, so a package of yours adds a form of its own:

    [project.entry-points."genenv.exporters"]
    onnx = "my_package.exporting:OnnxExporter"

`genenv export-agent RUN --format onnx` then calls `OnnxExporter().write(...)`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from genenv.chat.template import Turns, turns_of
from genenv.plugins import load, parts
from genenv.types import Message

if TYPE_CHECKING:
    from genenv.backends.local.export.agent import Nearness, TrainedAgent


class Form(StrEnum):
    """Names of the exporters that come with genenv."""

    MODEL = "model"
    ADAPTER = "adapter"
    GGUF = "gguf"


_GREEDY = "--override-generation-config " + shlex.quote('{"temperature": 0}')
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for the largest rank of an adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the commands depend on."""

    form: str
    """Name of the exporter."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What an exporter is given."""

    agent: TrainedAgent
    """Base and adapter in this machine's memory, which `merge` makes one model."""
    name: str
    """What the agent is called by those who ask it."""
    dtype: str
    """Number format of merged weights; `auto`: the form's own."""
    tasks: Sequence[Sequence[Message]]
    """Conversations on which merged weights are compared with base and adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What an exporter wrote."""

    what: str
    """In words, such as "the adapter alone, for PEFT"."""
    base: str
    """Under which name or folder others load the base."""
    same_base: bool = True
    """Whether what they load has the weights that the run began with."""
    nearness: Nearness | None = None
    """How near merged weights are to base and adapter; None where nothing was merged."""
    notes: Sequence[str] = ()
    """What those who serve this form should know."""


class Exporter(Protocol):
    """One form of an exported agent. It is made without arguments."""

    port: ClassVar[int]
    """At which the servers that it names listen."""
    loads_here: ClassVar[bool]
    """Whether genenv itself plays what is in the folder."""

    def write(self, export: Export, folder: Path) -> Written:
        """Write an agent into an empty folder.

        Raises:
            UsageError: this agent cannot have this form.
        """
        ...

    def servers(self, served: Served) -> Sequence[Way]:
        """The commands that serve what was written."""
        ...


def exporter_named(name: str) -> Exporter:
    """The exporter that an installed package registers under a name."""
    return cast("type[Exporter]", load(parts("exporters")[name]))()


class ModelExporter:
    """The whole model, for transformers and vLLM."""

    port: ClassVar[int] = 8000
    loads_here: ClassVar[bool] = True

    def write(self, export: Export, folder: Path) -> Written:
        """See `Exporter`."""
        from genenv.backends.local.export.folder import save_model

        agent = export.agent
        dtype = agent.own_dtype() if export.dtype == "auto" else export.dtype
        nearness = agent.merge(dtype, export.tasks)
        save_model(agent, folder)
        return Written(what=f"the whole model, {dtype} safetensors", base=agent.base, nearness=nearness)

    def servers(self, served: Served) -> Sequence[Way]:
        """See `Exporter`."""
        folder, name = shlex.quote(served.folder), shlex.quote(served.name)
        return [Way("vLLM", [f"vllm serve {folder} --served-model-name {name} {_GREEDY}"])]


class AdapterExporter:
    """The adapter alone, for PEFT, and for vLLM beside others of its base."""

    port: ClassVar[int] = 8000
    loads_here: ClassVar[bool] = False

    def write(self, export: Export, folder: Path) -> Written:
        """See `Exporter`."""
        from genenv.backends.local.export.folder import save_adapter

        base, same = export.agent.shared_base()
        save_adapter(export.agent, folder, base)
        return Written(what="the adapter alone, for PEFT", base=base, same_base=same)

    def servers(self, served: Served) -> Sequence[Way]:
        """See `Exporter`."""
        rank = next((one for one in _RANKS if one >= served.rank), served.rank)
        template = shlex.quote(f"{served.folder}/chat_template.jinja")
        command = (
            f"vllm serve {shlex.quote(served.base)} --enable-lora --max-lora-rank {rank} "
            f"--lora-modules {shlex.quote(f'{served.name}={served.folder}')} "
            f"--chat-template {template} {_GREEDY}"
        )
        return [Way("vLLM, beside other adapters of the same base", [command])]


class GgufExporter:
    """The whole model in one GGUF file, for llama.cpp and Ollama."""

    port: ClassVar[int] = 11434
    loads_here: ClassVar[bool] = False

    def write(self, export: Export, folder: Path) -> Written:
        """See `Exporter`."""
        from genenv.backends.local.export import gguf_model

        agent = export.agent
        vocabulary = gguf_model.check(agent)
        dtype = "float16" if export.dtype == "auto" else export.dtype
        nearness = agent.merge(dtype, export.tasks)
        file = f"{export.name}.gguf"
        gguf_model.save_gguf(agent, vocabulary, folder / file, name=export.name, dtype=dtype)
        turns = turns_of(agent.chat.template, vocabulary.begin)
        text = modelfile(file, turns=turns, end=agent.end, context_tokens=agent.context_tokens)
        (folder / "Modelfile").write_text(text, encoding="utf-8")
        return Written(
            what=f"the whole model, {dtype} GGUF",
            base=agent.base,
            nearness=nearness,
            notes=["llama.cpp reads texts as they are: accents that were typed as two characters stay two."],
        )

    def servers(self, served: Served) -> Sequence[Way]:
        """See `Exporter`."""
        name, file = shlex.quote(served.name), shlex.quote(f"{served.folder}/{served.name}.gguf")
        made = f"ollama create {name} -f {shlex.quote(f'{served.folder}/Modelfile')}"
        serve = f"llama-server -m {file} --alias {name} --jinja --ctx-size {served.context_tokens} --temp 0"
        return [Way("Ollama", [made, f"ollama run {name}"]), Way("llama.cpp", [serve])]


def ways(served: Served) -> list[Way]:
    """All ways to serve what was written and to ask it, servers first."""
    exporter = exporter_named(served.form)
    found = list(exporter.servers(served))
    endpoint = f"http://localhost:{exporter.port}/v1"
    note = " (llama.cpp listens at 8080)" if served.form == Form.GGUF else ""
    if served.example:
        example = shlex.quote(f"@{served.folder}/example.json")
        command = f"curl {endpoint}/chat/completions -H 'Content-Type: application/json' -d {example}"
        found.append(Way(f"one of the run's own tasks, to a server{note}", [command]))
    of_run = f"--set {shlex.quote(f'held_out.run={served.run}')}"
    server = shlex.quote(f"openai:{endpoint}#{served.name}")
    measured = [f"genenv eval held-out --policy {server} {of_run}"]
    tried = [f"genenv try {shlex.quote(served.run)} --policy {server}"] if served.own_tools else []
    found.append(Way(f"from genenv, a server{note}; needs: pip install 'genenv[api]'", measured + tried))
    if exporter.loads_here:
        folder = shlex.quote(served.folder)
        measured = [f"genenv eval held-out --policy {folder} {of_run}"]
        tried = [f"genenv try {shlex.quote(served.run)} --policy {folder}"] if served.own_tools else []
        found.append(Way("from genenv, without a server", measured + tried))
    return found


def modelfile(gguf: str, *, turns: Turns | None, end: str, context_tokens: int) -> str:
    """What Ollama needs to know beside a GGUF file, as the text of a Modelfile.

    Ollama has templates in Go's language and reads none in Jinja's. Its own defaults, such as a temperature,
    are not what the agent was trained with.

    Args:
        gguf: name of the file beside it.
        turns: what stands around messages. None where that depends on more than roles: Ollama then takes what
            it makes of the GGUF file.
        end: the token that ends a turn.
        context_tokens: the longest sequence.
    """
    lines = [f"FROM ./{gguf}"]
    if turns is not None:
        lines.append(f'TEMPLATE """{go_template(turns)}"""')
    lines += [
        "PARAMETER temperature 0",
        "PARAMETER repeat_penalty 1",
        f"PARAMETER num_ctx {context_tokens}",
        f"PARAMETER stop {_quoted(end)}",
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
