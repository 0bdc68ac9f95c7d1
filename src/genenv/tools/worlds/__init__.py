"""Where tools run: Python files, MCP servers, OpenAPI documents, recordings; each session has own state."""
