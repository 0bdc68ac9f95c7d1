"""A hook of the documentation site: every page of docs/results/ is in the navigation."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:  # noqa: ANN401 - mkdocs is not installed beside genenv
    """Add the section Results, one page a file; a folder in it becomes a section of its own."""
    docs = Path(config["docs_dir"])
    config["nav"].append({"Results": _entries(docs / "results", docs)})
    return config


def _entries(folder: Path, docs: Path) -> list[Any]:
    """The pages of a folder, its index first, then its folders."""
    pages = sorted(folder.glob("*.md"), key=lambda page: (page.name != "index.md", page.name))
    folders = [one for one in sorted(folder.iterdir()) if one.is_dir() and any(one.rglob("*.md"))]
    below = [{one.name.capitalize(): _entries(one, docs)} for one in folders]
    return [*(page.relative_to(docs).as_posix() for page in pages), *below]
