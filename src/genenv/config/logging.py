"""Settings of what a run leaves beside its own files."""

from __future__ import annotations

from pydantic import Field

from genenv.settings import Settings


class LoggingConfig(Settings, frozen=True):
    """Where metrics go besides `metrics.jsonl`, which is always written."""

    tensorboard: bool = False
    """Also write event files for TensorBoard into the run's folder (needs the package tensorboard)."""
    wandb: bool = False
    """Also log to Weights & Biases (needs the package wandb)."""
    wandb_project: str = Field(default="genenv", min_length=1)
    """Project that runs appear under in Weights & Biases."""
