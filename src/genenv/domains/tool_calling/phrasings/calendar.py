"""How people ask for the calendar's tools."""

from genenv.domains.tool_calling.phrasings.template import Phrases, ToolPhrases

CALENDAR: dict[str, ToolPhrases] = {
    "create_event": ToolPhrases(
        slots={"title": "event", "date": "date", "start": "time", "minutes": "minutes"},
        training=Phrases(
            explicit=(
                'Put "{title}" in my calendar on {date} at {start} for {minutes} minutes',
                (
                    'Create an event called "{title}" on {date}, starting at '
                    "{start} and lasting {minutes} minutes"
                ),
                'Schedule "{title}" for {date} at {start}',
                'Can you block {minutes} minutes in my calendar for "{title}" on {date} at {start}?',
                'Add "{title}" to my calendar: {date}, {start}, {minutes} minutes.',
            ),
            relative=(
                'Schedule "{title}" {date:rel} at {start} for {minutes:rel}',
                'Put "{title}" in my calendar for {date:day} at {start:rel}',
                'Add an event "{title}" on {date} at {start} that takes {minutes:rel}',
            ),
            indirect=(
                (
                    '"{title}" is on {date} at {start} and takes {minutes} '
                    "minutes. It is not in my calendar yet."
                ),
                'I keep forgetting "{title}". It starts at {start} on {date}, so my calendar should have it.',
            ),
            missing={
                "start": (
                    'Put "{title}" in my calendar on {date}',
                    'Schedule "{title}" on {date} for {minutes} minutes',
                ),
                "date": ('Create an event called "{title}" that starts at {start}',),
            },
        ),
        held_out=Phrases(
            explicit=(
                'Make a calendar entry "{title}" for {date}, {start}, lasting {minutes} minutes.',
                'I want "{title}" on the calendar for {date} at {start}, {minutes} minutes long.',
                'Set up an event named "{title}" on {date} that begins at {start}',
            ),
            relative=(
                'Set up "{title}" {date:rel}, beginning at {start} and running for {minutes:rel}',
                'Make a calendar entry "{title}" for {date:day}, {start:rel}.',
            ),
            indirect=(
                'We agreed on "{title}" for {date}, {start}. Please see that my calendar shows it.',
                (
                    'My calendar has nothing about "{title}" yet, which is on '
                    "{date} from {start} for {minutes} minutes."
                ),
            ),
            missing={"start": ('I want "{title}" on the calendar for {date}.',)},
        ),
    ),
    "move_event": ToolPhrases(
        slots={"title": "event", "date": "date", "start": "time"},
        training=Phrases(
            explicit=(
                'Move "{title}" to {date} at {start}',
                'Reschedule "{title}" to {start} on {date}',
                'Can you shift "{title}" to {date}, {start}?',
                'Change "{title}" in my calendar so that it starts at {start} on {date}',
            ),
            relative=(
                'Move "{title}" to {date:day} at {start}',
                'Reschedule "{title}" so that it is {date:rel} at {start:rel}',
            ),
            indirect=(
                'I cannot make "{title}" as planned, but {date} at {start} would work.',
                'The old slot for "{title}" no longer suits me. It should be on {date} at {start} instead.',
            ),
            missing={
                "start": ('Move "{title}" to another time on {date}',),
                "title": ("Move my event to {date} at {start}",),
            },
        ),
        held_out=Phrases(
            explicit=(
                'Push "{title}" to {start} on {date}',
                'Please have "{title}" take place on {date} at {start} instead.',
                'Give "{title}" a new slot: {date}, {start}.',
            ),
            relative=(
                'Push "{title}" back to {date:day} at {start}',
                'Give "{title}" its new slot {date:rel} at {start:rel}',
            ),
            indirect=(
                'Everybody can come to "{title}" on {date} at {start}, so the current slot has to go.',
                '"{title}" clashes with something else; {start} on {date} would be better for it.',
            ),
            missing={"date": ('Push "{title}" to {start} on a different day',)},
        ),
    ),
    "cancel_event": ToolPhrases(
        slots={"title": "event"},
        training=Phrases(
            explicit=(
                'Cancel "{title}"',
                'Take "{title}" off my calendar',
                'Please call off "{title}".',
                'Remove the event "{title}" from my calendar',
            ),
            indirect=(
                '"{title}" is not going to happen after all.',
                'I will not need "{title}" in my calendar any more.',
            ),
            missing={
                "title": ("Cancel an event for me", "Something in my calendar has to go. Please cancel it.")
            },
        ),
        held_out=Phrases(
            explicit=(
                'Delete the calendar entry "{title}"',
                'Scrap the event "{title}"',
                'Could you drop "{title}" from the calendar?',
            ),
            indirect=(
                'The others have bowed out of "{title}", so that event is dead.',
                'There is no longer any point in keeping "{title}" on my calendar.',
            ),
            missing={"title": ("Drop that event from the calendar",)},
        ),
    ),
    "list_events": ToolPhrases(
        slots={"date": "date"},
        training=Phrases(
            explicit=(
                "Show me my events on {date}",
                "What is in my calendar on {date}?",
                "List everything I have planned for {date}",
                "Which appointments do I have on {date}?",
            ),
            relative=(
                "What is in my calendar {date:rel}?",
                "Show me my events for {date:day}",
            ),
            indirect=(
                "I wonder how busy {date} is going to be for me.",
                "I can't remember what I agreed to do on {date}.",
            ),
            missing={"date": ("Show me my events for that day", "What do I have planned on that day?")},
        ),
        held_out=Phrases(
            explicit=(
                "Read me my schedule for {date}",
                "Tell me which events are on my calendar for {date}",
                "Do I have any appointments on {date}?",
            ),
            relative=(
                "Read me my schedule for {date:day}",
                "Am I doing anything {date:rel}, according to my calendar?",
            ),
            indirect=(
                "Before I promise anybody {date}, I should know what is already booked.",
                "I have lost track of my plans for {date}.",
            ),
            missing={"date": ("Read me my schedule for the day we talked about",)},
        ),
    ),
    "find_free_slot": ToolPhrases(
        slots={"date": "date", "minutes": "minutes"},
        training=Phrases(
            explicit=(
                "Find me a free slot of {minutes} minutes on {date}",
                "When do I have {minutes} free minutes on {date}?",
                "Look for a gap of {minutes} minutes in my calendar on {date}",
                "On {date}, where could a {minutes} minute meeting fit?",
            ),
            relative=(
                "Find me a free slot of {minutes:rel} on {date}",
                "When am I free for {minutes} minutes {date:rel}?",
            ),
            indirect=(
                "I have to squeeze in something of {minutes} minutes on {date}, but I don't know when.",
                "It would help to know when on {date} I have {minutes} minutes to myself.",
            ),
            missing={
                "minutes": ("Find me a free slot on {date}",),
                "date": ("Look for a free slot of {minutes} minutes in my calendar",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Check where {minutes} minutes are still open in my calendar on {date}",
                "Is there an opening of {minutes} minutes on {date}?",
                "Search {date} for an unbooked stretch of {minutes} minutes",
            ),
            relative=(
                "Check where {minutes:rel} would still fit on {date}",
                "Is there an opening of {minutes} minutes in my calendar {date:rel}?",
            ),
            indirect=(
                "A visitor wants {minutes} minutes of my time on {date}; I wonder when that is possible.",
                "I have no idea when I could take {minutes} minutes off on {date}.",
            ),
            missing={"minutes": ("Check where there is still an opening in my calendar on {date}",)},
        ),
    ),
}
