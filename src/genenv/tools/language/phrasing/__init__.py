"""Wordings that a model writes for tools: asked for, read, checked by code and by a round trip, and kept."""
