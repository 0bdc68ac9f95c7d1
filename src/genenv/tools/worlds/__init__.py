"""Runtimes of tools (Python files, MCP servers, OpenAPI documents, recordings); sessions share no state."""
