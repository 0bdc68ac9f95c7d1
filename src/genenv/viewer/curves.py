"""What the curves of a run say: its numbers, its charts as data, and alarms in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from markupsafe import Markup

from genenv.runs.metrics import describe, late_p_hats
from genenv.types import JsonObject
from genenv.viewer.folders import Run

_SHARE, _MOST_SERIES = (0.0, 1.0), 8
_CHARTS: Sequence[tuple[str, str, str, Mapping[str, str]]] = (
    ("Held-out success", "share", "line", {"agent/eval_success": "success", "agent/eval_reward": "reward"}),
    (
        "Are the tasks at the agent's level?",
        "share",
        "band",
        {"curriculum/p_hat_mean": "mean p̂", "tasks/mixed": "tasks with mixed outcomes"},
    ),
    (
        "Success in training",
        "share",
        "line",
        {"agent/success_rate": "all tasks", "agent/base_success": "base tasks", "agent/new_success": "new"},
    ),
    ("Valid rate of the simulator", "share", "line", {"simulator/valid_rate": "valid rate"}),
    ("Reasons of refusal", "generations", "stack", {"simulator/rejected/": ""}),
    ("KL from the start", "nats/token", "line", {"agent/kl": "agent", "simulator/kl": "simulator"}),
    (
        "Entropy",
        "nats/token",
        "line",
        {"agent/entropy": "agent", "simulator/decision_entropy": "simulator"},
    ),
    (
        "Length",
        "tokens",
        "line",
        {"agent/response_tokens": "a rollout", "tasks/required_response_tokens": "a demonstration"},
    ),
    ("Seconds by stage", "s", "stack", {"time/": ""}),
    ("Tokens sampled per second", "tokens/s", "line", {"tokens/s": "both policies"}),
)
"""Title, unit, kind and metrics of each chart. A metric that ends in a slash is a family of metrics."""

_SHORTEST_S = 1e-6
"""Rounds that are shorter have no speed."""
_WINDOW = 3
"""Rounds whose mean is compared by an alarm."""
_FALL, _COLLAPSED, _SHORT = 0.15, 0.25, 0.5
"""A valid rate falls by so much; entropy and lengths fall to such a share of what they were."""
_BAND_ROUNDS, _KL_ROUNDS, _APART = 5, 3, 0.03
"""Rounds in a row outside of the band, and at the KL cap; how far reward and held-out success part."""


def charts(run: Run) -> list[JsonObject]:
    """Return the charts of a run that have data, with one value or null a round in each series."""
    rounds, found = list(run.rounds), list[JsonObject]()
    for title, unit, kind, names in _CHARTS:
        series = [(name, values) for name, values in _series(run, names) if values]
        if series:
            band = run.band if kind == "band" else None
            found.append(
                {
                    "title": title,
                    "unit": unit,
                    "kind": "stack" if kind == "stack" else "line",
                    "band": None if band is None else list(band),
                    "range": list(_SHARE) if unit == "share" else None,
                    "series": [
                        {"name": name, "values": [values.get(number) for number in rounds]}
                        for name, values in series
                    ],
                    "said": "; ".join(f"{name}: {_said(values)}" for name, values in series),
                }
            )
    return found


def _series(run: Run, names: Mapping[str, str]) -> list[tuple[str, Mapping[int, float]]]:
    found: list[tuple[str, Mapping[int, float]]] = []
    for metric, label in names.items():
        if metric == "tokens/s":
            spent = run.series("time/round_s")
            sampled = run.series("tokens/sampled")
            found.append(
                (label, {n: sampled[n] / spent[n] for n in sampled if spent.get(n, 0.0) > _SHORTEST_S})
            )
        elif metric.endswith("/"):
            found += _family(run, metric)
        else:
            found.append((label, run.series(metric)))
    return found


def _family(run: Run, prefix: str) -> list[tuple[str, Mapping[int, float]]]:
    """Return the largest metrics of a family, and the sum of the others."""
    names = {name for values in run.rounds.values() for name in values if name.startswith(prefix)}
    lines = {name: run.series(name) for name in names - {"time/round_s"}}
    order = sorted((name for name in lines if any(lines[name].values())), key=lambda n: (-_sum(lines[n]), n))
    found: list[tuple[str, Mapping[int, float]]] = [
        (_plain(name, prefix), lines[name]) for name in order[: _MOST_SERIES - 1]
    ]
    if rest := order[_MOST_SERIES - 1 :]:
        found.append(("others", {n: sum(lines[name].get(n, 0.0) for name in rest) for n in run.rounds}))
    return found


def _plain(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).removesuffix("_s").replace("_", " ")


def _sum(values: Mapping[int, float]) -> float:
    return sum(values.values())


def _said(values: Mapping[int, float]) -> str:
    """Return the first, the last, the smallest and the largest value: what a picture says at once."""
    line = list(values.values())
    if len(line) == 1:
        return f"{line[0]:.3g}"
    return f"{line[0]:.3g} first, {line[-1]:.3g} last, from {min(line):.3g} to {max(line):.3g}"


def numbers(run: Run) -> dict[str, str]:
    """Return the headline numbers of a run as text by label; those that were not measured are left out."""
    late = late_p_hats(run.rounds)
    found = {
        "held-out success": _change(run.series("agent/eval_success")),
        "valid rate": _change(run.series("simulator/valid_rate")),
        "late mean p̂": f"{fmean(late):.2f}" if late else "",
    }
    return {label: text for label, text in found.items() if text}


def _change(values: Mapping[int, float]) -> str:
    line = list(values.values())
    if len(line) < 2:
        return f"{line[0]:.2f}" if line else ""
    return f"{line[0]:.2f} → {line[-1]:.2f}"


def table(run: Run) -> list[tuple[str, str, str, str]]:
    """Return name, value, unit and meaning of each metric of the last round."""
    rows: list[tuple[str, str, str, str]] = []
    for name, value in sorted(run.rounds[run.done].items()) if run.rounds else ():
        try:
            known = describe(name)
            rows.append((name, f"{value:.4g}", known.unit, known.about))
        except ValueError:  # of another version
            rows.append((name, f"{value:.4g}", "", ""))
    return rows


def spark(run: Run, *, width: int = 120, height: int = 28) -> Markup:
    """Return a small picture of held-out success, or else of the mean success rate of tasks, as SVG."""
    values = run.series("agent/eval_success")
    label = "held-out success"
    if len(values) < 2:
        values, label = run.series("curriculum/p_hat_mean"), "mean p̂"
    if len(values) < 2:
        return Markup("")
    first, last = min(values), max(values)
    x_of = (width - 6) / ((last - first) or 1)
    points = [
        (3 + (n - first) * x_of, 3 + (1 - min(1.0, max(0.0, v))) * (height - 6)) for n, v in values.items()
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{label}">'
        '<polyline points="{line}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/></svg>'
    ).format(
        w=width, h=height, label=f"{label}: {_said(values)}", line=line, x=points[-1][0], y=points[-1][1]
    )


def alarms(run: Run) -> list[str]:
    """Return a sentence about each thing that usually means that a run goes wrong."""
    found = [*_falls(run), *_streaks(run)]
    skills = {
        name: value for name, value in run.rounds.get(run.done, {}).items() if name.startswith("tasks/share/")
    }
    if skills and max(skills.values()) > 0.5:
        skill, share = max(skills.items(), key=lambda item: item[1])
        found.append(
            f"{share:.0%} of the last round's new tasks need {skill.removeprefix('tasks/share/')!r}."
        )
    reward, held_out = run.series("agent/reward"), run.series("agent/eval_success")
    later = [number for number in held_out if number in reward][-2 * _WINDOW :]
    if len(later) == 2 * _WINDOW:
        rises, falls = (_last(one, later) - _first(one, later) for one in (reward, held_out))
        if rises > _APART and falls < -_APART:
            found.append(
                f"The reward in training rises by {rises:.2f} while held-out success falls by {-falls:.2f}: "
                "the agent learns what its tasks reward and the held-out tasks do not."
            )
    return found


def _falls(run: Run) -> list[str]:
    """Return sentences about metrics whose last rounds are far below the rounds before."""
    found: list[str] = []
    valid = list(run.series("simulator/valid_rate").values())
    if len(valid) >= 2 * _WINDOW:
        means = [fmean(valid[at : at + _WINDOW]) for at in range(len(valid) - _WINDOW + 1)]
        if max(means) - means[-1] >= _FALL:
            found.append(
                f"The valid rate fell from {max(means):.2f} to {means[-1]:.2f} (means of {_WINDOW} rounds)."
            )
    for metric, what, share in (
        ("agent/entropy", "The agent's entropy", _COLLAPSED),
        ("simulator/decision_entropy", "The simulator's entropy", _COLLAPSED),
        ("agent/response_tokens", "The length of rollouts", _SHORT),
        ("simulator/response_tokens", "The length of what the simulator writes", _SHORT),
    ):
        line = run.series(metric)
        if len(line) >= 2 * _WINDOW:
            before, now = _first(line, list(line)), _last(line, list(line))
            if 0 <= now < share * before:
                found.append(
                    f"{what} collapsed: {now:.2g}, after {before:.2g} in the first {_WINDOW} rounds."
                )
    return found


def _streaks(run: Run) -> list[str]:
    """Return sentences about conditions that hold for the last rounds without a break."""
    found: list[str] = []
    p_hats, capped = run.series("curriculum/p_hat_mean"), run.series("simulator/kl_retries")
    last = list(p_hats.values())[-_BAND_ROUNDS:]
    if run.band is not None and len(last) == _BAND_ROUNDS:
        low, high = run.band
        if not any(low <= value <= high for value in last):
            found.append(
                f"The mean p̂ has been outside of the target band {low:g} to {high:g} for {_BAND_ROUNDS} "
                f"rounds or more; now it is {last[-1]:.2f}."
            )
    if len(capped) >= _KL_ROUNDS and all(list(capped.values())[-_KL_ROUNDS:]):
        found.append(f"The simulator's update met its KL cap in each of the last {_KL_ROUNDS} rounds.")
    return found


def _first(values: Mapping[int, float], rounds: Sequence[int]) -> float:
    return fmean(values[number] for number in rounds[:_WINDOW])


def _last(values: Mapping[int, float], rounds: Sequence[int]) -> float:
    return fmean(values[number] for number in rounds[-_WINDOW:])
