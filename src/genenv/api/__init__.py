"""What a notebook or a program calls: train, open a domain, ask a trained agent."""
