"""Faster code for CPUs than plain torch: compiled kernels and packed weights."""
