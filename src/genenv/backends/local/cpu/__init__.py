"""What a CPU does faster than torch: compiled kernels and packed weights."""
