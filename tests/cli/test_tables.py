"""Tables of figures at 80 columns: every name stands whole."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from genenv.cli.tables import comparison_table, figures_table, labels, show
from genenv.evaluation.compare import Comparison, Row
from genenv.statistics import Figure, rate

KEYS = [
    ("accuracy_over_items", ""),
    ("accuracy", "category=simple_python"),
    ("accuracy", "category=live_parallel_multiple"),
    ("average", "level=easy"),
    ("commonsense_micro", "level=easy"),
    ("average", "level=hard"),
    ("commands_that_did_nothing", ""),
    ("success", ""),
    ("success", "type=clean"),
    ("success", "type=heat"),
]


def figures() -> list[Figure]:
    return [rate(name, [1.0, 0.0, 1.0] * 700, group=group) for name, group in KEYS]


def printed(table: object, width: int) -> list[str]:
    out = io.StringIO()
    show(table, Console(file=out, width=width, highlight=False))  # type: ignore[arg-type]
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_what_figures_share_is_said_once() -> None:
    assert list(labels(KEYS)) == [
        ("accuracy_over_items", 0),
        ("category=simple_python", None),
        ("  accuracy", 1),
        ("category=live_parallel_multiple", None),
        ("  accuracy", 2),
        ("level=easy", None),
        ("  average", 3),
        ("  commonsense_micro", 4),
        ("level=hard", None),
        ("  average", 5),
        ("commands_that_did_nothing", 6),
        ("success", 7),
        ("  type=clean", 8),
        ("  type=heat", 9),
    ]


@pytest.mark.parametrize("width", [80, 40])
def test_names_stand_whole(width: int) -> None:
    lines = printed(figures_table("bfcl-all, 3 of 180 items", figures()), width)
    told = "\n".join(lines)
    assert lines[0].strip() == "bfcl-all, 3 of 180 items"
    for name, group in KEYS:
        assert name in told
        assert group in told
    assert "64.6% to 68.7%" in told
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("width", [80, 40])
def test_long_names_of_policies_are_told_below(width: int) -> None:
    names = ("HuggingFaceTB/SmolLM2-135M-Instruct", "runs/quickstart-seed-1@8:agent")
    rows = tuple(Row(name=f.name, group=f.group, cells=(f, None)) for f in figures())
    table, legend = comparison_table(
        Comparison(benchmark="bfcl", names=names, rows=rows, gains=(None,), warnings=())
    )
    assert legend == [f"A: {names[0]}", f"B: {names[1]}"]
    told = "\n".join(printed(table, width))
    assert "category=live_parallel_multiple" in told
    assert "66.7% (64.6% to 68.7%)" in told


def test_short_names_of_policies_are_the_heads() -> None:
    found = Comparison(benchmark="sums", names=("a", "b"), rows=(), gains=(None,), warnings=())
    table, legend = comparison_table(found)
    assert legend == []
    assert "a" in printed(table, 80)[2]
