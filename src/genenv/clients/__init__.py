"""Clients of OpenAI-compatible endpoints."""
