"""Curricula for policy networks compared: the variants of the field, and its metrics.

    genenv sweep pendulum --variants "$(python bench/control.py variants)" --seeds 10 --jobs 2 \
        --set run.keep_checkpoints=61 --out runs/control
    python bench/control.py measure runs/control [runs/control-rare ...]

`measure` reads every run at the same number of environment steps: the fewest that a run of its sweep took, or
--steps; then runs count, too, that were stopped after so many steps. A step is an action; those of rollouts
that only score a level count too, and so do those of all agents. The agent of the last round within these
steps is rolled out 2 x --attempts times on each held-out task, with sampled actions. Of PAIRED it is the
protagonist. What is measured is kept in SWEEP/control.jsonl.

It prints a table of Markdown for each sweep, and one over all sweeps if there are several. Columns:
- uniform: success on the held-out tasks with uniformly drawn physics.
- CVaR 10%: success on the worst tenth of them, ranked by the first half of the rollouts and averaged over the
  second (arXiv:2408.15099, and the authors' eval_minigrid_2_analyse.py).
- named: success on the named levels.
Each is the interquartile mean over seeds with its 95% interval by stratified bootstrap (arXiv:2108.13264).
- steps to 50%: median over seeds of the environment steps until greedy success on the uniformly drawn tasks
  first is 50%, read on straight lines between evaluations. A run that never came there counts as later than
  all others; in brackets how many runs did.

--contrast A:B, which may be repeated, adds a table of the mean difference A - B over the seeds of a sweep, by
`named` and by `uniform`: 95% t interval, and p after Holm over the contrasts of one metric.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median_low

import numpy as np

from genenv.agent.policy import Agent
from genenv.config.run import RunConfig
from genenv.environments import load_environment
from genenv.environments.base import Environment
from genenv.errors import GenenvError, UsageError
from genenv.research.sweeps.grid import Grid
from genenv.runs.folder import RunFolder
from genenv.runs.store.store import PoolStore
from genenv.statistics import RESAMPLES, Contrast, difference, p_word, with_holm
from genenv.training.opening import build_players
from genenv.types import Group

VARIANTS: Mapping[str, str] = {
    "domain randomization": "variation",
    "PLR": "plr",
    "robust PLR": "robust-plr",
    "ACCEL": "accel",
    "ACCEL as published": "robust-accel",
    "SFL": "sfl",
    "PAIRED": "paired+agent.rollouts=4",
    "task bandit": "variation+history+curriculum.candidates=16",
    "table": "table",
    "table, frozen": "table+frozen",
    "table, shuffled rewards": "table+curriculum.shuffle_rewards=true",
}
"""The variants by the name in the table. PAIRED has two agents with half of the rollouts each."""
STEPS = "tokens/agent_sampled"
"""The metric that counts environment steps: a token is an action."""
FILE = "control.jsonl"
WORST = 0.1
_ROUND = 10**6
"""In place of a round: no round of a run has the random numbers of these rollouts."""


def interquartile_mean(strata: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return the interquartile mean of scores with its 95% interval, by stratified bootstrap.

    The mean of what is left when a quarter of all scores is cut off at each end (rounded down), and the
    middle 95% of it under scores drawn again with replacement within each stratum (Agarwal et al.,
    arXiv:2108.13264). Draws have a fixed seed.

    Args:
        strata: the scores of the runs of one variant, by environment; each has one or more.

    Returns:
        The mean, and the ends of the interval; these are NaN if each stratum has one score.
    """
    from scipy.stats import trim_mean  # takes a while to load

    value = float(trim_mean([score for one in strata for score in one], 0.25))
    if all(len(one) < 2 for one in strata):
        return value, math.nan, math.nan
    rng = np.random.default_rng(0)
    drawn_RS = np.hstack([rng.choice(np.asarray(one), (RESAMPLES, len(one))) for one in strata])
    low, high = (float(q) for q in np.quantile(trim_mean(drawn_RS, 0.25, axis=1), [0.025, 0.975]))
    return value, low, high


