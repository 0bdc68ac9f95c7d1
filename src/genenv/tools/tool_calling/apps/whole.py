"""All apps as one object, which starts in one of several states."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from genenv.tools.tool_calling.apps.home import Convert, Files, Home, Music
from genenv.tools.tool_calling.apps.money import Bank, Shop, Trips
from genenv.tools.tool_calling.apps.office import Calendar, Contacts, Email, Notes

_STATES = Path(__file__).parents[1] / "bundle" / "files" / "states.jsonl"


@functools.cache
def _states() -> tuple[str, ...]:
    """Return the initial states as JSON: the content of each app, and the current date."""
    return tuple(_STATES.read_text(encoding="utf-8").splitlines())


class Apps(Trips, Shop, Notes, Music, Home, Files, Email, Convert, Contacts, Calendar, Bank):
    """A day in somebody's life: a phone with eleven apps."""

    def begin(self, state: int) -> None:
        """Start in one of the states there are.

        Args:
            state: its number.
        """
        vars(self).update(json.loads(_states()[state]))
