"""Simulated learners, and sweeps over settings and seeds with their statistics."""
