"""What every process that holds tools gets: a place for its folder, and an environment without secrets."""

from __future__ import annotations

import os
from pathlib import Path

_IN_MEMORY = "/dev/shm"  # noqa: S108 - a folder of its own is made there
_SMALL = 8 << 20
"""Bytes of a folder that is put there."""


def place_for(folder: Path) -> str | None:
    """In memory where that is possible: tools that write files would wait for a disk. None: where usual."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return _IN_MEMORY if size < _SMALL and os.access(_IN_MEMORY, os.W_OK) else None


def environment() -> dict[str, str]:
    """What the tools' process is told: where Python finds modules, and no secrets."""
    kept = ("PATH", "LANG", "LC_ALL", "HOME", "VIRTUAL_ENV", "SYSTEMROOT", "TZ")
    own = str(Path(__file__).parents[3])
    paths = [own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
    }
