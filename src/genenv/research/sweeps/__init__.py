"""Sweeps: grids of training runs over variants and seeds, and statistical comparisons of runs."""
