"""API-Bank (Li et al. 2023, arXiv:2304.08244), in ToolRL's form and in its authors' form."""

from genenv.benchmarks.api_bank.benchmark import ApiBank, ApiBankConfig

__all__ = ["ApiBank", "ApiBankConfig"]
