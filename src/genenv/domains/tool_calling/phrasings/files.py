"""How people ask for the tools of their files."""

from genenv.domains.tool_calling.phrasings.template import Phrases, ToolPhrases

FILES: dict[str, ToolPhrases] = {
    "create_file": ToolPhrases(
        slots={"path content": "new_file"},
        training=Phrases(
            explicit=(
                'Create the file {path} with the content "{content}"',
                'Make a new file at {path} that contains "{content}"',
                'Save the text "{content}" as {path}',
                'Can you create {path} and put "{content}" in it?',
            ),
            indirect=(
                'There should be a file {path} that reads "{content}".',
                'I need "{content}" on disk, under {path}.',
            ),
            missing={
                "content": (
                    "Create the file {path} and write the text into it",
                    "Make the file {path} with the right content",
                ),
                "path": ('Create a file that contains "{content}"',),
            },
        ),
        held_out=Phrases(
            explicit=(
                'Write "{content}" to a new file named {path}',
                'Store the line "{content}" in {path}, which does not exist yet',
                'Set up a file {path}, its content being "{content}"',
            ),
            indirect=(
                '{path} does not exist yet, and it ought to say "{content}".',
                'A colleague expects to find "{content}" in a new file called {path}.',
            ),
            missing={"path": ('Write "{content}" to a new file',)},
        ),
    ),
    "move_file": ToolPhrases(
        slots={"source destination": "move"},
        training=Phrases(
            explicit=(
                "Move {source} to {destination}",
                "Rename {source} to {destination}",
                "Please move the file {source}; its new place is {destination}.",
                "Change the path of {source} to {destination}",
            ),
            indirect=(
                "{source} is in the wrong place; it should be at {destination}.",
                "I would rather have {source} as {destination}.",
            ),
            missing={
                "destination": ("Move {source} somewhere else", "Please rename {source}."),
                "source": ("Move that file to {destination}",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Relocate {source} to {destination}",
                "Take the file {source} and put it at {destination} instead",
                "Could you turn the path {source} into {destination}?",
            ),
            indirect=(
                "From here on {source} had better live at {destination}.",
                "Nobody finds {source} where it is now. They look for it at {destination}.",
            ),
            missing={"destination": ("Relocate {source} to a better place",)},
        ),
    ),
    "delete_file": ToolPhrases(
        slots={"path": "path"},
        training=Phrases(
            explicit=(
                "Delete {path}",
                "Remove the file {path}",
                "Please delete the file at {path}.",
                "Get rid of the file {path}",
            ),
            indirect=(
                "I don't need the file {path} any more, and it only takes up space.",
                "The file {path} is useless and should be gone.",
            ),
            missing={
                "path": ("Delete a file for me", "There is a file I don't need any more. Please remove it.")
            },
        ),
        held_out=Phrases(
            explicit=(
                "Erase {path} from the disk",
                "Throw away the file {path}",
                "Would you wipe the file {path}?",
            ),
            indirect=(
                "Nobody should ever see {path} again, so that file cannot stay.",
                "The disk has no room left for {path}, and I can do without that file.",
            ),
            missing={"path": ("Erase that old file from the disk",)},
        ),
    ),
    "list_files": ToolPhrases(
        slots={"folder": "folder"},
        training=Phrases(
            explicit=(
                "List the files in the folder {folder}",
                "Which files are in {folder}?",
                "Show me what is in the folder {folder}",
                "What does the folder {folder} contain?",
            ),
            indirect=(
                "I forgot which files I put into {folder}.",
                "I wonder whether the folder {folder} holds anything useful.",
            ),
            missing={"folder": ("List the files in that folder", "Which files are in the other folder?")},
        ),
        held_out=Phrases(
            explicit=(
                "Give me a listing of the folder {folder}",
                "Name all the files stored under {folder}",
                "Could you look into the folder {folder} and tell me what files it has?",
            ),
            indirect=(
                "Before I clean up {folder}, I had better know what files lie there.",
                "It has been ages since I looked into the folder {folder}, and I can't name a thing in it.",
            ),
            missing={"folder": ("Give me a listing of the folder I mentioned",)},
        ),
    ),
    "read_file": ToolPhrases(
        slots={"path": "path"},
        training=Phrases(
            explicit=(
                "Read the file {path}",
                "Show me the content of {path}",
                "Open {path} and tell me what it says",
                "What does the file {path} say?",
            ),
            indirect=(
                "I can't remember what I wrote in {path}.",
                "I need to know what is written in the file {path}.",
            ),
            missing={"path": ("Read a file to me", "What does that file say?")},
        ),
        held_out=Phrases(
            explicit=(
                "Print out the text of {path}",
                "Let me see the text inside {path}",
                "Could you open the file {path} for me?",
            ),
            indirect=(
                "Somebody edited {path}, and I am curious how it reads.",
                "The answer must be somewhere in the text of {path}.",
            ),
            missing={"path": ("Print out the text of the file from my colleague",)},
        ),
    ),
}
