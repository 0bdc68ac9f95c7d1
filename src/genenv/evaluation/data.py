"""Reading benchmark files: where they are, that they are the known ones, and which line is damaged.

`GENENV_DATA` names a folder. Every file that is read is hashed; `hashes.json` holds the sums of the files
that this version knows, and a file that differs is refused unless that is allowed.
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
    """The benchmarks' files below one folder. Remembers the SHA-256 of every file it has read."""

    def __init__(
        self, root: Path | None, *, known: Mapping[str, str] | None = None, allow_changed: bool = False
    ) -> None:
        """Read below a folder.

        Args:
            root: the folder; None where nobody has named one, which matters when a file is wanted.
            known: SHA-256 by relative path; left out, those of `hashes.json`.
            allow_changed: read files that differ from the known ones too.
        """
        self._root = root
        self.hashes: dict[str, str] = {}
        self._known = known_hashes() if known is None else known
        self.allow_changed = allow_changed

    @classmethod
    def from_environment(cls, folder: Path | None = None, *, allow_changed: bool = False) -> DataFolder:
        """The folder given, or else the one that `GENENV_DATA` names, or else none.

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
        """The folder.

        Raises:
            UsageError: nobody has named one.
        """
        if self._root is None:
            raise UsageError(f"the benchmark's data is wanted: set {ENVIRONMENT} to its folder; {_WHERE}")
        return self._root

    def fresh(self) -> DataFolder:
        """The same folder, and a record of hashes of its own."""
        return DataFolder(self._root, known=self._known, allow_changed=self.allow_changed)

    def elsewhere(self, root: Path) -> DataFolder:
        """The same rules and the same record of hashes, below another folder, such as a package's data."""
        other = DataFolder(root, known=self._known, allow_changed=self.allow_changed)
        other.hashes = self.hashes
        return other

    def path(self, name: str) -> Path:
        """Where a file is.

        Raises:
            DataError: there is none.
        """
        path = self.root / name
        if not path.is_file():
            raise DataError(f"{path} is missing; {_WHERE}")
        return path

    def files(self, folder: str, pattern: str) -> list[str]:
        """Relative names of the files below a folder that match, sorted.

        Raises:
            DataError: there is none, or one of those that are known is missing.
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
        """A file's text, its hash checked and kept.

        Raises:
            DataError: it is missing, is not the known one, or is no UTF-8.
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
        """A file that is one JSON value.

        Raises:
            DataError: as `read`, or it is no JSON; names the line.
        """
        text = self.read(name)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            place = f"{self.root / name}, line {getattr(error, 'lineno', 1)}"
            raise DataError(f"{place}: it is not JSON; fetch the file again") from error

    def entries(self, name: str, read: Callable[[int, Any], _T]) -> list[_T]:
        """What `read` makes of each entry of a file that is one JSON list, given its place and itself.

        Raises:
            DataError: as `json`, or it is no list, or an entry is not as expected; names it.
        """
        value = self.json(name)
        return [
            self.reading(name, f"entry {place}", lambda place=place, entry=entry: read(place, entry))
            for place, entry in enumerate(self.reading(name, "at its top", lambda: a_list(value)))
        ]

    def each_line(self, name: str, read: Callable[[dict[str, Any]], _T]) -> Iterator[_T]:
        """What `read` makes of each object of a JSONL file.

        Raises:
            DataError: as `json_lines`, or an object is not as expected; names its line.
        """
        for number, entry in self.json_lines(name):
            yield self.reading(name, f"line {number}", lambda entry=entry: read(entry))

    def json_lines(self, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Line numbers and objects of a JSONL file.

        Raises:
            DataError: as `read`, or a line is no JSON object; names it.
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
        """What `read` makes of a part of a file; what it lacks is a sentence that names the place.

        Raises:
            DataError: `read` raised one of the errors of looking things up in JSON.
        """
        try:
            return read()
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            place, why = f"{self.root / name}, {where}", f"{type(error).__name__}: {error}"
            raise DataError(f"{place}: it is not as expected ({why}); fetch the file again") from error


def a_list(value: Any) -> list[Any]:  # noqa: ANN401
    """A JSON list.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, list):
        raise TypeError("a list was expected")
    return cast("list[Any]", value)


def known_hashes() -> dict[str, str]:
    """SHA-256 by relative path of the files that this version was measured with."""
    text = (resources.files("genenv.evaluation") / "hashes.json").read_text(encoding="utf-8")
    return json.loads(text)
