"""Rollouts: runs the agent policy in episodes of an environment and records the traces."""
