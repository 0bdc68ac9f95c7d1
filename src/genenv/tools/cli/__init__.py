"""Commands for your own tools: make an environment of them, and try a trained agent on them."""
