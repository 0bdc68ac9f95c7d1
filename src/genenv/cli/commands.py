"""What the commands do, apart from their options."""

from __future__ import annotations

import asyncio
import math
import random
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import cast

import typer

from genenv.agent.rollout import tools_of
from genenv.backends.settings import AUTOMATIC, OF_THE_MACHINE
from genenv.cli.console import ConsoleReporter
from genenv.coevolve import CoEvolution, Players
from genenv.config.run import RunConfig, anchored, as_tables, dump_toml, load_config
from genenv.curriculum.replay import choose_seeds
from genenv.curriculum.stats import SkillStats
from genenv.domains import load_domain
from genenv.domains.base import Domain
from genenv.errors import DataError, UsageError
from genenv.gate.gate import Gate, base_tasks
from genenv.runs.checkpoint import checkpoint_path, verify_checkpoint
from genenv.runs.folder import RunFolder, write_whole
from genenv.runs.metrics import close_all, late_p_hats, open_sinks, target_band
from genenv.runs.resuming import check_length, for_training, for_writing, possible, record, remember
from genenv.runs.store.identity import read_last_round
from genenv.runs.store.store import PoolStore
from genenv.seeding import generator
from genenv.simulator.player import make_contexts
from genenv.texts import json_line
from genenv.types import Json, JsonObject, Origin, Proposal, Task


def train_run(
    config_path: Path | None,
    out: Path | None,
    overrides: Sequence[str],
    *,
    resume: bool,
    other_arithmetic: bool = False,
) -> None:
    """Start a run, or continue one with the settings it was started with; then say how it went.

    Args:
        config_path: the settings; of a run that is continued, its own are taken where none are named.
        out: the run's folder; `runs/NAME` where none is named.
        overrides: `key=value` each.
        resume: continue the run.
        other_arithmetic: continue it also where this machine has not what it was computed with.

    Raises:
        GenenvError: anything the user can mend.
    """
    if other_arithmetic and not resume:
        raise UsageError("--allow-other-arithmetic is for a run that is continued; add --resume")
    if not resume:
        _start(config_path, out, overrides)
        return
    folder = RunFolder.open(_run_of(config_path, out, overrides))
    _continue(folder, config_path, overrides, other_arithmetic=other_arithmetic)


def _start(config_path: Path | None, out: Path | None, overrides: Sequence[str]) -> None:
    config = anchored(load_config(config_path, overrides))
    path = out or Path("runs") / config.run.name
    folder = RunFolder.vacant(path)
    _check_models(config)
    domain = load_domain(config.domain.name, config.domain.settings)
    _check_seeds(domain, config)
    config = _chosen(config)
    players = _players(config, domain)
    config = _settled(config, players)

    def create() -> None:
        path.mkdir(parents=True, exist_ok=True)
        remember(folder, config_path)
        RunFolder.create(path, dump_toml(config))

    _play(config, domain, players, folder, create=create)


def _run_of(config_path: Path | None, out: Path | None, overrides: Sequence[str]) -> Path:
    """The folder of the run that is meant.

    Raises:
        UsageError: none is named.
    """
    if config_path is not None and (config_path / "config.toml").is_file():
        raise UsageError(f"{config_path} is a run; continue it with --resume --out {config_path}")
    if out is not None:
        return out
    if config_path is None:
        raise UsageError("name the run to continue, such as --out runs/demo")
    return Path("runs") / load_config(config_path, overrides).run.name


def _continue(
    folder: RunFolder, config_path: Path | None, overrides: Sequence[str], *, other_arithmetic: bool
) -> None:
    change = for_training(folder, config_path, overrides, other_arithmetic=other_arithmetic)
    if (note := check_length(folder, change)) is not None:
        typer.echo(note, err=True)
    if (done := _finished(folder, change.asked)) is not None:
        number, told = done
        unchanged = "" if told else ", nothing was changed"
        typer.echo(f"{folder.path} is finished: all of its {number} rounds are committed{unchanged}")
        _say_how_it_went(folder.path)
        return
    config = _chosen(possible(change, folder, other_arithmetic=other_arithmetic))
    domain = load_domain(config.domain.name, config.domain.settings)
    _check_seeds(domain, config)
    players = _players(config, domain)
    config = _settled(config, players)

    def note_changes(last: int | None) -> None:
        record(folder, replace(change, asked=config), since=0 if last is None else last + 1)
        remember(folder, config_path)

    _play(config, domain, players, folder, proven=note_changes)


