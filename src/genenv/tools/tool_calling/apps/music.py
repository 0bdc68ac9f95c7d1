"""Music: a player with playlists, a volume and a sleep timer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from genenv.tools.tool_calling.apps.common import existing, named, require
from genenv.tools.tool_calling.apps.kinds import Found, State, Text


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
