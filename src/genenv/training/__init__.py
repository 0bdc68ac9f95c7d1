"""The training loop: warm-up, rounds of sampling and updates, task pool, starting and resuming runs."""
