"""Music: a player with playlists, a volume and a sleep timer."""

from __future__ import annotations

import random
from datetime import date as Day
from typing import Annotated

from genenv.domains.tool_calling.apps.common import existing, named, require
from genenv.domains.tool_calling.apps.kit import Between, Name, Result, State, tool

_PLAYLISTS = ("Morning run", "Focus", "Sunday brunch", "Road trip", "Dinner jazz")
_SONGS = ("Golden Hour", "Paper Boats", "Northern Lights", "Slow River", "City Rain", "Wildflowers")


def initial(rng: random.Random, today: Day) -> State:
    """A silent player with three playlists."""
    return {
        "playing": None,
        "played": [],
        "playlists": {name: rng.sample(_SONGS, 2) for name in rng.sample(_PLAYLISTS, 3)},
        "volume": rng.randrange(2, 9) * 10,
        "sleep_minutes": 0,
    }


def _playlist_exists(state: State, rng: random.Random, playlist: str, **_: object) -> None:
    """The playlist exists."""
    if named(state["playlists"], playlist) is None:
        state["playlists"][playlist] = rng.sample(_SONGS, 2)


def _volume_differs(state: State, rng: random.Random, level: int) -> None:
    """The volume is not yet at that level."""
    if state["volume"] == level:
        state["volume"] = 30 if level > 50 else 70


def _timer_differs(state: State, rng: random.Random, minutes: int) -> None:
    """The sleep timer is not yet set to that."""
    if state["sleep_minutes"] == minutes:
        state["sleep_minutes"] = 0


@tool("music", writes=True)
def play_song(state: State, title: Name, artist: Name) -> Result:
    """Play a song.

    Args:
        state: the app's state.
        title: title of the song.
        artist: who performs it.
    """
    song = {"title": title, "artist": artist}
    state["playing"] = song
    state["played"].append(dict(song))
    return {"playing": title, "artist": artist}


@tool("music", writes=True, returns=("name",))
def create_playlist(state: State, name: Name) -> Result:
    """Create a playlist.

    Args:
        state: the app's state.
        name: name of the playlist.
    """
    require(named(state["playlists"], name) is None, f"There is already a playlist called {name!r}.")
    state["playlists"][name] = []
    return {"name": name, "songs": 0}


@tool("music", writes=True, arrange=_playlist_exists, returns=("playlist",))
def add_to_playlist(state: State, playlist: Name, song: Name) -> Result:
    """Add a song to a playlist.

    Args:
        state: the app's state.
        playlist: name of the playlist.
        song: title of the song.
    """
    known = existing(state["playlists"], playlist, "playlist")
    state["playlists"][known].append(song)
    return {"playlist": known, "songs": len(state["playlists"][known])}


@tool("music", writes=True, arrange=_volume_differs)
def set_volume(state: State, level: Annotated[int, Between(0, 100)]) -> Result:
    """Set the volume.

    Args:
        state: the app's state.
        level: 0 to 100.
    """
    require(0 <= level <= 100, "The volume must be between 0 and 100.")
    state["volume"] = level
    return {"volume": level}


@tool("music", writes=True, arrange=_timer_differs)
def sleep_timer(state: State, minutes: Annotated[int, Between(1, 720)]) -> Result:
    """Stop the music after some minutes.

    Args:
        state: the app's state.
        minutes: 1 to 720.
    """
    require(1 <= minutes <= 720, "The timer takes between 1 and 720 minutes.")
    state["sleep_minutes"] = minutes
    return {"minutes": minutes}
