"""Settings of the multi-hop environment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from genenv.settings import PLACE, Settings


class MultihopConfig(Settings, frozen=True):
    """Settings of the multi-hop environment.

    `corpus` names a file of your own passages (`--set environment.corpus=FILE.jsonl`), one JSON object a
    line:

        {"title": "Ada Falk", "text": "Ada Falk leads Delta.", "facts": [["Ada Falk", "team", "Delta"]]}

    `facts` are [subject, relation, object]; both must stand in the title or the text of their line. A line
    may also give "aliases" of what its title names. With facts anywhere in the file, questions are about them
    and not about the built-in knowledge base; without any, the passages only join those that `search` looks
    through. A relation may be described by a line of its own, before its first fact:

        {"relation": "team", "words": ["the team of"], "inverse_words": ["the head of"], "functional": true}

    Words are phrases that end where the name follows. Of a functional relation, a second object of the same
    subject is an error; of the others it only makes that hop ambiguous, so that no question uses it.
    """

    mode: Literal["closed_book", "passages", "search"] = "passages"
    """closed_book: the question alone. passages: with the passages that hold the facts, among others. search:
    the agent looks passages up, over several turns."""
    reward: Literal["exact", "soft"] = "exact"
    """exact: 1 or 0. soft: the F1 of the answer's words (GenEnv eq. 1); success stays exact."""
    distractors: int = Field(default=3, ge=0, le=20)
    """Passages that do not help, in mode passages."""
    passage_facts: int = Field(default=3, ge=1, le=20)
    """Facts that a passage of the built-in knowledge base says in mode passages; a needed one always."""
    max_turns: int = Field(default=6, ge=5, le=32)
    """Replies that the agent gets in mode search; four hops take four searches and the answer."""
    results: int = Field(default=3, ge=1, le=10)
    """Passages that one search shows."""
    result_chars: int = Field(default=160, ge=120, le=2_000)
    """Characters of a passage that a search shows: the sentences that have most of the words searched for."""
    corpus: str | None = Field(default=None, min_length=1, json_schema_extra=PLACE)
    """A JSONL file of your own passages; left out, the built-in knowledge base alone."""
