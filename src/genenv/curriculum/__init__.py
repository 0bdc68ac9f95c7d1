"""Chooses the next tasks: the simulator's rewards, the choice of seeds and tasks, agent profile, replay."""
