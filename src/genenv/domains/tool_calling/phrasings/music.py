"""How people ask for the tools of their music player."""

from genenv.domains.tool_calling.phrasings.template import Phrases, ToolPhrases

MUSIC: dict[str, ToolPhrases] = {
    "play_song": ToolPhrases(
        slots={"title artist": "song"},
        training=Phrases(
            explicit=(
                'Play "{title}" by {artist}',
                'Put on "{title}" by {artist}',
                'Can you play the song "{title}" from {artist}?',
                'Start the song "{title}" by {artist}',
            ),
            indirect=(
                'I am in the mood for "{title}" by {artist}.',
                'I would love to hear {artist} with "{title}".',
            ),
            missing={
                "title": ("Play a song by {artist}", "Put on some song by {artist}"),
                "artist": ('Play "{title}" by that singer I like',),
            },
        ),
        held_out=Phrases(
            explicit=(
                'Let me hear "{title}" performed by {artist}',
                'Queue up {artist} and their song "{title}" right away',
                'Would you play me {artist}, the song "{title}"?',
            ),
            indirect=(
                'It has been years since I last listened to "{title}" by {artist}.',
                'This silence calls for "{title}" by {artist}.',
            ),
            missing={"title": ("Let me hear a song performed by {artist}",)},
        ),
    ),
    "create_playlist": ToolPhrases(
        slots={"name": "playlist"},
        training=Phrases(
            explicit=(
                'Create a playlist called "{name}"',
                'Make a new playlist named "{name}"',
                'Start a playlist with the name "{name}"',
                'Can you set up a playlist "{name}"?',
            ),
            indirect=(
                'I want to collect songs in a playlist "{name}", which I don\'t have yet.',
                'My music could do with a new playlist. "{name}" would be a good name.',
            ),
            missing={"name": ("Create a new playlist and name it", "Make a playlist for me")},
        ),
        held_out=Phrases(
            explicit=(
                'Open up a fresh playlist, "{name}"',
                'Add an empty playlist to my music and call it "{name}"',
                'Please give me a new playlist with the title "{name}".',
            ),
            indirect=(
                'All my playlists sound the same. A new one named "{name}" would be a change.',
                'The songs I am about to gather need a new home: a playlist titled "{name}".',
            ),
            missing={"name": ("Open up a fresh playlist",)},
        ),
    ),
    "add_to_playlist": ToolPhrases(
        slots={"playlist": "playlist", "song": "song_title"},
        training=Phrases(
            explicit=(
                'Add "{song}" to the playlist "{playlist}"',
                'Put the song "{song}" on my playlist "{playlist}"',
                'Can you add "{song}" to my "{playlist}" playlist?',
                'Include "{song}" in the playlist "{playlist}"',
            ),
            indirect=(
                'My playlist "{playlist}" is missing the song "{song}".',
                'The song "{song}" would fit well into my playlist "{playlist}".',
            ),
            missing={
                "song": (
                    'Add a song to the playlist "{playlist}"',
                    'Put another song on my playlist "{playlist}"',
                ),
                "playlist": ('Add the song "{song}" to a playlist',),
            },
        ),
        held_out=Phrases(
            explicit=(
                'Extend my playlist "{playlist}" with "{song}"',
                'Save the track "{song}" to my playlist "{playlist}"',
                'Could "{song}" go onto my playlist "{playlist}"?',
            ),
            indirect=(
                'Whenever I listen to the playlist "{playlist}", I miss the track "{song}".',
                'The track "{song}" deserves a place on my playlist "{playlist}".',
            ),
            missing={"song": ('Extend my playlist "{playlist}" with another track',)},
        ),
    ),
    "set_volume": ToolPhrases(
        slots={"level": "level"},
        training=Phrases(
            explicit=(
                "Set the volume to {level}",
                "Change the volume to {level} percent",
                "Put the music at volume {level}",
                "Can you set the volume of the music to {level}?",
            ),
            relative=(
                "Set the volume to {level:rel} percent",
                "Put the music at volume {level:rel}",
            ),
            indirect=(
                "The music is not right for me like this; a volume of {level} would be better.",
                "I can only work when the music plays at volume {level}.",
            ),
            missing={"level": ("Change the volume of the music", "Set the music to a different volume")},
        ),
        held_out=Phrases(
            explicit=(
                "Adjust the loudness of the music to {level} percent",
                "Bring the volume to level {level}",
                "Please have the speakers play at volume {level}.",
            ),
            relative=(
                "Bring the volume to level {level:rel}",
                "Adjust the loudness of the music to {level:rel} percent",
            ),
            indirect=(
                "My ears would thank you for a music volume of {level}.",
                "The neighbors and I agreed on volume {level}, and the speakers do not stick to it.",
            ),
            missing={"level": ("Adjust the loudness of the music",)},
        ),
    ),
    "sleep_timer": ToolPhrases(
        slots={"minutes": "minutes"},
        training=Phrases(
            explicit=(
                "Set a sleep timer for {minutes} minutes",
                "Stop the music after {minutes} minutes",
                "Let the music run for {minutes} more minutes and then stop it",
                "Can you set the sleep timer to {minutes} minutes?",
            ),
            relative=(
                "Set a sleep timer for {minutes:rel}",
                "Stop the music after {minutes:rel}",
            ),
            indirect=(
                "I will be asleep in {minutes} minutes, and the music should not play on after that.",
                "I like to doze off to music, but {minutes} minutes of it are enough.",
            ),
            missing={"minutes": ("Set a sleep timer for the music", "Stop the music after a while")},
        ),
        held_out=Phrases(
            explicit=(
                "Have the music end by itself in {minutes} minutes",
                "Start the sleep timer with {minutes} minutes on it",
                "Could the music switch itself off after {minutes} minutes?",
            ),
            relative=(
                "Start the sleep timer with {minutes:rel} on it",
                "Have the music end by itself after {minutes:rel}",
            ),
            indirect=(
                "The music may lull me to sleep, but after {minutes} minutes it has to be quiet.",
                "I want to drift off to these songs without them playing longer than {minutes} minutes.",
            ),
            missing={"minutes": ("Start the sleep timer",)},
        ),
    ),
}
