"""Advantages, losses and update batches, and how a trainer applies them. Nothing here knows a model."""
