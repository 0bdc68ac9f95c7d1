"""Your own tools as a domain: what they do is executed, and end states are compared; no judge takes part."""
