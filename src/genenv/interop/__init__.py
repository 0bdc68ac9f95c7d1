"""The same tasks for other trainers: written for TRL, verifiers, OpenEnv, Gymnasium, and played there.

None of these is imported until it is used.
"""
