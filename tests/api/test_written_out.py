"""Functions and classes of a program as a file of their own."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import importlib
import json
import linecache
import logging
import math as numbers
import re
import subprocess
import sys
import types
import xml.etree.ElementTree
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import randint
from typing import Annotated, Any, Literal

import pytest

from genenv.errors import UsageError
from genenv.tools.worlds.source_text import written_out

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


globals()["TURN"] = object()  # no line of its own makes it


def reads_loop() -> str:
    """It."""
    return str(TURN)  # noqa: F821 - it is there


Boxes = list["Box"]
Positive = Annotated[int, "above 0"]
PLAIN = re.compile("[a-z]+")
log = logging.getLogger("tests")


class Counted(dict[str, int]):
    """A kind of dict."""

    def total(self) -> int:
        """All of it."""
        return sum(self.values())


COUNTED = Counted(a=1, b=2)


@functools.cache
def cached(word: str) -> bool:
    """Kept."""
    return bool(PLAIN.fullmatch(word))


def much(word: str, boxes: Boxes, log: str = "x") -> list[Box]:
    """Local names are no globals: df, log.

    Begins further left than the function.
    """
    df = [cached(word), len(xml.etree.ElementTree.tostring(xml.etree.ElementTree.Element("a")))]
    return [Box(size=Size.S, holds=[str(one), log, str(COUNTED.total())]) for one in df][: len(boxes) or 1]


df = object()

if True:

    def inside(n: Positive) -> int:
        """Further right.

        Text at the margin.
        """
        return randint(n, n)


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
    assert written.beside == Path(__file__).parents[2]  # where `tests.api` is imported from
    assert "__all__ = ['take', 'pack']" in written.text
    assert "import math as numbers" in written.text
    said = ran(written.text + "print(take('red'), pack(Size.L).holds)")
    assert said == """{'red': 2, 'root': 4} ['["x"]']"""


def test_what_has_no_value_as_text_is_made_as_its_line_makes_it() -> None:
    said = ran(written_out([late, endless]).text + "print(late(), endless())")
    assert said == "2026-01-01 inf"


def test_names_are_those_that_are_global_where_they_are_read() -> None:
    written = written_out([much, inside])
    assert "\ndf = " not in written.text
    assert "getLogger" not in written.text
    assert "Boxes = " in written.text
    said = ran(written.text + "print(much('abc', []), inside(3))")
    assert said == "[Box(size=<Size.S: 's'>, holds=['True', 'x', '3'])] 3"


def test_a_class_of_a_notebooks_cell_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As notebooks do it: a module without a file, cells in the cache of lines."""
    names: dict[str, Any] = {"__name__": "a_notebook"}
    module = types.ModuleType("a_notebook")
    module.__dict__.update(names)
    monkeypatch.setitem(sys.modules, "a_notebook", module)
    cells = (
        "from dataclasses import dataclass\nRATE = float('inf')",
        "@dataclass\nclass Line:\n    n: int\n",
        "def add(line: Line) -> int:\n    'Add.'\n    return line.n if line.n < RATE else 0\n"
        "class Shop:\n    'Shop.'\n    def add(self, line: Line) -> int:\n        'Add.'\n"
        "        return line.n",
    )
    for number, text in enumerate(cells):
        name = f"<ipython-input-{number}-abc>"
        monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name))
        exec(compile(text, name, "exec"), module.__dict__)  # noqa: S102 - as a notebook does
    assert ran(written_out([module.add]).text + "print(add(Line(3)))") == "3"
    assert ran(written_out([module.Shop]).text + "print(Shop().add(Line(4)))") == "4"


def test_a_module_of_a_package_brings_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pk").mkdir()
    (tmp_path / "pk" / "__init__.py").write_text("")
    (tmp_path / "pk" / "words.py").write_text("LIMIT = {1: 'one'}\n\ndef say(n):\n    return LIMIT[n]\n")
    code = (
        "from .words import LIMIT, say\n\n\n"
        "def tell(n: int) -> str:\n    'Tell.'\n    return say(n) + str(LIMIT)\n"
    )
    (tmp_path / "pk" / "t.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("pk.t")
    written = written_out([module.tell])
    assert written.beside == tmp_path
    assert "from pk.words import say" in written.text
    assert "LIMIT = {1: 'one'}" in written.text


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
        ([calls_never], "'NEVER' is a lambda"),
        ([reads_loop], "'reads_loop' uses 'TURN', which cannot be written down as text"),
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
