"""Which tasks are wanted: the reward of the simulator, the agent's profile, and what comes back."""
