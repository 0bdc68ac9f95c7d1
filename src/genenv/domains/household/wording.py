"""How goals are said, and whether a wording says what the task is, and nothing else.

Base data and what a simulator may write are put together from the same closed choices; held-out tasks have
phrasings of their own. A wording that comes from elsewhere is read by the gate in the same way.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

from genenv.domains.household.tables import CAN_CONTAIN, LAMPS

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
        done = [f"{a} {word} <object>" for a in ("a", "one", "some", "the") for word in _TREATED[task]]
        return [[_TREAT[task], thing, ["and", "then"], _PUT, "it", *there], [_PUT, done, *there]]
    return [[_PUT, thing, *there], [_PUT, thing, ["back", "away", "down"], *there]]


def phrase(task: str, rng: random.Random) -> str:
    """One way to say a task, with blanks."""
    parts = [["", *_OPENINGS], *rng.choice(_sentences(task)), ["", *_ENDINGS]]
    return " ".join(word for part in parts if (word := part if isinstance(part, str) else rng.choice(part)))


def wording_pattern(task: str) -> str:
    """What a simulator may write, as a regular expression: `phrase` with up to two openings and endings."""
    opening, ending = "|".join(_OPENINGS), "|".join(_ENDINGS)
    said = "|".join(" ".join(map(_choice, sentence)) for sentence in _sentences(task))
    return f"^(({opening}) ){{0,2}}({said})( ({ending})){{0,2}}$"


def _choice(part: _Part) -> str:
    return part if isinstance(part, str) else f"({'|'.join(part)})"


_SAYS: Mapping[str, re.Pattern[str]] = {
    "look": re.compile(r"\b(look|peek|examine|inspect|check|see|seen|light|lit)\b"),
    "clean": re.compile(r"\b(clean|cleaned|wash|washed|rinse|rinsed)\b"),
    "heat": re.compile(r"\b(heat|heated|hot|warm|warmed)\b"),
    "cool": re.compile(r"\b(cool|cooled|cold|chill|chilled)\b"),
    "two": re.compile(r"\b(two|both|pair)\b"),
}
"""Words of which a task's wording has one, and the wording of any other task none."""
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
    text = wording.lower()
    words = _WORD.findall(text)
    for name in (target, goal):
        if name.lower() not in words:
            return "unstated", f"The wording does not name the {name.lower()}."
    if digit := re.search(r"\w+ \d+", text):
        return "leak", f"The wording names a thing of the game, {digit[0]!r}."
    if odd := re.search(r"[^a-z ,.;:'!?-]", text):
        return "inconsistent", f"The wording has the character {odd[0]!r}."
    for name in words:
        if name in _NAMES and _NAMES[name] not in (target, goal):
            return (
                "leak",
                f"The wording names the {name}, which is neither the object nor the place of the goal.",
            )
    for said, pattern in _SAYS.items():
        found = pattern.search(text)
        if said == task and found is None:
            return "unstated", f"The wording does not say that it is a task of the kind {task!r}."
        if said != task and found is not None:
            return "inconsistent", f"The wording says {found[0]!r}, and the task is of the kind {task!r}."
    return None
