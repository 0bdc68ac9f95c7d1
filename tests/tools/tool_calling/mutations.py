"""Valid programs of the apps made wrong; the gate must refuse each."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

from genenv.types import JsonObject

Spec = dict[str, Any]


def mutants(program: BaseModel | JsonObject, rng: random.Random) -> Iterator[tuple[str, Spec]]:
    """(kind, spec) for a right program, in a random order of kinds."""
    right = program.model_dump(mode="json") if isinstance(program, BaseModel) else dict(program)
    for kind in rng.sample(list(KINDS), len(KINDS)):
        spec = copy.deepcopy(right)
        KINDS[kind](spec)
        if spec != right:
            yield kind, spec


def _args(spec: Spec) -> Spec:
    return spec["calls"][-1]["args"]


def _another_state(spec: Spec) -> None:
    spec["before"][0]["args"]["state"] = 20


def _drop(spec: Spec) -> None:
    if spec["gap"] == "none" and _args(spec):
        _args(spec).pop(next(iter(_args(spec))))


def _nobody(spec: Spec) -> None:
    for name, value in _args(spec).items():
        if name in ("email_id", "order_id", "booking_id", "flight_id"):
            _args(spec)[name] = 1 if isinstance(value, int) else "X1"


KINDS: dict[str, Callable[[Spec], None]] = {
    "another number of calls": lambda spec: spec.update(n_calls=spec["n_calls"] % 3 + 1),
    "a chain that is none": lambda spec: spec.update(chained=not spec["chained"]),
    "an answer that nobody asks for": lambda spec: spec.update(answer=True),
    "a size that no task has": lambda spec: spec.update(n_tools=16),
    "a gap that is none": lambda spec: (
        spec.update(gap="missing_info" if spec["gap"] == "none" else "none")
        if spec["gap"] != "no_tool"
        else None
    ),
    "an unknown tool": lambda spec: spec["calls"][-1].update(tool="dance"),
    "the tool that begins": lambda spec: spec["calls"].append(copy.deepcopy(spec["before"][0])),
    "an unknown argument": lambda spec: _args(spec).update(color_of_hair="red"),
    "a list for a value": lambda spec: _args(spec).update({name: ["x", 1] for name in list(_args(spec))[:1]}),
    "a value that is missing": _drop,
    "what is not there": _nobody,
    "a state for measuring": _another_state,
    "no state": lambda spec: spec.update(before=[]),
    "the same call again": lambda spec: spec["calls"].append(copy.deepcopy(spec["calls"][-1])),
    "something beside it": lambda spec: spec.update(instruction="Do it."),
}
