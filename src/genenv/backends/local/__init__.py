"""Models on this machine: loaded, sampled and trained with torch."""
