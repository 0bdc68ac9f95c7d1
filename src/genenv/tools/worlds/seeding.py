"""Random draws of Python tools, seeded before each call from the call itself.

A tool that draws an id (`uuid.uuid4()`, `random.randint(1000, 9999)`, `secrets.token_hex(4)`) answers the
same call with the same id in every session, so that a task can name what an earlier call has made. What a
call draws depends on its tool, its arguments, and how often it was made before, and on no other call: the
order of calls, and calls that fail, change nothing. So it is for generators that exist when the tools are
loaded, such as `random.Random(42)` and `numpy.random.default_rng()`. What a generator draws that a call makes
and keeps depends on that call too. Clocks are left alone.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import random
import sys
import uuid
from collections import Counter
from typing import Any, cast

_draw = random.Random(0)
"""What stands for the system's randomness."""
_MOST_LISTED = 50_000
"""Objects that are looked through before each call; if there are more, they are not looked through again."""
_kept: dict[int, tuple[Any, str]] = {}
"""Generators that are objects, by id, each with the state in which it was first seen."""


def take_over() -> None:
    """Let all that this process draws depend on `reseed`: the system's random bytes, and unseeded generators.

    It must come before tools are imported, as they may keep the functions that it replaces. Generators of
    libraries in C other than NumPy's, and child processes, are left alone.
    """
    own_seed = random.Random.seed

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:  # noqa: ANN401 - as the library's
        own_seed(self, _drawn(32) if a is None else a, version)

    cast(Any, os).urandom = _drawn
    cast(Any, random)._urandom = _drawn  # of SystemRandom, and so of `secrets` and of NumPy's generators
    cast(Any, random.Random).seed = seed
    for version in (1, 6, 7):  # they have the time in them
        if hasattr(uuid, f"uuid{version}"):
            setattr(uuid, f"uuid{version}", _without_time(version))
    reseed("")


def reseed(text: str) -> None:
    """Let what is drawn next depend on a text alone, and of a generator that is an object on how it began."""
    _keep()
    for kind in _kinds():  # generators of bits first, as a RandomState has one of them
        for one, began in [*_kept.values()]:
            if isinstance(one, kind):
                with contextlib.suppress(Exception):
                    _seed(one, _number(f"{text} {began}"))
    number = _number(text)
    _draw.seed(number)
    random.seed(number)
    if "numpy.random" in sys.modules:
        with contextlib.suppress(Exception):  # a module of the user's own of that name
            sys.modules["numpy.random"].seed(number % 2**32)


def position() -> tuple[object, ...]:
    """Return how far the generators are; it differs once something was drawn."""
    return tuple(_state(one)[-1:] for one, _ in _kept.values())


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest(), "big")


def _kinds() -> list[Any]:
    """The classes of generators: those of Python, and of NumPy if it is loaded."""
    own = sys.modules.get("numpy.random")
    names = "BitGenerator", "RandomState"
    return [random.Random, *(getattr(own, name) for name in names if hasattr(own, name))]


def _keep() -> None:
    """Keep the generators that were made since the last time."""
    kinds = tuple(_kinds())
    listed = gc.get_objects()
    for one in listed:
        if issubclass(type(one), kinds) and id(one) not in _kept:
            _kept[id(one)] = one, repr(_state(one))
    if len(listed) > _MOST_LISTED:
        gc.freeze()


def _state(one: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a generator
    """The state of a generator; its last part differs once something was drawn."""
    with contextlib.suppress(Exception):  # a class of somebody's that begins none
        if isinstance(one, random.Random):
            return random.Random.getstate(one)[1]
        return (_plain(one.state if hasattr(one, "state") else one.get_state()),)
    return ()


def _plain(state: Any) -> object:  # noqa: ANN401 - of a generator of NumPy
    if isinstance(state, dict):
        state = [*cast("dict[str, object]", state).values()]
    if isinstance(state, list | tuple):
        return tuple(map(_plain, cast("list[object]", state)))
    return state.tobytes() if hasattr(state, "tobytes") else state


def _seed(one: Any, number: int) -> None:  # noqa: ANN401 - a generator
    if isinstance(one, random.Random):
        random.Random.seed(one, number)
    elif hasattr(one, "seed"):
        one.seed(number % 2**32)
    else:
        one.state = type(one)(number).state


class Calls:
    """Seeds the calls of a session."""

    def __init__(self) -> None:
        self._made: Counter[str] = Counter()
        self._begun: tuple[object, ...] = ()

    def begin(self, call: str) -> None:
        """Seed what a call will draw.

        Args:
            call: its tool and all of its arguments, defaults too, as text.
        """
        reseed(f"{self._made[call]} {call}")
        self._begun = position()

    def succeeded(self, call: str) -> bool:
        """Note that a call had a result, so that the same call draws something else next time.

        Returns:
            Whether the call drew something.
        """
        self._made[call] += 1
        return position() != self._begun


def _drawn(size: int) -> bytes:
    return _draw.randbytes(size)


def _without_time(version: int) -> Any:  # noqa: ANN401 - a function of `uuid`
    def made(*_: object, **__: object) -> uuid.UUID:
        return uuid.UUID(int=uuid.UUID(bytes=_drawn(16)).int, version=version)

    return made
