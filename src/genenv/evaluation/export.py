"""Answers as the files that the authors' own scorers read: `genenv eval ... --export FOLDER`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from genenv.config import version
from genenv.errors import UsageError
from genenv.evaluation.base import Answered, Benchmark, Exports
from genenv.evaluation.records import FAILED
from genenv.files import check_writable, write_whole

MANIFEST = "genenv-export.json"
"""In the folder: whose answers it holds. Nothing is written among files that something else made."""


class Export:
    """A folder of exported answers of one policy."""

    def __init__(self, folder: Path, policy: str) -> None:
        """Choose a folder: a new or empty one, or that of an earlier export of the same policy.

        Args:
            folder: where to.
            policy: as `--policy` names it.

        Raises:
            UsageError: it is a file, or holds other things.
        """
        self.folder, self._policy = folder, policy
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file; give --export a folder")
        manifest = folder / MANIFEST
        if manifest.is_file():
            theirs = _policy_in(manifest)
            if theirs != policy:
                raise UsageError(f"{folder} holds an export of {theirs}; give --export another folder")
        elif folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder} holds other files; give --export a new folder")
        check_writable(folder, "--export")

    def write(self, benchmark: Benchmark, answered: Sequence[Answered], name: str) -> list[Path]:
        """Write a benchmark's files in place of those of an earlier export.

        Args:
            benchmark: with its own `export`, or there is nothing to write.
            answered: its items and what became of them; those that failed are left out.
            name: the policy's name, fit for a file.

        Returns:
            The files.
        """
        if not isinstance(benchmark, Exports):
            return []
        asked = [(item, record) for item, record in answered if record.status != FAILED]
        files = benchmark.export(asked, name)
        if not files:
            return []
        self.folder.mkdir(parents=True, exist_ok=True)
        manifest = {"genenv": version.__version__, "policy": self._policy}
        write_whole(self.folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        written: list[Path] = []
        for relative, text in files.items():
            path = self.folder / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
            written.append(path)
        return written


def _policy_in(manifest: Path) -> str:
    try:
        found = json.loads(manifest.read_text(encoding="utf-8"))
        return str(found["policy"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UsageError(f"{manifest} is damaged; give --export another folder") from error
