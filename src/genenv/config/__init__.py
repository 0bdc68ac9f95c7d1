"""The settings of a run: sections joined into one configuration, TOML files, overrides and variants."""

from __future__ import annotations

__version__ = "0.1.0"
"""The version of genenv; the package is built with it."""
