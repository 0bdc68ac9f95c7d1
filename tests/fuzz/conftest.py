"""The fixture `fuzz`, and how the tests share their time."""

from __future__ import annotations

import os

import pytest

from fuzzing import Fuzz


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Fuzz:
    """Tries a reader on drawn values: a few, or for its share of GENENV_FUZZ_S seconds."""
    seconds = os.environ.get("GENENV_FUZZ_S")
    if not seconds:
        return Fuzz(None)
    sharing = [item for item in request.session.items if "fuzz" in getattr(item, "fixturenames", ())]
    first = os.environ.get("GENENV_FUZZ_SEED")
    return Fuzz(float(seconds) / max(1, len(sharing)), None if not first else int(first))
