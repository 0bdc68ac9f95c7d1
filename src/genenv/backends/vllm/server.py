"""One of the servers that sample, as a run knows it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

_REST_S = 5.0
"""A server that was lost is left alone for so long, and twice as long each time it still is."""
_LONGEST_REST_S = 60.0


@dataclass(slots=True)
class Server:
    """One of them."""

    address: str
    busy: int = 0
    """Requests under way."""
    rests_until: float = 0.0
    rest_s: float = _REST_S
    adapters: dict[str, Path] = field(default_factory=dict[str, Path])
    """Those that it was told of."""
    named: bool = True
    """Whether settings or the folder of addresses still name it; else its requests are asked elsewhere."""
    checked: bool = False
    """Whether it was found to sample from the weights here, since it was started as far as is known."""
    excluded: str = ""
    """Why nothing more is asked of it; empty while it takes part."""

    def lost(self) -> None:
        """It did not answer: it may have been started anew when it does, and know nothing."""
        self.rests_until, self.rest_s = time.monotonic() + self.rest_s, min(2 * self.rest_s, _LONGEST_REST_S)
        self.forgot()

    def forgot(self) -> None:
        """It was started anew: it has no adapters, and may have another model."""
        self.adapters.clear()
        self.checked = False

    def found(self) -> None:
        """It answers."""
        self.rests_until, self.rest_s = 0.0, _REST_S
