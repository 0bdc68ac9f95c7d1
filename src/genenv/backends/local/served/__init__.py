"""One base model on this machine that serves many clients; each trains and samples with its own adapter."""
