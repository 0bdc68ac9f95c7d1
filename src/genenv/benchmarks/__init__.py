"""Benchmarks of the field, scored as their authors score them."""
