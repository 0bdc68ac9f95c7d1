"""The folder in which tools run: a copy for each session, and its data files as JSON.

Files are part of the state: databases and CSV files as rows, JSON files as JSON, others as text, and the
names of all files and folders. Python tools have a new copy for each session (`SessionFolder`), servers one
that is restored (`WorkingFolder`).
"""

from __future__ import annotations

import contextlib
import csv
import functools
import glob
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import sqlite3
import stat
import struct
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from genenv.tools.worlds.jsonable import (
    FILES,
    FOLDERS,
    HIDDEN,
    TABLES,
    NotJson,
    Row,
    state_of,
    tables_of,
    text_of,
)
from genenv.types import Json

JOURNALS = ("-wal", "-shm", "-journal")
_SQLITE = b"SQLite format 3\x00"
_ZIP = b"PK\x03\x04"
_MOST_FOLDER_BYTES = 1 << 20
_MOST_MEMBERS_BYTES = 16 << 20
_MOST_ROWS_BYTES, _MOST_CELLS, _MOST_ROWS_S = 2 << 20, 200_000, 5.0
"""Of the rows of a database, whatever the size of its file; the time of the processor, which depends on the
machine, is limited only for rows that take long to compute."""
_MOST_ASKED = 1_000
"""Names of files that are noted as missing in a session."""
_lstat = os.lstat
_DOCUMENTS = (".py", ".md", ".toml", ".lock")
"""Endings of code and documentation. Such a file of the tools' folder is state once a session changes it."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of data as it was when the tools were loaded."""

    size: int
    mtime_ns: int
    content: object
    """As JSON."""


def data_files(folder: Path) -> dict[str, DataFile]:
    """The files of data in a folder, by path, read once for all sessions."""
    found: dict[str, DataFile] = {}
    for name in _listed(folder, _walk(folder)[0]):
        if not name.endswith(_DOCUMENTS):
            found[name] = DataFile(*_stamp(folder / name), content_of(folder / name))
    return found


