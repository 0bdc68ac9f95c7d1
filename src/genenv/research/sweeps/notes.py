"""What a reader of a comparison must know about its runs: one sentence each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from genenv.config.resolved import FREE, by_key
from genenv.config.run import RunConfig
from genenv.config.tables import flat
from genenv.config.variants import with_variant
from genenv.errors import UsageError
from genenv.research.sweeps.readings import (
    AT_THE_END,
    BUDGETS,
    MeasuredRun,
    amount_of,
    finished,
    paired,
    unmeasured,
    usable,
)
from genenv.statistics import counted
from genenv.texts import listed
from genenv.training.resuming import stored_digests
from genenv.types import Json

_OWN_SETTINGS = {"run.seed", "run.name", "policy.threads"}
"""Settings in which the runs of a variant may differ."""
_OF_NO_RESULT = {*_OWN_SETTINGS, *FREE, "preset", "variant"} - {"run.rounds", "run.eval_every"}
"""Settings in which compared runs may differ without a note."""
_MOST_NAMED = 8


def notes_of(
    readings: Sequence[MeasuredRun],
    variants: Mapping[str, Sequence[MeasuredRun]],
    pairs: Sequence[tuple[str, str]],
    at: Mapping[str, float],
) -> list[str]:
    """Return what is missing or unusual in compared runs, as sentences.

    Args:
        readings: all runs.
        variants: the same by variant.
        pairs: the variants that are compared.
        at: amounts of budgets at which all runs are read.
    """
    scripted = any(run.config.policy.backend == "scripted" for run in readings)
    return [
        *_unpaired(variants, pairs),
        *_other_tasks(variants, pairs),
        *_unlike(variants, pairs),
        *_other_files(variants),
        *_other_settings(variants),
        *_not_compared(variants, pairs),
        *(["the policies are scripted and learn from nothing: this tries settings, not variants"] * scripted),
        *_unfinished(variants, pairs),
        *_unmeasured(variants, pairs, at),
    ]


def _unmeasured(
    variants: Mapping[str, Sequence[MeasuredRun]], pairs: Sequence[tuple[str, str]], at: Mapping[str, float]
) -> list[str]:
    """Return a sentence for each budget and pair that lacks seeds, as one run was not measured there."""
    found: list[str] = []
    for budget in BUDGETS:
        for pair in pairs:
            runs = usable(paired(variants, pair))
            amounts = [amount_of(both, budget, at.get(budget)) for both in runs]
            seeds: defaultdict[str, list[int]] = defaultdict(list)
            for both, amount in zip(runs, amounts, strict=True):
                if amount > 0 and (why := unmeasured(both, budget, amount)):
                    seeds[f"{why} than {amount:,.0f}" if budget in at else why].append(both[0].seed)
            found += [
                f"{':'.join(pair)} at equal {budget} lacks {counted(len(lost), 'seed')} "
                f"({', '.join(map(str, lost))}): {why}"
                for why, lost in seeds.items()
            ]
    return found


def _other_settings(variants: Mapping[str, Sequence[MeasuredRun]]) -> list[str]:
    """Return a sentence for each variant whose runs have several values of a setting."""
    found: list[str] = []
    for name, runs in variants.items():
        tables = [by_key(run.config) for run in runs]
        keys = dict.fromkeys(key for table in tables for key in table if key not in _OWN_SETTINGS)
        several = [key for key in keys if any(table.get(key) != tables[0].get(key) for table in tables)]
        if several:
            found.append(
                f"the runs of {name} differ in {', '.join(several)}: their mean is of several experiments; "
                "name runs of one sweep"
            )
    return found


def _unpaired(variants: Mapping[str, Sequence[MeasuredRun]], pairs: Sequence[tuple[str, str]]) -> list[str]:
    notes: list[str] = []
    for pair in pairs:
        one, other = ({run.seed for run in variants[name]} for name in pair)
        if alone := sorted(one ^ other):
            notes.append(
                f"{pair[0]} and {pair[1]}: seeds {', '.join(map(str, alone))} have a run of one of them only"
            )
    return notes


def _other_tasks(
    variants: Mapping[str, Sequence[MeasuredRun]], pairs: Sequence[tuple[str, str]]
) -> list[str]:
    """Return a sentence for each pair whose held-out tasks may differ though their ids are the same."""
    notes: list[str] = []
    for pair in pairs:
        one, other = (_environment(variants[name][0].config) for name in pair)
        if differing := sorted(_differing(one, other)):
            notes.append(
                f"{pair[0]} and {pair[1]} differ in {', '.join(differing)}: if held-out tasks of one id are "
                "other tasks with that, the difference is one of tasks too"
            )
    return notes


def _unlike(variants: Mapping[str, Sequence[MeasuredRun]], pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return a sentence for each pair whose runs differ in what neither variant's name says."""
    notes: list[str] = []
    for pair in pairs:
        said = _said_by(pair[0]) | _said_by(pair[1]) | _OF_NO_RESULT
        keys = dict.fromkeys(
            key
            for both in paired(variants, pair)
            for key in _differing(*(by_key(run.config) for run in both))
            if key not in said and key not in _environment(both[0].config)
        )
        if keys:
            notes.append(
                f"{pair[0]} and {pair[1]} differ in {listed(list(keys), _MOST_NAMED)}, which neither name "
                "says: the difference is one of these settings too"
            )
        one, other = (_versions(variants[name]) for name in pair)
        notes += [
            f"{pair[0]} and {pair[1]}: what {key} names is not the same in both: the difference is one of "
            "these files too"
            for key in one
            if key not in said and key in other and one[key].keys().isdisjoint(other[key])
        ]
    return notes


