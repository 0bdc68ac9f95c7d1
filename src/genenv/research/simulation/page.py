"""A folder of what came out: a page with pictures and the table, and two CSV files."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from genenv.errors import UsageError
from genenv.files import write_whole
from genenv.research.simulation.charts import curves_chart
from genenv.research.simulation.run import Lives
from genenv.research.simulation.settings import LabConfig
from genenv.research.simulation.summary import REFERENCE, curves_csv, lives_csv, summary

_ENDS = (REFERENCE, "oracle")
"""Arms that stand in every picture."""


def write_page(folder: Path, lives: Mapping[str, Lives], config: LabConfig) -> Path:
    """Write `lab.html`, `curves.csv` (an arm and round a row) and `lives.csv` (a seed a row).

    The same lives always give the same bytes.

    Args:
        folder: made where it is not there yet.
        lives: of every arm.
        config: they were lived under.

    Returns:
        The page.

    Raises:
        UsageError: there is a file in the place of the folder.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "curves.csv", curves_csv(lives))
    write_whole(folder / "lives.csv", lives_csv(lives))
    write_whole(folder / "lab.html", render(lives, config))
    return folder / "lab.html"


def render(lives: Mapping[str, Lives], config: LabConfig) -> str:
    """The page as HTML."""
    environment = Environment(
        loader=PackageLoader("genenv.research.simulation"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    css = resources.files("genenv.report").joinpath("templates/report.css").read_text(encoding="utf-8")
    return environment.get_template("lab.html").render(
        config=config,
        css=Markup(css),  # noqa: S704 - our own
        seeds=len(next(iter(lives.values())).held_out),
        attempts=config.tasks * config.rollouts,
        reference=REFERENCE,
        rows=summary(lives, config.goal),
        pictures=_pictures(lives),
    )


def _pictures(lives: Mapping[str, Lives]) -> list[tuple[str, Markup]]:
    """Curricula in one, and what the simulator may be paid for in another."""
    paid = {name for name in lives if name.startswith("state") or name == "shuffled"}
    curricula = {name: own for name, own in lives.items() if name not in paid or name == "state"}
    rewards = {name: own for name, own in lives.items() if name in paid or name in _ENDS}
    found = [("Curricula", curves_chart(curricula, "curricula", "Held-out success of each curriculum"))]
    if len(paid) > 1:
        found.append(("Rewards", curves_chart(rewards, "rewards", "Held-out success under each reward")))
    return found
