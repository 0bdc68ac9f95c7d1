"""The settings of a run: sections joined into one configuration, TOML files, overrides and variants."""

__version__ = "0.1.0"
"""The version of genenv."""
