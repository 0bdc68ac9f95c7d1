"""The built-in tool-calling environment: a bundle of tools of eleven small apps."""
