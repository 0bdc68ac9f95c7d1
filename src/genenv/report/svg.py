# pyright: standard
"""From a matplotlib figure to SVG that lives inside a page: themed by its CSS, reproducible, self-contained.

The charts use the placeholder colours below; in the SVG they become CSS variables, so one picture serves
light and dark pages. Text stays text, in the page's font.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04"
SERIES = tuple(f"#0a0c0{number}" for number in range(8))
"""Eight colours that can be told apart with every kind of colour vision; the last is grey."""

_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper"} | {
    color: f"--c{number}" for number, color in enumerate(SERIES)
}
_STYLE: dict[Any, Any] = {  # matplotlib's own key type lists the names of one version
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


@contextmanager
def chart_style(name: str) -> Generator[None]:
    """Figures made and rendered inside look alike; `name` makes the ids in the SVG reproducible."""
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update({**_STYLE, "svg.hashsalt": f"genenv-{name}"})
        # The page's font draws the text; a glyph that matplotlib's font lacks only makes its width a guess.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def to_svg(figure: Figure, name: str, label: str) -> Markup:
    """The figure as an SVG element.

    Args:
        figure: made inside `chart_style`.
        name: unique on the page.
        label: what the picture shows, for people who do not see it.
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
