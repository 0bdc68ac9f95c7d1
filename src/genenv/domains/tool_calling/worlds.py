"""Which world a task plays in: a number derived from its id, and the day that the world's clock shows."""

from __future__ import annotations

import functools
import hashlib
from datetime import date as Day

from genenv.domains.tool_calling.toolbox import today_in


def world_seed(seed_id: str) -> int:
    """The seed of a task's world, in [0, 2**31): from the SHA-256 of the id, so equal on every machine."""
    return int.from_bytes(hashlib.sha256(seed_id.encode()).digest()) % 2**31


@functools.lru_cache(maxsize=4096)
def today_of(seed_id: str) -> Day:
    """Today, by the clock of the task's world."""
    return today_in(world_seed(seed_id))
