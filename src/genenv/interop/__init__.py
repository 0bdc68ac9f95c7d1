"""The same tasks for other trainers: TRL, verifiers, OpenEnv and Gymnasium.

None of these is imported until it is used.
"""
