"""The store of a run: a SQLite file with tasks, rollouts and metrics of every committed round."""
