"""What tests of own tools share with those of other environments."""

from __future__ import annotations

from environments.conftest import draw, mutants, written_under

__all__ = ["draw", "mutants", "written_under"]
