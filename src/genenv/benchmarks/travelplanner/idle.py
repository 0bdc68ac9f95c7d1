"""Words that say that there is nothing: eating at home, on the road, walking about town."""

from __future__ import annotations

import re

_MOST_WORDS = 12


def _bag(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NOTHING = _bag(
    "home road flight plane airplane airport train way transit route return returning returned travel "
    "traveling travelling departure departing arrival arriving own self packed homemade free leisure "
    "rest none no not na skip skipped hotel accommodation"
)
_BESIDE = _bag(
    "eat eating have having grab get dine dining meal meals food snack snacks breakfast lunch dinner "
    "brunch quick light a an in during before after from to your our my their its time day already back "
    "cooked catered needed required necessary applicable planned included provided for or and while "
    "leave leaving depart arrive early late overnight stay as is of n flying driving attraction "
    "attractions city night evening morning afternoon today this on the at"
)
_ON_FOOT = _bag(
    "walk walking foot local public transport transportation transit bus metro subway explore exploring "
    "around within rides rideshare uber no none not needed"
)
_FOOT_BESIDE = _bag("by use using ride sightseeing")


def is_nothing(text: str) -> bool:
    """Whether a text says that nothing is eaten, seen or booked: `Eat at home`, `N/A (returning)`."""
    return _of(text, _NOTHING, _BESIDE)


def is_on_foot(text: str) -> bool:
    """Whether a text says that nobody travels to another city: `Walk`, `Local transport`, `Not needed`."""
    return _of(text, _ON_FOOT | _NOTHING, _FOOT_BESIDE | _BESIDE)


def _of(text: str, core: frozenset[str], beside: frozenset[str]) -> bool:
    """Whether a text is of these words alone, one of the core among them; parentheses do not count."""
    bare = re.sub(r"\([^()]*+\)", " ", text[:200]).lower().replace("n/a", "none")
    words = re.findall(r"[^\W\d_]+", bare)
    known = 0 < len(words) <= _MOST_WORDS and all(word in core or word in beside for word in words)
    return known and any(word in core for word in words) and not re.search(r"\d", bare)
