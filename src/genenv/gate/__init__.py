"""The gate: code, not a model, decides which generations are tasks."""
