"""Curricula on simulated learners, and sweeps of runs over variants and seeds with their statistics."""
