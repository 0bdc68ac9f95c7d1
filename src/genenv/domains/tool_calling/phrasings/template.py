"""What a phrasing is: a sentence with places for values; and how a tool's phrasings are kept, by split.

A place is written `{name}` when the value stands as it goes into the call, and `{name:rel}` when it is given
relatively ("in 3 days", "half an hour", "a dozen"). `{name:day}` is a relative date in a form that can follow
"for" or "until"; `{name:code}` is a unit or currency by its symbol, which otherwise is spelled out.

A template without end punctuation is a clause in the imperative: it can be joined to others. One that ends in
`.`, `?` or `!` is a whole utterance and stays so.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Style = Literal["explicit", "relative", "indirect"]

Scalar = str | int | float | bool
"""A value of an argument."""


@dataclass(frozen=True, slots=True)
class Template:
    """A sentence with places, and the arguments that its fixed words imply."""

    text: str
    implied: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    """E.g. `{"on": False}` for "Switch off the light in the {room}"."""

    @property
    def places(self) -> dict[str, str]:
        """Argument name -> how it is given: "" as it is, "rel" or "day" relatively."""
        return {name: form or "" for _, name, form, _ in string.Formatter().parse(self.text) if name}

    @property
    def is_clause(self) -> bool:
        """Whether it can go into a longer sentence."""
        return not self.text.endswith((".", "?", "!"))

    def fill(self, words: Mapping[str, str]) -> str:
        """The template with every place filled."""
        parts = string.Formatter().parse(self.text)
        return "".join(literal + (words[name] if name else "") for literal, name, _, _ in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrases:
    """The ways to ask for a tool, or for a chain of tools, in one split."""

    explicit: tuple[Template, ...]
    indirect: tuple[Template, ...]
    relative: tuple[Template, ...] = ()
    missing: Mapping[str, tuple[Template, ...]] = field(default_factory=dict[str, tuple[Template, ...]])
    """By the required argument that is left out."""

    def of(self, style: Style) -> tuple[Template, ...]:
        """The templates of a style; empty where the tool has nothing that could be said so."""
        return {"explicit": self.explicit, "relative": self.relative, "indirect": self.indirect}[style]

    def __iter__(self) -> Iterator[Template]:
        """Every template."""
        for templates in (self.explicit, self.relative, self.indirect, *self.missing.values()):
            yield from templates


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPhrases:
    """How a tool is asked for, and where its values come from."""

    slots: Mapping[str, str]
    """Argument -> pool of values. Arguments drawn together share a key: `{"title artist": "song"}`."""
    training: Phrases
    held_out: Phrases
