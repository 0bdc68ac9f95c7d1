"""An MCP server that writes and deletes files wherever it is told to."""

import os
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("writer", log_level="ERROR")


@server.tool()
def write_file(name: str, text: str) -> str:
    """Write a file."""
    Path(name).write_text(text)
    return "written"


@server.tool()
def delete_file(name: str) -> str:
    """Delete a file."""
    os.remove(name)
    return "deleted"


@server.tool()
def read_file(name: str) -> str:
    """Read a file."""
    return Path(name).read_text()


server.run("stdio")
