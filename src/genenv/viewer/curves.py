"""What the curves of a run say: its numbers, and its charts as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from urllib.parse import urlencode

from markupsafe import Markup, escape

from genenv.runs.metrics import describe, held_out_rates, late_p_hats
from genenv.runs.store.database import Database
from genenv.types import Json, JsonObject
from genenv.viewer.folders import Run

_MOST_SERIES = 8
_LONG, _MOST_COLUMNS, _MOST_ROWS = 150, 36, 14
"""Rounds beyond which curves are smoothed; columns and rows of a map of shares."""
_LONGEST_NUMBER = 1e12
"""Numbers from here on are shown with an exponent."""
_MOST_POINTS = 60
"""Points of a small picture; neighboring rounds beyond share one."""
_SIZE = 120, 28
"""Width and height of a small picture in pixels."""
_BARS = 20
"""Bars of the histogram of rewards; empty ones at its ends are left out."""

_BY_AGENT = ("agent/eval_success", "agent/success_rate", "agent/kl", "agent/entropy", "agent/mismatch_kl")
"""Metrics with a line for each of several agents, beside that of all."""
Lines = Mapping[str, str]
"""Metric -> what its line is called. A metric that ends in a slash is a family of metrics."""
_CHARTS: Mapping[str, Sequence[tuple[str, str, str, Lines]]] = {
    "Does the agent learn?": (
        (
            "Held-out success",
            "share",
            "line",
            {"agent/eval_success": "success", "agent/eval_reward": "reward"},
        ),
        (
            "Success in training",
            "share",
            "line",
            {
                "agent/success_rate": "all tasks",
                "agent/base_success": "base tasks",
                "agent/new_success": "new tasks",
                "agent/reward": "reward",
            },
        ),
    ),
    "Are the tasks at the agent's level?": (
        (
            "Mean p̂ and mixed outcomes",
            "share",
            "band",
            {"curriculum/p_hat_mean": "mean p̂", "tasks/mixed": "tasks with mixed outcomes"},
        ),
        ("Regret", "difference", "line", {"curriculum/regret": "success of the strong agent minus the weak"}),
        (
            "Length",
            "tokens",
            "line",
            {
                "agent/response_tokens": "a rollout",
                "tasks/required_response_tokens": "a demonstration",
                "tasks/text_tokens": "what a task asks",
            },
        ),
    ),
    "What does the simulator write?": (
        (
            "Valid rate of the simulator",
            "share",
            "line",
            {"simulator/valid_rate": "valid rate", "simulator/novelty": "novelty"},
        ),
        ("Reasons of refusal", "generations", "stack", {"simulator/rejected/": ""}),
    ),
    "Is training stable?": (
        ("KL from the start", "nats/token", "line", {"agent/kl": "agent", "simulator/kl": "simulator"}),
        ("KL of the simulator's update", "nats/token", "cap", {"simulator/kl_step": "KL of the update"}),
        ("Steps halved at the KL cap", "halvings", "line", {"simulator/kl_retries": "simulator"}),
        (
            "Entropy",
            "nats/token",
            "line",
            {"agent/entropy": "agent", "simulator/decision_entropy": "simulator"},
        ),
        ("Mismatch of sampler and trainer", "nats/token", "line", {"agent/mismatch_kl": "agent"}),
    ),
    "What does it cost?": (
        ("Seconds by stage", "s", "stack", {"time/": ""}),
        (
            "Tokens by stage",
            "tokens",
            "stack",
            {
                "tokens/agent_sampled": "agent, sampled",
                "tokens/simulator_sampled": "simulator, sampled",
                "tokens/agent_trained": "agent, trained",
                "tokens/simulator_trained": "simulator, trained",
                "tokens/agent_read": "agent, read to score candidates",
            },
        ),
        ("Tokens sampled per second", "tokens/s", "line", {"tokens/s": "both policies"}),
    ),
}
"""Question -> title, unit, kind and metrics of each chart that answers it."""

_OPENS = {
    "Held-out success": "rounds#held-out",
    "Success in training": "rounds",
    "Valid rate of the simulator": "refused",
    "Reasons of refusal": "refused",
}
"""Title of a chart -> the page that a click on a round opens, if it is not the tasks of the round."""

_SHORTEST_S = 1e-6
"""Rounds that are shorter have no speed."""


def charts(run: Run, *, drawn: bool = True) -> list[JsonObject]:
    """Return the charts of a run that have data.

    Args:
        run: the run.
        drawn: with the `series`, of one value or null a round. If there are many rounds, a line has its
            running mean besides, and a stack consists of running means.
    """
    rounds, found = list(run.rounds), list[JsonObject]()
    window = len(rounds) // 50 * 2 + 1 if len(rounds) > _LONG else 1
    for section, title, unit, kind, names in (
        (section, *chart) for section, several in _CHARTS.items() for chart in several
    ):
        found_in = _series(run, names)
        series = [
            (name, line) for name, line in found_in if (any(line.values()) if kind == "stack" else line)
        ]
        series = series if kind == "stack" else _merged(series)
        if not series:
            continue
        band, cap = (run.band if kind == "band" else None), run.settings.get("simulator.kl_cap")
        limit = cap if kind == "cap" and isinstance(cap, int | float) else None
        notes = [
            "" if band is None else _band_said(run),
            f"cap of an update: {limit:g} (simulator.kl_cap)" if limit is not None else "",
            f"running means of {window} rounds" if window > 1 else "",
            f"from round {run.shift} on in another environment (vertical line)"
            if run.shift and kind != "stack"
            else "",
        ]
        found.append(
            {
                "section": section,
                "title": title,
                "unit": unit,
                "kind": "stack" if kind == "stack" else "line",
                "band": None if band is None else _band_drawn(run, rounds, band),
                "limit": limit,
                "shift": None if run.shift is None or kind == "stack" else run.shift - 1,
                "opens": _OPENS.get(title, "tasks"),
                "share": unit == "share",
                "series": [_drawn(*one, rounds, window, kind) for one in series] if drawn else [],
                "said": "; ".join(f"{name}: {said(values)}" for name, values in series),
                "note": "; ".join(filter(None, notes)),
            }
        )
    return found


def _band_drawn(run: Run, rounds: Sequence[int], band: tuple[float, float]) -> Json:
    """Return the limits of the target band, or those of each round if it moves."""
    return [list(run.band_in(n) or band) for n in rounds] if run.has_moving_band else list(band)


def _band_said(run: Run) -> str:
    """Say what the target band of a chart is; of one that moves, in the first and in the last round."""
    first, last = (f"{low:.3g} to {high:.3g}" for low, high in filter(None, (run.band_in(1), run.band)))
    moves = f" in round 1, {last} in round {run.planned}" if run.has_moving_band else ""
    return f"shaded: the target band of p̂, {first}{moves}"


def _drawn(
    name: str, values: Mapping[int, float], rounds: Sequence[int], window: int, kind: str
) -> JsonObject:
    line = [_short(values.get(number)) for number in rounds]
    smooth = _smoothed(line, window) if window > 1 else None
    if kind == "stack" and smooth is not None:
        line, smooth = smooth, None
    return {"name": name, "values": line, "mean": smooth}


def sections(run: Run) -> list[tuple[str, list[JsonObject], list[Heat]]]:
    """Return questions, each with the charts and maps that answer it; those without any are left out."""
    drawn, mapped = charts(run, drawn=False), heats(run)
    found = [
        (
            section,
            [chart for chart in drawn if chart["section"] == section],
            [heat for heat in mapped if heat.section == section],
        )
        for section in _CHARTS
    ]
    return [one for one in found if one[1] or one[2]]


def _short(value: float | None) -> float | None:
    """Return a value with as many digits as a chart can show."""
    return None if value is None else float(f"{value:.5g}")


def _smoothed(line: Sequence[float | None], window: int) -> list[float | None]:
    """Return the mean of the known values in a window around each place; None where there is no value."""
    sums, counts = [0.0], [0]
    for value in line:
        sums.append(sums[-1] + (value or 0.0))
        counts.append(counts[-1] + (value is not None))
    found = list[float | None]()
    for at, value in enumerate(line):
        first, last = max(0, at - window // 2), min(len(line), at + window // 2 + 1)
        mean = (sums[last] - sums[first]) / max(1, counts[last] - counts[first])
        found.append(None if value is None else _short(mean))
    return found


def _series(run: Run, names: Lines) -> list[tuple[str, Mapping[int, float]]]:
    found: list[tuple[str, Mapping[int, float]]] = []
    for metric, label in names.items():
        if metric == "tokens/s":
            spent = run.series("time/round_s")
            sampled = run.series("tokens/sampled")
            found.append(
                (label, {n: sampled[n] / spent[n] for n in sampled if spent.get(n, 0.0) > _SHORTEST_S})
            )
        elif metric.endswith("/"):
            order, lines = family(run, metric)
            kept, rest = order[: _MOST_SERIES - 1], order[_MOST_SERIES - 1 :]
            found += [(plain(name, metric), lines[name]) for name in kept]
            if rest:
                found.append(
                    ("others", {n: sum(lines[name].get(n, 0.0) for name in rest) for n in run.rounds})
                )
        else:
            found += _by_environment(run, label, metric)
            for name, own in of_agents(run, metric):
                found += _by_environment(run, f"{label}, {name}", own)
    return found


def _by_environment(run: Run, label: str, metric: str) -> list[tuple[str, Mapping[int, float]]]:
    """Return the line of a metric; of held-out tasks one for each environment, as a shift changes them.

    What was measured before the first round in the other environment is placed after the round before it.
    """
    line, shift = run.series(metric), run.shift
    if shift is None or not metric.endswith(("/eval_success", "/eval_reward")):
        return [(label, line)]
    first = run.rounds[shift].get("agent/eval_at_shift") if metric == "agent/eval_success" else None
    after = {n: value for n, value in line.items() if n >= shift}
    if first is not None:
        after = {shift - 1: first, **after}
    return [
        (label, {n: value for n, value in line.items() if n < shift}),
        (f"{label} in the other environment", after),
    ]


def of_agents(run: Run, metric: str) -> list[tuple[str, str]]:
    """Return the name of each of several agents, with its own metric, if that has a line for each."""
    if metric not in _BY_AGENT:
        return []
    return [(name, metric.replace("agent/", f"agents/{name}/", 1)) for name in run.agents]


def _merged(series: Sequence[tuple[str, Mapping[int, float]]]) -> list[tuple[str, Mapping[int, float]]]:
    """Return lines, those that are equal as one with all their names."""
    found: list[tuple[str, Mapping[int, float]]] = []
    for name, line in series:
        at = next((at for at, (_, other) in enumerate(found) if other == line), None)
        if at is None:
            found.append((name, line))
        else:
            found[at] = (f"{found[at][0]} = {name}", line)
    return found


def family(run: Run, prefix: str) -> tuple[list[str], Mapping[str, Mapping[int, float]]]:
    """Return the metrics of a family, the largest first, and the values of each."""
    lines = {
        name: line for name, line in run.metrics.items() if name.startswith(prefix) and name != "time/round_s"
    }
    known = (name for name in lines if any(lines[name].values()))
    return sorted(known, key=lambda name: (-sum(lines[name].values()), name)), lines


def plain(name: str, prefix: str) -> str:
    """Return the name of a metric of a family in words."""
    return name.removeprefix(prefix).removesuffix("_s").replace("_", " ")


def said(values: Mapping[int, float]) -> str:
    """Return the first, the last, the smallest and the largest value: what a picture says at once."""
    line = list(values.values())
    first, last, least, most = map(short, (line[0], line[-1], min(line), max(line)))
    return first if len(line) == 1 else f"{first} first, {last} last, from {least} to {most}"


def short(value: float) -> str:
    """Return a number with three digits; one from 1000 on as a whole number."""
    return f"{value:,.0f}" if 1000 <= abs(value) < _LONGEST_NUMBER else f"{value:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatRow:
    """A row of a map of shares."""

    label: str
    marked: bool
    """Whether it is in the target band."""
    shares: Sequence[float | None]
    """One a column; None where nothing was measured."""
    links: Sequence[str]
    """From the page of the run: to the tasks of a round, or to the rounds of a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """A map of shares over rounds, as a table. A long run has several rounds in a column."""

    section: str
    title: str
    note: str
    columns: Sequence[tuple[int, int]]
    """The first and the last round of each."""
    rows: Sequence[HeatRow]
    most: float
    """The largest share."""
    of_new: bool
    """Whether it is of the new tasks alone."""

    def cells(self, row: HeatRow) -> Markup:
        """Return the cells of a row as HTML, as a template is slow for a thousand. The largest is darkest."""
        found = list[str]()
        for share, link in zip(row.shares, row.links, strict=True):
            if not share:
                found.append("<td></td>" if share is None else '<td class="h0">0</td>')
            else:
                shade, percent = round(10 * share / self.most), f"{100 * share:.0f}"
                found.append(f'<td class="h{shade}"><a href="{escape(link)}">{percent}</a></td>')
        return Markup("".join(found))  # noqa: S704 - numbers, and links that are escaped


