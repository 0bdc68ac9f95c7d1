"""Settings of the multi-hop environment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from genenv.settings import PLACE, Settings


class MultihopConfig(Settings, frozen=True):
    """Settings of the multi-hop environment.

    `corpus` names a file of your passages (`--set environment.corpus=FILE.jsonl`), one JSON object per line:

        {"title": "Ada Falk", "text": "Ada Falk leads Delta.", "facts": [["Ada Falk", "team", "Delta"]]}

    `facts` are [subject, relation, object]. Subject and object must occur in the title or the text of their
    line. A line may also have "aliases" of the thing in its title. If the file has any facts, all questions
    are about them and not about the built-in knowledge base. If it has none, its passages are only added to
    those that `search` looks through. A line may describe a relation before the relation's first fact:

        {"relation": "team", "words": ["the team of"], "inverse_words": ["the head of"], "functional": true}

    Words are phrases that the name follows. A functional relation allows one object per subject; a second one
    is an error. In other relations a second object makes the hop ambiguous, so no question uses it.
    """

    mode: Literal["closed_book", "passages", "search"] = "passages"
    """closed_book: the question only. passages: also the passages that state the facts, among distractors.
    search: the agent looks passages up, over several turns."""
    reward: Literal["exact", "soft"] = "exact"
    """exact: 1 or 0. soft: the F1 of the answer's words (GenEnv eq. 1); success stays exact."""
    distractors: int = Field(default=3, ge=0, le=20)
    """Number of passages that do not help, in mode passages."""
    passage_facts: int = Field(default=3, ge=1, le=20)
    """Facts per passage of the built-in knowledge base in mode passages; needed facts are always included."""
    max_turns: int = Field(default=6, ge=5, le=32)
    """Maximum number of replies in mode search; four hops take four searches and the answer."""
    results: int = Field(default=3, ge=1, le=10)
    """Number of passages that one search shows."""
    result_chars: int = Field(default=160, ge=120, le=2_000)
    """Characters of a passage that a search shows: the sentences that contain the most words of the query."""
    corpus: str | None = Field(default=None, min_length=1, json_schema_extra=PLACE)
    """A JSONL file of your passages; unset: only the built-in knowledge base."""
