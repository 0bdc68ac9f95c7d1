"""Random streams named by what they are for: a run needs no random state to be continued, only its seed."""

from __future__ import annotations

import hashlib
import random


def stream(seed: int, *names: object) -> int:
    """A 63-bit number that depends on a run's seed and the name of one use of randomness, on nothing else."""
    text = "\x1f".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: object) -> random.Random:
    """A generator for one use of randomness."""
    return random.Random(stream(seed, *names))
