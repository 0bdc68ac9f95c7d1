"""Turn programs into user requests: wordings of tools, and values and dates in words."""
