"""Text in, text out: OpenAI-compatible endpoints."""
