"""Household games in the form of ALFWorld: a spec becomes a game, and a planner solves it.

Not a domain that a run can name yet.
"""
