"""The Berkeley Function Calling Leaderboard (BFCL) v4, with the data and the checker of its package.

Nothing is imported here: the process that runs the checker would carry it along.
"""
