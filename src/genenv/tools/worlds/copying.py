"""Copy the files that tools need from the folder of their file into a bundle."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from genenv.texts import listed


def copy_asked(wanted: Iterable[str], origin: Path, files: Path) -> bool:
    """Copy wanted files that exist and were not copied yet; return whether there were any.

    The names come from the tools' process, so names that lead out of the folder are ignored. A folder that is
    too large begins empty; what is in it is copied once it is asked for by its own name.
    """
    inside = [one for one in wanted if not Path(one).is_absolute() and ".." not in Path(one).parts]
    copied = False
    for name in sorted({name for one in inside for name in _matching(one, origin)}):
        if not os.path.lexists(files / name):
            copy_whole(origin / name, files / name, is_whole=is_whole_folder(origin / name))
            copied = True
    return copied


_MOST_BYTES = 64 << 20
"""Maximum size of a folder that is copied as a whole, and of all files that match a pattern."""
_DATA = re.compile(r".*\.(csv|db|jsonl?|parquet|sqlite3?|tsv|xlsx|xml|ya?ml)", re.IGNORECASE)
"""Names of data files."""
_MOST_NAMED = 8


def _matching(wanted: str, origin: Path) -> list[str]:
    """Return the file or folder that is wanted, or the files that match a pattern, such as `*.json`."""
    if os.path.exists(origin / wanted):
        return [wanted]
    found = [one for one in glob.glob(wanted, root_dir=origin) if (origin / one).is_file()]
    return found if _is_small(origin / one for one in found) else []


def _is_small(paths: Iterable[Path]) -> bool:
    sizes = itertools.accumulate(4096 + path.stat().st_size for path in paths)
    return all(size <= _MOST_BYTES for size in sizes)


def not_copied(origin: Path, files: Path) -> str:
    """Return the names of data that was not copied, as `_uncopied` finds it."""
    return listed([*_uncopied(origin, files)], _MOST_NAMED)


def _uncopied(origin: Path, files: Path, above: str = "") -> Iterator[str]:
    """Yield the data files, the folders with data files and the folders too large that were not copied.

    Hidden ones are not named, as they are copied only if tools open them. It looks into copied folders only.
    """
    names = os.listdir(origin)
    shown = (origin / one for one in {*names} - _left_out(str(origin), names))
    for one in sorted(shown, key=lambda one: (one.is_dir(), one.name)):
        copy, name = files / one.name, f"{above}{one.name}"
        if not one.is_dir():
            if _DATA.fullmatch(one.name) and not copy.exists():
                yield name
        elif not copy.is_dir():
            if _holds_data(one):
                yield name
        elif not is_whole_folder(one):
            yield name
        else:
            yield from _uncopied(one, copy, f"{name}/")


def _holds_data(folder: Path) -> bool:
    """Whether data files are right in a folder."""
    with contextlib.suppress(OSError):
        return any(_DATA.fullmatch(one.name) for one in folder.iterdir())
    return False


def is_whole_folder(folder: Path) -> bool:
    """Whether a folder is copied with all that is in it: a package, or one that is not too large."""
    return (folder / "__init__.py").is_file() or _is_small(_parts(folder))


_OTHERS = (("bundle.toml", "graph.json", "tasks"), ("pyvenv.cfg",))
"""What is in a bundle of genenv, and in a virtual environment."""


def _left_out(folder: str, names: Sequence[str]) -> set[str]:
    """Return what a copied folder leaves out: caches, what is hidden, bundles, and virtual environments.

    So it does with what is neither a file nor a folder, and with links to nothing or to a folder above.
    """
    return {name for name in names if _is_left_out(folder, name)}


def _is_left_out(folder: str, name: str) -> bool:
    path = os.path.join(folder, name)
    if name.startswith(".") or name == "__pycache__":
        return True
    if not os.path.isdir(path):
        return not os.path.isfile(path)
    if os.path.islink(path):
        target = os.path.realpath(path)
        return any(os.path.realpath(one) == target for one in (folder, *Path(folder).parents))
    return any(all(os.path.exists(os.path.join(path, one)) for one in all_of) for all_of in _OTHERS)


def _parts(folder: Path) -> Iterator[Path]:
    """Yield what is copied with a folder."""
    for where, inner, names in os.walk(folder, followlinks=True):
        ignored = _left_out(where, [*inner, *names])
        inner[:] = [one for one in inner if one not in ignored]
        yield from (Path(where, one) for one in (*inner, *names) if one not in ignored)


def copy_whole(origin: Path, to: Path, *, is_whole: bool = True) -> None:
    """Copy a file, or a folder with all that is in it; if it is not to be `is_whole`, an empty folder."""
    to.parent.mkdir(parents=True, exist_ok=True)
    if not origin.is_dir():
        shutil.copy(origin, to)
    elif is_whole:
        shutil.copytree(origin, to, ignore=_left_out)
    else:
        to.mkdir()
