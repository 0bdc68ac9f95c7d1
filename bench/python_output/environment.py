"""The environment: a session as the interpreter shows it, and the question what its last line prints.

The ground truth is what Python prints, not what anybody wrote. Base data and held-out tasks are doctests of
the standard library, numpy, networkx, scipy and sympy (`collect`). A simulator may write any session, or set
the parameters from which `grammar` draws one.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, cast

from pydantic import BaseModel, Field

from genenv import (
    Lineage,
    Message,
    Origin,
    Profile,
    Rejection,
    RejectReason,
    Seed,
    Task,
    UsageError,
    Verdict,
)
from genenv.environments.base import Options
from genenv.environments.common import QuestionEnvironment, asked_for, held_out_tasks, once, seeds_of
from genenv.settings import Settings
from genenv.types import JsonObject
from python_output.collect import Doctest
from python_output.edits import edited
from python_output.grammar import DEEPEST, KINDS, LARGEST, Kind, expression
from python_output.sandbox import Sandbox
from python_output.shape import (
    LIBRARIES,
    MOST_CHARS,
    is_given_away,
    is_short,
    operations,
    session,
    shape_fault,
    skills_of,
)

SHOWN = (
    ("x = [3, 1, 2]\nsorted(x)", "[1, 2, 3]"),
    ("'a'.upper()", "'A'"),
    ("import numpy as np\nnp.array([1, 2]) + 1", "array([2, 3])"),
    ("from sympy.abc import x\nx + x", "2*x"),
    ("import math\nmath.gcd(12, 18)", "6"),
)
"""Sessions and what they print, shown before each task; without them a small chat model explains the code."""
_TRIES = 20
_GUESSES = ("0", "1", "2", "[]", "[1, 2, 3]", "'a'", "x", "1.0", "(1, 2)", "{}")


class PythonOutputConfig(Settings, frozen=True):
    """Settings of the environment."""

    doctests: str = "runs/doctests.json"
    """The file that `python -m python_output.collect FILE` wrote."""
    seeds: int = Field(default=544, ge=1, le=10_000)
    """Number of doctests in the base data, balanced over packages; the paper has 544 seeds."""
    shown: int = Field(default=len(SHOWN), ge=0, le=len(SHOWN))
    """Number of sessions with what they print before each task; an agent with a warm-up needs none."""
    held_out: int = Field(default=500, ge=1, le=10_000)
    """Number of held-out doctests, of other functions than the base data."""


class Session(BaseModel, frozen=True, extra="forbid"):
    """What the simulator writes."""

    code: str = Field(min_length=1, max_length=MOST_CHARS)
    """Up to five lines of Python. The last one is an expression; the others print nothing."""


class SessionParameters(BaseModel, frozen=True, extra="forbid"):
    """The parameters of a session of the grammar."""

    depth: int = Field(ge=1, le=DEEPEST)
    size: int = Field(ge=1, le=LARGEST)
    kind: Kind


class PythonOutput(QuestionEnvironment):
    """Sessions of Python whose output is to be predicted."""

    name: ClassVar[str] = "python_output"
    spec: ClassVar[type[BaseModel]] = Session
    config: ClassVar[type[BaseModel]] = PythonOutputConfig
    parameters: ClassVar[type[BaseModel]] = SessionParameters
    edits: ClassVar[bool] = True
    job: ClassVar[str] = (
        "Write a short Python session as JSON. Its last line is an expression with a short value, which a "
        "reader is asked for."
    )

    def __init__(self, settings: PythonOutputConfig | None = None) -> None:
        self.settings: PythonOutputConfig = settings or PythonOutputConfig()

    @functools.cached_property
    def _doctests(self) -> list[Doctest]:
        path = Path(self.settings.doctests)
        if not path.is_file():
            raise UsageError(f"there is no {path}; write it with: python -m python_output.collect {path}")
        found = [Doctest(**one) for one in json.loads(path.read_text(encoding="utf-8"))["doctests"]]
        return [one for one in found if not is_given_away(one.code, one.value)]

    @functools.cached_property
    def _sandbox(self) -> Sandbox:
        return Sandbox(LIBRARIES, {one.code: one.value for one in self._doctests})

    @functools.cached_property
    def _halves(self) -> tuple[list[Doctest], list[Doctest]]:
        """The doctests for training and for evaluation. All doctests of one function are in one half."""
        halves: tuple[list[Doctest], list[Doctest]] = ([], [])
        for one in self._doctests:
            halves[_digest(one.place) % 2].append(one)
        return halves

    @functools.cached_property
    def _base(self) -> list[Doctest]:
        return _balanced(self._halves[0], self.settings.seeds)

    @functools.cached_property
    def _reserved(self) -> frozenset[str]:
        return frozenset(one.code for one in self._halves[1])

    @once
    def seeds(self) -> Sequence[Seed]:
        """Return doctests of the training half."""
        values = {one.code: one.value for one in self._base}
        specs = [(f"seed-{i:04d}", Session(code=one.code)) for i, one in enumerate(self._base)]
        return seeds_of(self, specs, lambda spec: skills_of(spec.code, values[spec.code]))

    @once
    def held_out(self) -> Sequence[Task]:
        """Return doctests of functions that the training half does not have."""
        chosen = _balanced(self._halves[1], self.settings.held_out)
        return held_out_tasks(
            self, [(f"held-out-{i:04d}", Session(code=one.code)) for i, one in enumerate(chosen)]
        )

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Return the seed with small changes, which the simulator's warm-up imitates."""
        return self.edited(seed.spec, rng)

    def edited(self, spec: JsonObject, rng: random.Random) -> JsonObject:
        """Return a session after small random changes that is a task; the same session if none of 20 is."""
        code = str(spec["code"])
        for _ in range(_TRIES):
            other = edited(code, rng)
            if other != code and not self._fault(other):
                return Session(code=other).model_dump()
        return {"code": code}

    def parameter_options(self, seed: Seed) -> Options:
        """Return all parameters; they do not depend on the seed."""
        return [
            {"depth": list(range(1, DEEPEST + 1)), "size": list(range(1, LARGEST + 1)), "kind": list(KINDS)}
        ]

    def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the prompt of a simulator that sets depth, size and kind."""
        return asked_for(f"{self.job} The agent should solve {target:.0%}.", profile, (), thing="session")

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> Session:
        """Return a random session with these parameters."""
        wanted = cast(SessionParameters, parameters)
        while shape_fault(code := expression(wanted.kind, wanted.depth, wanted.size, rng)):
            pass
        return Session(code=code)

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Execute the session; the task asks for what it prints."""
        code = cast(Session, spec).code.strip("\n")
        if lineage.origin is not Origin.HELD_OUT and code in self._reserved:
            return Rejection(RejectReason.HELD_OUT, "The session is a held-out doctest.")
        if fault := self._fault(code):
            return fault
        value = self._value(code)
        return Task(
            id=task_id,
            environment=self.name,
            skills=skills_of(code, value),
            lineage=lineage,
            messages=(*_shown(self.settings.shown), Message(role="user", content=session(code))),
            spec={"code": code},
            payload={"value": value},
            oracle=(value,),
        )

    def _value(self, code: str) -> str:
        return self._sandbox.printed(code).get("value", "").strip()

    def _fault(self, code: str) -> Rejection | None:
        """Return why a session is no task; None if it is one."""
        if fault := shape_fault(code):
            return Rejection(RejectReason.SCHEMA, f"The session cannot be used: {fault}.")
        if error := self._sandbox.printed(code).get("error"):
            return Rejection(RejectReason.EXECUTION, f"The session does not run: {error}.")
        value = self._value(code)
        if not is_short(value):
            return Rejection(RejectReason.INCONSISTENT, "What the session prints cannot be asked for.")
        if is_given_away(code, value):
            return Rejection(RejectReason.LEAK, "The last line is what it prints.")
        return None

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Grade a reply: it must be the output, except for surrounding spaces."""
        value = str(task.payload["value"])
        said = replies[0].strip() if replies else ""
        right = said == value
        explanation = f"It prints {value}." if right else f"It prints {value}, not {said[:60]!r}."
        readable = bool(said) and "\n" not in said
        return Verdict(reward=float(right), success=right, explanation=explanation, readable=readable)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """Return a value that many sessions print, but not this one."""
        value = str(task.payload["value"])
        return (rng.choice([one for one in _GUESSES if one != value]),)

    def steps(self, task: Task) -> int:
        """Return the number of calls and operations."""
        return operations(str(task.spec["code"]))

    def surface(self, task: Task) -> str:
        """Return the session, with spaces between its names and signs."""
        return " ".join(_words(str(task.spec["code"])))


def _shown(most: int) -> Iterator[Message]:
    for code, value in SHOWN[:most]:
        yield Message(role="user", content=session(code))
        yield Message(role="assistant", content=value)


def _words(code: str) -> Iterator[str]:
    word = ""
    for letter in code:
        if letter.isalnum() or letter == "_":
            word += letter
            continue
        if word:
            yield word
        word = ""
        if not letter.isspace():
            yield letter
    if word:
        yield word


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _balanced(doctests: Sequence[Doctest], most: int) -> list[Doctest]:
    """Return up to `most` doctests, equally many of each package as far as there are, in a fixed order."""
    by_package: dict[str, list[Doctest]] = {}
    for one in sorted(doctests, key=lambda one: _digest(one.code)):
        by_package.setdefault(one.package, []).append(one)
    chosen: list[Doctest] = []
    while len(chosen) < most and any(by_package.values()):
        for own in by_package.values():
            if own and len(chosen) < most:
                chosen.append(own.pop(0))
    return chosen