def worst_mean(ranked_by_N: Sequence[float], scores_N: Sequence[float], share: float) -> float:
    """Return the mean score of the worst levels: the conditional value at risk (CVaR) of arXiv:2408.15099.

    Both sequences are success rates of the same levels, in independent sets of rollouts. The first ranks the
    levels, the second is averaged over the lowest `share` of them (rounded down, at least one). With one set
    for both, levels that failed by chance would make the mean too low.

    Raises:
        ValueError: there are no levels, or the sequences have different lengths.
    """
    if not scores_N or len(ranked_by_N) != len(scores_N):
        raise ValueError(f"{len(ranked_by_N)} and {len(scores_N)} levels cannot be compared")
    worst = np.argsort(np.asarray(ranked_by_N), kind="stable")[: max(1, int(share * len(scores_N)))]
    return float(np.asarray(scores_N)[worst].mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of a sweep, with what its store says of it."""

    variant: str
    seed: int
    path: str
    spent: Sequence[float]
    """Environment steps until the end of each round, from round 0."""
    to_half: float
    """Environment steps to 50% success; infinite if it never came there."""

    def round_at(self, steps: float) -> int:
        """Return the last round that ended within this many steps."""
        return max(number for number, spent in enumerate(self.spent) if spent <= steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Success rates of a run's agent."""

    run: str
    round: int
    attempts: int
    uniform: float
    worst: float
    named: float


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("variants", help="print the variants, for genenv sweep")
    measure = commands.add_parser("measure", help="measure the runs of sweeps, and print tables")
    measure.add_argument("sweeps", nargs="+", type=Path)
    measure.add_argument("--attempts", type=int, default=10, help="rollouts in each half")
    measure.add_argument("--contrast", action="append", default=[], help="variants A:B; repeatable")
    measure.add_argument(
        "--steps", type=float, default=math.inf, help="environment steps at which to read, at most"
    )
    options = parser.parse_args(arguments)
    if options.command == "variants":
        print(",".join(VARIANTS.values()))
        return
    try:
        for contrast in options.contrast:
            for path in options.sweeps:
                variants = Grid.open(path).variants
                if unknown := [name for name in contrast.split(":") if name not in variants]:
                    raise UsageError(f"--contrast {contrast}: {path} has no variant {unknown[0]!r}")
        found = {path: measured_runs(path, options.attempts, options.steps) for path in options.sweeps}
    except GenenvError as error:
        parser.error(str(error))
    for path, (runs, steps) in found.items():
        print(f"\n{path.name}, at {steps:,.0f} environment steps:\n")
        print_table([runs])
        if options.contrast:
            print_contrasts(runs, options.contrast)
    if len(found) > 1:
        print("\nall together:\n")
        print_table([runs for runs, _ in found.values()])


def measured_runs(sweep: Path, attempts: int, most: float) -> tuple[list[tuple[Run, Measured]], float]:
    """Measure the runs of a sweep that ended or took `most` steps.

    Returns:
        The runs, and the environment steps at which they are read.
    """
    if attempts < 1:
        raise UsageError(f"--attempts is {attempts}, but must be at least 1")
    cells = [cell for cell in Grid.open(sweep.resolve()).cells() if (cell.path / "config.toml").is_file()]
    runs = [one for cell in cells if (one := read(cell.path, cell.variant, cell.seed, most)) is not None]
    if not runs:
        raise UsageError(f"no run of {sweep} is finished, or took so many steps")
    steps = min(most, *(run.spent[-1] for run in runs))
    known = {(one.run, one.round, one.attempts): one for one in _kept(sweep / FILE)}
    found: list[tuple[Run, Measured]] = []
    for run in runs:
        number = run.round_at(steps)
        if (run.path, number, attempts) not in known:
            one = known[run.path, number, attempts] = measured(run, number, attempts)
            with (sweep / FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(one)) + "\n")
        found.append((run, known[run.path, number, attempts]))
    return found, steps


