"""Functions and classes of a program as a file of their own."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import json
import math as numbers
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from genenv.domains.tools.written_out import written_out
from genenv.errors import UsageError

Colour = Literal["red", "green"]
STOCK = {"red": 3, "green": 5}
LIMIT = numbers.inf
LOG = OrderedDict[str, int]()
CLOCK = dt.date(2026, 1, 1)
NEVER = lambda: 0  # noqa: E731 - what is to be refused


class Size(enum.Enum):
    """Sizes."""

    S = "s"
    L = "l"


@dataclass
class Box:
    """A box."""

    size: Size
    holds: list[str] = field(default_factory=list)


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates."""

    @functools.wraps(function)
    def inner(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return inner


def take(colour: Colour, n: int = 1) -> dict[str, int]:
    """Take some."""
    STOCK[colour] -= n
    return {colour: STOCK[colour], "root": numbers.isqrt(16)}


@logged
def pack(size: Size) -> Box:
    """Pack a box."""
    return Box(size=size, holds=[json.dumps(_inside(2))])


def _inside(depth: int) -> list[str]:
    return ["x"] if not depth else _inside(depth - 1)


def late() -> str:
    """When."""
    return str(CLOCK)


def endless() -> float:
    """No limit."""
    return LIMIT


def calls_never() -> int:
    """Never."""
    return NEVER()


class Shop:
    """Tools that are methods."""

    def __init__(self) -> None:
        self.boxes = [Box(size=Size.S)]

    def count(self) -> int:
        """How many boxes."""
        return len(self.boxes)


def ran(code: str) -> str:
    """What a file prints that was written, in a process that knows nothing of this module."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_functions_use_comes_along() -> None:
    written = written_out([take, pack])
    assert written.made_of == ""
    assert written.beside == Path(__file__).parent
    assert "__all__ = ['take', 'pack']" in written.text
    assert "import math as numbers" in written.text
    said = ran(written.text + "print(take('red'), pack(Size.L).holds)")
    assert said == """{'red': 2, 'root': 4} ['["x"]']"""


def test_a_class_is_its_methods() -> None:
    written = written_out([Shop])
    assert written.made_of == "Shop"
    assert ran(written.text + "print(Shop().count())") == "1"


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([], "there are no tools"),
        ([Shop, take], "a class whose methods are the tools is given alone"),
        ([Shop().count], "neither a function nor a class"),
        ([functools.partial(take, "red")], "neither a function nor a class"),
        ([late], "'late' uses 'CLOCK', a date that cannot be written down as text"),
        ([endless], "'endless' uses 'LIMIT', a float that cannot"),
        ([calls_never], "'NEVER' is a lambda"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(tools: list[Any], said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        written_out(tools)


def test_a_function_made_in_another_one_is_refused() -> None:
    secret = 3

    def inner() -> int:
        """Inner."""
        return secret

    with pytest.raises(UsageError, match="'inner' uses 'secret' of the function it was made in"):
        written_out([inner])


def test_a_function_without_source_is_refused() -> None:
    names: dict[str, Any] = {"__name__": __name__}
    exec("def typed() -> int:\n    'Typed.'\n    return 1", names)  # noqa: S102 - as typed at a prompt
    with pytest.raises(UsageError, match="the source of 'typed' cannot be found"):
        written_out([names["typed"]])
