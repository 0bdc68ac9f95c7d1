"""Explore how tools can be called: which arguments succeed, and what the calls read and change."""
