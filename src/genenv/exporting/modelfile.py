"""What Ollama needs to know beside a GGUF file.

Ollama has templates in Go's language and reads none in Jinja's, so that what stands around messages is
written out again for it. Its own defaults (a temperature, a penalty for repeating) are not what the agent was
trained with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from genenv.chat.turns import Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What goes into the file."""

    gguf: str
    """Name of the file beside it."""
    turns: Turns | None
    """None where they depend on more than roles: Ollama then takes what it makes of the GGUF file."""
    end: str
    """The token that ends a turn."""
    context_tokens: int


def modelfile(told: Told) -> str:
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