class SessionFolder:
    """A session's own copy of the tools' folder.

    Args:
        original: the folder.
        place: where the copy is made, in `files`, beside a folder `tmp` for temporary files.
        data: the original's files of data; those that a session leaves alone are not read again.
    """

    def __init__(self, original: Path, place: Path, data: Mapping[str, DataFile]) -> None:
        self._place, self._original, self._data, self._reading = place, original, data, False
        self.path = place / "files"
        self.asked: set[str] = set()
        """Files, or patterns of them, that were to be read and are not there, relative to the folder."""
        self.in_call = False
        """Whether a tool is called now; else its file is imported."""
        (place / "tmp").mkdir(parents=True)
        shutil.copytree(original, self.path, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        copied = (name for name in _listed(self.path, _walk(self.path)[0]) if name.endswith(_DOCUMENTS))
        self._documents = {name: _stamp(self.path / name) for name in copied}
        sys.addaudithook(self._heard)
        self._hear_tests()

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "sqlite3.connect" and str(args[0]).startswith("file:"):
            self._note(str(args[0]).removeprefix("file:").removeprefix("//").partition("?")[0])
        elif event in ("open", "sqlite3.connect"):
            self._note(args[0], made=event == "open" and bool(args[2] & os.O_CREAT))
        elif event in ("os.listdir", "os.scandir"):
            self._note(args[0], opened=False, listed=True)
        elif event in ("glob.glob", "pathlib.Path.glob"):
            self._note(args[0] if event == "glob.glob" else Path(args[0], args[1]), opened=False)

    def _hear_tests(self) -> None:
        """Hear of tests for files, such as `os.path.exists`, too: they raise no event, but call these."""
        for name in ("stat", "lstat", "access"):
            own: Any = getattr(os, name)
            heard = self._hearing(own)
            setattr(os, name, heard)
            for kind in ("dir_fd", "effective_ids", "fd", "follow_symlinks"):
                able: set[Any] = getattr(os, f"supports_{kind}")
                able |= {heard} if own in able else set()

    def _hearing(self, own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def hearing(path: Any, *args: Any, **settings: Any) -> Any:  # noqa: ANN401 - as the one of `os`
            found: Any = None
            try:
                found = own(path, *args, **settings)
            finally:
                if not found and settings.get("dir_fd") is None:
                    self._note(path, opened=False)
            return found

        return hearing

    def _note(self, name: object, *, opened: bool = True, listed: bool = False, made: bool = False) -> None:
        """Note a file of the folder that is not there; code and hidden files only if they were to be opened.

        Of a folder in it that is `listed`, other files may lack: the pattern of their names is noted. So is
        that of the files beside a missing one that a call asks for, unless it is `made` now: tools may open
        records by their ids. A missing file of settings, read on import, brings no others.
        """
        if self._reading or len(self.asked) >= _MOST_ASKED or not isinstance(name, str | bytes | os.PathLike):
            return
        path = os.path.normpath(os.path.join(str(self.path), os.fsdecode(cast(Any, name))))
        inside = path.removeprefix(f"{self.path}{os.sep}")
        if inside != path and (opened or not (_is_hidden(inside) or inside.endswith(".py"))):
            with contextlib.suppress(ValueError):  # a name that no file can have
                try:
                    _lstat(path)
                    self.asked |= {f"{inside}/*"} if listed else set()
                except OSError:
                    self.asked |= {inside, *_alike(inside)} if self.in_call and not made else {inside}

    def contents(self, taken: Container[str] = ()) -> dict[str, Any]:
        """The content as `WorkingFolder.contents` has it, but for code and documentation that is as it was.

        Args:
            taken: names that something else has.
        """
        self._reading = True
        try:
            walked, folders = _walk(self.path)
            listed = {*_listed(self.path, walked)}
            kept = {name for name in listed | {*self._documents} if self._is_as_copied(name)}
            found = {name: self._content(name) for name in (listed | {*self._documents}) - kept}
            for name in {*walked} - listed:
                if not (self.path / name).is_file():
                    found[name] = _odd(_raw(self.path / name))
            of_code = {str(above) for name in kept for above in Path(name).parents}
            shown = [one for one in folders if one not in of_code and Path(one).name != "__pycache__"]
            return _shown(self.path, found, shown, taken)
        finally:
            self._reading = False

    def too_large(self) -> list[str]:
        """Return the databases that are compared by their bytes: damaged, or with too many rows."""
        told = [name for name, one in self._data.items() if isinstance(one.content, str)]
        return sorted(name for name in told if is_table_file(self._original / name))

    def _is_as_copied(self, name: str) -> bool:
        """Whether a file is code or documentation of the tools' folder that the session did not change."""
        path = self.path / name
        with contextlib.suppress(KeyError, OSError):
            if self._documents[name] == _stamp(path):
                return True
            return path.read_bytes() == (self._original / name).read_bytes()
        return False

    def _content(self, name: str) -> object:
        known, path = self._data.get(name), self.path / name
        journals = [path.with_name(f"{path.name}{ending}") for ending in JOURNALS]
        with contextlib.suppress(OSError):
            as_copied = known is not None and (known.size, known.mtime_ns) == _stamp(path)
            if known and as_copied and not any(one.exists() and one.stat().st_size for one in journals):
                return known.content
        large = known is not None and _is_too_large(known.size, known.content)
        return content_of(path, rows=not large or any(one.exists() for one in journals))

    def signature(self) -> str:
        """Return a text that changes if anything in the folder changes: names, sizes, times."""
        found: list[tuple[str, int, int, int]] = []
        for name in itertools.chain(*_walk(self.path)):
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(self.path, name))
                found.append((name, status.st_size, status.st_mtime_ns, status.st_ino))
        return repr(sorted(found))

    def remove(self) -> None:
        """Remove it, and all that is in it."""
        shutil.rmtree(self._place, ignore_errors=True)


def _alike(name: str) -> list[str]:
    """The pattern of the files in a file's folder with its suffix; none of code, and of the outermost folder.

    What lies beside the tools themselves belongs to other things as well.
    """
    folder, suffix = os.path.dirname(name), Path(name).suffix
    is_data = folder and suffix not in ("", ".py", ".pyc") and not _is_hidden(name)
    return [f"{glob.escape(folder)}/*{glob.escape(suffix)}"] if is_data else []


def _listed(folder: Path, names: Sequence[str]) -> list[str]:
    """The names of the files in a folder, without caches and journals, of all that `_walk` finds."""
    return [
        name
        for name in names
        if "__pycache__" not in name.split("/")
        and not name.endswith(".pyc")
        and not _is_journal(name, names)
        and (folder / name).is_file()
    ]


def _is_journal(name: str, names: Container[str]) -> bool:
    """Whether a file is the journal of a database, not a text that somebody called `my-journal`."""
    return any(name.endswith(one) and name.removesuffix(one) in names for one in JOURNALS)


def _stamp(path: Path) -> tuple[int, int]:
    """The size of a file, and when it was changed."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def is_table_file(path: Path) -> bool:
    """Whether it is an SQLite database."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE
    return False


def _is_too_large(size: int, content: object) -> bool:
    """Whether a file was too large to be read; of a small database that could not be read, a copy may be."""
    return isinstance(content, str) and size > _MOST_FOLDER_BYTES


def content_of(path: Path, *, rows: bool = True) -> Any:  # noqa: ANN401 - JSON
    """What a file holds: rows of tables, JSON as it is, else text.

    What is damaged, nested too deeply or too large is known by its digest, as is a database without `rows`.
    """
    try:
        with contextlib.suppress(NotJson, RecursionError, MemoryError, sqlite3.Error, csv.Error):
            if rows and is_table_file(path):
                with closing(sqlite3.connect(path)) as database:
                    return tables_of(database, _bounded(database))
            if path.stat().st_size <= _MOST_FOLDER_BYTES:
                return state_of(_parsed(path, path.read_bytes()))
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return f"{path.stat().st_size} bytes, {digest}"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _parsed(path: Path, content: bytes) -> object:
    if content.startswith(_ZIP):
        with contextlib.suppress(zipfile.BadZipFile, NotImplementedError, ValueError, zlib.error):
            return _members(content)
    if b"\0" in content:
        raise NotJson("bytes")
    text = content.decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        if path.suffix == ".json":
            return json.loads(text)
    with contextlib.suppress(ValueError):
        if path.suffix in (".json", ".jsonl"):  # some write lines into either
            return [json.loads(line) for line in text.split("\n") if line.strip()]
    return _table(text) if path.suffix == ".csv" else text


def _table(text: str) -> list[Any]:
    """Return the records of a CSV file; lists where its first row names no columns but holds data."""
    first = next(csv.reader(io.StringIO(text)), list[str](()))
    numbers = [one for one in map(str.strip, first) if _PLAIN_NUMBER.fullmatch(one)]
    named = len({*first}) == len(first) and all(_YEAR.fullmatch(one) for one in numbers)
    return list(csv.DictReader(io.StringIO(text)) if named else csv.reader(io.StringIO(text)))


def _members(content: bytes) -> dict[str, str]:
    """The members of a ZIP archive, such as a workbook or a document, by their digests.

    Raises:
        NotJson: they are too large.
        BadZipFile: it is damaged.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        listed = [one for one in archive.infolist() if not one.is_dir()]
        if sum(one.file_size for one in listed) > _MOST_MEMBERS_BYTES:
            raise NotJson("an archive that is too large")
        return {
            one.filename: f"{one.file_size} bytes, {hashlib.sha256(archive.read(one)).hexdigest()}"
            for one in listed
        }


def _bounded(database: sqlite3.Connection) -> Callable[[sqlite3.Cursor, Row], Row]:
    """Have a file not make too much of itself, as computed columns can; returns what counts its rows."""
    left, cells_left, until = _MOST_ROWS_BYTES, _MOST_CELLS, time.thread_time() + _MOST_ROWS_S

    def row(_: sqlite3.Cursor, cells: Row) -> Row:
        nonlocal left, cells_left
        left -= sum(len(one) if isinstance(one, str | bytes) else 8 for one in cells)
        cells_left -= len(cells)
        if min(left, cells_left) < 0:
            raise NotJson("rows that are too large")
        return cells

    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_FOLDER_BYTES)
    database.set_progress_handler(lambda: time.thread_time() > until, 10_000)
    return row


_SPECIAL = b"\0 neither a file nor a link \0"
"""Used in place of the bytes of pipes, sockets and devices."""
_STORED = (stat.S_IFREG, stat.S_IFLNK)
"""Files and links; pipes, sockets and devices are not restored."""
_NAMES = (FILES, FOLDERS, HIDDEN, TABLES)


@dataclass(frozen=True, slots=True)
class _File:
    raw: bytes
    """The bytes of a file, or the target of a link."""
    link: bool
    mode: int
    times: tuple[int, int]
    """Times of the last access and the last change."""


class Original:
    """The initial content of a server's working folder, read once for all of its processes.

    Args:
        folder: the folder with the content; it may be missing, as git does not store an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        files, folders = _walk(folder)
        self.files = {name: _file(folder / name) for name in files if _kind(folder / name) in _STORED}
        self.folders = frozenset(folders)
        self.known: Mapping[str, tuple[bytes, Json]] = {}
        """The parsed content of files with a digest of their bytes, by file name."""

    def is_too_large(self, name: str) -> bool:
        """Whether a file is known by its digest, as a database with too many rows is."""
        return name in self.known and _is_too_large(len(self.files[name].raw), self.known[name][1])


class WorkingFolder:
    """A server's working folder. It is restored file by file; unchanged files stay in place.

    Args:
        path: the working folder, which is filled with the initial content.
        original: the initial content.
    """

    def __init__(self, path: Path, original: Original) -> None:
        self.path, self._original = path, original
        path.mkdir(parents=True, exist_ok=True)
        self.restore()
        self._known = dict(original.known)
        """By file name: a digest of the bytes, and the parsed content."""
        if not self._known:
            self.contents()
            original.known = dict(self._known)

    def begin(self) -> bool:
        """Take the present content as the initial one, such as the tables that a server makes when it starts.

        If a database has a journal, the initial content stays what it was: what is in it is not in one file.

        Returns:
            Whether `restore` restores all that there is now.
        """
        try:
            now = Original(self.path)
        except OSError:  # the server works on its files still
            return False
        is_whole = not any(_is_journal(name, now.files) for name in now.files)
        if is_whole:
            for name, one in self._original.files.items():  # processes share the bytes of what is as it was
                if name in now.files and (now.files[name].raw, now.files[name].link) == (one.raw, one.link):
                    now.files[name] = one
            now.known = {name: one for name, one in self._original.known.items() if name in now.files}
            self._original = now
        return is_whole and all(name in now.files for name in _walk(self.path)[0])

    def restore(self) -> None:
        """Restore the initial content. Files are overwritten in place, so that open handles see it."""
        kept = self._original.files
        files, folders = _walk(self.path)
        for name in files:
            if name not in kept:
                (self.path / name).unlink(missing_ok=True)
        for name in reversed(folders):
            if name not in self._original.folders:
                shutil.rmtree(self.path / name, ignore_errors=True)
        for name in sorted(self._original.folders):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        for name, one in kept.items():
            place = self.path / name
            if place.is_symlink() != one.link or _raw(place) != one.raw:
                _put(place, one)

    def contents(self) -> dict[str, Json]:
        """Return the content: texts of files by name, and the parsed content of data files."""
        walked, folders = _walk(self.path)
        names = set(walked)
        for gone in self._known.keys() - names - self._original.files.keys():
            del self._known[gone]
        found = {name: self._content(name, names) for name in names if not _is_journal(name, names)}
        return _shown(self.path, found, [".", *folders])

    def _content(self, name: str, names: Container[str]) -> Json:
        """Return the content of a file, among the names of all files."""
        place = self.path / name
        raw = _raw(place)
        digest = hashlib.blake2b(raw, person=b"link" if place.is_symlink() else b"").digest()
        known = self._known.get(name)
        journalled = any(f"{name}{ending}" in names for ending in JOURNALS)  # of a database, with rows
        if known is not None and known[0] == digest and not journalled:
            return known[1]
        content = self._read(place, raw, rows=journalled or not self._original.is_too_large(name))
        self._known[name] = (digest, content)
        return content

    def _read(self, place: Path, raw: bytes, *, rows: bool) -> Json:
        if raw is _SPECIAL or place.is_symlink():
            return _odd(raw)
        if is_table_file(place) or (len(raw) <= _MOST_FOLDER_BYTES and _is_text(raw)):
            return content_of(place, rows=rows)
        if raw.startswith(_MARK) and (told := staged_lines(raw)) is not None:
            return told
        return f"{len(raw)} bytes, {hashlib.sha256(raw).hexdigest()[:16]}"


def _shown(
    folder: Path, found: Mapping[str, Any], folders: Iterable[str], taken: Container[str] = ()
) -> dict[str, Any]:
    """The content of a folder as a state: texts of files by name, and the parsed content of data files.

    Args:
        folder: the folder.
        found: the content of its files, by name.
        folders: the names of folders in it.
        taken: names that something else has.
    """
    files, hidden, tables, data = dict[str, Any](), dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for name, content in sorted(found.items()):
        if _is_hidden(name):
            hidden[name] = content
        elif isinstance(content, str):
            files[name] = content
        else:
            files[name] = None  # its content is stored under its own key
            short = str(Path(name).with_suffix(""))
            data[name if short in data or short in taken or short in _NAMES else short] = content
            if isinstance(content, dict) and is_table_file(folder / name):
                tables |= dict.fromkeys(cast("dict[str, Any]", content))
    shown = dict.fromkeys(one for one in sorted(folders) if one == "." or not _is_hidden(one))
    all_of_it = zip(_NAMES, (files, shown, hidden, tables), strict=True)
    return {**{f"{key}_" if key in taken else key: value for key, value in all_of_it if value}, **data}


def _odd(raw: bytes) -> str:
    """What stands for a link, or for what is no file."""
    linked = f"a link to {text_of(raw.decode('utf-8', 'replace'))}"
    return "a pipe, a socket or a device" if raw is _SPECIAL else linked


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
    # a running server may replace the file by a link or a pipe: do not follow or wait for these
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


def _kind(place: Path) -> int:
    """Return the file type as `stat.S_IFMT` does; 0 if the file is gone."""
    try:
        return stat.S_IFMT(place.lstat().st_mode)
    except OSError:
        return 0


def _raw(place: Path) -> bytes:
    """Return a file's bytes or a link's target; empty if unreadable; `_SPECIAL` for other types."""
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
    """Return the names of files (including links, pipes and sockets) and folders, outer ones first."""
    files: list[str] = []
    folders: list[str] = []
    for where, inner, names in os.walk(folder):
        base = where[len(str(folder)) + 1 :]
        above = f"{base}/" if base else ""
        for one in inner:
            (files if os.path.islink(os.path.join(where, one)) else folders).append(f"{above}{one}")
        files += [f"{above}{one}" for one in names]  # includes pipes and sockets
    return files, folders


_PLAIN_NUMBER = re.compile(r"[-+]?\d+([.,]\d+)*")
"""A number, as no column is called, but for a year."""
_YEAR = re.compile(r"(19|20)\d\d")
_MARK = b"DIRC"
_HEADER = struct.Struct(">4sLL")
_FIXED = 62
"""Bytes of an entry before its path: 40 of times and places, a digest of 20, flags of 2."""
_EXTENDED, _LENGTH = 0x4000, 0x0FFF


def staged_lines(raw: bytes) -> str | None:
    """The staging area of a Git repository, as `git ls-files --stage` prints it; None: of another version.

    The bytes of `.git/index` differ whenever the same is staged again: they hold times and places on the
    disk.
    """
    try:
        mark, version, count = _HEADER.unpack_from(raw)
        if mark != _MARK or version not in (2, 3):
            return None
        lines: list[str] = []
        place = _HEADER.size
        for _ in range(count):
            (mode,) = struct.unpack_from(">L", raw, place + 24)
            (flags,) = struct.unpack_from(">H", raw, place + 60)
            start = place + _FIXED + 2 * bool(flags & _EXTENDED)
            end = raw.index(b"\0", start + (flags & _LENGTH) % _LENGTH)
            digest, path = raw[place + 40 : place + 60].hex(), raw[start:end].decode("utf-8", "replace")
            lines.append(f"{mode:06o} {digest} {flags >> 12 & 3}\t{path}")
            place += (end - place + 8) // 8 * 8  # at least one zero byte, up to a multiple of eight
    except (struct.error, ValueError):
        return None
    return "\n".join(lines)
