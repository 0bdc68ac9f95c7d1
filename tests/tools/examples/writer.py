"""Tools that write, delete and signal wherever they are told to."""

import os
import tempfile
from pathlib import Path


def write_file(name: str, text: str) -> str:
    """Write a file."""
    Path(name).write_text(text)
    return "written"


def delete_file(name: str) -> str:
    """Delete a file."""
    os.remove(name)
    return "deleted"


def read_file(name: str) -> str:
    """Read a file."""
    return Path(name).read_text()


def note(text: str) -> str:
    """Write a temporary file."""
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write(text)
    return "noted"


def signal(number: int) -> str:
    """Send no signal to a process."""
    os.kill(number, 0)
    return "sent"
