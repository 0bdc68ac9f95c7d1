"""The backend `local`: models on this machine, loaded, sampled and trained with torch."""
