"""Tool calling: an executable toolbox, and tasks that are checked by running them."""
