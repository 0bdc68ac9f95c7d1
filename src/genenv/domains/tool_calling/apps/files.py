"""Files: a tree of text files, kept as path -> content. Folders exist through the files in them."""

from __future__ import annotations

import random
from datetime import date as Day

from genenv.domains.tool_calling.apps.common import require
from genenv.domains.tool_calling.apps.kit import Name, Result, State, Text, ToolError, tool

_FILES = (
    ("docs/report.txt", "Sales rose by four percent."),
    ("docs/todo.txt", "Buy milk. Call the bank."),
    ("photos/list.txt", "beach, mountains, lake"),
    ("work/budget.csv", "rent,900"),
    ("work/plan.md", "Draft, review, publish."),
    ("readme.txt", "My files."),
)


def initial(rng: random.Random, today: Day) -> State:
    """Four files in a few folders."""
    return {"files": dict(sorted(rng.sample(_FILES, 4)))}


def _clean(path: str) -> str:
    """The path without a leading or doubled slash; `/docs/a.txt` and `docs/a.txt` are the same file."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    require(".." not in parts, "A path must not contain '..'.")
    return "/".join(parts)


def _file_path(path: str) -> str:
    clean = _clean(path)
    require(bool(clean) and not path.endswith("/"), f"{path!r} is not the path of a file.")
    return clean


def _inside(files: dict[str, str], folder: str) -> list[str]:
    """The paths of all files in a folder, at any depth; the empty folder is the root."""
    return sorted(path for path in files if not folder or path.startswith(f"{folder}/"))


def _parents(path: str) -> list[str]:
    """The folders that a file lies in: `a/b/c.txt` lies in `a` and `a/b`."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _put(files: dict[str, str], path: str, content: str) -> None:
    """Add a file where nothing is in the way.

    Raises:
        ToolError: the path is taken by a file or a folder, or goes through a file.
    """
    require(path not in files, f"There is already a file {path!r}.")
    require(not _inside(files, path), f"{path!r} is a folder.")
    for parent in _parents(path):
        require(parent not in files, f"{parent!r} is a file, not a folder.")
    files[path] = content


def _file_exists(state: State, rng: random.Random, path: str) -> None:
    """The file exists; whatever is in its way goes."""
    clean = _file_path(path)
    if clean not in state["files"]:
        for obstacle in [*_inside(state["files"], clean), *_parents(clean)]:
            state["files"].pop(obstacle, None)
        state["files"][clean] = rng.choice(_FILES)[1]


def _source_exists(state: State, rng: random.Random, source: str, destination: str) -> None:
    """The file to move exists, and nothing is at its destination."""
    goal = _goal(state["files"], _file_path(source), destination)
    if goal != _file_path(source):
        state["files"].pop(goal, None)
    _file_exists(state, rng, source)


def _folder_exists(state: State, rng: random.Random, folder: str) -> None:
    """The folder has a file that stays where an earlier call takes its others away."""
    _file_exists(state, rng, f"{_clean(folder)}/notes.txt")


def _goal(files: dict[str, str], source: str, destination: str) -> str:
    """Where a file moves to: into the destination if that is a folder, else to that path."""
    clean = _clean(destination)
    if destination.endswith("/") or not clean or _inside(files, clean):
        return _clean(f"{clean}/{source.rpartition('/')[2]}")
    return clean


def _content(state: State, path: str) -> str:
    content = state["files"].get(path)
    if content is None:
        raise ToolError(f"There is no file {path!r}.")
    return content


@tool("files", writes=True, returns=("path",))
def create_file(state: State, path: Name, content: Text) -> Result:
    """Create a file.

    Args:
        state: the app's state.
        path: where, e.g. docs/plan.txt.
        content: what it contains.
    """
    clean = _file_path(path)
    _put(state["files"], clean, content)
    return {"path": clean, "status": "created"}


@tool("files", writes=True, arrange=_source_exists, returns=("path",))
def move_file(state: State, source: Name, destination: Name) -> Result:
    """Move or rename a file.

    Args:
        state: the app's state.
        source: path of the file.
        destination: new path, or the folder to move it into.
    """
    clean = _file_path(source)
    content = _content(state, clean)
    goal = _goal(state["files"], clean, destination)
    require(goal != clean, "Source and destination are the same.")
    del state["files"][clean]
    _put(state["files"], goal, content)
    return {"path": goal, "status": "moved"}


@tool("files", writes=True, arrange=_file_exists, returns=("path",))
def delete_file(state: State, path: Name) -> Result:
    """Delete a file.

    Args:
        state: the app's state.
        path: path of the file.
    """
    clean = _file_path(path)
    _content(state, clean)
    del state["files"][clean]
    return {"path": clean, "status": "deleted"}


@tool("files", arrange=_folder_exists, returns=("path",))
def list_files(state: State, folder: Name) -> Result:
    """List the files in a folder.

    Args:
        state: the app's state.
        folder: path of the folder; / for all files.
    """
    paths = _inside(state["files"], _clean(folder))
    require(bool(paths), f"There is no folder {folder!r}.")
    return {"path": paths[0], "files": list(paths)}


@tool("files", arrange=_file_exists, returns=("content",))
def read_file(state: State, path: Name) -> Result:
    """Read a file.

    Args:
        state: the app's state.
        path: path of the file.
    """
    return {"content": _content(state, _file_path(path))}
