"""Your own tools as an environment: calls are executed and end states compared, without an LLM judge."""
