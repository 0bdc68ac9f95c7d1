"""Calendar: events with a title, a day, a start and a length. A title stands for its earliest event."""

from __future__ import annotations

import json
from datetime import date as Day
from typing import Annotated, Any

from pydantic import Field

from genenv.tools.tool_calling.apps.common import MINUTES_PER_DAY, keep, minutes_of, require, time_of
from genenv.tools.tool_calling.apps.kinds import Date, Found, State, Text, Time

_OPENS, _CLOSES = minutes_of("08:00"), minutes_of("20:00")


def _earliest(state: State, title: str) -> dict[str, Any] | None:
    """The first event of that title, whatever its case."""
    same = [event for event in state["events"] if event["title"].casefold() == title.casefold()]
    return min(same, key=lambda event: (event["date"], event["start"], event["minutes"]), default=None)


def _event(state: State, title: str) -> dict[str, Any]:
    event = _earliest(state, title)
    if event is None:
        raise ValueError(f"There is no event called {title!r}.")
    return event


def _span(event: dict[str, Any], date: str) -> tuple[int, int]:
    """Start and end of an event in minutes after the midnight that begins `date`."""
    days = Day.fromisoformat(event["date"]).toordinal() - Day.fromisoformat(date).toordinal()
    start = days * MINUTES_PER_DAY + minutes_of(event["start"])
    return start, start + event["minutes"]


def _free_start(state: State, date: str, minutes: int) -> int | None:
    """The first minute of the day, in opening hours, from which that many minutes are free."""
    free = _OPENS
    for start, end in sorted(_span(event, date) for event in state["events"]):
        if end <= free:
            continue
        if start - free >= minutes:
            break
        free = end
    return free if free + minutes <= _CLOSES else None


class Calendar:
    """Calendar: events with a title, a day, a start and a length. A title stands for its earliest event."""

    calendar: State

    def create_event(
        self,
        title: Text,
        date: Date,
        start: Time,
        minutes: Annotated[int, Field(ge=1, le=MINUTES_PER_DAY)] = 60,
    ) -> Found:
        """Create an event.

        Args:
            title: title of the event.
            date: day of the event.
            start: when it starts.
            minutes: how long it takes, 1 to 1440.
        """
        keep(self.calendar["events"], {"title": title, "date": date, "start": start, "minutes": minutes})
        return {"title": title, "date": date, "start": start, "end": time_of(minutes_of(start) + minutes)}

    def move_event(self, title: Text, date: Date, start: Time) -> Found:
        """Move an event.

        Args:
            title: title of the event.
            date: new day.
            start: new start.
        """
        event = _event(self.calendar, title)
        event |= {"date": date, "start": start}
        self.calendar["events"].sort(key=json.dumps)
        return {"title": event["title"], "date": date, "start": start}

    def cancel_event(self, title: Text) -> Found:
        """Cancel an event.

        Args:
            title: title of the event.
        """
        event = _event(self.calendar, title)
        self.calendar["events"].remove(event)
        return {"title": event["title"], "date": event["date"], "status": "cancelled"}

    def list_events(self, date: Date) -> Found:
        """List the events of a day.

        Args:
            date: which day.
        """
        events = sorted(
            (
                {key: event[key] for key in ("title", "start", "minutes")}
                for event in self.calendar["events"]
                if event["date"] == date
            ),
            key=lambda event: (event["start"], event["title"], event["minutes"]),
        )
        require(bool(events), f"There are no events on {date}.")
        return {"title": events[0]["title"], "start": events[0]["start"], "events": events}

    def find_free_slot(self, date: Date, minutes: Annotated[int, Field(ge=1, le=_CLOSES - _OPENS)]) -> Found:
        """Find the first free time between 08:00 and 20:00.

        Args:
            date: which day.
            minutes: how long it must be, 1 to 720.
        """
        require(1 <= minutes <= _CLOSES - _OPENS, "A slot takes between 1 and 720 minutes.")
        start = _free_start(self.calendar, date, minutes)
        if start is None:
            raise ValueError(f"There is no free slot of {minutes} minutes on {date}.")
        return {"start": time_of(start), "end": time_of(start + minutes)}
