"""Faster code for NVIDIA GPUs than plain torch: CUDA graphs, compiled layers and Triton kernels."""
