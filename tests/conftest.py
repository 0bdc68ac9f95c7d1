"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# Time is no property of the code: a busy machine must not fail a test.
settings.register_profile("genenv", deadline=None)
settings.load_profile("genenv")
