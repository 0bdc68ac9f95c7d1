"""What the environment's parts share: the knowledge base, its chains, the question parser, search."""

from __future__ import annotations

import functools
from pathlib import Path

from genenv.environments.multihop_qa.chains import Chains
from genenv.environments.multihop_qa.corpus import load_corpus
from genenv.environments.multihop_qa.kb import KnowledgeBase, Passage, built_in
from genenv.environments.multihop_qa.passages import passage_of
from genenv.environments.multihop_qa.search import SearchIndex
from genenv.environments.multihop_qa.wording import Reader


class World:
    """A knowledge base with what is made from it."""

    def __init__(self, base: KnowledgeBase, more: tuple[Passage, ...] = ()) -> None:
        self.base = base
        self.chains = Chains(base)
        self.reader = Reader(base.hops.values())
        self._more = more

    @functools.cached_property
    def index(self) -> SearchIndex:
        """Search over all passages."""
        made = (passage_of(self.base, title) for title in self.base.by_subject)
        return SearchIndex([*(self.base.written.values() or made), *self._more])


def load_world(corpus: str | None) -> World:
    """The built-in knowledge base, or a user's.

    Raises:
        UsageError: the user's file cannot be used.
    """
    if corpus is None:
        return _built_in()
    found = load_corpus(Path(corpus))
    base = found.base()
    return World(base) if base is not None else World(built_in(), tuple(found.passages.values()))


@functools.cache
def _built_in() -> World:
    return World(built_in())
