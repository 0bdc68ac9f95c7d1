"""Turn programs into user requests: wordings of tools, values and dates in words."""
