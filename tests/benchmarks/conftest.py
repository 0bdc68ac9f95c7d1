"""What tests of benchmarks share with those of the evaluation."""

from __future__ import annotations

from evaluation.conftest import data_folder, scripted, whose

__all__ = ["data_folder", "scripted", "whose"]
