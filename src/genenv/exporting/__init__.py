"""Export of a trained agent from a run: a folder with weights and instructions to serve it."""
