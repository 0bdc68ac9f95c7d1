"""A run on disk: its folder, store, checkpoints and metrics, and the checks of whether they are intact."""
