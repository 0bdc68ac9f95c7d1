"""The Berkeley Function Calling Leaderboard (BFCL) v4, with the data and the checker of its package.

This module imports nothing, since the process that runs the checker imports it.
"""
