"""Bounded processing of untrusted input: documents, regular expressions, JSON schemas."""
