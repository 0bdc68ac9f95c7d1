"""Tasks in which a later call uses what an earlier one found, and how people ask for them (`chains.toml`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from genenv.domains.tool_calling.phrasings.reading import Table, phrases, read
from genenv.domains.tool_calling.phrasings.template import Phrases


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Two tools, the second of which uses a result of the first."""

    tools: tuple[str, str]
    links: Mapping[str, str]
    """Argument of the second call -> reference. Others of the same name have the same value in both calls."""
    phrases: Phrases
    slots: Mapping[str, str] = field(default_factory=dict[str, str])
    """Arguments that come from another pool than usual."""


def _chains(tables: Sequence[Table]) -> tuple[Chain, ...]:
    return tuple(
        Chain(
            tools=(table["tools"][0], table["tools"][1]),
            links=table["links"],
            phrases=phrases(table["phrases"]),
            slots=table.get("slots", {}),
        )
        for table in tables
    )


_TABLES = read("chains")
TRAINING_CHAINS, HELD_OUT_CHAINS = _chains(_TABLES["training"]), _chains(_TABLES["held_out"])
