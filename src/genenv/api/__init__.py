"""What a notebook or a program calls: train, open an environment, ask a trained agent."""
