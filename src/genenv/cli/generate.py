"""`genenv generate`: let a simulator write until so many tasks have passed the gate; no player learns."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import typer

from genenv.cli import opening
from genenv.cli.console import ConsoleReporter, begin
from genenv.cli.options import Config, Corpus, Overrides, check_named, said
from genenv.coevolve import Players
from genenv.config.run import RunConfig
from genenv.curriculum.replay import choose_seeds
from genenv.curriculum.stats import SkillStats
from genenv.domains.base import Domain
from genenv.errors import DataError, UsageError
from genenv.gate.gate import Gate, base_tasks
from genenv.runs.checkpoint import checkpoint_path, verify_checkpoint
from genenv.runs.folder import RunFolder, write_whole
from genenv.runs.resuming import for_writing
from genenv.runs.store.store import PoolStore
from genenv.seeding import generator
from genenv.simulator.player import make_contexts
from genenv.texts import json_line
from genenv.types import Json, JsonObject, Proposal, Task

_BARREN_ROUNDS = 5
"""So many rounds' worth of generations without a task, and `generate` gives up."""

Number = Annotated[int, typer.Option("--n", min=1, help="How many tasks.")]
Run = Annotated[
    Path | None, typer.Option(help="A run whose trained simulator writes; else an untrained one.")
]
Out = Annotated[Path | None, typer.Option(help="JSONL file for the tasks; printed when left out.")]


def generate(
    config: Config = None,
    n: Number = 8,
    run: Run = None,
    out: Out = None,
    overrides: Overrides = [],  # noqa: B006 - Typer's form
    corpus: Corpus = None,
) -> None:
    """Write checked tasks, without training anything."""
    begin("writing tasks")
    check_named(config, "--run RUN", run=run is not None)
    folder = None if run is None else RunFolder.open(run)
    settings = for_writing(folder, config, said(overrides, corpus))
    if out is not None:
        _make_way(out)
    opening.check_models(settings)
    domain = opening.open_domain(settings)
    writing = _Writing(settings, domain, opening.load_players(settings, domain))
    if folder is not None:
        writing.go_on_from(folder)
    tasks, written = asyncio.run(writing.write(n))
    if not tasks:
        advice = (
            "warm a simulator up and train it, then name its run with --run"
            if folder is None
            else f"train {folder.path} for longer"
        )
        raise UsageError(f"none of {written} generations passed the gate; {advice}")
    lines = "\n".join(json_line(_as_line(task)) for task in tasks)
    if out is None:
        typer.echo(lines)
    else:
        write_whole(out, lines + "\n")
    typer.echo(f"{len(tasks)} tasks of {written} generations passed the gate", err=True)


def _make_way(out: Path) -> None:
    """Make the folder of a file that is not there yet.

    Raises:
        UsageError: it is there, or is a folder.
    """
    if out.is_dir():
        raise UsageError(f"{out} is a folder; name a file for the tasks, such as {out / 'tasks.jsonl'}")
    if out.exists():
        raise UsageError(f"{out} exists already; choose another --out, or delete it")
    out.parent.mkdir(parents=True, exist_ok=True)


@dataclass
class _Writing:
    """Rounds of writing without any learning. The gate knows the base data and the held-out tasks."""

    config: RunConfig
    domain: Domain
    players: Players

    def __post_init__(self) -> None:
        config, domain = self.config, self.domain
        self.last, self.stats = 0, SkillStats(config.curriculum)
        self.gate = Gate(domain, config.curriculum, seed=config.run.seed)
        self.gate.remember(base_tasks(domain, domain.seeds(), seed=config.run.seed).values())
        self.gate.protect(domain.held_out())

    def go_on_from(self, folder: RunFolder) -> None:
        """Bring players, statistics and archive to where a run is.

        Raises:
            DataError: it has no round, or its checkpoint is damaged.
        """
        with PoolStore.open(folder.pool, create=False) as store:
            last = store.last_round()
            if last is None:
                raise DataError(f"{folder.path} has no committed round yet")
            self.last = last
            self.stats.load_state_dict(cast("JsonObject", store.state(last)["stats"]))
            self.gate.recall(store.surfaces(), store.without_surface())
            checkpoint = checkpoint_path(folder.checkpoints, last)
            verify_checkpoint(checkpoint, store.identity(), sha256=store.checkpoint_sha256(last))
        self.players.load(checkpoint)

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
        config, curriculum = self.config.simulator, self.config.curriculum
        self.last += 1
        contexts = min(config.contexts, math.ceil(missing / config.variations))
        rng = generator(self.config.run.seed, "generate", self.last)
        chosen = choose_seeds(self.domain.seeds(), self.stats, contexts, rng, curriculum)
        asked = make_contexts(
            self.domain, chosen, self.stats.profile(), round_=self.last, target=curriculum.alpha
        )
        wanted = len(asked) * config.variations
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
