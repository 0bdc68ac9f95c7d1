"""Random streams named by their purpose. A resumed run needs only its seed, not a saved random state."""

from __future__ import annotations

import hashlib
import random


def stream(seed: int, *names: object) -> int:
    """Return a 63-bit number that depends only on the run's seed and the names, which state the purpose."""
    text = "\x1f".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: object) -> random.Random:
    """Return a random generator for one purpose."""
    return random.Random(stream(seed, *names))
