"""Advantages, losses, update batches, and the loop that applies a batch. Independent of any model."""