def _play(
    config: RunConfig,
    domain: Domain,
    players: Players,
    folder: RunFolder,
    *,
    create: Callable[[], None] | None = None,
    proven: Callable[[int | None], None] | None = None,
) -> None:
    """Play all rounds that are left.

    Args:
        config: the settings.
        domain: the world of the tasks.
        players: the two of them.
        folder: the run.
        create: makes the folder of a new run, when nothing else can fail.
        proven: told of the last round of a run that is continued, when it was proven whole.
    """
    _check_tools(domain, players, config)
    sinks = open_sinks(config.logging, folder.path, name=config.run.name, settings=as_tables(config))
    try:
        reporter = ConsoleReporter()
        with reporter.stage("building base tasks", items=None, unit=""):
            loop = CoEvolution(config, domain, players, folder, sinks=sinks, reporter=reporter)
        if create is not None:
            create()
        loop.run(proven)
    finally:
        close_all(sinks)
    _say_how_it_went(folder.path)


def generate_tasks(
    config_path: Path | None, overrides: Sequence[str], *, n: int, run: Path | None, out: Path | None
) -> None:
    """Let a simulator write until `n` tasks have passed the gate, and write them as JSONL.

    Raises:
        GenenvError: anything the user can mend; also when nothing passes.
    """
    folder = None if run is None else RunFolder.open(run)
    config = for_writing(folder, config_path, overrides)
    if out is not None:
        if out.is_dir():
            raise UsageError(f"{out} is a folder; name a file for the tasks, such as {out / 'tasks.jsonl'}")
        if out.exists():
            raise UsageError(f"{out} exists already; choose another --out, or delete it")
        out.parent.mkdir(parents=True, exist_ok=True)
    _check_models(config)
    domain = load_domain(config.domain.name, config.domain.settings)
    _check_seeds(domain, config)
    players = _players(config, domain)
    stats, gate, last = SkillStats(config.curriculum), _gate(domain, config), 0
    if folder is not None:
        last = _continue_from(folder, players, stats, gate)
    rounds = _Rounds(config=config, domain=domain, players=players, stats=stats, gate=gate, next_=last + 1)
    tasks, written = asyncio.run(rounds.write(n))
    if not tasks:
        advice = (
            "warm a simulator up and train it, then name its run with --run"
            if folder is None
            else f"train {folder.path} for longer"
        )
        raise UsageError(f"none of {written} generations passed the gate; {advice}")
    lines = [json_line(_as_line(task)) for task in tasks]
    if out is None:
        typer.echo("\n".join(lines))
    else:
        write_whole(out, "\n".join(lines) + "\n")
    typer.echo(f"{len(tasks)} tasks of {written} generations passed the gate", err=True)


def _say_how_it_went(path: Path) -> None:
    for line in summarise(path):
        typer.echo(line)
    typer.echo(f"pictures and tasks: genenv report {shlex.quote(str(path))}")


def summarise(run: Path) -> list[str]:
    """Five lines: held-out success, valid rate, p_hat, tasks, time."""
    folder = RunFolder.open(run)
    with PoolStore.open(folder.pool, create=False) as store:
        metrics = store.metrics_by_round()
        new = store.task_count(Origin.GENERATED)
    if not metrics:
        raise UsageError(f"{run} has no committed round yet; continue it with --resume")
    held_out = [(n, m["agent/eval_success"]) for n, m in metrics.items() if "agent/eval_success" in m]
    played = [n for n in metrics if n > 0]
    valid = [metrics[n].get("simulator/valid_rate", 0.0) for n in played]
    p_hats = late_p_hats(metrics)
    low, high = target_band(load_config(folder.config).curriculum.alpha)
    seconds = sum(m.get("time/round_s", 0.0) for m in metrics.values())
    tokens = sum(m.get("tokens/sampled", 0.0) for m in metrics.values())
    return [
        "held-out success: " + (_from_to(held_out[0][1], held_out[-1][1]) if held_out else "not measured"),
        "valid tasks of the simulator: " + (_from_to(valid[0], valid[-1]) if valid else "no round played"),
        "mean p_hat in the last third of the rounds: "
        + (f"{fmean(p_hats):.2f} (target band {low:g} to {high:g})" if p_hats else "none"),
        f"rounds: {len(played)}, new tasks: {new}, tokens sampled: {tokens:,.0f}",
        f"time: {seconds / 60:.1f} minutes",
    ]


def _from_to(first: float, last: float) -> str:
    return f"{first:.1%} -> {last:.1%}"


def _players(config: RunConfig, domain: Domain) -> Players:
    from genenv.build import local_players

    with ConsoleReporter().stage(f"loading {config.policy.model}", items=None, unit=""):
        return local_players(config, domain)


def _check_models(config: RunConfig) -> None:
    """Refuse names that no model has, before anything is loaded.

    Raises:
        UsageError: names the one that is spelt most alike.
    """
    from genenv.backends.local import hub

    for name in (config.policy.model, config.policy.simulator_model):
        if name is not None:
            hub.check(name)


