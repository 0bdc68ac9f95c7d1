"""Who gets how much credit for what, and what a trainer makes of it. Nothing here knows a model."""
