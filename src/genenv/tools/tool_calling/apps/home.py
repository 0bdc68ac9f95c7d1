"""Apps at home: devices, music, files, and conversions of units, money and dates."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date as Day
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field

from genenv.tools.tool_calling.apps.common import (
    Date,
    Found,
    State,
    Text,
    Time,
    existing,
    keep,
    named,
    require,
)

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


class Music:
    """Music: a player with playlists, a volume and a sleep timer."""

    music: State

    def play_song(self, title: Text, artist: Text) -> Found:
        """Play a song.

        Args:
            title: title of the song.
            artist: who performs it.
        """
        song = {"title": title, "artist": artist}
        self.music["playing"] = song
        self.music["played"].append(dict(song))
        return {"playing": title, "artist": artist}

    def create_playlist(self, name: Text) -> Found:
        """Create a playlist.

        Args:
            name: name of the playlist.
        """
        require(named(self.music["playlists"], name) is None, f"There is already a playlist called {name!r}.")
        self.music["playlists"][name] = []
        return {"name": name, "songs": 0}

    def add_to_playlist(self, playlist: Text, song: Text) -> Found:
        """Add a song to a playlist.

        Args:
            playlist: name of the playlist.
            song: title of the song.
        """
        known = existing(self.music["playlists"], playlist, "playlist")
        self.music["playlists"][known].append(song)
        return {"playlist": known, "songs": len(self.music["playlists"][known])}

    def set_volume(self, level: Annotated[int, Field(ge=0, le=100)]) -> Found:
        """Set the volume.

        Args:
            level: 0 to 100.
        """
        self.music["volume"] = level
        return {"volume": level}

    def sleep_timer(self, minutes: Annotated[int, Field(ge=1, le=720)]) -> Found:
        """Stop the music after some minutes.

        Args:
            minutes: 1 to 720.
        """
        self.music["sleep_minutes"] = minutes
        return {"minutes": minutes}


def _clean(path: str) -> str:
    """Return a path without a leading or doubled slash; `/docs/a.txt` and `docs/a.txt` are the same file."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    require(".." not in parts, "A path must not contain '..'.")
    return "/".join(parts)


def _file_path(path: str) -> str:
    clean = _clean(path)
    require(bool(clean) and not path.endswith("/"), f"{path!r} is not the path of a file.")
    return clean


def _inside(files: dict[str, str], folder: str) -> list[str]:
    """Return the paths of all files in a folder, at any depth; the empty folder is the root."""
    return sorted(path for path in files if not folder or path.startswith(f"{folder}/"))


def _put(files: dict[str, str], path: str, content: str) -> None:
    """Add a file if nothing is in the way.

    Raises:
        ValueError: the path is taken by a file or a folder, or goes through a file.
    """
    require(path not in files, f"There is already a file {path!r}.")
    require(not _inside(files, path), f"{path!r} is a folder.")
    for parent in map(str, reversed(PurePosixPath(path).parents)):
        require(parent not in files, f"{parent!r} is a file, not a folder.")
    files[path] = content


def _goal(files: dict[str, str], source: str, destination: str) -> str:
    """Return the target of a move: in the destination if that is a folder, else the destination path."""
    clean = _clean(destination)
    if destination.endswith("/") or not clean or _inside(files, clean):
        return _clean(f"{clean}/{source.rpartition('/')[2]}")
    return clean


def _content(state: State, path: str) -> str:
    content = state["files"].get(path)
    if content is None:
        raise ValueError(f"There is no file {path!r}.")
    return content


class Files:
    """Files: a tree of text files, stored as path -> content. A folder exists if there are files in it."""

    files: State

    def create_file(self, path: Text, content: Text) -> Found:
        """Create a file.

        Args:
            path: where, e.g. docs/plan.txt.
            content: what it contains.
        """
        clean = _file_path(path)
        _put(self.files["files"], clean, content)
        return {"path": clean, "status": "created"}

    def move_file(self, source: Text, destination: Text) -> Found:
        """Move or rename a file.

        Args:
            source: path of the file.
            destination: new path, or the folder to move it into.
        """
        clean = _file_path(source)
        content = _content(self.files, clean)
        goal = _goal(self.files["files"], clean, destination)
        require(goal != clean, "Source and destination are the same.")
        others = {path: text for path, text in self.files["files"].items() if path != clean}
        _put(others, goal, content)
        self.files["files"] = others
        return {"path": goal, "status": "moved"}

    def delete_file(self, path: Text) -> Found:
        """Delete a file.

        Args:
            path: path of the file.
        """
        clean = _file_path(path)
        _content(self.files, clean)
        del self.files["files"][clean]
        return {"path": clean, "status": "deleted"}

    def list_files(self, folder: Text) -> Found:
        """List the files in a folder.

        Args:
            folder: path of the folder; / for all files.
        """
        paths = _inside(self.files["files"], _clean(folder))
        require(bool(paths), f"There is no folder {folder!r}.")
        return {"path": paths[0], "files": list(paths)}

    def read_file(self, path: Text) -> Found:
        """Read a file.

        Args:
            path: path of the file.
        """
        return {"content": _content(self.files, _file_path(path))}


