"""The command in a reply, and a command as it is compared."""

from __future__ import annotations

import re

from genenv.chat.reasoning import without_thoughts
from genenv.environments.household.engine import read_command

_MOST_CHARS = 20_000
"""Of a reply that is read, from its end."""
_MOST_COMMAND = 200
"""Characters of a command; those of the games have up to 80."""
_LABELLED = re.compile(r"[\s*_`]*(?:>|(?:next )?(?:action|command)[\s*_`]*:)[\s*_`]*[^\s*_`]", re.IGNORECASE)


def command_of(reply: str) -> str:
    """The command of a reply, in lower case; empty where it has none.

    The rule: the text of the last `<action>...</action>`, as agents trained with reinforcement learning are
    read (verl-agent). Without such a tag, and with thoughts (`<think>`, ended or not) left out, the last
    line that begins with `>`, `Action:` or `Command:`; without one, the first line with a letter. Labels,
    quotation marks, emphasis and the sign at the end of a command do not count.
    """
    text = reply[-_MOST_CHARS:].lower()
    _, tag, tagged = text.rpartition("<action>")
    if tag:
        return plain(read_command(tagged.partition("<")[0].strip("[] \n")))
    said = without_thoughts(text).partition("<think>")[0]
    labelled = [line for line in said.splitlines() if _LABELLED.match(line)]
    return plain(read_command(labelled[-1] if labelled else said))


def plain(command: object) -> str:
    """A command in lower case, with single spaces, of a bounded length; empty where it is no text."""
    if not isinstance(command, str):
        return ""
    return " ".join(command[: 2 * _MOST_COMMAND].lower().split())[:_MOST_COMMAND]
