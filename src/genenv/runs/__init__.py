"""A run on the disk: its folder, store, checkpoints and metrics, and what is told of it."""
