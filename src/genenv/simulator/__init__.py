"""The simulator: sources of tasks, from a model that is trained on their rewards to fixed files."""
