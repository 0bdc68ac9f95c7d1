"""Conversion between messages and tokens: chat templates, tool calls in a model's format, thoughts."""
