"""ALFWorld: household tasks in text (Shridhar et al. 2021, arXiv:2010.03768), as games or single steps."""

from genenv.benchmarks.alfworld.benchmark import AlfWorld

__all__ = ["AlfWorld"]
