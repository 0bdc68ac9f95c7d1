"""Random Python expressions of a chosen kind, depth and size: the procedural source of tasks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Literal

Kind = Literal["int", "float", "str", "list", "tuple", "dict"]
KINDS: tuple[Kind, ...] = ("int", "float", "str", "list", "tuple", "dict")
DEEPEST, LARGEST = 4, 6

_WORDS = ("ab", "sun", "tree", "north", "python", "Hello", "data", "x", "Zoo", "level")


_ON_A_NAME: Mapping[Kind, str] = {"list": "sorted(x)[::-1]", "str": "x[::-1]"}
"""Kind -> last line of a session that first gives a value the name x."""


class _Writer:
    """Writes one expression.

    Args:
        size: the number of items of literals, and the magnitude of numbers.
        rng: source of randomness.
    """

    def __init__(self, size: int, rng: random.Random) -> None:
        self._size, self._rng = size, rng
        self._by_kind: Mapping[Kind, tuple[Callable[[int], str], ...]] = {
            "int": (self._sum, self._sum, self._measure, self._picked, self._of_text, self._divided),
            "float": (self._quotient, self._mean, self._rounded),
            "str": (self._method, self._method, self._slice, self._joined, self._repeated),
            "list": (self._ordered, self._slice_of_list, self._mapped, self._split, self._added),
            "tuple": (self._pair, self._divmod, self._of_list),
            "dict": (self._zipped, self._counts),
        }

    def of(self, kind: Kind, depth: int) -> str:
        """Return an expression of a kind with `depth` nested operations; 0: a literal."""
        if depth <= 0:
            return self._literal(kind)
        return self._rng.choice(self._by_kind[kind])(depth - 1)

    def _number(self) -> int:
        return self._rng.randint(0, 3**self._size)

    def _literal(self, kind: Kind) -> str:
        rng, n = self._rng, self._rng.randint(1, self._size)
        if kind == "int":
            return str(self._number())
        if kind == "float":
            return repr(self._number() / rng.choice((2, 4, 8)))
        if kind == "str":
            return repr("".join(rng.choices(_WORDS, k=1 + self._size // 4)))
        if kind == "dict":
            keys = rng.sample(_WORDS, min(n, 4))
            return repr({key: rng.randint(0, 9) for key in keys})
        items = [rng.randint(0, 3 + self._size) for _ in range(n)]
        return repr(items if kind == "list" else tuple(items))

    def _sum(self, depth: int) -> str:
        sign = self._rng.choice(("+", "-", "*"))
        return f"({self.of('int', depth)} {sign} {self.of('int', 0)})"

    def _divided(self, depth: int) -> str:
        return f"{self.of('int', depth)} {self._rng.choice(('//', '%'))} {self._rng.randint(2, 9)}"

    def _measure(self, depth: int) -> str:
        kind: Kind = self._rng.choice(("str", "list", "list"))
        names = ("len",) if kind == "str" else ("len", "sum", "max", "min")
        return f"{self._rng.choice(names)}({self.of(kind, depth)})"

    def _picked(self, depth: int) -> str:
        return f"{self.of('list', depth)}[{self._rng.choice((0, -1))}]"

    def _of_text(self, depth: int) -> str:
        letter = self._rng.choice("aeoln")
        return f"{self.of('str', depth)}.{self._rng.choice(('count', 'find'))}({letter!r})"

    def _quotient(self, depth: int) -> str:
        return f"{self.of('int', depth)} / {self._rng.choice((2, 4, 5, 10))}"

    def _mean(self, depth: int) -> str:
        return f"sum({self.of('list', depth)}) / {self._rng.choice((2, 4))}"

    def _rounded(self, depth: int) -> str:
        return f"round({self.of('float', depth)}, 1)"

    def _method(self, depth: int) -> str:
        calls = ("upper()", "title()", "swapcase()", "replace('o', '0')", "strip('ab')", "center(8, '.')")
        return f"{self.of('str', depth)}.{self._rng.choice(calls)}"

    def _slice(self, depth: int) -> str:
        return f"{self.of('str', depth)}{self._rng.choice(('[::-1]', '[1:]', '[:2]', '[::2]', '[-2:]'))}"

    def _joined(self, depth: int) -> str:
        return f"{self._rng.choice(('-', ', ', ''))!r}.join({self.of('str', depth)})"

    def _repeated(self, depth: int) -> str:
        return f"{self.of('str', depth)} * {self._rng.randint(2, 3)}"

    def _ordered(self, depth: int) -> str:
        return f"{self._rng.choice(('sorted', 'list'))}({self.of(self._rng.choice(('list', 'str')), depth)})"

    def _slice_of_list(self, depth: int) -> str:
        return f"{self.of('list', depth)}{self._rng.choice(('[::-1]', '[1:]', '[:2]', '[::2]'))}"

    def _mapped(self, depth: int) -> str:
        body = self._rng.choice(("x + 1", "x * 2", "x ** 2", "x % 3"))
        return f"[{body} for x in {self.of('list', depth)}]"

    def _split(self, depth: int) -> str:
        del depth
        return f"{' '.join(self._rng.choices(_WORDS, k=3))!r}.split()"

    def _added(self, depth: int) -> str:
        return f"{self.of('list', depth)} + {self.of('list', 0)}"

    def _pair(self, depth: int) -> str:
        kinds: tuple[Kind, Kind] = (self._rng.choice(KINDS[:3]), self._rng.choice(KINDS[:3]))
        return f"({self.of(kinds[0], depth)}, {self.of(kinds[1], 0)})"

    def _divmod(self, depth: int) -> str:
        return f"divmod({self.of('int', depth)}, {self._rng.randint(2, 9)})"

    def _of_list(self, depth: int) -> str:
        return f"tuple({self.of('list', depth)})"

    def _zipped(self, depth: int) -> str:
        return f"dict(zip({'abc'[: min(3, self._size)]!r}, {self.of('list', depth)}))"

    def _counts(self, depth: int) -> str:
        return f"{{x: len(x) for x in {self._split(depth)}}}"


def expression(kind: Kind, depth: int, size: int, rng: random.Random) -> str:
    """Return a session of one or two lines whose value is of this kind.

    Args:
        kind: the type of the value.
        depth: the number of nested operations, 1 to 4.
        size: 1 to 6, the number of items of lists and the magnitude of numbers.
        rng: source of randomness.
    """
    writer = _Writer(size, rng)
    if depth > 1 and rng.random() < 0.3:
        inner = rng.choice(tuple(_ON_A_NAME))
        if inner == kind:
            return f"x = {writer.of(kind, depth - 1)}\n{_ON_A_NAME[inner]}"
    return writer.of(kind, depth)