def _chosen(config: RunConfig) -> RunConfig:
    """The settings with what the machine decides in `policy` decided: once, so a resumed run is equal."""
    if not any(getattr(config.policy, name) == AUTOMATIC[name] for name in OF_THE_MACHINE):
        return config
    from genenv.backends.local.arithmetic import chosen

    return config.model_copy(update={"policy": chosen(config.policy)})


def _settled(config: RunConfig, players: Players) -> RunConfig:
    """The settings with what the models decide in `policy` decided as well."""
    return config if players.settled is None else config.model_copy(update={"policy": players.settled})


def _finished(folder: RunFolder, config: RunConfig) -> tuple[int, Sequence[str]] | None:
    """How many rounds a finished run has, and what mending it had to say; None when some rounds are left."""
    told: list[str] = []
    with folder.lock():
        last = read_last_round(folder.pool)
        if last is None or last < config.run.rounds:
            return None
        with PoolStore.open(folder.pool, create=False) as store:
            folder.restore(store, told.append)
    for text in told:
        typer.echo(f"note: {text}", err=True)
    return last, told


def _check_seeds(domain: Domain, config: RunConfig) -> None:
    """Refuse too few seeds as the first round would, but before any model is loaded."""
    choose_seeds(
        domain.seeds(),
        SkillStats(config.curriculum),
        config.simulator.contexts,
        random.Random(0),
        config.curriculum,
    )


def _check_tools(domain: Domain, players: Players, config: RunConfig) -> None:
    """Refuse a model that cannot be offered a domain's tools, before a run begins."""
    for task in base_tasks(domain, domain.seeds()[:1], seed=config.run.seed).values():
        players.agent.policy.render(task.messages, first=True, tools=tools_of(domain.episode(task)))


def _gate(domain: Domain, config: RunConfig) -> Gate:
    """A gate that knows the base data and the held-out tasks."""
    gate = Gate(domain, config.curriculum, seed=config.run.seed)
    gate.remember(base_tasks(domain, domain.seeds(), seed=config.run.seed).values())
    gate.protect(domain.held_out())
    return gate


def _continue_from(folder: RunFolder, players: Players, stats: SkillStats, gate: Gate) -> int:
    """Bring players, statistics and archive to where a run is; returns its last round."""
    with PoolStore.open(folder.pool, create=False) as store:
        last = store.last_round()
        if last is None:
            raise DataError(f"{folder.path} has no committed round yet")
        stats.load_state_dict(cast("JsonObject", store.state(last)["stats"]))
        gate.recall(store.surfaces(), store.without_surface())
        checkpoint = checkpoint_path(folder.checkpoints, last)
        verify_checkpoint(checkpoint, store.identity(), sha256=store.checkpoint_sha256(last))
    players.load(checkpoint)
    return last


_BARREN_ROUNDS = 5
"""So many rounds' worth of generations without a task, and `generate` gives up."""


@dataclass(kw_only=True)
class _Rounds:
    """Rounds of writing without any learning, numbered from `next_`."""

    config: RunConfig
    domain: Domain
    players: Players
    stats: SkillStats
    gate: Gate
    next_: int

    async def write(self, n: int) -> tuple[list[Task], int]:
        """Up to `n` tasks that passed the gate, and how many generations it took."""
        tasks: list[Task] = []
        written = barren = 0
        patience = _BARREN_ROUNDS * self.config.simulator.contexts * self.config.simulator.variations
        while len(tasks) < n and barren < patience:
            proposals = await self._round(n - len(tasks))
            fresh = [p.outcome for p in proposals if isinstance(p.outcome, Task)]
            tasks, written = tasks + fresh, written + len(proposals)
            barren = 0 if fresh else barren + len(proposals)
        return tasks[:n], written

    async def _round(self, missing: int) -> list[Proposal]:
        config, round_ = self.config, self.next_
        self.next_ += 1
        contexts = min(config.simulator.contexts, math.ceil(missing / config.simulator.variations))
        rng = generator(config.run.seed, "generate", round_)
        chosen = choose_seeds(self.domain.seeds(), self.stats, contexts, rng, config.curriculum)
        asked = make_contexts(
            self.domain, chosen, self.stats.profile(), round_=round_, target=config.curriculum.alpha
        )
        wanted = len(asked) * config.simulator.variations
        with ConsoleReporter().stage("writing tasks", items=wanted, unit="specs") as stage:
            generations = await self.players.simulator.propose(self.domain, asked, stage=stage)
        return self.gate.admit(asked, generations)


def _as_line(task: Task) -> dict[str, Json]:
    return {
        "id": task.id,
        "skills": task.skills,
        "messages": [{"role": m.role, "content": m.content} for m in task.messages],
        "spec": task.spec,
        "oracle": task.oracle,
        "seed_id": task.lineage.seed_id,
    }
