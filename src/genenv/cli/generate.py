"""`genenv generate`: let a simulator write until enough tasks have passed the gate, without training."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from genenv.cli.console import Config, Corpus, Overrides, begin, check_named, with_corpus
from genenv.cli.progress import ConsoleReporter
from genenv.config.run import RunConfig
from genenv.errors import DataError, UsageError
from genenv.files import check_writable, write_new
from genenv.progress import staged
from genenv.runs.checkpoint import checkpoint_path, verify_checkpoint
from genenv.runs.folder import RunFolder
from genenv.runs.metrics import refusals_said, sampled
from genenv.runs.store.store import PoolStore
from genenv.texts import json_line
from genenv.training import opening
from genenv.training.resuming import for_writing
from genenv.training.rounds import Policies
from genenv.training.task_pool import TaskPool
from genenv.types import Json, Proposal, Rejection, Task, accepted

KEPT = "nothing was written"
"""A phrase for `genenv.cli.app` about the work that is preserved if the command ends early."""

_BARREN_ROUNDS = 5
"""`generate` gives up after this many rounds of generations without a valid task."""

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
    settings = for_writing(folder, config, with_corpus(overrides, corpus))
    if settings.simulator.source == "none":
        raise UsageError("simulator.source is 'none': nothing writes tasks; set it to 'model' or 'variation'")
    if out is not None:
        _check_out(out)
    opening.check_models(settings)
    env = opening.open_environment(settings)
    policies = opening.load_players(settings, env, ConsoleReporter())
    writing = _Writing(pool=TaskPool(settings, env), policies=policies)
    try:
        tasks, written = asyncio.run(_written(writing, folder, n))
    finally:
        if policies.backend.end is not None:
            policies.backend.end()
    reasons = refusals_said(writing.refused)
    if not tasks:
        raise UsageError(
            f"none of {written} generations passed the gate; refused: {reasons}; {_advice(settings, folder)}"
        )
    share, more = divmod(writing.tokens, len(tasks))
    lines = "\n".join(
        json_line(_as_line(task) | {"tokens": share + (number < more)}) for number, task in enumerate(tasks)
    )
    if out is None:
        typer.echo(lines)
    else:
        kept = write_new(out, lines + "\n")
        if kept != out:
            typer.echo(f"{out} was made meanwhile by another program; the tasks are in {kept}", err=True)
    refused = f"; refused: {reasons}" if reasons else ""
    spent = f" ({writing.tokens:,} tokens)" if writing.tokens else ""
    typer.echo(f"{len(tasks)} tasks of {written} generations{spent} passed the gate{refused}", err=True)
    if len(tasks) < n:
        typer.echo(
            f"gave up at {len(tasks)} of {n} tasks: none passed in the last {_BARREN_ROUNDS} rounds of "
            f"generations; {_advice(settings, folder)}",
            err=True,
        )


def _advice(settings: RunConfig, folder: RunFolder | None) -> str:
    """Return what may let more generations pass the gate."""
    source = settings.simulator.source
    if source == "model" and folder is None:
        return "warm a simulator up and train it, then name its run with --run"
    if source == "model" and folder is not None:
        return f"train {folder.path} for longer"
    if source == "file":
        return f"correct or add specs in {settings.simulator.file}, or set simulator.source to another"
    if source == "endpoint":
        return "name another model with simulator.address, or set simulator.source to another"
    return (
        f"simulator.source is {source!r}, which no training improves: change the settings of [environment], "
        "or set simulator.source to another"
    )


async def _written(writing: _Writing, folder: RunFolder | None, n: int) -> tuple[list[Task], int]:
    if folder is not None:
        await writing.load_run(folder)
    return await writing.write(n)


def _check_out(out: Path) -> None:
    """Create the folder of an output file that must not exist yet.

    Raises:
        UsageError: the file exists, is a folder, or cannot be written.
    """
    if out.is_dir():
        raise UsageError(f"{out} is a folder; name a file for the tasks, such as {out / 'tasks.jsonl'}")
    if out.exists():
        raise UsageError(f"{out} exists already; choose another --out, or delete it")
    check_writable(out)
    out.parent.mkdir(parents=True, exist_ok=True)


@dataclass(kw_only=True)
class _Writing:
    """Rounds of task generation without training, numbered after the rounds of a run."""

    pool: TaskPool
    policies: Policies
    last: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    """How often the gate refused a generation, by reason."""
    tokens: int = 0
    """Tokens that were sampled for all generations, refused ones included; each task has an equal share."""

    async def load_run(self, folder: RunFolder) -> None:
        """Load the policies, statistics and task archive of a run.

        Raises:
            DataError: the run has no committed round, or its checkpoint is damaged.
        """
        with PoolStore.open(folder.pool, create=False) as store:
            last = store.last_round()
            if last is None:
                raise DataError(f"{folder.path} has no committed round yet")
            self.last = last
            self.pool.recall(store, last)
            checkpoint = checkpoint_path(folder.checkpoints, last)
            verify_checkpoint(checkpoint, store.run_id(), sha256=store.checkpoint_sha256(last))
        await self.policies.load(checkpoint)

    async def write(self, n: int) -> tuple[list[Task], int]:
        """Return up to `n` tasks that passed the gate, and the number of generations."""
        tasks: list[Task] = []
        written = barren = 0
        config = self.pool.config.simulator
        patience = _BARREN_ROUNDS * config.contexts * config.variations
        while len(tasks) < n and barren < patience:
            proposals = await self._round(
                math.ceil((n - len(tasks)) / config.variations), f"writing tasks ({len(tasks)} of {n} so far)"
            )
            fresh = accepted(proposals)
            self.refused.update(
                one.outcome.reason.value for one in proposals if isinstance(one.outcome, Rejection)
            )
            tasks, written = tasks + fresh, written + len(proposals)
            barren = 0 if fresh else barren + len(proposals)
        return tasks[:n], written

    async def _round(self, most: int, stage: str) -> list[Proposal]:
        self.last += 1
        asked = self.pool.contexts(self.last, most=most, purpose="generate")
        wanted = len(asked) * self.pool.config.simulator.variations
        with staged(ConsoleReporter(), stage, items=wanted, unit="specs"):
            generations = await self.policies.simulator.propose(self.pool.env, asked)
        self.tokens += sampled(generations) + self.policies.simulator.tokens_sampled_elsewhere()
        proposals = self.pool.gate.admit(asked, generations)
        if self.pool.config.curriculum.candidates > 1:  # then the gate leaves it to the choice
            self.pool.gate.remember(accepted(proposals))
        return proposals


def _as_line(task: Task) -> dict[str, Json]:
    return {
        "id": task.id,
        "skills": task.skills,
        "messages": [{"role": m.role, "content": m.content} for m in task.messages],
        "spec": task.spec,
        "oracle": task.oracle,
        "seed_id": task.lineage.seed_id,
    }
