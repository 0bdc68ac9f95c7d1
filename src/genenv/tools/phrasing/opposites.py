"""Words by which a wording asks for something else than its tool does: an opposite, a denial, another effect.

Like the lists of `words`, this is English and knows few verbs; the round trip has to find the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from genenv.environments.words import stem
from genenv.tools.wording import first_sentence, label
from genenv.tools.words import CHANGING, DENIALS, OPPOSITES, PARTICLES, READING, VERBS
from genenv.tools.world import Tool

_BEFORE_VERBS = frozenset({"and", "to", "then", "or"})
_UNDOING = ("un", "dis", "de")


def _stems(words: Iterable[str]) -> frozenset[str]:
    return frozenset(map(stem, words))


_SIDES = tuple((_stems(one), _stems(other)) for one, other in OPPOSITES)
_KNOWN = _stems(VERBS).union(*(one | other for one, other in _SIDES))
_CHANGING, _READING = _stems(CHANGING), _stems(READING)


def verbs_of(tool: Tool) -> frozenset[str]:
    """The stems of the verbs that say what a tool does: of its name, and the first of its documentation."""
    named, told = label(tool.name).split(), first_sentence(tool).split()
    known = [word for word in named if stem(word) in _KNOWN]
    own = known[:1] if known and known[0] == named[0] else known
    return _stems([*own, *(word for word in told[:1] if stem(word) in _KNOWN)])


def otherwise(tool: Tool, words: Sequence[str], *, writes: bool) -> str | None:
    """The word of a wording that asks for something else than a tool does; None: there is none.

    Args:
        tool: whose wording it is.
        words: of the wording, lower-cased, without its blanks.
        writes: whether a successful call changes the state.
    """
    verbs, named = verbs_of(tool), label(tool.name).split()
    own = _stems([*named, *re.findall(r"[a-z]+", first_sentence(tool).lower())])
    undone = frozenset[str]().union(
        *(other for one, other in _SIDES if one & verbs), *(one for one, other in _SIDES if other & verbs)
    )
    for place, word in enumerate(words):
        form, leads = stem(word), place == 0 or words[place - 1] in _BEFORE_VERBS
        if form in verbs:
            continue
        if form in undone and (leads or form not in own):
            return word
        if any(form == f"{prefix}{verb}" for prefix in _UNDOING for verb in verbs):
            return word
        if form in _KNOWN and any(verb == f"{prefix}{form}" for prefix in _UNDOING for verb in verbs):
            return word
        stops = word == "stop" and words[place + 1 : place + 2] and words[place + 1].endswith("ing")
        if (word in DENIALS or word.endswith(("n't", "n’t")) or stops) and form not in own:
            return word
        if leads and form not in own and form in (frozenset() if writes else _CHANGING):
            return word
    if writes and words and stem(words[0]) in _READING - own and not verbs & _stems(words):
        return words[0]
    return _other_particle(named, words)


def _other_particle(named: Sequence[str], words: Sequence[str]) -> str | None:
    """`off` where the tool's name says `on`, and the wording does not."""
    for pair in PARTICLES:
        for own, other in (pair, pair[::-1]):
            if own in named and other not in named and other in words and own not in words:
                return other
    return None
