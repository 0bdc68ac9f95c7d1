"""Household text games in the style of ALFWorld."""
