"""Eleven small apps as plain Python: a class each, whose methods are tools."""
