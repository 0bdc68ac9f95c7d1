"""The command in a reply."""

from __future__ import annotations

import re

_MOST_CHARS = 4_000
"""Of a reply that is read; commands have less than 80."""
_LABELS = re.compile(r"^(?:[\s>*`\"']|\d+[.)]|(?:next )?(?:action|command)\s*:)+", re.IGNORECASE)
_MARKS = " \t\"'`*.!"


def read_command(reply: str) -> str:
    """The command of a reply: its first line with a word, without what people put around one.

    That is a label or two (`>`, `Action:`, `1.`), marks of quotation and emphasis, and a sign at the end.
    """
    for line in reply[:_MOST_CHARS].splitlines():
        command = _LABELS.sub("", line).strip(_MARKS).lower()
        if re.search("[a-z]", command) and not line.lstrip().startswith("```"):
            return command
    return ""