def heats(run: Run) -> list[Heat]:
    """Return the maps of a run: p̂ of its new tasks, their skills, and the agent's success by skill."""
    mapped = [line for name, line in run.metrics.items() if _is_mapped(name)]
    numbers = sorted(number for number in set[int]().union(*mapped) if number > 0)
    size = -(-len(numbers) // _MOST_COLUMNS) or 1
    columns = [numbers[at : at + size] for at in range(0, len(numbers), size)]
    low, high = run.band or (2.0, 2.0)
    bins = sorted(range(0, 100, 20), reverse=True)
    if not any(name.startswith("tasks/p_hat/") for name in run.metrics):
        mixed = [("some", "tasks/mixed", 0.0001, 0.9999)]
    else:
        mixed = [
            (
                f"{at} to {at + 20}%",
                f"tasks/p_hat/{at}-{at + 20}",
                max(at / 100, 0.0001),
                round(at / 100 + 0.1999, 4),
            )
            for at in bins
        ]
    levels = [("all", "tasks/solved", 1.0, 1.0), *mixed, ("none", "tasks/unsolved", 0.0, 0.0)]
    rows = [
        _heat_row(run, columns, label, metric, marked=first < high and low < last, low=first, high=last)
        for label, metric, first, last in levels
    ]
    of_last = f" of round {run.planned}" if run.has_moving_band else ""
    band = f" ▸ marks the rows in the target band{of_last} {low:.3g} to {high:.3g}." if run.band else ""
    skills, _ = family(run, "tasks/share/")
    known, _ = family(run, "agent/skill/")
    learned, leveled, written, *_ = _CHARTS
    found = [
        (
            leveled,
            "p̂ of new tasks",
            "% of a round's new tasks, by the share of their rollouts that succeeded. Only tasks between all "
            f"and none give the agent a signal. Darker: more.{band}",
            rows,
        ),
        (
            written,
            "Skills of new tasks",
            "% of a round's new tasks that need a skill.",
            [
                _heat_row(run, columns, plain(name, "tasks/share/"), name, skill=name[len("tasks/share/") :])
                for name in skills[:_MOST_ROWS]
            ],
        ),
        (
            learned,
            "The agent's success by skill",
            "%, estimated from all its rollouts so far.",
            [
                _heat_row(
                    run,
                    columns,
                    plain(name, "agent/skill/"),
                    name,
                    of_new=False,
                    skill=name[len("agent/skill/") :],
                )
                for name in sorted(known[:_MOST_ROWS])
            ],
        ),
    ]
    spans = [(column[0], column[-1]) for column in columns]
    return [
        Heat(
            section=section,
            title=title,
            note=note,
            columns=spans,
            rows=rows,
            most=most,
            of_new=section != learned,
        )
        for section, title, note, rows in found
        if (most := max((share or 0.0 for row in rows for share in row.shares), default=0.0)) > 0
    ]


def _is_mapped(metric: str) -> bool:
    return metric == "tasks/mixed" or metric.startswith(("tasks/share/", "agent/skill/"))


def _heat_row(
    run: Run,
    columns: Sequence[Sequence[int]],
    label: str,
    metric: str,
    *,
    marked: bool = False,
    of_new: bool = True,
    **query: object,
) -> HeatRow:
    line, shares, links = run.series(metric), list[float | None](), list[str]()
    filters = urlencode(({"origin": "new"} if of_new else {}) | query)
    for column in columns:
        values = [line[number] for number in column if number in line]
        shares.append(min(1.0, max(0.0, sum(values) / len(values))) if values else None)
        one = len(column) == 1
        links.append(f"tasks?round={column[0]}&{filters}" if one else f"?from={column[0]}&to={column[-1]}")
    return HeatRow(label=label, marked=marked, shares=shares, links=links)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """The histogram of the simulator's rewards in a round, over its new tasks."""

    round: int
    bars: Sequence[tuple[float, float, int]]
    """Lower bound, upper bound, and how many tasks are between."""
    without: int
    """Batches of which no task was accepted."""


def rewards(db: Database, round_: int | None) -> Rewards | None:
    """Return the histogram of R_env in a round; None for the last one. None if the round has no batch."""
    if round_ is None:
        round_ = db.rows("SELECT max(round) FROM batches")[0][0]
    rows = db.rows(
        """SELECT env_reward, (SELECT count(*) FROM tasks WHERE tasks.context_id = batches.context_id)
           FROM batches WHERE round = ?""",
        (round_,),
    )
    found = [(float(reward), int(count)) for reward, count in rows if count]
    if round_ is None or not rows:
        return None
    least, most = min([0.0, *(r for r, _ in found)]), max([1.0, *(r for r, _ in found)])
    counts, width = [0] * _BARS, (most - least) / _BARS
    for reward, count in found:
        counts[min(_BARS - 1, int((reward - least) / width))] += count
    bars = [(least + at * width, least + (at + 1) * width, count) for at, count in enumerate(counts)]
    while len(bars) > 1 and not bars[0][2]:
        bars.pop(0)
    while len(bars) > 1 and not bars[-1][2]:
        bars.pop()
    return Rewards(round=int(round_), bars=bars, without=len(rows) - len(found))


def numbers(run: Run) -> dict[str, str]:
    """Return the headline numbers of a run as text by label; those that were not measured are left out."""
    late = late_p_hats(run.rounds)
    by_agent = [
        f"{name} {change}"
        for name, metric in of_agents(run, "agent/eval_success")
        if (change := _change(list(run.series(metric).values())))
    ]
    found = {
        "held-out success": "; ".join(by_agent) or _held_out_change(run),
        "valid rate": _change(list(run.series("simulator/valid_rate").values())),
        "late mean p̂": f"{fmean(late):.2f}" if late else "",
        "success in training": "" if late else _change(list(run.series("agent/success_rate").values())),
    }
    return {label: text for label, text in found.items() if text}


def _held_out_change(run: Run) -> str:
    """Return the change from first to last evaluation; of a shift, in each environment."""
    before, after, shift = held_out_rates(run.rounds)
    there = f", in the other environment from round {shift} on {_change(after)}"
    return _change(before) + (there if shift is not None else "")


def _change(line: Sequence[float]) -> str:
    """Return the first and the last value."""
    if len(line) < 2:
        return f"{line[0]:.2f}" if line else ""
    return f"{line[0]:.2f} → {line[-1]:.2f}"


def table(run: Run) -> list[tuple[str, str, str, str]]:
    """Return name, value, unit and meaning of each metric of the last round."""
    last = sorted(run.rounds[run.done].items()) if run.rounds else ()
    return [(name, short(value), *described(name)) for name, value in last]


def described(metric: str) -> tuple[str, str]:
    """Return the unit and the meaning of a metric; "" if it is of another version."""
    try:
        return (found := describe(metric)).unit, found.about
    except ValueError:
        return "", ""


def spark(run: Run) -> Markup:
    """Return a small picture of held-out success, or else of the mean success rate of tasks, as SVG."""
    lines = [line for _, line in _by_environment(run, "", "agent/eval_success")]
    values = lines[-1] if len(lines[-1]) > 1 else lines[0]
    label = "held-out success"
    if len(values) < 2:
        values, label = run.series("curriculum/p_hat_mean"), "mean p̂"
    return picture({n: min(1.0, max(0.0, value)) for n, value in values.items()}, label, least_span=0.2)


def picture(whole: Mapping[int, float], label: str, *, least_span: float) -> Markup:
    """Return a small picture of values by round as SVG; nothing of fewer than two.

    Args:
        whole: the values.
        label: what they are.
        least_span: the picture is at least so high. Below 1 the values are shares, which end at 1.
    """
    if len(whole) < 2:
        return Markup("")
    places, size = list(whole), -(-len(whole) // _MOST_POINTS)
    columns = [places[at : at + size] for at in range(0, len(places), size)]
    values = {fmean(column): fmean(whole[number] for number in column) for column in columns}
    first, last = min(values), max(values)
    width, height = _SIZE
    x_of = (width - 6) / ((last - first) or 1)
    least, most = min(values.values()), max(values.values())
    span = max(least_span, most - least)
    bottom = max(0.0, (least + most - span) / 2)
    bottom = min(1.0 - span, bottom) if least_span < 1 else bottom
    points = [
        (3 + (n - first) * x_of, 3 + (1 - (value - bottom) / span) * (height - 6))
        for n, value in values.items()
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{label}">'
        '<polyline points="{line}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/></svg>'
    ).format(w=width, h=height, label=f"{label}: {said(whole)}", line=line, x=points[-1][0], y=points[-1][1])
