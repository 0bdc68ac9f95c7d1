"""Tables of figures that never break a name, so that names can be searched for and copied.

Figures of one group, or of one name in several groups, are indented below what they share, so that most
tables fit into 80 columns. A wider table has lines longer than the terminal.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from genenv.evaluation.compare import Comparison
from genenv.statistics import Figure
from genenv.texts import inert

_LONGEST_HEAD = 20
"""If a policy's name is longer, a comparison names the policies A, B, ..."""

_WIDEST = 10_000

Label = tuple[str, int | None]
"""The text of a line and the index of its figure; None for a heading."""


def labels(keys: Sequence[tuple[str, str]]) -> Iterator[Label]:
    """Yield the labels of figures that are listed below each other.

    Args:
        keys: name and group of each figure; the group is empty for all items.
    """
    name, heading = "", ""
    for index, (own, group) in enumerate(keys):
        if not group:
            heading = ""
            yield own, index
        elif own == name and not heading:
            yield f"  {group}", index
        else:
            if group != heading:
                heading = group
                yield group, None
            yield f"  {own}", index
        name = own


def figures_table(title: str, figures: Sequence[Figure]) -> Table:
    """Return a table of figures with their intervals."""
    table = _table(title)
    for column in ("value", "95% interval", "items"):
        table.add_column(column, justify="right", no_wrap=True)
    for label, index in labels([(figure.name, figure.group) for figure in figures]):
        cells = [] if index is None else [value(f := figures[index]), interval(f), str(f.items)]
        table.add_row(Text(inert(label)), *cells)
    return table


def comparison_table(found: Comparison) -> tuple[Table, list[str]]:
    """Return a table of results side by side, and the legend of its column letters if names are too long."""
    names = [inert(name) for name in found.names]
    heads, legend = names, list[str]()
    if max(map(len, names)) > _LONGEST_HEAD:
        heads = [string.ascii_uppercase[i] if i < 26 else f"#{i}" for i in range(len(names))]
        legend = [f"{head}: {name}" for head, name in zip(heads, names, strict=True)]
    table = _table(found.benchmark)
    for head in heads:
        table.add_column(Text(head), justify="right", no_wrap=True)
    for label, index in labels([(row.name, row.group) for row in found.rows]):
        cells = [] if index is None else [_cell(cell) for cell in found.rows[index].cells]
        table.add_row(Text(inert(label)), *cells)
    return table, legend


def show(table: Table, console: Console) -> None:
    """Print a table at its full width, even if the terminal is narrower."""
    wanted = Measurement.get(console, console.options.update(width=_WIDEST), table).maximum
    wide = Console(
        file=console.file,
        width=max(wanted, console.width),
        force_terminal=console.is_terminal,
        highlight=False,
    )
    wide.print(table)


def value(figure: Figure) -> str:
    """Return a figure's value as text."""
    return _number(figure.value, percent=figure.percent)


def interval(figure: Figure) -> str:
    """Return a figure's interval as text, or a dash if it has none."""
    if math.isnan(figure.low):
        return "-"
    low, high = (_number(end, percent=figure.percent) for end in (figure.low, figure.high))
    return f"{low} to {high}"


def _table(title: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=inert(title), title_justify="left", title_style="bold")
    table.add_column("figure", no_wrap=True)
    return table


def _cell(figure: Figure | None) -> str:
    return "-" if figure is None else f"{value(figure)} ({interval(figure)})"


def _number(number: float, *, percent: bool) -> str:
    if math.isnan(number):
        return "-"
    return f"{number:.1%}" if percent else f"{number:.2f}"
