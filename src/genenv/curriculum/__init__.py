"""Which tasks come next: the simulator's reward, the choice of seeds, the agent's profile, replay."""
