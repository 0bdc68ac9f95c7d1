"""Measurements of runs, read from their folders: held-out scores, metrics, and budgets spent."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from genenv.config.run import RunConfig
from genenv.errors import GenenvError, UsageError
from genenv.research.sweeps.grid import FILE, Grid
from genenv.runs.folder import RunFolder
from genenv.runs.store.records import Evaluation
from genenv.runs.store.store import PoolStore

BUDGETS: Mapping[str, tuple[str, ...]] = {
    "attempts": ("agent/attempts",),
    "agent tokens": ("tokens/agent_sampled", "tokens/agent_probed", "tokens/agent_trained"),
    "sampled tokens": ("tokens/agent_sampled", "tokens/agent_probed", "tokens/simulator_sampled"),
    "all tokens": (
        *("tokens/agent_sampled", "tokens/agent_probed", "tokens/agent_trained"),
        *("tokens/simulator_sampled", "tokens/simulator_trained"),
    ),
    "optimizer steps": ("agent/steps",),
}
"""Budgets for comparing runs at equal cost: the metrics to add up, over all rounds. `sampled tokens` are what
both policies sampled, rejected specs included, and the tokens of scored demonstrations. `all tokens` adds
the tokens of updates."""
OUTCOMES = frozenset({"optimizer steps"})
"""Budgets that a variant does not spend but brings about. A run makes a step for each batch of tasks with
mixed outcomes, which is what curricula change. So success at equal steps describes how a difference came
about, and is no test of a variant."""
MOST_ROUNDS = 1
"""The most rounds between two measurements for a test of success that is read between them. Over more rounds
the straight line between them is no measurement: learning curves are not straight."""
AT_THE_END = "the end"
"""Stands beside the budgets for what a run ends with, whatever it spent."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Held-out scores after a round, and the budgets spent until then."""

    round: int
    spent: Mapping[str, float]
    """The amount spent, by budget."""
    scores: Mapping[str, float]
    """Success, 0 or 1, by task id."""

    @property
    def mean(self) -> float:
        """Return the share of tasks solved."""
        return sum(self.scores.values()) / len(self.scores)


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """The measurements and metrics of one run, as `genenv compare` needs them."""

    path: Path
    variant: str
    seed: int
    config: RunConfig
    measured: Sequence[Measurement]
    metrics: Mapping[int, Mapping[str, float]]
    """The metrics of each round, by its number."""

    @property
    def finished(self) -> bool:
        """Return whether all planned rounds are committed."""
        return max(self.metrics) >= self.config.run.rounds

    def on(self, tasks: Container[str]) -> MeasuredRun:
        """Return the run with its results on some held-out tasks alone."""
        kept = [{name: score for name, score in one.scores.items() if name in tasks} for one in self.measured]
        pairs = zip(self.measured, kept, strict=True)
        return replace(self, measured=[replace(one, scores=some) for one, some in pairs if some])

    def at(self, budget: str, amount: float) -> Mapping[str, float]:
        """Return the scores at a spent amount, interpolated linearly; at most the last measurement."""
        spent = [measurement.spent[budget] for measurement in self.measured]
        place = bisect.bisect_left(spent, amount)
        if place >= len(spent):
            return self.measured[-1].scores
        if place == 0 or spent[place] == amount:
            return self.measured[place].scores
        before, after = self.measured[place - 1], self.measured[place]
        if before.scores.keys() != after.scores.keys():  # between them the world has changed
            return before.scores
        share = (amount - spent[place - 1]) / (spent[place] - spent[place - 1])
        return {
            name: (1 - share) * before.scores[name] + share * after.scores[name] for name in before.scores
        }

    def rounds_around(self, budget: str, amount: float) -> int:
        """Return the rounds between the two measurements around a spent amount; 0 if it was measured."""
        spent = [measurement.spent[budget] for measurement in self.measured]
        place = bisect.bisect_left(spent, amount)
        if place in (0, len(spent)) or spent[place] == amount:
            return 0
        return self.measured[place].round - self.measured[place - 1].round

    def in_last_world(self) -> Sequence[Measurement]:
        """Return the measurements on the tasks of the last environment: all, unless there was a shift."""
        last = self.measured[-1].scores.keys()
        return [measurement for measurement in self.measured if measurement.scores.keys() == last]

    def spent_to_reach(self, level: float, shared: int = 0) -> float | None:
        """How many rollouts were spent when held-out success first reached a level; None if it never did.

        NaN if it was not measured near there (`MOST_ROUNDS`). Where the world has changed, success counts
        that is of the last one.

        Args:
            level: the level; 0 rollouts if the run began at it.
            shared: how many first measurements are of another run too (`shared_past`). Rollouts until the
                last of them do not count.
        """
        begun = self.measured[shared - 1].spent["attempts"] if shared else 0.0
        last = self.measured[-1].scores.keys()
        measured = [one for one in self.measured[max(0, shared - 1) :] if one.scores.keys() == last]
        if measured[0].mean >= level:
            return measured[0].spent["attempts"] - begun
        for before, after in itertools.pairwise(measured):
            if after.mean >= level:
                if after.round - before.round > MOST_ROUNDS:
                    return math.nan
                share = (level - before.mean) / (after.mean - before.mean)
                spent = before.spent["attempts"] - begun
                return spent + share * (after.spent["attempts"] - before.spent["attempts"])
        return None


Pair = tuple[MeasuredRun, MeasuredRun]
"""Runs of two variants with the same seed."""


