# pyright: standard
"""The forms in which a trained agent is exported: writers, and the commands that serve the result.

Each exporter is an entry point of the group `genenv.exporters`, so your package can add a form:

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

from genenv.backends.vllm.launcher import RANKS, largest_rank
from genenv.chat.template import Turns, turns_of
from genenv.plugins import load, parts
from genenv.types import Message

if TYPE_CHECKING:
    from genenv.backends.local.export_merged import Nearness, TrainedAgent


class Form(StrEnum):
    """Names of the exporters that are part of genenv."""

    MODEL = "model"
    ADAPTER = "adapter"
    GGUF = "gguf"


_GREEDY = "--override-generation-config " + shlex.quote('{"temperature": 0}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The values that the commands for serving depend on."""

    form: str
    """Name of the exporter."""
    name: str
    """The model's name in requests."""
    folder: str
    base: str
    """The name or the folder from which others load the base."""
    rank: int
    run: str
    agent: str
    """Name of the agent in a run with several; else empty."""
    context_tokens: int
    example: bool
    """Whether `example.json` exists."""
    own_tools: bool
    """Whether the run's environment is a folder with the user's tools, which `genenv try` supports."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve or to query the agent: a line of text, and commands."""

    words: str
    commands: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The input of an exporter."""

    agent: TrainedAgent
    """Base and adapter in memory; its method `merge` makes them one model."""
    name: str
    """The agent's name in requests."""
    dtype: str
    """Dtype of merged weights; `auto` for the exporter's default."""
    tasks: Sequence[Sequence[Message]]
    """Conversations on which merged weights are compared with base and adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The result of an exporter."""

    what: str
    """A description, such as "the adapter alone, for PEFT"."""
    base: str
    """The name or the folder from which others load the base."""
    same_base: bool = True
    """Whether that base has the weights with which the run began."""
    nearness: Nearness | None = None
    """The agreement of merged weights with base and adapter; None if nothing was merged."""
    notes: Sequence[str] = ()
    """Advice for those who serve this form."""


class Exporter(Protocol):
    """One form of an exported agent, implemented here and by other packages; needs no arguments."""

    port: ClassVar[int]
    """The port on which the servers of `servers` listen."""
    loads_here: ClassVar[bool]
    """Whether genenv can load the folder as a policy."""

    def write(self, export: Export, folder: Path) -> Written:
        """Write an agent into an empty folder.

        Raises:
            UsageError: this agent cannot have this form.
        """
        ...

    def servers(self, served: Served) -> Sequence[Way]:
        """Return the commands that serve the folder."""
        ...


def exporter_named(name: str) -> Exporter:
    """Return the exporter that an installed package registers under a name."""
    return cast("type[Exporter]", load(parts("exporters")[name]))()


class ModelExporter:
    """Writes the whole model, for transformers and vLLM."""

    port: ClassVar[int] = 8000
    loads_here: ClassVar[bool] = True

    def write(self, export: Export, folder: Path) -> Written:
        """See `Exporter`."""
        from genenv.backends.local.export_merged import save_model

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
    """Writes only the adapter, for PEFT, and for vLLM together with other adapters of the base."""

    port: ClassVar[int] = 8000
    loads_here: ClassVar[bool] = False

    def write(self, export: Export, folder: Path) -> Written:
        """See `Exporter`."""
        from genenv.backends.local.export_merged import save_adapter

        base, same = export.agent.shared_base()
        save_adapter(export.agent, folder, base)
        rank = export.agent.config.lora_rank
        notes = [] if rank <= RANKS[-1] else [f"vLLM takes no adapter of rank {rank}: export a whole model."]
        return Written(what="the adapter alone, for PEFT", base=base, same_base=same, notes=notes)

    def servers(self, served: Served) -> Sequence[Way]:
        """See `Exporter`."""
        if served.rank > RANKS[-1]:
            return []
        largest = largest_rank(served.rank)
        template = shlex.quote(f"{served.folder}/chat_template.jinja")
        command = (
            f"vllm serve {shlex.quote(served.base)} --enable-lora --max-lora-rank {largest} "
            f"--lora-modules {shlex.quote(f'{served.name}={served.folder}')} "
            f"--chat-template {template} {_GREEDY}"
        )
        return [Way("vLLM, beside other adapters of the same base", [command])]


class GgufExporter:
    """Writes the whole model as one GGUF file, for llama.cpp and Ollama."""

    port: ClassVar[int] = 11434
    loads_here: ClassVar[bool] = False

    def write(self, export: Export, folder: Path) -> Written:
        """See `Exporter`."""
        from genenv.backends.local import export_gguf

        agent = export.agent
        vocabulary = export_gguf.check(agent)
        dtype = "float16" if export.dtype == "auto" else export.dtype
        nearness = agent.merge(dtype, export.tasks)
        file = f"{export.name}.gguf"
        export_gguf.save_gguf(agent, vocabulary, folder / file, name=export.name, dtype=dtype)
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
    """Return all ways to serve the folder and to query the server, servers first."""
    exporter = exporter_named(served.form)
    found = list(exporter.servers(served))
    endpoint = f"http://localhost:{exporter.port}/v1"
    note = " (llama.cpp listens at 8080)" if served.form == Form.GGUF else ""
    if served.example:
        example = shlex.quote(f"@{served.folder}/example.json")
        command = f"curl {endpoint}/chat/completions -H 'Content-Type: application/json' -d {example}"
        found.append(Way(f"one of the run's own tasks, to a server{note}", [command]))
    of_run = f"--set {shlex.quote(f'held_out.run={served.run}')}"
    if served.agent:
        of_run += f" --set held_out.agent={served.agent}"
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
    """Return the Modelfile with the settings that Ollama needs in addition to a GGUF file.

    Ollama uses Go templates and cannot read Jinja. Its default sampling parameters, such as the temperature,
    differ from those of training.

    Args:
        gguf: name of the GGUF file in the same folder.
        turns: the template's text around messages. None if it depends on more than roles; Ollama then derives
            a template from the GGUF file.
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
    """Return a Go template of the text around messages; line breaks between its parts produce no output.

    The token with which all texts begin (`Turns.first`) is not in it: the GGUF file says that there is one,
    and Ollama puts it first itself.
    """
    parts = list[str]()
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
    """Return a string literal for Go and Ollama."""
    return json.dumps(text, ensure_ascii=False)
