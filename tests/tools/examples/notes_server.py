"""An MCP server as a user would have it: notes in a folder, written with the official package."""

import json
import sys
import time
from pathlib import Path

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

folder = Path(sys.argv[1])
keeps = "--keeps" in sys.argv  # what it read at the start stays in its memory
server = MCPServer("notes", log_level="ERROR")
held = {path.stem: path.read_text() for path in sorted(folder.glob("*.md"))}


def notes():
    return held if keeps else {path.stem: path.read_text() for path in sorted(folder.glob("*.md"))}


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def read_note(title: str) -> dict[str, str]:
    """Read a note. There is more to say of it."""
    if title not in notes():
        raise ToolError(f"there is no note {title}")
    return {"title": title, "text": notes()[title]}


@server.tool()
def list_notes() -> list[str]:
    """List the titles of all notes."""
    return sorted(notes())


@server.tool(annotations=ToolAnnotations(readOnlyHint=False))
def write_note(title: str, text: str) -> str:
    """Write a note."""
    if "/" in title:
        raise ToolError("a title holds no slash")
    (folder / f"{title}.md").write_text(text)
    held[title] = text
    return f"written to {folder / title}.md"


@server.tool(annotations=ToolAnnotations(destructiveHint=True))
def delete_note(title: str) -> str:
    """Delete a note."""
    if title not in notes():
        raise ToolError(f"there is no note {title}")
    (folder / f"{title}.md").unlink()
    held.pop(title, None)
    return "deleted"


@server.tool()
def tag_notes(tags: list[dict[str, str]]) -> str:
    """Write tags to a file of data."""
    (folder / "tags.json").write_text(json.dumps(tags))
    return json.dumps({"tags": len(tags)})


@server.tool()
def draw_note() -> Image:
    """Draw a picture."""
    return Image(data=b"abc", format="png")


@server.tool()
def wait(seconds: float) -> str:
    """Take a while."""
    time.sleep(seconds)
    return "done"


@server.tool()
def die() -> str:
    """End the process."""
    import os

    (folder / "half.md").write_text("half done")
    os._exit(3)


@server.tool()
def chatter() -> str:
    """Print to where answers go."""
    sys.stdout.write("this is no MCP\n")
    sys.stdout.flush()
    return "said"


@server.tool()
def shout() -> str:
    """Return very much."""
    return "x" * 70_000


server.run("stdio")
