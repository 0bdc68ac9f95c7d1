"""Which official code a parity script ran: files with their SHA-256, and the commit that they are of.

The authors' own files are run as they are, from a package or a checkout; nothing of them is copied here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import runpy
import shutil
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

_READ = {".py", ".json", ".jsonl", ".txt", ".twl2"}


def fingerprint(files: Iterable[Path], root: Path) -> dict[str, Any]:
    """How many files, and one SHA-256 over the names and contents of all."""
    found = sorted((path.relative_to(root).as_posix(), path) for path in files)
    total = hashlib.sha256()
    for name, path in found:
        total.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return {"files": len(found), "sha256": total.hexdigest()}


def package(distribution: str, module: str, inside: str = "") -> dict[str, Any]:
    """An installed package, or a folder of it: version, and what its files are.

    Args:
        distribution: the package's name in the registry.
        module: the module to import.
        inside: the folder or file of it that was run; empty: all.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return {"package": distribution, "installed": False}
    root = Path(spec.origin).parent
    start = root / inside
    files = [path for path in ([start] if start.is_file() else start.rglob("*")) if path.suffix in _READ]
    version = metadata.version(distribution)
    return {"package": f"{distribution} {version}", "part": inside or "all", **fingerprint(files, root)}


def checkout(path: Path) -> dict[str, Any]:
    """A file or folder of a checkout: its commit where git knows it, and what its files are."""
    root = path if path.is_dir() else path.parent
    files = [each for each in ([path] if path.is_file() else path.rglob("*")) if each.suffix in _READ]
    return {"commit": _git(root, "rev-parse", "HEAD"), **fingerprint(files, root)}


def equal_to_commit(module: str, repository: Path, folder: str) -> dict[str, Any]:
    """Whether the installed files of a package are those of a repository's newest commit, byte for byte.

    Args:
        module: the module to import.
        repository: a checkout, or the folder that git keeps, of any state of its work tree.
        folder: where the package is in it.
    """
    spec = importlib.util.find_spec(module)
    root = Path(spec.origin).parent if spec and spec.origin else Path()
    tree = _git(repository, "ls-tree", "-r", "HEAD", folder).splitlines()
    blobs = {
        name.removeprefix(f"{folder}/"): kind.split()[2]
        for kind, _, name in (x.partition("\t") for x in tree)
    }
    same = sum(
        (root / name).is_file() and _blob((root / name).read_bytes()) == sha for name, sha in blobs.items()
    )
    return {
        "commit": _git(repository, "rev-parse", "HEAD"),
        "of": _git(repository, "log", "-1", "--format=%cI"),
        "files_of_commit": len(blobs),
        "files_equal_to_it": same,
    }


def run_file(path: Path) -> dict[str, Any]:
    """The names that an official file defines; its `__main__` part is not run."""
    return runpy.run_path(str(path), run_name="official")


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324 - git's own


def _git(folder: Path, *command: str) -> str:
    asked = [shutil.which("git") or "git", "-C", str(folder), *command]
    found = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    return found.stdout.strip()
