"""What an NVIDIA GPU does faster than plain torch: captured steps, compiled layers, kernels of its own."""
