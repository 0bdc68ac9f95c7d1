"""A policy acts in an environment."""
