"""Sampling and learning on a CUDA device: kernels, captured steps, keys and values in pages."""
