"""The Python interface for notebooks and programs: train, open an environment, query a trained agent."""
