"""One of the servers that sample, as a run knows it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

_REST_S = 5.0
"""A server that was lost is left alone for so long, and twice as long each time it still is."""
_LONGEST_REST_S = 60.0
_FULL_S = 0.5
"""A server that is full is left alone for so long, and twice as long each time it still is."""
_LONGEST_FULL_S = 8.0


@dataclass(slots=True)
class Server:
    """One of them."""

    address: str
    busy: int = 0
    """Requests under way."""
    rests_until: float = 0.0
    rest_s: float = _REST_S
    full_until: float = 0.0
    full_s: float = _FULL_S
    full_since: float | None = None
    """Since when it has refused requests because it is full; None: it has taken one since."""
    adapters: dict[str, Path] = field(default_factory=dict[str, Path])
    """Those that it has loaded."""
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

    def full(self, most_s: float) -> bool:
        """It is full: leave it alone for a moment; it keeps its adapters.

        Args:
            most_s: how long it may be full.

        Returns:
            Whether it has been full for no longer than that.
        """
        now = time.monotonic()
        if self.full_since is None or now > self.full_until + _LONGEST_FULL_S:  # not asked for a while
            self.full_since, self.full_s = now, _FULL_S
        if now >= self.full_until:
            self.full_until, self.full_s = now + self.full_s, min(2 * self.full_s, _LONGEST_FULL_S)
        return now - self.full_since <= most_s

    def forgot(self) -> None:
        """It was started anew: it has no adapters, and may have another model."""
        self.adapters.clear()
        self.checked = False

    def found(self) -> None:
        """It answers."""
        self.rests_until, self.rest_s = 0.0, _REST_S

    def served(self) -> None:
        """It answered a request."""
        self.found()
        self.full_until, self.full_s, self.full_since = 0.0, _FULL_S, None
