"""Runs compared with runs: grids of them, and what they say together."""
