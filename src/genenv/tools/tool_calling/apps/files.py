"""Files: a tree of text files, kept as path -> content. Folders exist through the files in them."""

from __future__ import annotations

from genenv.tools.tool_calling.apps.common import require
from genenv.tools.tool_calling.apps.kinds import Found, State, Text


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
        ValueError: the path is taken by a file or a folder, or goes through a file.
    """
    require(path not in files, f"There is already a file {path!r}.")
    require(not _inside(files, path), f"{path!r} is a folder.")
    for parent in _parents(path):
        require(parent not in files, f"{parent!r} is a file, not a folder.")
    files[path] = content


def _goal(files: dict[str, str], source: str, destination: str) -> str:
    """Where a file moves to: into the destination if that is a folder, else to that path."""
    clean = _clean(destination)
    if destination.endswith("/") or not clean or _inside(files, clean):
        return _clean(f"{clean}/{source.rpartition('/')[2]}")
    return clean


def _content(state: State, path: str) -> str:
    content = state["files"].get(path)
    if content is None:
        raise ValueError(f"There is no file {path!r}.")
    return content


class Files:
    """Files: a tree of text files, kept as path -> content. Folders exist through the files in them."""

    files: State

    def create_file(self, path: Text, content: Text) -> Found:
        """Create a file.

        Args:
            path: where, e.g. docs/plan.txt.
            content: what it contains.
        """
        clean = _file_path(path)
        _put(self.files["files"], clean, content)
        return {"path": clean, "status": "created"}

    def move_file(self, source: Text, destination: Text) -> Found:
        """Move or rename a file.

        Args:
            source: path of the file.
            destination: new path, or the folder to move it into.
        """
        clean = _file_path(source)
        content = _content(self.files, clean)
        goal = _goal(self.files["files"], clean, destination)
        require(goal != clean, "Source and destination are the same.")
        others = {path: text for path, text in self.files["files"].items() if path != clean}
        _put(others, goal, content)
        self.files["files"] = others
        return {"path": goal, "status": "moved"}

    def delete_file(self, path: Text) -> Found:
        """Delete a file.

        Args:
            path: path of the file.
        """
        clean = _file_path(path)
        _content(self.files, clean)
        del self.files["files"][clean]
        return {"path": clean, "status": "deleted"}

    def list_files(self, folder: Text) -> Found:
        """List the files in a folder.

        Args:
            folder: path of the folder; / for all files.
        """
        paths = _inside(self.files["files"], _clean(folder))
        require(bool(paths), f"There is no folder {folder!r}.")
        return {"path": paths[0], "files": list(paths)}

    def read_file(self, path: Text) -> Found:
        """Read a file.

        Args:
            path: path of the file.
        """
        return {"content": _content(self.files, _file_path(path))}