Unit = Literal[
    "m", "km", "cm", "mi", "ft", "in", "kg", "g", "lb", "oz", "l", "ml", "cup", "gal", "celsius", "fahrenheit"
]
Currency = Literal["USD", "EUR", "GBP", "JPY", "CHF", "CAD", "INR"]

_SIZES: Mapping[str, tuple[str, float]] = {
    "m": ("length", 1.0),
    "km": ("length", 1000.0),
    "cm": ("length", 0.01),
    "mi": ("length", 1609.344),
    "ft": ("length", 0.3048),
    "in": ("length", 0.0254),
    "kg": ("mass", 1.0),
    "g": ("mass", 0.001),
    "lb": ("mass", 0.45359237),
    "oz": ("mass", 0.028349523125),
    "l": ("volume", 1.0),
    "ml": ("volume", 0.001),
    "cup": ("volume", 0.2365882365),
    "gal": ("volume", 3.785411784),
    "celsius": ("temperature", 1.0),
    "fahrenheit": ("temperature", 5 / 9),
}
"""By unit: the measured quantity, and the size in base units (m, kg, l, celsius)."""
_FREEZING: Mapping[str, float] = {"celsius": 0.0, "fahrenheit": 32.0}
_ABSOLUTE_ZERO_CELSIUS = -273.15
_PER_DOLLAR: Mapping[str, float] = {
    "USD": 1.0,
    "EUR": 0.92,
    "GBP": 0.79,
    "JPY": 150.0,
    "CHF": 0.88,
    "CAD": 1.36,
    "INR": 83.0,
}
_FIRST_DAY, _LAST_DAY = Day(1900, 1, 1).toordinal(), Day(2100, 12, 31).toordinal()


class Convert:
    """Convert: pure arithmetic on units, money and dates; no state."""

    convert: State

    def convert_units(self, value: float, from_unit: Unit, to_unit: Unit) -> Found:
        """Convert a measurement to another unit.

        Args:
            value: the number to convert.
            from_unit: unit of the number.
            to_unit: unit of the answer, of the same kind.
        """
        (kind, size), (wanted_kind, wanted_size) = _SIZES[from_unit], _SIZES[to_unit]
        require(kind == wanted_kind, f"{from_unit} measures {kind} but {to_unit} measures {wanted_kind}.")
        base = (value - _FREEZING.get(from_unit, 0.0)) * size
        lowest = _ABSOLUTE_ZERO_CELSIUS - 1e-6 if kind == "temperature" else 0.0
        require(base >= lowest, f"There is no {kind} of {value:g} {from_unit}.")
        return {"value": round(base / wanted_size + _FREEZING.get(to_unit, 0.0), 4)}

    def convert_currency(self, amount: float, source: Currency, target: Currency) -> Found:
        """Convert money to another currency.

        Args:
            amount: how much.
            source: currency of the amount.
            target: currency of the answer.
        """
        require(amount > 0, "The amount must be more than 0.")
        require(source != target, "Source and target are the same currency.")
        return {"amount": round(amount / _PER_DOLLAR[source] * _PER_DOLLAR[target], 2)}

    def days_between(self, start: Date, end: Date) -> Found:
        """Count the days from one date to another.

        Args:
            start: first date.
            end: second date; the count is negative if it is earlier.
        """
        return {"days": Day.fromisoformat(end).toordinal() - Day.fromisoformat(start).toordinal()}

    def add_days(self, date: Date, days: int) -> Found:
        """Add days to a date.

        Args:
            date: the date to start from.
            days: how many days later; negative for earlier.
        """
        ordinal = Day.fromisoformat(date).toordinal() + days
        require(_FIRST_DAY <= ordinal <= _LAST_DAY, "The date must be between the years 1900 and 2100.")
        return {"date": Day.fromordinal(ordinal).isoformat()}

    def split_bill(self, total: float, people: int) -> Found:
        """Split a bill evenly.

        Args:
            total: the bill.
            people: how many share it.
        """
        require(total > 0, "The total must be more than 0.")
        require(people >= 1, "At least one person must pay.")
        return {"share": round(total / people, 2)}

    def percent_of(self, percent: float, value: float) -> Found:
        """Compute a percentage of a value, to two decimals.

        Args:
            percent: the percentage, e.g. 15.
            value: what it is taken of.
        """
        return {"result": round(percent * value / 100, 2)}
