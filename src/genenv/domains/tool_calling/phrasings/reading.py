"""Phrases and words from the data files beside this module.

One TOML file an app, with a table a tool (`[transfer.training]`, `[transfer.held_out]`), `chains.toml`, and
`words.toml`. A line is a template; `{ text = "...", implied = { on = false } }` is one whose fixed words
imply arguments. The order of entries matters: draws go by it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from genenv.domains.tool_calling.phrasings.template import Phrases, Template, ToolPhrases

Table = Mapping[str, Any]


def read(name: str) -> dict[str, Any]:
    """A file of this folder, without its ending."""
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))


def tool_phrases(app: str) -> dict[str, ToolPhrases]:
    """How people ask for the tools of an app, by tool."""
    return {
        tool: ToolPhrases(
            slots=table["slots"], training=phrases(table["training"]), held_out=phrases(table["held_out"])
        )
        for tool, table in read(app).items()
    }


def phrases(table: Table) -> Phrases:
    """The ways to ask that a table lists."""
    return Phrases(
        explicit=_templates(table["explicit"]),
        relative=_templates(table.get("relative", ())),
        indirect=_templates(table["indirect"]),
        missing={name: _templates(lines) for name, lines in table.get("missing", {}).items()},
    )


def frozen(value: object) -> Any:  # noqa: ANN401 - as deep as the lists go
    """Lists as tuples."""
    return tuple(map(frozen, cast("list[object]", value))) if isinstance(value, list) else value


def _templates(lines: Sequence[str | Table]) -> tuple[Template, ...]:
    return tuple(Template(line) if isinstance(line, str) else Template(**line) for line in lines)
