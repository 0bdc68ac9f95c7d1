"""A trained agent out of a run, in the forms that other programs load."""
