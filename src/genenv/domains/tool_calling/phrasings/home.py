"""How people ask for the tools of their home."""

from genenv.domains.tool_calling.phrasings.template import Phrases, Template, ToolPhrases

_ON, _OFF = {"on": True}, {"on": False}
_LOCKED, _UNLOCKED = {"locked": True}, {"locked": False}

HOME: dict[str, ToolPhrases] = {
    "set_temperature": ToolPhrases(
        slots={"room": "room", "celsius": "celsius"},
        training=Phrases(
            explicit=(
                "Set the {room} to {celsius} degrees",
                "Set the heating in the {room} to {celsius} degrees",
                "Make it {celsius} degrees in the {room}",
                "Can you change the temperature in the {room} to {celsius} degrees?",
            ),
            indirect=(
                "I'm freezing in the {room}, {celsius} degrees would be nice.",
                "The {room} would be just right at {celsius} degrees.",
            ),
            missing={
                "celsius": (
                    "Change the temperature in the {room}",
                    "Set the heating in the {room} to a nicer temperature",
                ),
                "room": ("Set the heating to {celsius} degrees",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Adjust the {room} thermostat to {celsius} degrees",
                "Bring the {room} to {celsius} degrees",
                "Have the {room} heated to {celsius} degrees",
            ),
            indirect=(
                "I would be comfortable in the {room} if it had {celsius} degrees.",
                "The {room} does not feel right to me; it needs {celsius} degrees.",
            ),
            missing={"celsius": ("Adjust the {room} thermostat",)},
        ),
    ),
    "switch_light": ToolPhrases(
        slots={"room": "room", "on": "flag"},
        training=Phrases(
            explicit=(
                Template("Turn on the light in the {room}", _ON),
                Template("Turn off the light in the {room}", _OFF),
                Template("Switch the {room} light on", _ON),
                Template("Switch the {room} light off", _OFF),
                Template("Can you turn the light in the {room} off?", _OFF),
            ),
            indirect=(
                Template("It's too dark in the {room} to find anything.", _ON),
                Template("The light in the {room} is still burning, and nobody is there.", _OFF),
                Template("I could do with some light in the {room}.", _ON),
            ),
            missing={
                "room": (
                    Template("Turn on the light", _ON),
                    Template("Switch the light off in that room", _OFF),
                ),
            },
        ),
        held_out=Phrases(
            explicit=(
                Template("Put the {room} light on", _ON),
                Template("Have the light in the {room} switched off", _OFF),
                Template("Flip the light in the {room} on", _ON),
                Template("Could you get the {room} light turned off?", _OFF),
            ),
            indirect=(
                Template("I can't see a thing in the {room}.", _ON),
                Template("We are wasting electricity: the light in the {room} shines on empty chairs.", _OFF),
            ),
            missing={"room": (Template("Flip the light on", _ON),)},
        ),
    ),
    "lock_door": ToolPhrases(
        slots={"door": "door", "locked": "flag"},
        training=Phrases(
            explicit=(
                Template("Lock the {door} door", _LOCKED),
                Template("Unlock the {door} door", _UNLOCKED),
                Template("Please lock the {door} door for me.", _LOCKED),
                Template("Can you unlock the {door} door?", _UNLOCKED),
                Template("Make sure that the {door} door is locked", _LOCKED),
            ),
            indirect=(
                Template("I left and nobody locked the {door} door.", _LOCKED),
                Template("A friend is standing at the {door} door; please let her in.", _UNLOCKED),
                Template("I won't sleep well unless the {door} door is secure.", _LOCKED),
            ),
            missing={
                "door": (
                    Template("Lock the door", _LOCKED),
                    Template("Unlock the door for my guests", _UNLOCKED),
                ),
            },
        ),
        held_out=Phrases(
            explicit=(
                Template("See to it that the {door} door gets locked", _LOCKED),
                Template("Have the {door} door unlocked", _UNLOCKED),
                Template("The {door} door needs locking, please.", _LOCKED),
            ),
            indirect=(
                Template("I'm afraid burglars could walk straight through the {door} door.", _LOCKED),
                Template(
                    "My parents are waiting at the {door} door without a key; let them in, please.", _UNLOCKED
                ),
            ),
            missing={"door": (Template("See to it that the door gets locked", _LOCKED),)},
        ),
    ),
    "set_alarm": ToolPhrases(
        slots={"time": "alarm_time", "label": "label"},
        training=Phrases(
            explicit=(
                'Set an alarm for {time} with the label "{label}"',
                'Set an alarm at {time} called "{label}"',
                'Can you set my alarm to {time} and label it "{label}"?',
                'Make an alarm that rings at {time}, labeled "{label}"',
            ),
            relative=(
                'Set an alarm for {time:rel} with the label "{label}"',
                'Make an alarm labeled "{label}" that rings at {time:rel}',
            ),
            indirect=(
                'I must not miss {time}. Something should ring then and show "{label}".',
                'My phone should ring at {time} and say "{label}".',
            ),
            missing={
                "time": ('Set an alarm with the label "{label}"', 'Make an alarm labeled "{label}"'),
                "label": ("Set an alarm for {time} and give it a label",),
            },
        ),
        held_out=Phrases(
            explicit=(
                'Have an alarm go off at {time} under the name "{label}"',
                'Program an alarm for {time}; it should be labeled "{label}"',
                'I need an alarm at {time} that displays "{label}".',
            ),
            relative=(
                'Have an alarm go off at {time:rel} under the name "{label}"',
                'I need an alarm at {time:rel} that displays "{label}".',
            ),
            indirect=(
                'Come {time}, something loud should remind me: "{label}".',
                'I tend to doze off. At {time} I want to be woken by the words "{label}".',
            ),
            missing={"time": ('Program an alarm labeled "{label}"',)},
        ),
    ),
    "start_vacuum": ToolPhrases(
        slots={"room": "room"},
        training=Phrases(
            explicit=(
                "Vacuum the {room}",
                "Send the vacuum robot to the {room}",
                "Start the vacuum in the {room}",
                "Can you have the robot vacuum the {room}?",
            ),
            indirect=(
                "There are crumbs all over the floor of the {room}.",
                "The floor in the {room} is full of dust.",
            ),
            missing={"room": ("Start the vacuum robot", "Send the vacuum robot to the dirty room")},
        ),
        held_out=Phrases(
            explicit=(
                "Get the robot to clean the {room} floor",
                "Let the vacuum robot do the {room}",
                "Would you have the {room} vacuumed?",
            ),
            indirect=(
                "The cat has shed its fur all over the {room} carpet.",
                "I spilled cereal in the {room} and my robot has nothing to do.",
            ),
            missing={"room": ("Get the robot to clean the floor",)},
        ),
    ),
}
