# pyright: standard
"""What all pages share: the template environment, number formats, CSV text, and charts as SVG.

Charts use the placeholder colors below; in the SVG they become CSS variables, so that one picture serves
light and dark pages. Text stays text, in the page's font.
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
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from genenv.texts import inert

INK, MUTED, GRID, PAPER = "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04"
SERIES = tuple(f"#0a0c0{number}" for number in range(8))
"""Eight colours that can be told apart with every kind of colour vision; the last is grey."""

_DASHES = ("-", "--", ":", "-.")
DASH = "–"
"""Stands for a number that is not there."""

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


_NOT_IN_HTML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Code points that no HTML page may hold, control characters and lone surrogates: models write anything."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One chart of a page."""

    title: str
    svg: Markup | None
    reading: str
    """How to read it."""
    missing: str = ""
    """What to say when there is nothing to show."""


def render(template: str, **values: object) -> str:
    """A page as HTML: self-contained, and the same for the same values.

    Args:
        template: one of `templates/`, which extends `base.html`.
        values: what it shows; strings are escaped.
    """
    environment = Environment(
        loader=PackageLoader("genenv.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_visible,
    )
    environment.filters |= {"rate": rate, "precise": precise}
    page = environment.get_template(template).render(**values)
    return _NOT_IN_HTML.sub("\N{REPLACEMENT CHARACTER}", page)


def _visible(value: object) -> object:
    """Text as a reader may see it: characters that hide or turn others around stand as their escapes."""
    return inert(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def rate(value: float | None) -> str:
    """A share with two decimals; a dash where there is none."""
    return DASH if value is None else f"{value:.2f}"


def precise(value: float | None) -> str:
    """A number with four digits; a dash where there is none."""
    return DASH if value is None else f"{value:.4g}"


def csv_text(lines: Iterable[Sequence[object]]) -> str:
    """Rows as a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def line_styles(number: int) -> list[tuple[str, str]]:
    """A color and a dash pattern for each of so many lines, different for all while there are enough."""
    return [
        (SERIES[place % len(SERIES)], _DASHES[place // len(SERIES) % len(_DASHES)]) for place in range(number)
    ]


def new_figure(width_in: float, height_in: float) -> tuple[Figure, Axes]:
    """A figure with one set of axes; made inside `chart_style`."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    return figure, figure.subplots()


def legend_below(figure: Figure, ax: Axes, *, columns: int, size: int = 9) -> None:
    """A legend under the picture."""
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=size, handlelength=1.4)


def round_ticks(ax: Axes) -> None:
    """Whole numbers of rounds along the horizontal axis."""
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))


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
