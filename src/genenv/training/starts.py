"""What a run was computed with: `starts.jsonl`, one JSON object per start.

It has the first round that the start trains, the time, the versions of genenv, Python and the libraries that
decide about digits, a digest of genenv's code, and what a server that samples said of itself. A resumed run
says what of it has changed, because later rounds are then not comparable digit by digit with earlier ones.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from genenv.config import __version__
from genenv.runs.folder import RunFolder

STARTS = "starts.jsonl"

_LIBRARIES = ("numpy", "peft", "torch", "transformers", "xgrammar")


def present() -> dict[str, str]:
    """Return the versions of genenv, Python and the installed libraries, and a digest of the code."""
    found = {"genenv": __version__, "code": _code(), "python": platform.python_version()}
    for name in _LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def note_start(folder: RunFolder, found: Mapping[str, object], *, since: int) -> Sequence[str]:
    """Add a line for this start, and return what has changed since the last one, as words.

    Args:
        folder: the run, which this process has locked.
        found: what a server that samples said of itself; empty without one.
        since: the first round that is trained now; 0 at the very start.
    """
    path, now = folder.path / STARTS, present()
    before = _last(path)
    line = {"round": since, "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", **now}
    line |= {"platform": platform.platform(), **({"server": dict(found)} if found else {})}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return [
        "the code of genenv" if name == "code" else f"{name} {now[name]} (was {before[name]})"
        for name in now
        if name in before and before[name] != now[name]
    ]


def _last(path: Path) -> Mapping[str, object]:
    """Return the last line that can be read; empty if there is none."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    for line in reversed(lines):
        with suppress(ValueError):
            found = cast(object, json.loads(line))
            if isinstance(found, dict):
                return cast(Mapping[str, object], found)
    return {}


def _code() -> str:
    """Return a digest of genenv's Python files, 12 hexadecimal digits."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
