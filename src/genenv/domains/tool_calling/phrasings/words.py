"""Names, texts and numbers for tasks: one list for training, another for measuring, nothing in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from genenv.domains.tool_calling.phrasings.reading import frozen, read

Entry = str | tuple[str, ...]

_TABLES = read("words")


def _table(split: str) -> Mapping[str, Sequence[Entry]]:
    return {name: frozen(entries) for name, entries in _TABLES[split].items()}


CLOSED = _table("closed")
"""Choices that a tool's schema lists: both splits use them."""
TRAINING_LISTS, HELD_OUT_LISTS = _table("training"), _table("held_out")


def _plain(*numbers: float) -> dict[float, str]:
    """Numbers that are always given in digits."""
    return dict.fromkeys(numbers, "")


_EVEN_WORDS = {10: "ten", 20: "twenty", 30: "thirty", 40: "forty", 50: "fifty", 60: "sixty", 70: "seventy"}
_ODD_WORDS = {
    15: "fifteen",
    25: "twenty-five",
    35: "thirty-five",
    45: "forty-five",
    65: "sixty-five",
    75: "seventy-five",
}

TRAINING_NUMBERS: Mapping[str, Mapping[float, str]] = {
    "minutes": {
        20: "twenty minutes", 30: "half an hour", 40: "forty minutes", 60: "an hour",
        90: "an hour and a half",
        120: "two hours", 50: "", 100: "",
    },
    "email_id": _plain(412, 538, 664, 226, 750, 318, 972, 104, 896, 440),
    "order_id": _plain(4812, 3056, 7724, 9140, 2268, 6334, 5590, 1478, 8602, 3946),
    "quantity": {2: "a couple of", 6: "half a dozen", 24: "two dozen", 10: "ten", 4: "", 8: "", 14: "",
    16: ""},
    "price": {50: "fifty", 100: "a hundred", 200: "two hundred", 40: "forty", 24: "", 64.5: "", 130: "",
    76: ""},
    "amount": {
        50: "fifty", 100: "a hundred", 200: "two hundred", 60: "sixty", 1000: "a thousand", 24: "", 32.5: "",
        48: "", 64.2: "", 76.4: "", 96: "", 140: "", 210: "", 326: "", 450: "", 274.6: "",
    },
    "sum": {
        50: "fifty", 100: "a hundred", 200: "two hundred", 60: "sixty", 1000: "a thousand", 24: "", 48: "",
        140: "", 210: "", 326: "", 450: "", 1600: "",
    },
    "limit": {6: "six", 10: "ten", 20: "twenty", 4: "", 8: "", 14: ""},
    "passengers": {2: "two", 4: "four", 6: "six", 8: "eight"},
    "nights": {2: "two nights", 14: "two weeks", 4: "four nights", 28: "four weeks", 6: "", 8: "", 10: ""},
    "celsius": _plain(16, 18, 20, 22, 24, 18.5, 20.5, 22.5),
    "level": _EVEN_WORDS | _plain(34, 56, 22, 78),
    "days": {10: "ten days", 14: "two weeks", 28: "four weeks", 42: "six weeks", 20: "", 40: "", 60: "",
    90: "", 100: ""},
    "people": {4: "four", 6: "half a dozen", 8: "eight", 10: "ten", 2: ""},
    "percent": _EVEN_WORDS | _plain(4, 8, 16, 18, 22, 24),
    "number": _plain(250, 420, 640, 1200, 360, 90, 74, 1800, 560),
    "measure": _EVEN_WORDS | {100: "a hundred"} | _plain(6, 14, 26, 42, 2.5, 7.5, 160),
}  # fmt: skip

HELD_OUT_NUMBERS: Mapping[str, Mapping[float, str]] = {
    "minutes": {
        15: "a quarter of an hour", 45: "three quarters of an hour", 75: "an hour and a quarter",
        150: "two and a half hours", 180: "three hours", 25: "twenty-five minutes", 35: "", 55: "",
    },
    "email_id": _plain(413, 557, 671, 239, 785, 301, 943, 127),
    "order_id": _plain(4813, 3097, 7731, 9165, 2279, 6345, 5507, 1493),
    "quantity": {5: "five", 7: "seven", 12: "a dozen", 36: "three dozen", 3: "", 9: "", 15: ""},
    "price": {75: "seventy-five", 35: "thirty-five", 300: "three hundred", 45: "forty-five", 27: "",
    59.95: "", 95: ""},
    "amount": {
        75: "seventy-five", 35: "thirty-five", 300: "three hundred", 500: "five hundred", 27: "", 43.75: "",
        61.25: "", 93: "", 125: "", 145: "", 275: "", 349.95: "", 55: "",
    },
    "sum": {
        75: "seventy-five", 35: "thirty-five", 300: "three hundred", 500: "five hundred", 27: "", 55: "",
        93: "",
        125: "", 145: "", 275: "", 1315: "",
    },
    "limit": {5: "five", 7: "seven", 12: "dozen", 15: "fifteen", 3: "", 9: ""},
    "passengers": {3: "three", 5: "five", 7: "seven"},
    "nights": {7: "a week", 21: "three weeks", 3: "three nights", 5: "", 9: "", 11: ""},
    "celsius": _plain(17, 19, 21, 23, 17.5, 19.5, 21.5),
    "level": _ODD_WORDS | _plain(33, 57, 91),
    "days": {7: "a week", 21: "three weeks", 35: "five weeks", 49: "seven weeks", 15: "", 45: "", 75: "",
    99: ""},
    "people": {5: "five", 7: "seven", 12: "a dozen", 9: "nine", 3: ""},
    "percent": _ODD_WORDS | _plain(5, 7, 9, 17),
    "number": _plain(255, 425, 615, 1350.5, 345, 95, 1875, 77),
    "measure": _ODD_WORDS | _plain(3, 7, 19, 27, 1.5, 9.5, 125),
}  # fmt: skip
