"""Sample tasks for tools as programs of calls, and write the folder that holds them."""
