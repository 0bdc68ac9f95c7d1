"""A hook of the documentation site: every page of docs/results/ is in the navigation."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:  # noqa: ANN401 - mkdocs is not installed beside genenv
    """Add the section Results, one page a file."""
    folder = Path(config["docs_dir"]) / "results"
    pages = sorted(path.name for path in folder.glob("*.md"))
    first = [name for name in pages if name == "index.md"]
    rest = [name for name in pages if name != "index.md"]
    config["nav"].append({"Results": [f"results/{name}" for name in first + rest]})
    return config
