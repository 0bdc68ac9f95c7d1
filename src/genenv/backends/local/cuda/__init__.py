"""What an NVIDIA GPU does faster than plain torch operations: compiled layers and kernels of its own."""