def _kept(path: Path) -> list[Measured]:
    if not path.is_file():
        return []
    return [Measured(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def agent_of(config: RunConfig) -> str:
    """Return the agent that is measured: the weak one of a regret, which is PAIRED's protagonist."""
    regret = config.curriculum.agents_reward == "regret"
    return config.curriculum.regret_agents[1] if regret else next(iter(config.population))


def read(path: Path, variant: str, seed: int, most: float = math.inf) -> Run | None:
    """Return a run; None if it neither is finished nor took `most` steps."""
    folder = RunFolder.open(path)
    config = folder.settings()
    with PoolStore.open(folder.pool, create=False) as store:
        metrics = store.metrics_by_round()
        spent = list(itertools.accumulate(metrics[number].get(STEPS, 0.0) for number in sorted(metrics)))
        if len(metrics) <= config.run.rounds and (not spent or spent[-1] < most):
            return None
        success: list[tuple[float, float]] = []
        for number in sorted(metrics):
            own = [one for one in store.evaluations(number) if one.agent == agent_of(config)]
            if drawn := [one.success for one in own if is_drawn(one.task_id)]:
                success.append((spent[number], fmean(drawn)))
    return Run(variant=variant, seed=seed, path=str(path), spent=spent, to_half=steps_to(0.5, success))


def steps_to(level: float, success: Sequence[tuple[float, float]]) -> float:
    """Return the steps at which success first reaches a level, between evaluations on a straight line."""
    if success and success[0][1] >= level:
        return success[0][0]
    for (start, low), (end, high) in itertools.pairwise(success):
        if high >= level:
            return start + (level - low) / (high - low) * (end - start)
    return math.inf


def is_drawn(task_id: str) -> bool:
    """Return whether a held-out task has uniformly drawn physics; the others have names."""
    return task_id.removeprefix("held-out-").isdigit()


def measured(run: Run, number: int, attempts: int) -> Measured:
    """Roll out the agent of a round on all held-out tasks."""
    folder = RunFolder.open(Path(run.path))
    config = folder.settings()
    env = load_environment(config.environment.name, config.environment.settings)
    agent = build_players(config, env).agents[agent_of(config)]
    agent.config = agent.config.model_copy(update={"rollouts": 2 * attempts})
    groups = asyncio.run(_rolled_out(agent, folder.checkpoint(number)[0] / agent.name, env))
    halves = {
        group.task.id: [
            fmean(one.success for one in group.traces[half * attempts :][:attempts]) for half in (0, 1)
        ]
        for group in groups
    }
    drawn = [rates for name, rates in halves.items() if is_drawn(name)]
    return Measured(
        run=run.path,
        round=number,
        attempts=attempts,
        uniform=fmean(map(fmean, drawn)),
        worst=worst_mean(*zip(*drawn, strict=True), share=WORST),
        named=fmean(fmean(rates) for name, rates in halves.items() if not is_drawn(name)),
    )


async def _rolled_out(agent: Agent, weights: Path, env: Environment) -> Sequence[Group]:
    await agent.trainer.load(weights)
    await agent.trainer.publish()
    return await agent.roll_out(env, list(env.held_out()), round_=_ROUND)


def print_table(sweeps: Sequence[Sequence[tuple[Run, Measured]]]) -> None:
    """Print a row for each variant; the runs of each sweep are a stratum of the bootstrap."""
    print("| variant | runs | uniform | CVaR 10% | named | steps to 50% |\n|---|---|---|---|---|---|")
    names = {variant: name for name, variant in VARIANTS.items()}
    for variant in dict.fromkeys(run.variant for sweep in sweeps for run, _ in sweep):
        strata = [own for sweep in sweeps if (own := [one for one in sweep if one[0].variant == variant])]
        cells = [
            interval_text([[getattr(found, part) for _, found in own] for own in strata])
            for part in ("uniform", "worst", "named")
        ]
        runs = [run for own in strata for run, _ in own]
        cells.append(half_text([run.to_half for run in runs]))
        print(f"| {names.get(variant, variant)} | {len(runs)} | {' | '.join(cells)} |")


def print_contrasts(runs: Sequence[tuple[Run, Measured]], contrasts: Sequence[str]) -> None:
    """Print the differences between variants over the seeds that both have."""
    print("\n| contrast | by | difference (95% CI; p after Holm) | seeds |\n|---|---|---|---|")
    for part in ("named", "uniform"):
        by_seed = {(run.variant, run.seed): float(getattr(found, part)) for run, found in runs}
        rows = list[Contrast]()
        for contrast in contrasts:
            one, _, other = contrast.partition(":")
            seeds = [seed for variant, seed in by_seed if variant == one and (other, seed) in by_seed]
            if not seeds:
                raise SystemExit(f"--contrast {contrast}: no seed has finished runs of both variants")
            found = difference(
                *(np.array([[by_seed[name, seed]] for seed in seeds]) for name in (one, other))
            )
            if len(seeds) == 1:  # its interval would be over tasks
                found = replace(found, low=math.nan, high=math.nan)
            rows.append(Contrast(one, other, found, found.p))
        for row in with_holm(rows):
            value, low, high = (
                100 * end for end in (row.difference.value, row.difference.low, row.difference.high)
            )
            shown = f"{value:+.1f} ({low:.1f} to {high:.1f}; {p_word(row.adjusted)})"
            print(f"| {row.one}:{row.other} | {part} | {shown} | {row.difference.seeds} |")


def interval_text(strata: Sequence[Sequence[float]]) -> str:
    """Return an interquartile mean with its interval, in percent."""
    value, low, high = interquartile_mean(strata)
    return f"{value:.1%}" + ("" if math.isnan(low) else f" ({100 * low:.1f} to {100 * high:.1f})")


def half_text(steps: Sequence[float]) -> str:
    """Return the median, and how many runs came there."""
    median, came = median_low(steps), sum(map(math.isfinite, steps))
    return f"{'not reached' if math.isinf(median) else f'{median:,.0f}'} ({came} of {len(steps)})"


if __name__ == "__main__":
    main()
