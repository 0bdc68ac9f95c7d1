"""Rollouts: a policy acts in an environment until the episode ends."""
