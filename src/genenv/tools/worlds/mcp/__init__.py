"""MCP servers as tool environments: local servers over stdio, and remote ones over HTTP."""
