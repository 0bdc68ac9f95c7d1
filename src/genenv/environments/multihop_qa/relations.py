"""The relations of the knowledge base, and the words in which questions and passages say them.

A hop goes along a relation, from subject to object, or back, from an object to its only subject. Each way has
a name, which specs use, and phrases that end where the thing they start from is named, so that phrases one
after another nest: "the currency of" + "the country whose capital is" + "Oslo". No phrase occurs in two
ways: a question can be read back into its chain.

A way back says that there is only one such subject, in the world and not only in the data. So there is none
where the data lacks some: an official language, a country of discovery. A city's only airport is a fact of
its own, gathered where it is known to be the only one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

THINGS = frozenset({"country", "city", "airport", "element", "currency", "language", "state", "thing"})
"""Kinds that a chain may pass through; the others (codes, years, ...) only begin or end one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A kind of fact."""

    name: str
    """Also the name of the hop from subject to object."""
    subject: str
    """Kind of the subject."""
    object: str
    """Kind of the object."""
    words: tuple[str, ...]
    """Phrases for the object of a subject, e.g. "the capital of"."""
    sentence: str = ""
    """How a passage about the subject says it, with `{}` for the object."""
    back: str = ""
    """Name of the hop from object to subject; empty: there is none."""
    back_words: tuple[str, ...] = ()
    """Phrases for the only subject of an object, e.g. "the country whose capital is"."""
    many: bool = False
    """A subject may have several objects; then no hop goes from it. Otherwise two objects contradict."""

    @property
    def says(self) -> str:
        """The sentence of a passage, with `{}` for the object."""
        return self.sentence or f"Its {self.name} is {{}}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One way along a relation."""

    relation: Relation
    backward: bool

    @property
    def name(self) -> str:
        """What specs call it."""
        return self.relation.back if self.backward else self.relation.name

    @property
    def words(self) -> tuple[str, ...]:
        """Its phrases."""
        return self.relation.back_words if self.backward else self.relation.words

    @property
    def source(self) -> str:
        """Kind of what it starts from."""
        return self.relation.object if self.backward else self.relation.subject

    @property
    def target(self) -> str:
        """Kind of what it leads to."""
        return self.relation.subject if self.backward else self.relation.object


def _relation(name: str, row: Mapping[str, Any]) -> Relation:
    fields: dict[str, Any] = {**row, "words": tuple(row["words"])}
    if "back_words" in row:
        fields |= {"back": row.get("back", f"{name} of"), "back_words": tuple(row["back_words"])}
    return Relation(name=name, **fields)


_FILE = resources.files("genenv.environments.multihop_qa") / "data/relations.toml"
RELATIONS = tuple(_relation(*row) for row in tomllib.loads(_FILE.read_text(encoding="utf-8")).items())
"""Those of the built-in knowledge base. A way back is called `NAME of`, unless the file names it."""
