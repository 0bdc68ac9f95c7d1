"""The folder that a server of tools works in: put back before every attempt, and its state.

The server's memory cannot be seen. What is in its folder can: texts, rows of tables, else a digest.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from genenv.tools.discover.state_values import FILES, FOLDERS, HIDDEN, TABLES
from genenv.tools.worlds.jsonable import MARK, staged
from genenv.tools.worlds.python import JOURNALS, content_of, is_table_file
from genenv.types import Json

_MOST_BYTES = 1 << 20
_SPECIAL = b"\0 neither a file nor a link \0"
"""Instead of the bytes of what has none that could be read."""
_NAMES = (FILES, FOLDERS, HIDDEN, TABLES)


@dataclass(frozen=True, slots=True)
class _File:
    raw: bytes
    """Its bytes, or where it leads."""
    link: bool
    mode: int
    times: tuple[int, int]
    """Of the last access and the last change."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is in a folder, by what is other than at first."""

    changed: Mapping[str, _File]
    removed: frozenset[str]
    folders: frozenset[str]

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return sum(len(one.raw) for one in self.changed.values())


class EpisodeFolder:
    """A folder that is put back to what it was, file by file, so that what has not changed stays.

    Args:
        path: it; it is made as a copy.
        original: what it is put back to.
    """

    def __init__(self, path: Path, original: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        if original.is_dir():  # an empty one is lost where git carries a bundle
            shutil.copytree(original, path, dirs_exist_ok=True, symlinks=True)
        files, folders = _walk(path)
        self._first = {name: _file(path / name) for name in files}
        self._folders = tuple(folders)
        self._known: dict[str, tuple[bytes, Json]] = {}
        """Of files that are there: a digest of their bytes, and what they hold."""

    def snapshot(self) -> Snapshot:
        """What is in it now."""
        files, folders = _walk(self.path)
        changed: dict[str, _File] = {}
        for name in files:
            place, first = self.path / name, self._first.get(name)
            if _kind(place) not in (stat.S_IFREG, stat.S_IFLNK):
                continue  # it goes when the folder is put back
            if first is None or first.link != place.is_symlink() or first.raw != _raw(place):
                changed[name] = _file(place)
        return Snapshot(changed, frozenset(self._first).difference(files), frozenset(folders))

    def restore(self, wanted: Snapshot | None = None) -> None:
        """Put it back. A file keeps its place where it can, so that what has it open sees it too.

        Args:
            wanted: what it is to hold; left out, what it held at first.
        """
        kept = dict(self._first)
        if wanted is not None:
            kept = {name: one for name, one in kept.items() if name not in wanted.removed}
            kept |= wanted.changed
        keep_folders = wanted.folders if wanted is not None else self._folders
        files, folders = _walk(self.path)
        for name in files:
            if name not in kept:
                (self.path / name).unlink(missing_ok=True)
        for name in reversed(folders):
            if name not in keep_folders:
                shutil.rmtree(self.path / name, ignore_errors=True)
        for name in sorted(keep_folders):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        for name, one in kept.items():
            place = self.path / name
            if place.is_symlink() != one.link or _raw(place) != one.raw:
                _put(place, one)

    def contents(self) -> dict[str, Json]:
        """What is in it: names of files with their texts, and what files of data hold, by their names."""
        names, folders = _walk(self.path)
        for gone in self._known.keys() - names - self._first.keys():
            del self._known[gone]
        files: dict[str, Json] = {}
        hidden: dict[str, Json] = {}
        tables: dict[str, Json] = {}
        data: dict[str, Json] = {}
        for name in sorted(names):
            if name.endswith(JOURNALS):
                continue
            content = self._content(name)
            if name.startswith(".") or "/." in name:
                hidden[name] = content
            elif isinstance(content, str):
                files[name] = content
            else:
                files[name] = None  # what it holds stands under its own name
                short = str(Path(name).with_suffix(""))
                data[name if short in data or short in _NAMES else short] = content
                if isinstance(content, dict) and is_table_file(self.path / name):
                    tables |= dict.fromkeys(content)
        shown = dict.fromkeys((".", *(one for one in sorted(folders) if not _is_hidden(one))))
        found: dict[str, Json] = {FILES: files, HIDDEN: hidden, TABLES: tables, FOLDERS: dict(shown)}
        return {**{key: value for key, value in found.items() if value}, **data}

    def _content(self, name: str) -> Json:
        place = self.path / name
        raw = _raw(place)
        digest = hashlib.blake2b(raw, person=b"link" if place.is_symlink() else b"").digest()
        known = self._known.get(name)
        if known is not None and known[0] == digest and not _journalled(place):
            return known[1]
        content = self._read(place, raw)
        self._known[name] = (digest, content)
        return content

    def _read(self, place: Path, raw: bytes) -> Json:
        if raw is _SPECIAL:
            return "a pipe, a socket or a device"
        if place.is_symlink():
            return f"a link to {raw.decode('utf-8', 'replace')}"
        if len(raw) <= _MOST_BYTES and (is_table_file(place) or _is_text(raw)):
            return content_of(place)
        if raw.startswith(MARK) and (told := staged(raw)) is not None:
            return told
        return f"{len(raw)} bytes, {hashlib.sha256(raw).hexdigest()[:16]}"


def _file(place: Path) -> _File:
    told = place.lstat()
    return _File(_raw(place), place.is_symlink(), told.st_mode & 0o7777, (told.st_atime_ns, told.st_mtime_ns))


def _put(place: Path, one: _File) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if one.link or _kind(place) != stat.S_IFREG:
        place.unlink(missing_ok=True)
    if one.link:
        place.symlink_to(os.fsdecode(one.raw))
        return
    if place.exists():
        place.chmod(0o600)
    # a server that runs may put a link or a pipe there at this moment: neither is followed or waited for
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(place, flags, 0o600), "wb") as file:
        file.write(one.raw)
        os.fchmod(file.fileno(), one.mode)
        os.utime(file.fileno(), ns=one.times)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or "/." in name


def _is_text(raw: bytes) -> bool:
    try:
        return "\0" not in raw.decode("utf-8")
    except UnicodeDecodeError:
        return False


def _journalled(place: Path) -> bool:
    """Whether rows of a database stand in a file beside it."""
    return any(os.path.exists(f"{place}{ending}") for ending in JOURNALS)


def _kind(place: Path) -> int:
    """Of what kind it is, as `stat.S_IFMT` has it; 0 if it is gone."""
    try:
        return stat.S_IFMT(place.lstat().st_mode)
    except OSError:
        return 0


def _raw(place: Path) -> bytes:
    """A file's bytes, or where a link leads; nothing if it cannot be read; `_SPECIAL` of a pipe."""
    kind = _kind(place)
    try:
        if kind == stat.S_IFLNK:
            return os.fsencode(os.readlink(place))
        if kind != stat.S_IFREG:
            return _SPECIAL if kind else b""
        with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else _SPECIAL
    except OSError:
        return b""


def _walk(folder: Path) -> tuple[list[str], list[str]]:
    """Names of files (links, pipes and sockets among them) and of folders in it, the outer ones first."""
    files: list[str] = []
    folders: list[str] = []
    for where, inner, names in os.walk(folder):
        base = where[len(str(folder)) + 1 :]
        for one in (*inner, *names):
            place = os.path.join(where, one)
            path = f"{base}/{one}" if base else one
            if os.path.isdir(place) and not os.path.islink(place):
                folders.append(path)
            else:  # pipes and sockets, too
                files.append(path)
    return files, folders
