"""The backend `tinker`: a Tinker server samples and trains both policies; the training loop runs locally."""
