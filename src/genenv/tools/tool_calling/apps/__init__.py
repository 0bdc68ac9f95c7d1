"""Eleven small apps in plain Python: each is a class whose methods are tools."""
