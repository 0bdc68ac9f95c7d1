# pyright: standard
"""The charts of a run's report: each takes the facts of the run and returns an SVG, or None without data.

A chart has the same width for three thousand rounds as for ten: neighboring rounds then share a column.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from genenv.report.facts import RunFacts
from genenv.report.parts import (
    INK,
    MUTED,
    PAPER,
    SERIES,
    chart_style,
    legend_below,
    new_figure,
    round_ticks,
    to_svg,
)
from genenv.runs.store.records import RoundOverview
from genenv.types import RejectReason

_MOST_COLUMNS = 150
_MOST_DOTS = 2000
_MOST_MARKERS = 100
_WIDTH_IN = 5.2
_SHOWN_REASONS = len(SERIES) - 1
_SHOWN_SKILLS = 14
_SMALLEST_KL = 1e-3  # nats per token; smaller values count as zero


@dataclass(frozen=True, slots=True)
class Bin:
    """Neighboring rounds that share a column of a chart; a single round in a short run."""

    rounds: tuple[RoundOverview, ...]

    @property
    def center(self) -> float:
        """Return the column's position on the axis of rounds."""
        return (self.rounds[0].number + self.rounds[-1].number) / 2

    @property
    def width(self) -> int:
        """Return the number of rounds that the column spans."""
        return self.rounds[-1].number - self.rounds[0].number + 1

    def rejected(self, reasons: Sequence[RejectReason]) -> float:
        """Return the mean number of generations per round that were rejected for these reasons."""
        totals: Counter[RejectReason] = Counter()
        for facts in self.rounds:
            totals.update(facts.rejected)
        return sum(totals[reason] for reason in reasons) / len(self.rounds)

    def skill_share(self, skills: Set[str]) -> float:
        """Return the share of these rounds' generated tasks that exercise any of the skills."""
        tasks = sum(len(facts.task_skills) for facts in self.rounds)
        hits = sum(not own.isdisjoint(skills) for facts in self.rounds for own in facts.task_skills)
        return hits / tasks if hits else 0.0


