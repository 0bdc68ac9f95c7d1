"""Commands for tools of your own: make an environment of them, and ask a trained agent."""
