"""Evaluate any model on the held-out tasks of an environment, before and after training."""

from genenv.evaluation.held_out.benchmark import HeldOut, HeldOutConfig

__all__ = ["HeldOut", "HeldOutConfig"]
