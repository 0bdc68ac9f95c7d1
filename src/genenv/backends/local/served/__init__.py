"""One base model on this machine for many clients: each learns an adapter of its own and samples with it."""
