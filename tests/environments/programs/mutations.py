"""Valid programs made wrong; the gate must refuse each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from genenv.types import JsonObject, Task


def mutants(spec: Task | JsonObject, rng: random.Random) -> Iterator[tuple[str, JsonObject]]:
    """(kind, spec) for a right spec, in a random order of kinds."""
    right: dict[str, Any] = dict(spec.spec if isinstance(spec, Task) else spec)
    text, _, ops = str(right["p"]).partition(">")
    held_out = str(7 * rng.randint(10 ** (len(text) - 1) // 7 + 1, (10 ** len(text) - 1) // 7))
    made = [
        ("another depth", {**right, "d": right["d"] % 3 + 1}),
        ("another length", {**right, "n": (right["n"] - 1) % 4 + 2}),
        ("a text for measuring", {**right, "p": f"{held_out}>{ops}"}),
        ("no end", {**right, "d": right["d"], "p": f"{text}>{ops[:-1]}r"}),
        ("an end in the middle", {**right, "d": 2, "p": f"{text}>{ops[-1]}l"}),
        ("an unknown operation", {**right, "d": 2, "p": f"{text}>x{ops[-1]}"}),
        ("no digits", {**right, "p": f"{'a' * len(text)}>{ops}"}),
        ("no text", {**right, "p": f">{ops}"}),
        ("too long a program", {**right, "d": 4, "p": f"{text}>rru{ops[-1]}"}),
        ("something beside it", {**right, "answer": "1"}),
    ]
    yield from rng.sample(made, len(made))
