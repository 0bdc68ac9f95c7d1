"""How goals are said, and whether a wording says what the task is, and nothing else.

Base data and what a simulator may write are put together from the same closed choices; held-out tasks have
phrasings of their own. The gate lets no other wording through: free words could say something else.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping

from genenv.environments.household.tables import CAN_CONTAIN, LAMPS

HELD_OUT_PHRASINGS: Mapping[str, tuple[str, ...]] = {
    "pick": (
        "the <place> is where a <object> should end up",
        "would you store one <object> inside that <place>?",
        "my <object> belongs on the <place>; bring it there",
    ),
    "look": (
        "turn on the <lamp> and inspect the <object>",
        "hold up one <object> to be seen with the <lamp> lit",
    ),
    "clean": (
        "a <object> must be washed before it goes to the <place>",
        "get one <object> rinsed; its home is the <place>",
    ),
    "heat": (
        "a <object> must be heated before it goes to the <place>",
        "get one <object> warmed; its home is the <place>",
    ),
    "cool": (
        "a <object> must be chilled before it goes to the <place>",
        "get one <object> cooled; its home is the <place>",
    ),
    "two": (
        "a pair of <object> should end up together on the <place>",
        "collect two <object>; their home is the <place>",
    ),
}

_Part = str | list[str]
_OPENINGS = [
    *["please", "now", "then", "first", "kindly", "just", "quickly", "could you", "could you please"],
    *["now please", "i need you to", "i want you to", "we have to", "you should", "let us", "go and"],
]
_ENDINGS = [
    *["now", "please", "thank you", "when you can", "for me", "for us", "today", "soon", "that is all"],
    *["before dinner", "before the guests come"],
]
_PUT = ["put", "place", "leave", "set", "move", "store", "bring"]
_IN = ["in", "on", "into", "onto"]
_A = ["a", "the", "some", "any", "one", "my"]
_TREAT = {"clean": ["clean", "wash", "rinse"], "heat": ["heat", "warm"], "cool": ["cool", "chill"]}
_TREATED = {
    "clean": ["clean", "washed", "rinsed"],
    "heat": ["hot", "warm", "heated"],
    "cool": ["cool", "cold", "chilled"],
}


def _sentences(task: str) -> list[list[_Part]]:
    """The ways to say a task: words, and choices of words, in their order."""
    there: list[_Part] = [_IN, [f"{a} <place>" for a in _A] + ["<place>"]]
    thing = [f"{a} <object>" for a in _A]
    if task == "look":
        lamp: list[_Part] = [["under", "with", "by"], ["the <lamp>", "a <lamp>", "any <lamp>"]]
        return [[["look at", "examine", "inspect", "check", "have a look at"], thing, *lamp]]
    if task == "two":
        both = ["two <object>", "both <object>", "two of the <object>"]
        return [[_PUT, both, *there], [["find", "get", "collect"], both, "and", _PUT, "them", *there]]
    if task in _TREAT:
        # not "the clean egg": that may be one that is clean already
        done = [f"{a} {word} <object>" for a in ("a", "one", "some") for word in _TREATED[task]]
        return [[_TREAT[task], thing, ["and", "then"], _PUT, "it", *there], [_PUT, done, *there]]
    return [[_PUT, thing, *there], [_PUT, thing, ["back", "away", "down"], *there]]


def phrase(task: str, rng: random.Random) -> str:
    """One way to say a task, with blanks."""
    parts = [["", *_OPENINGS], *rng.choice(_sentences(task)), ["", *_ENDINGS]]
    return " ".join(word for part in parts if (word := part if isinstance(part, str) else rng.choice(part)))


def wording_pattern(task: str) -> str:
    """All that `phrase` can say, as a regular expression."""
    opening, ending = "|".join(_OPENINGS), "|".join(_ENDINGS)
    said = "|".join(" ".join(map(_choice, sentence)) for sentence in _sentences(task))
    return f"^(({opening}) )?({said})( ({ending}))?$"


def _choice(part: _Part) -> str:
    return part if isinstance(part, str) else f"({'|'.join(part)})"


_NAMES = {
    name.lower(): name for name in {*CAN_CONTAIN, *LAMPS, *(k for held in CAN_CONTAIN.values() for k in held)}
}
_WORD = re.compile(r"[a-z]+")


def problem_with(wording: str, task: str, target: str, goal: str) -> tuple[str, str] | None:
    """What is wrong with a wording whose blanks are filled.

    Args:
        wording: what the agent is told.
        task: short name.
        target: type of the object.
        goal: type of the place, or of the lamp.

    Returns:
        The reason, "unstated", "leak" or "inconsistent", and a sentence; None if all is well.
    """
    words = _WORD.findall(wording.lower())
    for name in (target, goal):
        if name.lower() not in words:
            return "unstated", f"The wording does not name the {name.lower()}."
    if digit := re.search(r"\w+ \d+", wording):
        return "leak", f"The wording names a thing of the game, {digit[0]!r}."
    for name in words:
        if name in _NAMES and _NAMES[name] not in (target, goal):
            return "leak", f"The wording names the {name}, which has no part in the goal."
    if not _sayings(task, target.lower(), goal.lower()).fullmatch(wording):
        return "inconsistent", f"The wording is none of those for a task of the kind {task!r}."
    return None


@functools.lru_cache(maxsize=512)
def _sayings(task: str, thing: str, goal: str) -> re.Pattern[str]:
    """All wordings of a task, with names in their blanks: the grammar's, and those of held-out tasks."""
    ways = [wording_pattern(task)[1:-1], *map(re.escape, HELD_OUT_PHRASINGS[task])]
    text = "|".join(f"(?:{way})" for way in ways)
    return re.compile(re.sub("<place>|<lamp>", goal, text.replace("<object>", thing)))