def in_bins(rounds: Sequence[RoundOverview]) -> list[Bin]:
    """Group rounds into at most `_MOST_COLUMNS` columns of equal size; the last may be smaller."""
    size = -(-len(rounds) // _MOST_COLUMNS)
    return [Bin(tuple(rounds[start : start + size])) for start in range(0, len(rounds), size or 1)]


def every_nth(rounds: Sequence[RoundOverview]) -> int:
    """Return n such that showing the batches of every nth round keeps the dots apart."""
    return max(1, -(-sum(len(facts.batches) for facts in rounds) // _MOST_DOTS))


def marker(shape: str, points: int) -> str:
    """Return the marker of a line's points; "" if there are so many that they would hide the line."""
    return shape if points <= _MOST_MARKERS else ""


def p_hat_chart(run: RunFacts) -> Markup | None:
    """Draw p_hat of every batch, its mean per round, the target band, and the filter's band if enabled."""
    means = run.series("curriculum/p_hat_mean")
    if not means:
        return None
    with chart_style("p-hat"):
        figure, ax = new_figure(_WIDTH_IN, 3.3)
        if run.target_band is not None:
            low, high = run.target_band
            ax.axhspan(low, high, color=SERIES[2], alpha=0.22, lw=0, label=f"target band {low:g} to {high:g}")
        if run.filter_band is not None:
            low, high = run.filter_band
            ax.axhline(low, color=MUTED, ls="--", lw=1)
            ax.axhline(high, color=MUTED, ls="--", lw=1, label=f"band of the filter {low:g} to {high:g}")
        nth = every_nth(run.rounds)
        thinned = f" (every {nth}th round)" if nth > 1 else ""
        for selected, label in ((True, "batch that trained the simulator"), (False, "batch that did not")):
            points = [
                (facts.number + _spread(place, len(facts.batches)), batch.p_hat)
                for facts in run.rounds[::nth]
                for place, batch in enumerate(facts.batches)
                if batch.p_hat is not None and batch.selected is selected
            ]
            if points:
                face = SERIES[0] if selected else "none"
                x, y = zip(*points, strict=True)
                label += thinned
                ax.scatter(x, y, s=18, facecolors=face, edgecolors=SERIES[0], linewidths=1, label=label)
        shape = marker("D", len(means))
        ax.plot(list(means), list(means.values()), color=SERIES[1], marker=shape, label="mean of the round")
        _round_axis(ax, run)
        _rate_axis(ax, "p̂ (share of rollouts solved)")
        legend_below(figure, ax, columns=2)
        return to_svg(figure, "p-hat", "Success rate of each batch of generated tasks, by round")


def held_out_chart(run: RunFacts) -> Markup | None:
    """Draw success on held-out tasks by round."""
    points = run.held_out()
    if not points:
        return None
    with chart_style("held-out"):
        figure, ax = new_figure(_WIDTH_IN, 3.3)
        rates = {number: point.rate for number, point in points.items()}
        bars = (
            [point.rate - point.low for point in points.values()],
            [point.high - point.rate for point in points.values()],
        )
        shape = marker("o", len(rates))
        ax.errorbar(
            list(rates),
            list(rates.values()),
            yerr=bars,
            color=SERIES[0],
            marker=shape,
            elinewidth=1,
            capsize=2,
        )
        for number, rate in run.series("agent/eval_at_shift").items():
            ax.axvline(number - 0.5, color=MUTED, lw=0.8, ls=":")
            ax.plot([number - 0.5], [rate], marker="x", color=SERIES[0])
            place = (number - 0.5, 1.0)
            ax.annotate(
                " another world", place, xycoords=("data", "axes fraction"), color=MUTED, fontsize=8, va="top"
            )
        _end_labels(ax, {f"{rates[max(rates)]:.2f}": rates}, colors=(SERIES[0],))
        _round_axis(ax, run)
        _rate_axis(ax, "held-out success (share of tasks)")
        return to_svg(figure, "held-out", "Success on held-out tasks, by round")


def validity_chart(run: RunFacts) -> Markup | None:
    """Draw the share of generations that became tasks, and the reasons of rejection."""
    rounds = [facts for facts in run.rounds if facts.generated]
    if not rounds:
        return None
    with chart_style("validity"):
        figure, rate_ax, bar_ax = _two_rows()
        rates = {facts.number: facts.accepted / facts.generated for facts in rounds}
        rate_ax.plot(list(rates), list(rates.values()), color=SERIES[0], marker=marker("o", len(rates)))
        _end_labels(rate_ax, {f"{rates[max(rates)]:.2f}": rates}, colors=(SERIES[0],))
        _rate_axis(rate_ax, "valid rate (share)")
        totals: Counter[RejectReason] = Counter()
        for facts in rounds:
            totals.update(facts.rejected)
        kinds: list[tuple[str, tuple[RejectReason, ...]]] = [
            (reason.value.replace("_", " "), (reason,)) for reason, _ in totals.most_common(_SHOWN_REASONS)
        ]
        if rest := tuple(reason for reason, _ in totals.most_common()[_SHOWN_REASONS:]):
            kinds.append(("other reasons", rest))
        columns = in_bins(rounds)
        floor = [0.0] * len(columns)
        centers, widths = [column.center for column in columns], [0.7 * column.width for column in columns]
        for color, (label, reasons) in zip(SERIES, kinds, strict=False):
            heights = [column.rejected(reasons) for column in columns]
            bar_ax.bar(
                centers,
                heights,
                bottom=floor,
                width=widths,
                color=color,
                edgecolor=PAPER,
                lw=0.6,
                label=label,
            )
            floor = [below + height for below, height in zip(floor, heights, strict=True)]
        bar_ax.set_ylabel("rejected (generations)" if len(columns) == len(rounds) else "rejected (a round)")
        bar_ax.set_ylim(0, max(*floor, 1) * 1.08)
        bar_ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        _round_axis(bar_ax, run)
        if kinds:
            legend_below(figure, bar_ax, columns=3)
        return to_svg(figure, "validity", "Share of valid generations and reasons for rejection, by round")


def kl_chart(run: RunFacts) -> Markup | None:
    """Draw the KL divergence of each policy from its start, on separate axes."""
    lines = {"agent": run.series("agent/kl"), "simulator": run.series("simulator/kl")}
    if not any(lines.values()):
        return None
    with chart_style("kl"):
        figure, *axes = _two_rows()
        for ax, (player, line), color in zip(axes, lines.items(), SERIES, strict=False):
            ax.set_ylabel(f"{player} KL (nats/token)")
            if not line:
                _say(ax, f"No KL divergence of the {player} was recorded.")
                continue
            ax.plot(list(line), list(line.values()), color=color, marker=marker("o", len(line)))
            _end_labels(ax, {f"{line[max(line)]:.2g}": line}, colors=(color,))
            _kl_axis(ax, line)
        _round_axis(axes[-1], run)
        return to_svg(figure, "kl", "KL divergence of agent and simulator from their start, by round")


def difficulty_chart(run: RunFacts) -> Markup | None:
    """Draw the difficulty of tasks by round: tokens and steps of their demonstrations."""
    tokens = {
        "required": run.series("tasks/required_response_tokens"),
        "written": run.series("agent/response_tokens"),
    }
    steps = run.series("tasks/steps_mean")
    if not any(tokens.values()) and not steps:
        return None
    with chart_style("difficulty"):
        figure, token_ax, step_ax = _two_rows()
        _lines(token_ax, tokens)
        token_ax.set_ylabel("length (tokens)")
        _from_zero(token_ax, tokens)
        _lines(step_ax, {"steps": steps}, first_color=2)
        step_ax.set_ylabel("steps per task")
        _from_zero(step_ax, {"steps": steps})
        _round_axis(step_ax, run)
        return to_svg(figure, "difficulty", "Length of solutions and steps per task, by round")


def skills_chart(run: RunFacts) -> Markup | None:
    """Draw the share of generated tasks that exercise each frequent skill, and any other skill."""
    rounds = [facts for facts in run.rounds if facts.generated]
    totals = Counter(skill for facts in rounds for own in facts.task_skills for skill in own)
    order = sorted(totals, key=lambda skill: (-totals[skill], skill))
    rows = [(_short(skill), frozenset({skill})) for skill in order[:_SHOWN_SKILLS]]
    if others := frozenset(order[_SHOWN_SKILLS:]):
        rows.append(("other skills", others))
    if not rows:
        return None
    with chart_style("skills"):
        figure, ax = new_figure(_WIDTH_IN, 1.1 + 0.27 * len(rows))
        last = Bin((rounds[-1],))
        for row, (_, skills) in enumerate(rows):
            for column in in_bins(rounds):
                left, share = column.center - column.width / 2, column.skill_share(skills)
                ax.add_patch(
                    Rectangle((left, row - 0.45), column.width, 0.9, facecolor=SERIES[0], alpha=share, lw=0)
                )
            ax.annotate(
                f"{last.skill_share(skills):.0%}", (1, row), (4, 0), xycoords=("axes fraction", "data"),
                textcoords="offset points", va="center", color=INK, annotation_clip=False,
            )  # fmt: skip
        ax.set_yticks(range(len(rows)), [label for label, _ in rows])
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.tick_params(axis="y", length=0, labelcolor=INK)
        ax.grid(visible=False)
        ax.set_title("last round", loc="right", color=MUTED, fontsize=9)
        _round_axis(ax, run)
        ax.set_xlim(rounds[0].number - 0.5, rounds[-1].number + 0.5)
        return to_svg(figure, "skills", "Share of generated tasks per skill, by round")


def _two_rows() -> tuple[Figure, Axes, Axes]:
    figure = Figure(figsize=(_WIDTH_IN, 4.4), layout="constrained")
    upper = figure.add_subplot(2, 1, 1)
    lower = figure.add_subplot(2, 1, 2, sharex=upper)
    upper.tick_params(labelbottom=False)
    return figure, upper, lower


def _round_axis(ax: Axes, run: RunFacts) -> None:
    numbers = [facts.number for facts in run.rounds]
    margin = 0.6 if len(numbers) > 1 else 1.8  # a single bar would fill the picture
    ax.set_xlim(numbers[0] - margin, numbers[-1] + margin)
    round_ticks(ax)
    ax.set_xlabel("round")


def _rate_axis(ax: Axes, label: str) -> None:
    ax.set_ylim(-0.03, 1.03)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    ax.set_ylabel(label)


def _from_zero(ax: Axes, lines: Mapping[str, Mapping[int, float]]) -> None:
    top = max((value for line in lines.values() for value in line.values()), default=0.0)
    ax.set_ylim(0, top * 1.15 or 1)
    ax.yaxis.set_major_locator(MaxNLocator(4))


def _kl_axis(ax: Axes, line: Mapping[int, float]) -> None:
    """Scale the axis from zero; logarithmic if the values span more than a factor of 100."""
    largest = max(line.values())
    smallest = max(_SMALLEST_KL, min((value for value in line.values() if value > 0), default=0.0))
    if largest <= 100 * smallest:
        _from_zero(ax, {"": line})
        return
    ax.set_yscale("symlog", linthresh=10 ** math.floor(math.log10(smallest)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_ylim(0, 3 * largest)


def _say(ax: Axes, sentence: str) -> None:
    ax.text(0.5, 0.5, sentence, transform=ax.transAxes, ha="center", va="center", color=MUTED)
    ax.set_yticks([])


def _lines(ax: Axes, lines: Mapping[str, Mapping[int, float]], *, first_color: int = 0) -> None:
    """Draw lines with different markers and their names at the right end."""
    shown = {name: line for name, line in lines.items() if line}
    styles = dict(zip(lines, zip(SERIES[first_color:], "osD", strict=False), strict=False))
    for name, line in shown.items():
        color, shape = styles[name]
        ax.plot(list(line), list(line.values()), color=color, marker=marker(shape, len(line)))
    _end_labels(ax, shown, colors=[styles[name][0] for name in shown])


def _end_labels(ax: Axes, lines: Mapping[str, Mapping[int, float]], *, colors: Sequence[str]) -> None:
    """Write each line's name next to its last point, shifted if two would overlap."""
    ends = sorted(
        (line[max(line)], name, color) for (name, line), color in zip(lines.items(), colors, strict=True)
    )
    top = max((max(line.values()) for line in lines.values()), default=1.0) or 1.0
    shift = 0.0
    for place, (value, name, color) in enumerate(ends):
        if place and value - ends[place - 1][0] < 0.12 * top:
            shift += 12
        ax.annotate(
            name, (1, value), (4, shift), xycoords=("axes fraction", "data"), textcoords="offset points",
            va="center", color=color, fontweight="bold", annotation_clip=False,
        )  # fmt: skip


def _spread(place: int, count: int) -> float:
    """Return the offset of a dot within the round's column."""
    return 0.0 if count < 2 else (place / (count - 1) - 0.5) * 0.5


def _short(name: str) -> str:
    return name if len(name) <= 22 else name[:21] + "…"
