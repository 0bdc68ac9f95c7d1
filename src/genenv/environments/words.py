"""English words: a stemmer, and everyday words that may surround the values in a task's wording.

A simulator that may write any letters there soon writes gibberish or words that change the question.
Environments with free wording therefore allow only these words and the words of their phrasings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set

_WORDS = """
a about afternoon again all also am an and any are ask asked asking asks at aunt be bed before breakfast
brother by came can child children class come could curious daughter day dear did dinner do does easy
evening exam family father favorite for friend friends from fun game give going good got great guess had
hard has have he hear heard hello help her here hi hint his homework how i if in into is it job just know
learn learned let like long lot lunch made make many may maybe me met might mind minute moment month more
morning mother much must my name need new next nice now of off office old on once our out over own parents
people perhaps play played please pub puzzle question questions quick quickly quiz quizzed read reading
remember right said saw say says school see seem seen she should show simple sister so some son soon sure
talk talked tell test thank thanks that the their them then there these they think this those thought time
to today together told tomorrow tonight travel tricky trip try trying uncle us very want wanted was we
week weekend well were what when where which while who why will with wonder wondered wondering work would
write year yes yesterday yet you young your
"""
WORDS = frozenset(_WORDS.split())
"""Everyday words in lower case; no numbers, negations or names."""
_STRANGE = re.compile(r"[^\w\s.,:;!?'’-]|[\d_]")


def first_strange(text: str, known: Set[str]) -> str | None:
    """Return the first word or sign in a text that is not allowed, or None.

    Args:
        text: a wording.
        known: allowed words, in lower case; their genitives are allowed too.
    """
    if (sign := _STRANGE.search(text)) is not None:
        return sign[0]
    plain = re.findall(r"\w+", re.sub(r"['’]s\b", "", text))
    return next((word for word in plain if word.lower() not in known), None)


_IRREGULAR: Mapping[str, str] = {
    form: verb
    for verb, forms in {
        "buy": "bought", "find": "found", "get": "got gotten", "give": "gave given", "hear": "heard",
        "leave": "left", "make": "made", "pay": "paid", "put": "putting", "read": "read", "run": "ran",
        "say": "said", "see": "saw seen", "send": "sent", "set": "setting", "take": "took taken",
        "tell": "told", "throw": "threw thrown", "write": "wrote written",
    }.items()
    for form in forms.split()
}  # fmt: skip


def stem(word: str) -> str:
    """Return a word without its ending: cancelled, cancels and cancelling become `cancel`."""
    word = re.sub(r"['’]\w*$", "", word.lower())
    word = _IRREGULAR.get(word, word)
    for ending, instead in (("ies", "y"), ("ied", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word[: -len(ending)] + instead
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeious" and word[-2:] != "ll":
        word = word[:-1]
    if len(word) > 4 and word.endswith("ll"):
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word.endswith("e") else word
