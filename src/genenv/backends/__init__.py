"""What samples and trains: a registry of backends, `local` models and `scripted` functions."""
