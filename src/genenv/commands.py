"""What the commands do, apart from their options."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import cast

import typer

from genenv.agent.rollout import tools_of
from genenv.checkpoint import checkpoint_path, verify_checkpoint
from genenv.coevolve import CoEvolution, Players
from genenv.config import RunConfig, as_tables, dump_toml, load_config
from genenv.console import ConsoleReporter
from genenv.curriculum.replay import choose_seeds
from genenv.curriculum.stats import SkillStats
from genenv.domains import load_domain
from genenv.domains.base import Domain
from genenv.errors import DataError, UsageError
from genenv.metrics import close_all, late_p_hats, open_sinks, target_band
from genenv.policies.settings import PolicyConfig
from genenv.pools.store import PoolStore
from genenv.run_folder import RunFolder, write_whole
from genenv.simulator.gate import Gate, base_tasks
from genenv.simulator.player import make_contexts
from genenv.streams import generator
from genenv.types import Json, JsonObject, Origin, Proposal, Task


def train_run(config_path: Path, out: Path | None, overrides: Sequence[str], *, resume: bool) -> None:
    """Start a run, or continue one with the settings it was started with; then say how it went.

    Raises:
        GenenvError: anything the user can mend.
    """
    config = load_config(config_path, overrides)
    path = out or Path("runs") / config.run.name
    saved = None
    if resume:
        folder = RunFolder.open(path)
        saved = load_config(folder.config)
        config = _settled(config, saved.policy)
        _check_only_longer(saved, config, folder)
        if (done := _finished(folder, config)) is not None:
            typer.echo(f"{path} is finished: all of its {done} rounds are committed, nothing was changed")
            _say_how_it_went(path)
            return
    else:
        folder = RunFolder.vacant(path)
    domain = load_domain(config.domain.name, config.domain.settings)
    _check_seeds(domain, config)
    config = _settled(config, saved.policy if saved else None)
    players = _players(config, domain)
    _check_tools(domain, players, config)
    sinks = open_sinks(config.logging, path, name=config.run.name, settings=as_tables(config))
    try:
        loop = CoEvolution(config, domain, players, folder, sinks=sinks, reporter=ConsoleReporter())
        if saved is None:
            RunFolder.create(path, dump_toml(config))
        elif saved != config:
            with folder.lock():
                write_whole(folder.config, dump_toml(config))
        loop.run()
    finally:
        close_all(sinks)
    _say_how_it_went(path)


def generate_tasks(
    config_path: Path, overrides: Sequence[str], *, n: int, run: Path | None, out: Path | None
) -> None:
    """Let a simulator write until `n` tasks have passed the gate, and write them as JSONL.

    Raises:
        GenenvError: anything the user can mend; also when nothing passes.
    """
    config = load_config(config_path, overrides)
    if out is not None:
        if out.is_dir():
            raise UsageError(f"{out} is a folder; name a file for the tasks, such as {out / 'tasks.jsonl'}")
        out.parent.mkdir(parents=True, exist_ok=True)
    folder = None if run is None else RunFolder.open(run)
    if folder is not None:
        _check_same_simulator(load_config(folder.config), config, folder)
    domain = load_domain(config.domain.name, config.domain.settings)
    _check_seeds(domain, config)
    players = _players(config, domain)
    stats, gate, last = SkillStats(config.curriculum), _gate(domain, config), 0
    if folder is not None:
        last = _continue_from(folder, players, stats, gate)
    rounds = _written_rounds(config, domain, players, stats, gate, first=last + 1)
    tasks, written = asyncio.run(_written(rounds, n))
    if not tasks:
        advice = (
            "warm a simulator up and train it, then name its run with --run"
            if folder is None
            else f"train {folder.path} for longer"
        )
        raise UsageError(f"none of {written} generations passed the gate; {advice}")
    lines = [json.dumps(_as_line(task), ensure_ascii=False) for task in tasks]
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
        rounds = store.rounds()
        metrics = {number: store.metrics(number) for number in rounds}
        new = len(store.tasks(origin=Origin.GENERATED))
    if not rounds:
        raise UsageError(f"{run} has no committed round yet; continue it with --resume")
    held_out = [(n, m["agent/eval_success"]) for n, m in metrics.items() if "agent/eval_success" in m]
    played = [n for n in rounds if n > 0]
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
    from genenv.players import local_players

    return local_players(config, domain)


def _settled(config: RunConfig, saved: PolicyConfig | None = None) -> RunConfig:
    """The settings with what is automatic in `policy` decided: measured once, so a resumed run is equal.

    Args:
        config: the settings asked for.
        saved: what was decided when the run was started; None for a new run.
    """
    policy = config.policy
    decided = _measured(policy) if saved is None else saved
    automatic = {"device": "auto", "dtype": "auto", "threads": 0}
    settled = {key: getattr(decided, key) for key, auto in automatic.items() if getattr(policy, key) == auto}
    return config.model_copy(update={"policy": policy.model_copy(update=settled)})


def _measured(policy: PolicyConfig) -> PolicyConfig:
    """Device, number format and threads that suit this machine."""
    from genenv.policies.models import choose_device, choose_dtype, choose_threads, keep_freed_memory

    device = choose_device(policy.device)
    if device.type == "cpu":
        keep_freed_memory()  # before torch starts threads
    dtype = "float32" if policy.tuning == "full" else str(choose_dtype(policy.dtype, device))
    return policy.model_copy(
        update={
            "device": device.type,
            "dtype": dtype.removeprefix("torch."),
            "threads": policy.threads or choose_threads(),
        }
    )


_FREE = ("run.rounds", "policy.max_batch_rows", "policy.tokens_per_microbatch")
"""What may change in a run: how long it is, and how much memory it takes at a time."""


def _check_only_longer(saved: RunConfig, asked: RunConfig, folder: RunFolder) -> None:
    """A run is continued with the settings on its disk; only its length may grow, and its batches may change.

    Raises:
        UsageError: something else differs, or the run would become shorter; names the settings.
    """
    before, now = _flat(saved), _flat(asked)
    differ = sorted(key for key in before | now if before.get(key) != now.get(key) and key not in _FREE)
    if differ:
        raise UsageError(
            f"{folder.path} was started with other settings: {', '.join(differ)} (see {folder.config}); "
            "continue with those, or choose another --out"
        )
    falling = "linear" in (saved.agent.lr_schedule, saved.simulator.lr_schedule)
    if falling and asked.run.rounds > saved.run.rounds:
        typer.echo(
            f"note: a learning rate of {folder.path} falls over {saved.run.rounds} rounds; with "
            f"{asked.run.rounds} it goes on from where it would be in a run of that length",
            err=True,
        )
    if asked.run.rounds < saved.run.rounds:
        raise UsageError(
            f"{folder.path} is a run of {saved.run.rounds} rounds, which cannot become {asked.run.rounds}; "
            f"add --set run.rounds={saved.run.rounds}, or more"
        )


_WEIGHTS = ("model", "simulator_model", "tuning", "lora_rank", "lora_alpha", "lora_targets")
"""Settings of `policy` that say what the weights in a checkpoint belong to."""


def _check_same_simulator(saved: RunConfig, asked: RunConfig, folder: RunFolder) -> None:
    """A run's simulator writes with the model and the domain that it was trained with.

    Raises:
        UsageError: the settings say otherwise; names them.
    """
    before, now = _flat(saved), _flat(asked)
    keys = {f"policy.{name}" for name in _WEIGHTS} | {k for k in before | now if k.startswith("domain.")}
    differ = sorted(key for key in keys if before.get(key) != now.get(key))
    if differ:
        raise UsageError(
            f"{folder.path} was trained with other settings: {', '.join(differ)}; "
            f"generate with its own, {folder.config}"
        )


def _flat(config: RunConfig) -> dict[str, Json]:
    """Settings by dotted key."""
    pending: list[tuple[str, Json]] = list(as_tables(config).items())
    flat: dict[str, Json] = {}
    for key, value in pending:
        if isinstance(value, Mapping):
            pending += [(f"{key}.{inner}", below) for inner, below in value.items()]
        else:
            flat[key] = value
    return flat


def _finished(folder: RunFolder, config: RunConfig) -> int | None:
    """How many rounds a finished run has, after mending what a kill tore; None when some are left."""
    with folder.lock(), PoolStore.open(folder.pool, create=False) as store:
        last = store.last_round()
        if last is None or last < config.run.rounds:
            return None
        folder.restore(store)
        return last


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
        gate.remember(store.tasks(origin=Origin.GENERATED))
    checkpoint = checkpoint_path(folder.checkpoints, last)
    verify_checkpoint(checkpoint)
    players.load(checkpoint)
    return last


async def _written_rounds(
    config: RunConfig, domain: Domain, players: Players, stats: SkillStats, gate: Gate, *, first: int
) -> AsyncIterator[list[Proposal]]:
    """Rounds of writing without any learning, numbered from `first`."""
    reporter = ConsoleReporter()
    for round_ in itertools.count(first):
        rng = generator(config.run.seed, "generate", round_)
        chosen = choose_seeds(domain.seeds(), stats, config.simulator.contexts, rng, config.curriculum)
        contexts = make_contexts(
            domain, chosen, stats.profile(), round_=round_, target=config.curriculum.alpha
        )
        wanted = len(contexts) * config.simulator.variations
        with reporter.stage("writing tasks", items=wanted, unit="specs") as stage:
            generations = await players.simulator.propose(domain, contexts, stage=stage)
        yield gate.admit(contexts, generations)


async def _written(rounds: AsyncIterator[list[Proposal]], n: int) -> tuple[list[Task], int]:
    """Tasks that passed, and how many generations it took; gives up after five barren rounds."""
    tasks: list[Task] = []
    written = barren = 0
    async for proposals in rounds:
        fresh = [p.outcome for p in proposals if isinstance(p.outcome, Task)]
        tasks, written, barren = tasks + fresh, written + len(proposals), 0 if fresh else barren + 1
        if len(tasks) >= n or barren == 5:
            break
    return tasks[:n], written


def _as_line(task: Task) -> dict[str, object]:
    return {
        "id": task.id,
        "skills": task.skills,
        "messages": [{"role": m.role, "content": m.content} for m in task.messages],
        "spec": task.spec,
        "oracle": task.oracle,
        "seed_id": task.lineage.seed_id,
    }
