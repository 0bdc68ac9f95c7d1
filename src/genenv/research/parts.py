# pyright: standard
"""Parts of the pages of `genenv compare` and `genenv lab`: their rendering, CSV text, and charts as SVG.

Charts use the placeholder colors below, which become CSS variables in the SVG, so that a chart fits light
and dark pages. Text in charts stays text, in the page's font.
"""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from genenv.viewer.pages import environment

INK, MUTED, GRID, PAPER = "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04"
SERIES = tuple(f"#0a0c0{number}" for number in range(8))
"""Eight colors that are distinct under every form of color blindness; the last is gray."""

_DASHES = ("-", "--", ":", "-.")
DASH = "–"
"""The text for a missing number."""

_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper"} | {
    color: f"--c{number}" for number, color in enumerate(SERIES)
}
_STYLE: dict[Any, Any] = {  # matplotlib's key type lists one version's names
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "lines.linewidth": 2,
    "lines.markersize": 5,
}


@dataclass(frozen=True, slots=True)
class Picture:
    """One chart of a page, with its explanation."""

    title: str
    svg: Markup | None
    reading: str
    """A sentence about how to read the chart."""
    missing: str = ""
    """The sentence to show if there are no data."""


def render(template: str, **values: object) -> str:
    """Return a self-contained page as HTML; equal values give equal pages.

    Args:
        template: the name of a file in `templates/` that extends `base.html`.
        values: the values that the template shows; strings are escaped.
    """
    return environment("genenv.research").get_template(template).render(**values)


def csv_text(lines: Iterable[Sequence[object]]) -> str:
    """Return rows as the text of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def line_styles(number: int) -> list[tuple[str, str]]:
    """Return a color and dash pattern for each of `number` lines, all different as long as possible."""
    return [
        (SERIES[place % len(SERIES)], _DASHES[place // len(SERIES) % len(_DASHES)]) for place in range(number)
    ]


def new_figure(width_in: float, height_in: float) -> tuple[Figure, Axes]:
    """Return a figure with one set of axes; call it inside `chart_style`."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    return figure, figure.subplots()


def legend_below(figure: Figure, ax: Axes, *, columns: int, size: int = 9) -> None:
    """Add a legend below the chart."""
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=size, handlelength=1.4)


def round_ticks(ax: Axes) -> None:
    """Put ticks at whole rounds on the horizontal axis."""
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))


@contextmanager
def chart_style(name: str) -> Generator[None]:
    """Give charts drawn and rendered in the block one style; `name` makes ids in the SVG reproducible."""
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update({**_STYLE, "svg.hashsalt": f"genenv-{name}"})
        # The page's font draws the text. A glyph missing in matplotlib's font only affects the estimated
        # width.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def to_svg(figure: Figure, name: str, label: str) -> Markup:
    """Return the figure as an SVG element.

    Args:
        figure: a figure created inside `chart_style`.
        name: the chart's id, unique on the page.
        label: a description for screen readers.
    """
    buffer = io.StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=metadata)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s*<style type="text/css">.*?</style>', "", svg, flags=re.DOTALL)
    svg = re.sub(r"#0a0[bc]0\d", lambda match: f"var({_VARIABLES[match[0]]})", svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:href="|url\()#', rf"\1#{name}-", svg)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r"font: (?:[\d.]+px) [^;\"]*", lambda match: "font-size: " + match[0].split()[1], svg)
    size = re.search(r'viewBox="[^"]*"', svg)
    opening = f'<svg {size[0] if size else ""} role="img" aria-label="{escape(label)}">'
    return Markup(re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1))  # noqa: S704 - matplotlib escaped it
