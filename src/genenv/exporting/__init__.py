"""A trained agent out of a run: a folder of its own, and the words that say how to serve it."""
