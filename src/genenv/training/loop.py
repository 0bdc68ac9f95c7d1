"""The loop: two players, one round after the other, each committed whole.

Round 0 is what the warm-up left: it is measured and committed like any other, so that a run can be
continued from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from genenv.config.run import RunConfig
from genenv.environments.base import Environment
from genenv.errors import DataError, GenenvError
from genenv.progress import Reporter, Silent
from genenv.runs.checkpoint import checkpoint_path, checkpoints
from genenv.runs.folder import RunFolder, parts_reread
from genenv.runs.metrics import Stages, check_names, evaluation_metrics
from genenv.runs.sinks import Sink, write_all
from genenv.runs.store.records import Evaluation, RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.simulator.written_once import WrittenOnce
from genenv.training.learning import Learner
from genenv.training.measuring import evaluate
from genenv.training.pipeline import Pipeline
from genenv.training.policies import Players
from genenv.training.producing import Producer
from genenv.training.task_pool import World


class CoEvolution:
    """A run: settings, an environment, two players, and the folder it lives in."""

    def __init__(
        self,
        config: RunConfig,
        env: Environment,
        players: Players,
        folder: RunFolder,
        *,
        sinks: Sequence[Sink] = (),
        reporter: Reporter | None = None,
    ) -> None:
        self.config, self.env, self.players, self.folder = config, env, players, folder
        self.sinks, self.reporter = sinks, reporter or Silent()
        self.world = World(config, env)
        self.learner = Learner(config, env, players)
        self.pipeline = Pipeline(
            Producer(config, env, players, self.world, self.reporter),
            rounds=config.run.rounds,
            staleness=config.run.staleness,
            overlaps=players.overlaps,
        )

    def run(self, proven: Callable[[int | None], None] | None = None) -> int:
        """Play all rounds that are not committed yet; returns the number of the last one.

        Args:
            proven: told of the last committed round, when all that is needed to go on was proven whole.
        """
        return asyncio.run(self._run_and_close(proven))

    async def _run_and_close(self, proven: Callable[[int | None], None] | None) -> int:
        try:
            return await self._run(proven)
        finally:
            if self.players.close is not None:
                await self.players.close()

    async def _run(self, proven: Callable[[int | None], None] | None) -> int:
        with self.folder.lock(), PoolStore.open(self.folder.pool, create=False) as store:
            last = await self._resume(store)
            if proven is not None:
                proven(last)
            if last is not None:  # a kill after the commit may have kept it from the sinks
                write_all(self.sinks, last, store.metrics(last))
                await self._in_flight(last, store)
            keep = max(self.config.run.keep_checkpoints, self.config.run.staleness + 1)
            for number in range(0 if last is None else last + 1, self.config.run.rounds + 1):
                record = await (self._round(number, store) if number else self._start())
                with self.folder.committing(store, record, keep=keep) as empty:
                    await self.players.save(empty)
                write_all(self.sinks, number, record.metrics)
                self.players.agent.sampler.end_round()
                self.players.simulator.end_round()
                self.reporter.round(number, self.config.run.rounds, record.metrics)
            self._check_attempted(store)
            return self.config.run.rounds

    def _check_attempted(self, store: PoolStore) -> None:
        """Refuse to call a run done in which nothing was done.

        Raises:
            GenenvError: the agent attempted no task in any round.
        """
        played = [metrics for number, metrics in store.metrics_by_round().items() if number > 0]
        if played and not any(metrics.get("agent/attempts", 1.0) for metrics in played):
            raise GenenvError(
                f"no task was attempted in any of {len(played)} rounds: nothing that the simulator wrote is "
                "a task, and no base task was taken; warm the simulator up (simulator.warmup.steps), or set "
                "curriculum.base_share above 0"
            )

    async def _resume(self, store: PoolStore) -> int | None:
        """Continue after the last committed round, after all that is needed was proven whole."""
        last = self.folder.prove(store, self.reporter.note, also=parts_reread(self.config))
        try:
            store.put_base(*self.world.data())
        except ValueError as error:
            raise DataError(
                f"{self.folder.path} was made with other base data ({error}); "
                "continue it with the data and the version that it was started with, or start a new run"
            ) from error
        if last is not None:
            self.world.recall(store, last)
            if isinstance(self.players.simulator, WrittenOnce):
                batches = [batch for number in store.rounds() for batch in store.batches(number)]
                self.players.simulator.recall(
                    [batch.context for batch in batches],
                    [proposal.generation for batch in batches for proposal in batch.proposals],
                )
            await self.players.load(checkpoint_path(self.folder.checkpoints, last))
        self.folder.tidy(store, last, self.reporter.note)
        return last

    async def _in_flight(self, last: int, store: PoolStore) -> None:
        """Produce again what was in flight after a round, with the weights that produced it then."""
        due, kept = self.pipeline.due(last), checkpoints(self.folder.checkpoints)
        if not due:
            return
        oldest = next(number for number in range(last, -1, -1) if number - 1 not in kept)
        wanted, self.pipeline.oldest = self.pipeline.weights(due[0]), oldest
        if wanted < oldest:
            self.reporter.note(
                f"no checkpoint before that of round {oldest} is here: rounds in flight are attempted by its "
                "weights, where older ones would have"
            )
        loaded = last
        for number in due:
            if self.pipeline.weights(number) != loaded:
                path, loaded = self.folder.checkpoint(self.pipeline.weights(number))
                await self.players.load(path)
            await self.pipeline.produce(number, store)
        if loaded != last:
            await self.players.load(checkpoint_path(self.folder.checkpoints, last))

    async def _start(self) -> RoundRecord:
        """Round 0: the warm-up, and what it left."""
        stage, warmup = Stages(self.reporter, 0, self.config.run.rounds), self.players.warmup
        metrics: Mapping[str, float] = {}
        with stage("warmup"):
            if warmup is not None:
                metrics = await warmup(self.world.seeds, list(self.world.base.values()), self.reporter)
        record = RoundRecord(number=0, metrics=metrics, state=self.world.state())
        return await self._measured(record, stage)

    async def _round(self, number: int, store: PoolStore) -> RoundRecord:
        """One round: write, attempt and score, then learn twice; or both of rounds that are apart."""
        stage = Stages(self.reporter, number, self.config.run.rounds)
        produced, learned = await self.pipeline.learned(
            number, store, lambda produced: self.learner.learn(produced, stage)
        )
        with stage("publish"):
            await self.players.publish()
        stage.add(produced.seconds)
        record = RoundRecord(
            number=number,
            metrics={**produced.metrics, **learned},
            state=produced.state,
            batches=produced.batches,
            groups=produced.groups,
            samples=produced.selection.samples,
            surfaces={group.task.id: self.env.surface(group.task) for group in produced.groups},
            reminded=[task.id for task in produced.reminders],
            evaluations=produced.entered,
        )
        return await self._measured(record, stage)

    async def _measured(self, record: RoundRecord, stage: Stages) -> RoundRecord:
        """The record with held-out results, where they are due, and with its timings; all names checked."""
        found: list[Evaluation] = []
        if self.world.measures(record.number):
            found = await evaluate(self.players.agent, self.env, self.world.held_out, stage)
        await self.players.check_samples()
        metrics = {**record.metrics, **evaluation_metrics(found), **stage.metrics()}
        check_names(metrics)
        return replace(record, metrics=metrics, evaluations=[*record.evaluations, *found])