def paired(variants: Mapping[str, Sequence[MeasuredRun]], pair: tuple[str, str]) -> list[Pair]:
    """Return the runs of two variants that have the same seed, by seed."""
    one, other = ({run.seed: run for run in variants[name]} for name in pair)
    return [(one[seed], other[seed]) for seed in sorted(one.keys() & other.keys())]


def finished(runs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs in which both runs are finished."""
    return [(one, other) for one, other in runs if one.finished and other.finished]


def usable(runs: Sequence[Pair]) -> list[Pair]:
    """Return the finished pairs if there are any; else all, of which each is read as far as it came."""
    return finished(runs) or list(runs)


def shared_past(both: Pair) -> int:
    """Return how many first measurements both runs share: of a warm-up, or of a run that both go on from."""
    equal = [one == other for one, other in zip(*(run.measured for run in both), strict=False)]
    return (*equal, False).index(False)


def amount_of(both: Pair, budget: str, fixed: float | None) -> float:
    """Return what both runs of a pair have spent: `fixed`, or all of the cheaper one; 0 if one began only."""
    amount = min(run.measured[-1].spent.get(budget, math.nan) for run in both)
    return amount if fixed is None or amount <= 0 else fixed


def unmeasured(both: Pair, budget: str, amount: float) -> str:
    """Return why a pair cannot be read at an amount, outside of its measurements; empty if it can."""
    first, last = ([run.measured[place].spent.get(budget, math.nan) for run in both] for place in (0, -1))
    if any(amount < spent for spent in first):
        return "one of the two runs was first measured after more"
    return "one of the two runs spent less" if any(amount > spent for spent in last) else ""


def read_run(path: Path, variant: str | None = None) -> MeasuredRun:
    """Read the measurements of a run.

    Args:
        path: the run's folder.
        variant: the variant's name; None: from the run's settings, or else the preset's name.

    Raises:
        UsageError: the folder holds no run, or the run has no measurement.
        DataError: the run is damaged.
    """
    folder = RunFolder.open(path)
    config = folder.settings()
    with PoolStore.open(folder.pool, create=False) as store:
        metrics = store.metrics_by_round()
        taken = {n: store.evaluations(n) for n, values in metrics.items() if "agent/eval_success" in values}
    if not taken:
        raise UsageError(f"{path} has measured no held-out tasks; set run.eval_every and play it again")
    measured, spent = list[Measurement](), dict.fromkeys(BUDGETS, 0.0)
    whose = _counted_agents(config)
    for number, values in metrics.items():
        found = [one for one in taken.get(number, ()) if one.agent in whose]
        if "agent/eval_at_shift" in values:  # measured twice: before and after the round
            measured.append(Measurement(number - 1, dict(spent), _scores(found[: len(found) // 2])))
        for budget, names in BUDGETS.items():
            spent[budget] += sum(values.get(name, 0.0) for name in names)
        if found:
            measured.append(Measurement(number, dict(spent), _scores(found)))
    return MeasuredRun(
        path, variant or config.variant or config.preset, config.run.seed, config, measured, metrics
    )


def _counted_agents(config: RunConfig) -> Container[str]:
    """Return the agents whose results are a run's held-out success.

    With seats it is the leading one, as in `agent/eval_success`; with a regret the weak one if it is trained
    (PAIRED's protagonist); else all.
    """
    agents, curriculum = config.population, config.curriculum
    if seated := list(config.seated.values()):
        return {seated[0]}
    if agents_of_regret := curriculum.regret_agents if curriculum.agents_reward == "regret" else ():
        weak = agents_of_regret[1]
        return {weak} if agents[weak].train else agents
    return agents


def _scores(evaluations: Iterable[Evaluation]) -> dict[str, float]:
    """Return the scores by task; of several rollouts the last counts, of several agents the mean."""
    last = {(one.task_id, one.agent): float(one.success) for one in evaluations}
    by_task: dict[str, list[float]] = {}
    for (task, _), score in last.items():
        by_task.setdefault(task, []).append(score)
    return {task: fmean(scores) for task, scores in by_task.items()}


def read_all(paths: Iterable[Path]) -> tuple[list[MeasuredRun], list[tuple[str, str]], list[str]]:
    """Read all runs in folders of runs and sweeps. The folder of one variant of a sweep is read too.

    Returns:
        The runs; the contrasts that sweeps named beforehand; and a sentence for each run that is left out.

    Raises:
        UsageError: a folder is neither a run nor a sweep.
    """
    found, contrasts, notes = list[MeasuredRun](), list[tuple[str, str]](), list[str]()
    for path in paths:
        if (path / FILE).is_file():
            grid = Grid.open(path)
            contrasts += grid.contrasts
            if grid.later:
                notes.append(f"{path}: added when runs were there already: {', '.join(grid.later)}")
            absent: dict[str, list[int]] = {}
            for cell in grid.cells():
                if not cell.path.exists():
                    absent.setdefault(cell.variant, []).append(cell.seed)
                    continue
                try:
                    found.append(read_run(cell.path, cell.variant))
                except GenenvError as error:
                    notes.append(f"{cell.name} is left out: {error}")
            for variant, seeds in absent.items():
                named = "seed" if len(seeds) == 1 else "seeds"
                left = "is left out: it was" if len(seeds) == 1 else "are left out: they were"
                notes.append(f"{variant}, {named} {', '.join(map(str, seeds))} {left} not begun yet")
        else:
            inside = [] if RunFolder(path).pool.is_file() else sorted(path.glob("*/"))
            found += [read_run(one) for one in inside if RunFolder(one).pool.is_file()] or [read_run(path)]
    return found, contrasts, notes
