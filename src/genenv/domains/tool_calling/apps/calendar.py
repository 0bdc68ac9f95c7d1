"""Calendar: events with a title, a day, a start and a length. A title stands for its earliest event."""

from __future__ import annotations

import random
from datetime import date as Day
from typing import Annotated, Any

from genenv.domains.tool_calling.apps.common import MINUTES_PER_DAY, minutes_of, require, time_of
from genenv.domains.tool_calling.apps.kit import Between, Date, Name, Result, State, Time, ToolError, tool

_TITLES = (
    "Team meeting",
    "Dentist",
    "Yoga class",
    "Budget review",
    "Piano lesson",
    "Dinner with Sam",
    "Car service",
)
_OPENS, _CLOSES = minutes_of("08:00"), minutes_of("20:00")


def initial(rng: random.Random, today: Day) -> State:
    """Five events in the coming fortnight."""
    return {
        "events": [
            {
                "title": title,
                "date": Day.fromordinal(today.toordinal() + rng.randrange(14)).isoformat(),
                "start": time_of(rng.randrange(16, 38) * 30),
                "minutes": rng.choice((30, 45, 60, 90)),
            }
            for title in rng.sample(_TITLES, 5)
        ]
    }


def _earliest(state: State, title: str) -> dict[str, Any] | None:
    """The first event of that title, whatever its case."""
    same = [event for event in state["events"] if event["title"].casefold() == title.casefold()]
    return min(same, key=lambda event: (event["date"], event["start"], event["minutes"]), default=None)


def _event(state: State, title: str) -> dict[str, Any]:
    event = _earliest(state, title)
    if event is None:
        raise ToolError(f"There is no event called {title!r}.")
    return event


def _event_exists(state: State, rng: random.Random, title: str, date: str = "", start: str = "") -> None:
    """An event of that title exists, and not already at the time asked for."""
    event = _earliest(state, title)
    if event is None:
        days = [other["date"] for other in state["events"]] or ["2025-06-02"]
        event = {
            "title": title,
            "date": rng.choice(days),
            "start": time_of(rng.randrange(16, 38) * 30),
            "minutes": 60,
        }
        state["events"].append(event)
    if (event["date"], event["start"]) == (date, start):
        event["date"] = Day.fromordinal(Day.fromisoformat(date).toordinal() - 1).isoformat()


def _day_has_event(state: State, rng: random.Random, date: str) -> None:
    """Something happens on that day."""
    if all(event["date"] != date for event in state["events"]):
        start = time_of(rng.randrange(16, 38) * 30)
        state["events"].append({"title": rng.choice(_TITLES), "date": date, "start": start, "minutes": 60})


def _slot_is_free(state: State, rng: random.Random, date: str, minutes: int) -> None:
    """The day has room for that many minutes."""
    if _free_start(state, date, minutes) is None:
        state["events"] = [event for event in state["events"] if not _overlaps_day(event, date)]


def _span(event: dict[str, Any], date: str) -> tuple[int, int]:
    """Start and end of an event in minutes after the midnight that begins `date`."""
    days = Day.fromisoformat(event["date"]).toordinal() - Day.fromisoformat(date).toordinal()
    start = days * MINUTES_PER_DAY + minutes_of(event["start"])
    return start, start + event["minutes"]


def _overlaps_day(event: dict[str, Any], date: str) -> bool:
    start, end = _span(event, date)
    return start < MINUTES_PER_DAY and end > 0


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


@tool("calendar", writes=True, returns=("title",))
def create_event(
    state: State,
    title: Name,
    date: Date,
    start: Time,
    minutes: Annotated[int, Between(1, MINUTES_PER_DAY)] = 60,
) -> Result:
    """Create an event.

    Args:
        state: the app's state.
        title: title of the event.
        date: day of the event.
        start: when it starts.
        minutes: how long it takes, 1 to 1440.
    """
    require(1 <= minutes <= MINUTES_PER_DAY, "An event takes between 1 and 1440 minutes.")
    state["events"].append({"title": title, "date": date, "start": start, "minutes": minutes})
    return {"title": title, "date": date, "start": start, "end": time_of(minutes_of(start) + minutes)}


@tool("calendar", writes=True, arrange=_event_exists, returns=("title",))
def move_event(state: State, title: Name, date: Date, start: Time) -> Result:
    """Move an event.

    Args:
        state: the app's state.
        title: title of the event.
        date: new day.
        start: new start.
    """
    event = _event(state, title)
    event |= {"date": date, "start": start}
    return {"title": event["title"], "date": date, "start": start}


@tool("calendar", writes=True, arrange=_event_exists, returns=("title",))
def cancel_event(state: State, title: Name) -> Result:
    """Cancel an event.

    Args:
        state: the app's state.
        title: title of the event.
    """
    event = _event(state, title)
    state["events"].remove(event)
    return {"title": event["title"], "date": event["date"], "status": "cancelled"}


@tool("calendar", arrange=_day_has_event, returns=("title", "start"))
def list_events(state: State, date: Date) -> Result:
    """List the events of a day.

    Args:
        state: the app's state.
        date: which day.
    """
    events = sorted(
        (
            {key: event[key] for key in ("title", "start", "minutes")}
            for event in state["events"]
            if event["date"] == date
        ),
        key=lambda event: (event["start"], event["title"], event["minutes"]),
    )
    require(bool(events), f"There are no events on {date}.")
    return {"title": events[0]["title"], "start": events[0]["start"], "events": events}


@tool("calendar", arrange=_slot_is_free, returns=("start",))
def find_free_slot(state: State, date: Date, minutes: Annotated[int, Between(1, _CLOSES - _OPENS)]) -> Result:
    """Find the first free time between 08:00 and 20:00.

    Args:
        state: the app's state.
        date: which day.
        minutes: how long it must be, 1 to 720.
    """
    require(1 <= minutes <= _CLOSES - _OPENS, "A slot takes between 1 and 720 minutes.")
    start = _free_start(state, date, minutes)
    if start is None:
        raise ToolError(f"There is no free slot of {minutes} minutes on {date}.")
    return {"start": time_of(start), "end": time_of(start + minutes)}
