"""Small random changes of a session: another number, another text, another operator."""

from __future__ import annotations

import io
import random
import tokenize
from collections.abc import Sequence

_SIGNS = {
    "+": ("-", "*"),
    "-": ("+", "*"),
    "*": ("+", "-"),
    "//": ("%",),
    "%": ("//",),
    "<": (">",),
    ">": ("<",),
    "<=": (">=",),
    ">=": ("<=",),
}
_WORDS = ("ab", "sun", "tree", "north", "python", "Hello", "data", "level")
_AROUND = ("len({})", "sorted({})", "str({})", "{} + {}", "list({})", "type({}).__name__", "{}[0]", "{}[-1]")
_MOST = 3


def edited(code: str, rng: random.Random) -> str:
    """Return a session with one to three changes. Whether it runs is not known; it may be the same."""
    for _ in range(rng.randint(1, _MOST)):
        before, _, last = code.rpartition("\n")
        if rng.random() < 0.2:
            last = rng.choice(_AROUND).replace("{}", last)
            code = f"{before}\n{last}" if before else last
        else:
            code = _changed(code, rng)
    return code


def _changed(code: str, rng: random.Random) -> str:
    """Return the code with one literal or operator changed; the same code if it has none."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):
        return code
    places = [one for one in tokens if not _imports(one) and _others(one, rng)]
    if not places:
        return code
    chosen = rng.choice(places)
    lines = code.split("\n")
    (row, start), (_, end) = chosen.start, chosen.end
    line = lines[row - 1]
    lines[row - 1] = line[:start] + rng.choice(_others(chosen, rng)) + line[end:]
    return "\n".join(lines)


def _imports(token: tokenize.TokenInfo) -> bool:
    return token.line.lstrip().startswith(("import ", "from ")) or token.start[0] != token.end[0]


def _others(token: tokenize.TokenInfo, rng: random.Random) -> Sequence[str]:
    """Return what may stand in a token's place; empty if it is kept."""
    text = token.string
    if token.type == tokenize.OP:
        return _SIGNS.get(text, ())
    if token.type == tokenize.NUMBER:
        return _numbers(text, rng)
    if token.type == tokenize.STRING and text[0] in "'\"" and not text.startswith(("'''", '"""')):
        return _texts(text, rng)
    return ()


def _numbers(text: str, rng: random.Random) -> Sequence[str]:
    if text.isdigit():
        number = int(text)
        near = {number + 1, abs(number - 1), number + 2, number * 2, rng.randint(0, 9)} - {number}
        return tuple(str(one) for one in sorted(near))
    try:
        value = float(text)
    except ValueError:
        return ()
    return (repr(value + 1.0), repr(value * 2), repr(value / 2))


def _texts(text: str, rng: random.Random) -> Sequence[str]:
    quote, inner = text[0], text[1:-1]
    if not inner or "\\" in inner:
        return ()
    letters = "".join(rng.sample(inner, len(inner)))
    found = {f"{quote}{one}{quote}" for one in (letters, inner[::-1], inner[:-1], inner + inner[0])}
    return tuple(sorted((found | {f"{quote}{rng.choice(_WORDS)}{quote}"}) - {text}))
