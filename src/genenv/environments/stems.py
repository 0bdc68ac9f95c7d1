"""English words without their endings."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
    """A word without its ending: cancelled, cancels and cancelling are `cancel`."""
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
