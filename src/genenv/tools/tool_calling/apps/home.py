"""Home: heating, lights, doors, alarms and a vacuum robot."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from genenv.tools.tool_calling.apps.common import keep
from genenv.tools.tool_calling.apps.kinds import Found, State, Text, Time

Room = Literal["kitchen", "bedroom", "bathroom", "living room", "office"]
Door = Literal["front", "back", "garage"]

_COLDEST, _WARMEST = 5, 35


class Home:
    """Home: heating, lights, doors, alarms and a vacuum robot."""

    home: State

    def set_temperature(
        self, room: Room, celsius: Annotated[float, Field(ge=_COLDEST, le=_WARMEST)]
    ) -> Found:
        """Set the heating of a room.

        Args:
            room: which room.
            celsius: temperature, 5 to 35.
        """
        self.home["celsius"][room] = celsius
        return {"room": room, "celsius": celsius}

    def switch_light(self, room: Room, on: bool) -> Found:
        """Switch a light on or off.

        Args:
            room: which room.
            on: true for on, false for off.
        """
        self.home["lights"][room] = on
        return {"room": room, "on": on}

    def lock_door(self, door: Door, locked: bool) -> Found:
        """Lock or unlock a door.

        Args:
            door: which door.
            locked: true to lock, false to unlock.
        """
        self.home["locked"][door] = locked
        return {"door": door, "locked": locked}

    def set_alarm(self, time: Time, label: Text) -> Found:
        """Set an alarm.

        Args:
            time: when it rings.
            label: what it is for.
        """
        keep(self.home["alarms"], {"time": time, "label": label})
        return {"time": time, "label": label}

    def start_vacuum(self, room: Room) -> Found:
        """Send the vacuum robot to a room.

        Args:
            room: which room; after the rooms it was sent to before.
        """
        self.home["vacuum_queue"].append(room)
        return {"room": room, "position": len(self.home["vacuum_queue"])}
