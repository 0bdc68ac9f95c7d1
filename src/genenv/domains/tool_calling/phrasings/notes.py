"""How people ask for the tools of their notes and to-dos."""

from genenv.domains.tool_calling.phrasings.template import Phrases, ToolPhrases

NOTES: dict[str, ToolPhrases] = {
    "add_note": ToolPhrases(
        slots={"title": "note", "text": "note_text"},
        training=Phrases(
            explicit=(
                'Write a note titled "{title}" that says "{text}"',
                'Make a new note called "{title}" with the text "{text}"',
                'Note down "{text}" under the title "{title}"',
                'Can you create a note "{title}" that reads "{text}"?',
            ),
            indirect=(
                'I want to remember this: "{text}". A note called "{title}" would do.',
                'A new note "{title}" should tell me later: "{text}".',
            ),
            missing={
                "text": ('Write a note titled "{title}"', 'Make a new note called "{title}"'),
                "title": ('Write a new note that says "{text}" and give it a title',),
            },
        ),
        held_out=Phrases(
            explicit=(
                'Jot down "{text}" in a fresh note named "{title}"',
                'Start a note with the heading "{title}" and the words "{text}"',
                'Please keep a new note for me. Title: "{title}". Text: "{text}".',
            ),
            indirect=(
                'Before it slips my mind: "{text}". I will look for it in a note named "{title}".',
                'There is no note "{title}" yet, though "{text}" belongs in one.',
            ),
            missing={"text": ('Start a note with the heading "{title}"',)},
        ),
    ),
    "append_note": ToolPhrases(
        slots={"title": "note", "text": "note_text"},
        training=Phrases(
            explicit=(
                'Add "{text}" to my note "{title}"',
                'Append "{text}" to the note "{title}"',
                'Put "{text}" at the end of the note "{title}"',
                'Can you write "{text}" below what my note "{title}" already says?',
            ),
            indirect=(
                'My note "{title}" lacks a line: "{text}".',
                'The note "{title}" is not complete without "{text}".',
            ),
            missing={
                "text": ('Add something to my note "{title}"', 'Append a line to the note "{title}"'),
                "title": ('Add the line "{text}" to a note of mine',),
            },
        ),
        held_out=Phrases(
            explicit=(
                'Extend the note "{title}" by the line "{text}"',
                'Tack "{text}" onto my existing note "{title}"',
                'Could the note "{title}" also get the line "{text}"?',
            ),
            indirect=(
                'I forgot something when I wrote the note "{title}", namely "{text}".',
                'Whoever reads the note "{title}" should find "{text}" in it as well.',
            ),
            missing={"text": ('Extend the note "{title}" by another line',)},
        ),
    ),
    "delete_note": ToolPhrases(
        slots={"title": "note"},
        training=Phrases(
            explicit=(
                'Delete the note "{title}"',
                'Remove my note "{title}"',
                'Please throw away the note called "{title}".',
                'Get rid of the note "{title}"',
            ),
            indirect=(
                'I no longer need the note "{title}".',
                'The note "{title}" is out of date and only gets in the way.',
            ),
            missing={"title": ("Delete a note for me", "Please remove the note that I no longer need.")},
        ),
        held_out=Phrases(
            explicit=(
                'Erase the note with the title "{title}"',
                'Discard my note named "{title}"',
                'Could you bin the note "{title}"?',
            ),
            indirect=(
                'Everything in the note "{title}" is settled, so it may as well disappear.',
                'The note "{title}" has served its purpose and is just clutter.',
            ),
            missing={"title": ("Discard that outdated note",)},
        ),
    ),
    "search_notes": ToolPhrases(
        slots={"query": "note_query"},
        training=Phrases(
            explicit=(
                'Search my notes for "{query}"',
                'Find the note about "{query}"',
                'Look for "{query}" in my notes',
                'Do any of my notes mention "{query}"?',
            ),
            indirect=(
                'I know I wrote a note about "{query}", but where is it?',
                'I took notes on "{query}" and can\'t find them any more.',
            ),
            missing={"query": ("Search my notes for me", "Find a note that I wrote")},
        ),
        held_out=Phrases(
            explicit=(
                'Dig up my notes on "{query}"',
                'Go over my notes and pick out what concerns "{query}"',
                'Which of my notes deals with "{query}"?',
            ),
            indirect=(
                'Something about "{query}" is buried among my notes.',
                'I must have scribbled a note on "{query}" at some point.',
            ),
            missing={"query": ("Dig up that old note of mine",)},
        ),
    ),
    "add_todo": ToolPhrases(
        slots={"item": "todo", "due": "date"},
        training=Phrases(
            explicit=(
                'Add "{item}" to my to-do list, due {due}',
                'Put "{item}" on my to-do list with the due date {due}',
                'Create a to-do "{item}" that is due on {due}',
                'Can you add the to-do "{item}" for {due}?',
            ),
            relative=(
                'Add "{item}" to my to-do list for {due:day}',
                'Create a to-do "{item}" that is due {due:rel}',
            ),
            indirect=(
                "By {due} I have to {item}. It belongs on my to-do list.",
                "I must not forget to {item} by {due}, and my to-do list should say so.",
            ),
            missing={
                "due": (
                    'Add "{item}" to my to-do list with a due date',
                    'Create a to-do "{item}" that has a deadline',
                ),
                "item": ("Put something on my to-do list that is due on {due}",),
            },
        ),
        held_out=Phrases(
            explicit=(
                'Enter the task "{item}" in my to-dos with the deadline {due}',
                'Make "{item}" a to-do with {due} as its deadline',
                'I want "{item}" among my to-dos, to be done by {due}.',
            ),
            relative=(
                'Enter the task "{item}" in my to-dos; its deadline is {due:day}',
                'I want "{item}" among my to-dos, due {due:rel}.',
            ),
            indirect=(
                "My to-dos say nothing about it yet, but I am supposed to {item} by {due}.",
                "If it is not among my to-dos I will never {item}, and the deadline is {due}.",
            ),
            missing={"due": ('Enter the task "{item}" in my to-dos and give it a deadline',)},
        ),
    ),
    "complete_todo": ToolPhrases(
        slots={"item": "todo"},
        training=Phrases(
            explicit=(
                'Mark the to-do "{item}" as done',
                'Tick off "{item}" on my to-do list',
                'Check off my to-do "{item}"',
                'Please set the to-do "{item}" to done.',
            ),
            indirect=(
                "I finally managed to {item}, but my to-do list still shows it as open.",
                'My to-do "{item}" is finished.',
            ),
            missing={
                "item": ("Tick off a to-do", "I finished something on my to-do list. Please mark it as done.")
            },
        ),
        held_out=Phrases(
            explicit=(
                'Complete the task "{item}" in my to-dos',
                'Record the to-do "{item}" as finished',
                'Could you cross "{item}" off my to-dos?',
            ),
            indirect=(
                "It took me all day to {item}, so my to-dos should no longer nag me about it.",
                'Among my to-dos there is still "{item}", which I have already taken care of.',
            ),
            missing={"item": ("Record that task as finished in my to-dos",)},
        ),
    ),
}
