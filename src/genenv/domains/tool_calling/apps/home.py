"""Home: heating, lights, doors, alarms and a vacuum robot."""

from __future__ import annotations

import random
from datetime import date as Day
from typing import Annotated, Literal, get_args

from genenv.domains.tool_calling.apps.common import require
from genenv.domains.tool_calling.apps.kit import Between, Result, State, Text, Time, tool

Room = Literal["kitchen", "bedroom", "bathroom", "living room", "office"]
Door = Literal["front", "back", "garage"]

_ROOMS: tuple[Room, ...] = get_args(Room)
_DOORS: tuple[Door, ...] = get_args(Door)
_COLDEST, _WARMEST = 5, 35


def initial(rng: random.Random, today: Day) -> State:
    """A house with every setting somewhere."""
    return {
        "celsius": {room: rng.randrange(34, 46) / 2 for room in _ROOMS},
        "lights": {room: rng.random() < 0.5 for room in _ROOMS},
        "locked": {door: rng.random() < 0.5 for door in _DOORS},
        "alarms": [{"time": "06:45", "label": "Wake up"}],
        "vacuum_queue": [],
    }


def _temperature_differs(state: State, rng: random.Random, room: str, celsius: float) -> None:
    """The room is not yet set to that temperature."""
    if state["celsius"][room] == celsius:
        state["celsius"][room] = 18.0 if celsius > 20 else 22.0


def _light_differs(state: State, rng: random.Random, room: str, on: bool) -> None:
    """The light is not yet as asked for."""
    state["lights"][room] = not on


def _lock_differs(state: State, rng: random.Random, door: str, locked: bool) -> None:
    """The door is not yet as asked for."""
    state["locked"][door] = not locked


@tool("home", writes=True, arrange=_temperature_differs)
def set_temperature(
    state: State, room: Room, celsius: Annotated[float, Between(_COLDEST, _WARMEST)]
) -> Result:
    """Set the heating of a room.

    Args:
        state: the app's state.
        room: which room.
        celsius: temperature, 5 to 35.
    """
    require(_COLDEST <= celsius <= _WARMEST, "The temperature must be between 5 and 35 degrees.")
    state["celsius"][room] = celsius
    return {"room": room, "celsius": celsius}


@tool("home", writes=True, arrange=_light_differs)
def switch_light(state: State, room: Room, on: bool) -> Result:
    """Switch a light on or off.

    Args:
        state: the app's state.
        room: which room.
        on: true for on, false for off.
    """
    state["lights"][room] = on
    return {"room": room, "on": on}


@tool("home", writes=True, arrange=_lock_differs)
def lock_door(state: State, door: Door, locked: bool) -> Result:
    """Lock or unlock a door.

    Args:
        state: the app's state.
        door: which door.
        locked: true to lock, false to unlock.
    """
    state["locked"][door] = locked
    return {"door": door, "locked": locked}


@tool("home", writes=True)
def set_alarm(state: State, time: Time, label: Text) -> Result:
    """Set an alarm.

    Args:
        state: the app's state.
        time: when it rings.
        label: what it is for.
    """
    state["alarms"].append({"time": time, "label": label})
    return {"time": time, "label": label}


@tool("home", writes=True)
def start_vacuum(state: State, room: Room) -> Result:
    """Send the vacuum robot to a room.

    Args:
        state: the app's state.
        room: which room; after the rooms it was sent to before.
    """
    state["vacuum_queue"].append(room)
    return {"room": room, "position": len(state["vacuum_queue"])}
