"""A comparison in words, as rows, as CSV files and as a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from genenv.files import write_whole
from genenv.research.sweeps import recovery_words
from genenv.research.sweeps.compare import AT_THE_END, Comparison, Contrast, Reached
from genenv.research.sweeps.readings import BUDGETS
from genenv.research.sweeps.wording import counted, p_word
from genenv.texts import inert

COLUMNS = (
    *("budget", "each", "variant", "against", "success", "against it"),
    *("difference", "95% interval", "p (Holm)", "seeds", "verdict"),
)


def rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """The cells of each contrast, in the order of `COLUMNS`."""
    for one in comparison.contrasts:
        found = one.difference
        yield (
            one.budget,
            "" if one.budget == AT_THE_END else f"{one.amount:,.0f}",
            one.one,
            one.other,
            f"{one.means[0]:.1%}",
            f"{one.means[1]:.1%}",
            f"{100 * found.value:+.1f}",
            f"{100 * found.low:+.1f} to {100 * found.high:+.1f}",
            p_word(one.adjusted),
            str(found.seeds),
            one.outcome(),
        )


def said(comparison: Comparison) -> list[str]:
    """What is shown, in sentences: at equal attempts where they are known, else at the end."""
    budgets = [one.budget for one in comparison.contrasts]
    budget = "attempts" if "attempts" in budgets else AT_THE_END
    chosen = [one for one in comparison.contrasts if one.budget == budget]
    return [
        *map(_sentence, chosen),
        *(_reached(one) for one in comparison.reached),
        *map(recovery_words.fell, comparison.recoveries),
        *map(recovery_words.sooner, comparison.sooner),
    ]


def write_page(comparison: Comparison, folder: Path, *, title: str) -> Path:
    """Write `compare.html`, `contrasts.csv` and `curves.csv` into a folder; `shift.csv` where worlds changed.

    Returns:
        The page.
    """
    from genenv.research.sweeps.pictures import PICTURES  # matplotlib takes a second to load

    folder.mkdir(parents=True, exist_ok=True)
    drawn = [(name, reading, draw(comparison.variants)) for name, reading, draw in PICTURES]
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("genenv.research.sweeps"), PackageLoader("genenv.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    page = environment.get_template("compare.html").render(
        title=inert(title),
        comparison=comparison,
        runs=sum(map(len, comparison.variants.values())),
        said=[inert(line) for line in said(comparison)],
        at_the_end=AT_THE_END,
        columns=COLUMNS,
        rows=list(rows(comparison)),
        pictures=[picture for picture in drawn if picture[2] is not None],
    )
    path = folder / "compare.html"
    write_whole(path, page)
    write_whole(folder / "contrasts.csv", _csv([COLUMNS, *rows(comparison)]))
    write_whole(folder / "curves.csv", _csv(_curves(comparison)))
    if comparison.recoveries:
        write_whole(folder / "shift.csv", _csv(recovery_words.rows(comparison.recoveries)))
    return path


def _sentence(one: Contrast) -> str:
    where = "at the end" if one.budget == AT_THE_END else f"at {one.amount:,.0f} {one.budget} each"
    found = one.difference
    return (
        f"{one.one} against {one.other}, {where}: {one.means[0]:.1%} and {one.means[1]:.1%}, "
        f"{100 * found.value:+.1f} points ({100 * found.low:+.1f} to {100 * found.high:+.1f}, "
        f"p {p_word(one.adjusted)}, {counted(found.seeds, 'seed')}): {one.verdict()}."
    )


def _reached(one: Reached) -> str:
    start = f"Attempts to {one.level:.1%}, where {one.other} ends"
    missing = [
        f"{name} never came there in {count} of {counted(one.seeds, 'seed')}"
        for name, count in zip((one.one, one.other), one.missing, strict=True)
        if count
    ]
    left_out = f"; {', '.join(missing)}, which are left out" if missing else ""
    if one.ratio is None:
        return f"{start}: too few seeds in which both came there{left_out}."
    value, low, high = one.ratio
    took = f"{one.one} took {value:.2f} times those of {one.other} ({low:.2f} to {high:.2f})"
    return f"{start}: {took}{left_out}."


def _curves(comparison: Comparison) -> Iterator[Sequence[object]]:
    budgets = list(BUDGETS)
    yield ("variant", "seed", "round", *budgets, "held-out success", "tasks", "world")
    for name, runs in comparison.variants.items():
        for run in runs:
            first = run.measured[0].scores.keys()
            for measured in run.measured:
                spent = (measured.spent[budget] for budget in budgets)
                world = 1 if measured.scores.keys() == first else 2
                yield (name, run.seed, measured.round, *spent, measured.mean, len(measured.scores), world)


def _csv(lines: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