def _versions(runs: Sequence[MeasuredRun]) -> Mapping[str, Mapping[str, list[int]]]:
    """Return the seeds of a variant's runs by setting and digest of the file that it names."""
    found: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for key, digest in stored_digests(run.path).items():
            found[key][digest].append(run.seed)
    return found


def _differing(one: Mapping[str, Json], other: Mapping[str, Json]) -> list[str]:
    """Return the keys in which two tables of settings differ."""
    return [key for key in {**one, **other} if one.get(key) != other.get(key)]


def _said_by(variant: str) -> set[str]:
    """Return the settings that a variant's name stands for; none if it is no variant's."""
    try:
        return set(flat(with_variant({}, variant)))
    except UsageError:
        return set()


def _other_files(variants: Mapping[str, Sequence[MeasuredRun]]) -> list[str]:
    """Return a sentence for each of the user's files that runs of one variant used in several versions."""
    notes: list[str] = []
    for name, runs in variants.items():
        for key, versions in _versions(runs).items():
            if len(versions) > 1:
                told = " and ".join(f"seeds {', '.join(map(str, found))}" for found in versions.values())
                notes.append(f"{name}: what {key} names is not the same in {told}; play some of them again")
    return notes


def _not_compared(
    variants: Mapping[str, Sequence[MeasuredRun]], pairs: Sequence[tuple[str, str]]
) -> list[str]:
    """Return a sentence about variants that no pair names."""
    left = [name for name in variants if all(name not in pair for pair in pairs)]
    return [f"not compared: {', '.join(left)}; name them with --contrast A:B"] if left else []


def _environment(config: RunConfig) -> dict[str, Json]:
    """Return the settings of the environment by dotted key, without its name and who plays its seats."""
    settings = by_key(config).items()
    return {
        key: value
        for key, value in settings
        if key.startswith("environment.") and not key.startswith(("environment.name", "environment.seats"))
    }


def _unfinished(variants: Mapping[str, Sequence[MeasuredRun]], pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return a sentence for each run that is not finished."""
    compared = [pair for pair in pairs if finished(paired(variants, pair))]
    return [
        f"{run.path} is not finished: round {max(run.metrics)} of {run.config.run.rounds}; its last "
        f"measurement is of round {run.measured[-1].round}, and it is no part of "
        + ("any row" if any(name in pair for pair in compared) else AT_THE_END)
        for name, runs in variants.items()
        for run in runs
        if not run.finished
    ]
