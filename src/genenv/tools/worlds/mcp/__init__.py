"""MCP servers as worlds: a process that is spoken to over stdio, and the folder that it works in."""
