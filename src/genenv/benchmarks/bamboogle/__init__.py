"""Bamboogle (Press et al. 2022, arXiv:2210.03350): 125 two-hop questions."""

from genenv.benchmarks.bamboogle.benchmark import Bamboogle, BamboogleConfig

__all__ = ["Bamboogle", "BamboogleConfig"]
