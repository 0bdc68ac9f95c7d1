"""A setting nobody reads is a false claim."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from genenv.config import all_settings
from genenv.domains import domain_names

SRC = Path(__file__).parents[1] / "src" / "genenv"
DEFINITIONS = {"settings.py", "config.py", "config_reference.py", "presets.py"}


def names_read(source: str) -> set[str]:
    """Every name read as an attribute; comments, docstrings, assignments and keywords do not count."""
    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


READ = {
    name
    for path in SRC.rglob("*.py")
    if path.name not in DEFINITIONS
    for name in names_read(path.read_text(encoding="utf-8"))
}

SETTINGS = sorted({key for domain in domain_names() for key, _ in all_settings(domain)} - {"preset"})
"""All but the preset, which is used up where settings are put together."""


@pytest.mark.parametrize("key", SETTINGS)
def test_every_setting_is_read_somewhere(key: str) -> None:
    name = key.rpartition(".")[2]
    assert name in READ, f"nothing reads {key}: use it or remove it"


def test_only_reading_counts() -> None:
    source = "'''self.doc'''\nx.written = y.read\nf(keyword=z.deep.er)\n# x.comment\nalone\n"
    assert names_read(source) == {"read", "deep", "er"}
