"""Alarms: sentences about what usually means that a run goes wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from genenv.algorithms.update import ALARM
from genenv.viewer.folders import Run

_WINDOW = 3
"""Rounds whose mean is compared by an alarm."""
_FALL, _COLLAPSED, _SHORT = 0.15, 0.25, 0.5
"""A valid rate falls by so much; entropy and lengths fall to such a share of what they were."""
_BAND_ROUNDS, _KL_ROUNDS, _APART = 5, 3, 0.03
"""Rounds in a row outside of the band, and at the KL cap; how far reward and held-out success part."""
_MOST_SHARE, _RISE = 0.5, 0.2
"""More of the new tasks need one skill, and by so much more than at first."""
_GROWN, _NOTABLE = 3.0, 0.01
"""The mismatch of sampler and trainer grows by this factor, to this many nats a token or more."""


def alarms(run: Run) -> list[str]:
    """Return a sentence about each thing that usually means that a run goes wrong."""
    found = [*_falls(run), *_streaks(run)]
    found += _narrowing(run)
    reward, held_out = run.series("agent/reward"), run.series("agent/eval_success")
    later = [number for number in held_out if number in reward and number >= (run.shift or 0)][-2 * _WINDOW :]
    if len(later) == 2 * _WINDOW:
        rises, falls = (_last(one, later) - _first(one, later) for one in (reward, held_out))
        if rises > _APART and falls < -_APART:
            found.append(
                f"The reward in training rises by {rises:.2f} while held-out success falls by {-falls:.2f}: "
                "the agent learns what its tasks reward and the held-out tasks do not."
            )
    return found


def _narrowing(run: Run) -> list[str]:
    """Return a sentence if most new tasks need a skill that fewer needed at first: the tasks became alike.

    A skill that most tasks need from the first round on is one of the environment, and no sign of anything.
    """
    prefix = "tasks/share/"
    rounds = [
        {name: share for name, share in values.items() if name.startswith(prefix)}
        for values in run.rounds.values()
    ]
    rounds = [shares for shares in rounds if shares]
    early = rounds[: min(_WINDOW, len(rounds) - 1)]
    if not early:
        return []
    rises = [
        (share - first, share, first, name)
        for name, share in rounds[-1].items()
        for first in (fmean(shares.get(name, 0.0) for shares in early),)
        if share > _MOST_SHARE and share - first >= _RISE
    ]
    if not rises:
        return []
    _, share, first, name = max(rises)
    return [
        f"{share:.0%} of the last round's new tasks need {name.removeprefix(prefix)!r}, after {first:.0%} in "
        f"the first {'round' if len(early) == 1 else f'{len(early)} rounds'}."
    ]


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
    last = [(value, run.band_in(number)) for number, value in list(p_hats.items())[-_BAND_ROUNDS:]]
    if len(last) == _BAND_ROUNDS and not any(band is None or band[0] <= p <= band[1] for p, band in last):
        low, high = last[-1][1] or (0.0, 1.0)
        found.append(
            f"The mean p̂ has been outside of the target band {low:.3g} to {high:.3g} for {_BAND_ROUNDS} "
            f"rounds or more; now it is {last[-1][0]:.2f}."
        )
    mismatch = run.series("agent/mismatch_kl")
    if len(mismatch) >= 2 * _WINDOW:
        before, now = _first(mismatch, list(mismatch)), _last(mismatch, list(mismatch))
        if now >= max(_NOTABLE, _GROWN * before):
            found.append(
                f"The mismatch of the agent's sampler and trainer grows: {now:.2g} nats a token, after "
                f"{before:.2g} in the first {_WINDOW} rounds. Above {ALARM:g} it spoils the gradient."
            )
    if len(capped) >= _KL_ROUNDS and all(list(capped.values())[-_KL_ROUNDS:]):
        found.append(f"The simulator's update met its KL cap in each of the last {_KL_ROUNDS} rounds.")
    return found


def _first(values: Mapping[int, float], rounds: Sequence[int]) -> float:
    return fmean(values[number] for number in rounds[:_WINDOW])


def _last(values: Mapping[int, float], rounds: Sequence[int]) -> float:
    return fmean(values[number] for number in rounds[-_WINDOW:])
