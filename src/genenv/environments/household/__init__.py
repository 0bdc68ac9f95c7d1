"""Household games of ALFWorld's kind."""
