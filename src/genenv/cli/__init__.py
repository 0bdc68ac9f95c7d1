"""The command line; each command has a module."""
