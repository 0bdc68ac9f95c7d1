"""Reads benchmark files in the folder `GENENV_DATA`, checks their hashes, and reports damaged lines.

`hashes.json` holds the SHA-256 of the files that this version was tested with. A file that differs is
refused, unless changed data is allowed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar, cast

from genenv.errors import DataError, UsageError

ENVIRONMENT = "GENENV_DATA"
_WHERE = "docs/guides/evaluation.md says where the benchmark's files come from"
_T = TypeVar("_T")


class DataFolder:
    """The benchmarks' files in one folder; `hashes` collects the SHA-256 of every file that was read."""

    def __init__(
        self, root: Path | None, *, known: Mapping[str, str] | None = None, allow_changed: bool = False
    ) -> None:
        """Set the folder; no file is read yet.

        Args:
            root: the folder; if it is None, reading a file fails.
            known: the expected SHA-256 by relative path; default: `hashes.json`.
            allow_changed: accept files whose hash differs.
        """
        self._root = root
        self.hashes: dict[str, str] = {}
        self._known = known_hashes() if known is None else known
        self.allow_changed = allow_changed

    @classmethod
    def from_environment(cls, folder: Path | None = None, *, allow_changed: bool = False) -> DataFolder:
        """Return the data in the given folder, or else in `GENENV_DATA`, or else without a folder.

        Raises:
            UsageError: there is no such folder.
        """
        named = os.environ.get(ENVIRONMENT)
        root = folder or (Path(named) if named else None)
        if root is not None and not root.is_dir():
            raise UsageError(f"there is no folder {root}: set {ENVIRONMENT} to the benchmarks' data")
        return cls(root, allow_changed=allow_changed)

    @property
    def root(self) -> Path:
        """Return the folder.

        Raises:
            UsageError: no folder was given.
        """
        if self._root is None:
            raise UsageError(f"the benchmark's data is wanted: set {ENVIRONMENT} to its folder; {_WHERE}")
        return self._root

    def fresh(self) -> DataFolder:
        """Return the same folder with an empty collection of hashes."""
        return DataFolder(self._root, known=self._known, allow_changed=self.allow_changed)

    def elsewhere(self, root: Path) -> DataFolder:
        """Return another folder, such as a package's data, that collects hashes in the same dict."""
        other = DataFolder(root, known=self._known, allow_changed=self.allow_changed)
        other.hashes = self.hashes
        return other

    def path(self, name: str) -> Path:
        """Return a file's path.

        Raises:
            DataError: the file does not exist.
        """
        path = self.root / name
        if not path.is_file():
            raise DataError(f"{path} is missing; {_WHERE}")
        return path

    def files(self, folder: str, pattern: str) -> list[str]:
        """Return the sorted relative names of the files in a folder that match a pattern.

        Raises:
            DataError: no file matches, or a known file is missing.
        """
        found = sorted(path.relative_to(self.root).as_posix() for path in (self.root / folder).glob(pattern))
        if not found:
            raise DataError(f"{self.root / folder} holds no {pattern}; {_WHERE}")
        known = {n for n in self._known if n.startswith(f"{folder}/") and PurePosixPath(n).match(pattern)}
        if (lost := sorted(known.difference(found))) and not self.allow_changed:
            sentence = (
                f"lacks {len(lost)} of {len(known)} files, {lost[0].removeprefix(folder + '/')} for one"
            )
            raise DataError(
                f"{self.root / folder} {sentence}; fetch it again, or allow it with --changed-data"
            )
        return found

    def read(self, name: str) -> str:
        """Return a file's text, after checking and recording its hash.

        Raises:
            DataError: the file is missing, changed, or not UTF-8.
        """
        path = self.path(name)
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        expected = self._known.get(name)
        if expected is not None and digest != expected and not self.allow_changed:
            raise DataError(
                f"{path} is not the file that this benchmark is known by (SHA-256 {digest[:12]}…, expected "
                f"{expected[:12]}…); fetch it again, or allow it with --changed-data"
            )
        self.hashes[name] = digest
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise DataError(f"{path}, line {line}: it is not UTF-8; fetch the file again") from error

    def json(self, name: str) -> Any:  # noqa: ANN401
        """Return the JSON value in a file.

        Raises:
            DataError: as for `read`, or the file is not JSON; the message names the line.
        """
        text = self.read(name)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            place = f"{self.root / name}, line {getattr(error, 'lineno', 1)}"
            raise DataError(f"{place}: it is not JSON; fetch the file again") from error

    def entries(self, name: str, read: Callable[[int, Any], _T]) -> list[_T]:
        """Apply `read` to the index and value of each entry of a file that is one JSON list.

        Raises:
            DataError: as for `json`, or the value is not a list, or an entry is malformed; the message names
                the entry.
        """
        value = self.json(name)
        return [
            self.reading(name, f"entry {place}", lambda place=place, entry=entry: read(place, entry))
            for place, entry in enumerate(self.reading(name, "at its top", lambda: a_list(value)))
        ]

    def each_line(self, name: str, read: Callable[[dict[str, Any]], _T]) -> Iterator[_T]:
        """Apply `read` to each object of a JSONL file, and yield the results.

        Raises:
            DataError: as for `json_lines`, or an object is malformed; the message names its line.
        """
        for number, entry in self.json_lines(name):
            yield self.reading(name, f"line {number}", lambda entry=entry: read(entry))

    def json_lines(self, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the line numbers and objects of a JSONL file.

        Raises:
            DataError: as for `read`, or a line is not a JSON object; the message names the line.
        """
        for number, line in enumerate(self.read(name).split("\n"), start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, dict):
                raise DataError(
                    f"{self.root / name}, line {number}: it is not a JSON object; the file may be cut off, "
                    "fetch it again"
                )
            yield number, value

    def reading(self, name: str, where: object, read: Callable[[], _T]) -> _T:
        """Call `read`, which parses a part of a file, and convert its errors to one that names the place.

        Raises:
            DataError: `read` raised a lookup, type or value error.
        """
        try:
            return read()
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            place, why = f"{self.root / name}, {where}", f"{type(error).__name__}: {error}"
            raise DataError(f"{place}: it is not as expected ({why}); fetch the file again") from error


def a_list(value: Any) -> list[Any]:  # noqa: ANN401
    """Return a JSON list unchanged.

    Raises:
        TypeError: the value is not a list.
    """
    if not isinstance(value, list):
        raise TypeError("a list was expected")
    return cast("list[Any]", value)


def known_hashes() -> dict[str, str]:
    """Return the expected SHA-256 of each benchmark file, by relative path."""
    text = (resources.files("genenv.evaluation") / "hashes.json").read_text(encoding="utf-8")
    return json.loads(text)
