"""A domain's held-out tasks: what a run measures itself on, for any model, before and after training."""

from genenv.evaluation.held_out.benchmark import HeldOut, HeldOutConfig

__all__ = ["HeldOut", "HeldOutConfig"]
