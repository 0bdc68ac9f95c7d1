"""All apps as one object, which begins in one of several states."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from genenv.tools.tool_calling.apps.bank import Bank
from genenv.tools.tool_calling.apps.calendar import Calendar
from genenv.tools.tool_calling.apps.contacts import Contacts
from genenv.tools.tool_calling.apps.convert import Convert
from genenv.tools.tool_calling.apps.email import Email
from genenv.tools.tool_calling.apps.files import Files
from genenv.tools.tool_calling.apps.home import Home
from genenv.tools.tool_calling.apps.music import Music
from genenv.tools.tool_calling.apps.notes import Notes
from genenv.tools.tool_calling.apps.shop import Shop
from genenv.tools.tool_calling.apps.trips import Trips

_STATES = Path(__file__).parents[1] / "bundle" / "files" / "states.jsonl"


@functools.cache
def _states() -> tuple[str, ...]:
    """The states there are, as JSON: what each app holds, and the day that is today."""
    return tuple(_STATES.read_text(encoding="utf-8").splitlines())


class Apps(Trips, Shop, Notes, Music, Home, Files, Email, Convert, Contacts, Calendar, Bank):
    """A day in somebody's life: a phone with eleven apps."""

    def begin(self, state: int) -> None:
        """Start in one of the states there are.

        Args:
            state: its number.
        """
        vars(self).update(json.loads(_states()[state]))
