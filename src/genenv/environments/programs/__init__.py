"""Short programs on strings of digits."""
