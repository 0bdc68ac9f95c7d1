"""Which official code a parity script ran: files with their SHA-256, and the commit that they are of.

The authors' own files are run as they are, from a package or a checkout; nothing of them is copied here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import runpy
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
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


def checked_out(repository: Path, names: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """Files of a repository's newest commit in a new folder, and which commit and SHA-256 they have.

    Args:
        repository: a clone, or the folder that git keeps, of any state of its work tree.
        names: the files, as the commit has them.
    """
    folder, sums = Path(tempfile.mkdtemp()), dict[str, str]()
    for name in names:
        content = _git_bytes(repository, "show", f"HEAD:{name}")
        if not content:
            raise SystemExit(f"{repository} is no clone with a file {name} in its newest commit")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        sums[name] = hashlib.sha256(content).hexdigest()
    return folder, {**_head(repository), "sha256": sums}


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
        **_head(repository),
        "files_of_commit": len(blobs),
        "files_equal_to_it": same,
    }


def run_file(path: Path) -> dict[str, Any]:
    """The names that an official file defines; its `__main__` part is not run."""
    return runpy.run_path(str(path), run_name="official")


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324 - git's own


def _head(repository: Path) -> dict[str, str]:
    commit, _, when = _git(repository, "log", "-1", "--format=%H %cI").partition(" ")
    return {"commit": commit, "of": when}


def _git(folder: Path, *command: str) -> str:
    return _git_bytes(folder, *command).decode().strip()


def _git_bytes(folder: Path, *command: str) -> bytes:
    asked = [shutil.which("git") or "git", "-C", str(folder), *command]
    return subprocess.run(asked, capture_output=True, check=False, timeout=60).stdout  # noqa: S603
