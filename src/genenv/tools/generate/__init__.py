"""Draw tasks for tools: typed programs of calls, and the folder that holds them."""
