"""The training loop: rounds in order, each committed as a whole, with rounds in flight (`run.staleness`).

Round 0 is the result of the warm-up. It is evaluated and committed like any other round, so a run can be
resumed from it.

    staleness s: round t is sampled by the weights after round max(0, t - 1 - s), and trained on after t - 1

With s = 0 no round is in flight. With s = 1 round t + 1 is sampled while round t is trained on ("one step off
policy", Noukhovitch et al., arXiv:2410.18252). Which weights sample a round does not depend on timing, so
equal runs have equal results. If sampling and training share a device, they alternate.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from genenv.config.run import RunConfig
from genenv.environments.base import Environment
from genenv.environments.mixture import member_of
from genenv.errors import DataError, GenenvError
from genenv.progress import LiveFile, Reporter, Silent
from genenv.runs.checkpoint import checkpoint_path, checkpoints
from genenv.runs.folder import RunFolder, parts_reread
from genenv.runs.metrics import (
    Stages,
    check_names,
    evaluation_metrics,
    named_by_agent,
    refusals,
    refusals_said,
)
from genenv.runs.sinks import Sink, write_all
from genenv.runs.store.records import Evaluation, RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.simulator.source import FixedTaskSource
from genenv.training.branching import first_weights
from genenv.training.rounds import Ahead, Learner, Policies, Produced, Producer, evaluate, together
from genenv.training.task_pool import TaskPool, Tasks

Learn = Callable[[Produced], Coroutine[Any, Any, Mapping[str, float]]]


class Pipeline:
    """The rounds that are produced but not committed."""

    def __init__(self, producer: Producer, *, rounds: int, staleness: int, overlaps: bool) -> None:
        """Start with no round in flight.

        Args:
            producer: samples rounds.
            rounds: number of rounds of the run; later ones are not produced.
            staleness: number of rounds that may be produced ahead of the round being trained on.
            overlaps: whether rounds are produced during training, not before it.
        """
        self._producer, self._rounds = producer, rounds
        self._staleness, self._overlaps = staleness, overlaps and staleness > 0
        self._ahead: dict[int, Produced] = {}
        self.oldest = 0
        """The round of the oldest weights that exist or existed. A branch has none older than its origin."""

    def due(self, last: int) -> range:
        """Return the rounds that are in flight after a committed round."""
        return range(last + 1, min(last + self._staleness, self._rounds) + 1)

    def weights(self, number: int) -> int:
        """Return the round after which the weights that sample this round were published."""
        return max(self.oldest, number - 1 - self._staleness)

    async def produce(self, number: int, tasks: Tasks) -> None:
        """Produce a round with the published weights."""
        self._ahead[number] = await self._producer.produce(number, Ahead(tasks, self._ahead))

    async def learned(self, number: int, tasks: Tasks, learn: Learn) -> tuple[Produced, Mapping[str, float]]:
        """Produce the rounds that are due, train on a round, and remove it from the pipeline.

        Args:
            number: number of the round to train on, one after the last committed round.
            tasks: tasks of committed rounds.
            learn: trains both policies without publishing weights.

        Returns:
            The round, and metrics of the updates and of the overlap of sampling and training.
        """
        for missing in (number, *self.due(number)[: self._staleness - 1]):  # where a run begins
            if missing not in self._ahead:
                await self.produce(missing, tasks)
        produced, newest = self._ahead[number], number + self._staleness
        sampled_s = learned_s = 0.0
        metrics: Mapping[str, float] = {}

        async def sample() -> None:
            nonlocal sampled_s
            if newest <= self._rounds and newest not in self._ahead:
                start = time.perf_counter()
                await self.produce(newest, tasks)
                sampled_s = time.perf_counter() - start

        async def take() -> None:
            nonlocal learned_s, metrics
            start = time.perf_counter()
            metrics = await learn(produced)
            learned_s = time.perf_counter() - start

        if self._overlaps:
            await together(sample(), take())
        else:
            await sample()
            await take()
        found: dict[str, float] = {}
        if self._staleness:
            found["agent/staleness"] = float(number - 1 - self.weights(number))
        if self._overlaps and sampled_s:
            found = {
                **found,
                "time/sampling_waited_s": max(0.0, learned_s - sampled_s),
                "time/learning_waited_s": max(0.0, sampled_s - learned_s),
            }
        del self._ahead[number]
        return produced, {**metrics, **found}


class CoEvolution:
    """A training run: settings, an environment, two policies, and a folder."""

    def __init__(
        self,
        config: RunConfig,
        env: Environment,
        policies: Policies,
        folder: RunFolder,
        *,
        sinks: Sequence[Sink] = (),
        reporter: Reporter | None = None,
    ) -> None:
        self.config, self.env, self.policies, self.folder = config, env, policies, folder
        self.sinks, self.reporter = sinks, LiveFile(folder.live, reporter or Silent())
        self.pool = TaskPool(config, env)
        self.learner = Learner(config, env, policies)
        self.pipeline = Pipeline(
            Producer(policies, self.pool, self.reporter, self._older_agent),
            rounds=config.run.rounds,
            staleness=config.run.staleness,
            overlaps=policies.backend.async_rollouts,
        )

    def run(self, proven: Callable[[int | None], None] | None = None) -> int:
        """Run all rounds that are not committed yet; return the number of the last one.

        Args:
            proven: called with the last committed round once all files that are needed to resume are
                verified.
        """
        return asyncio.run(self._run_and_close(proven))

    async def _run_and_close(self, proven: Callable[[int | None], None] | None) -> int:
        try:
            return await self._run(proven)
        finally:
            if self.policies.backend.close is not None:
                await self.policies.backend.close()

    async def _run(self, proven: Callable[[int | None], None] | None) -> int:
        with self.folder.lock(), self.reporter, PoolStore.open(self.folder.pool, create=False) as store:
            last = await self._resume(store)
            if proven is not None:
                proven(last)
            if last is not None:  # a kill after the commit may have kept it from the sinks
                write_all(self.sinks, last, store.metrics(last))
                await self._in_flight(last, store)
            older = max(self.config.run.staleness, self.pool.compared_rounds)
            keep = max(self.config.run.keep_checkpoints, older + 1)
            for number in range(0 if last is None else last + 1, self.config.run.rounds + 1):
                record = await (self._round(number, store) if number else self._start())
                with self.folder.committing(store, record, keep=keep) as empty:
                    await self.policies.save(empty)
                write_all(self.sinks, number, record.metrics)
                for agent in self.policies.agents.values():
                    agent.sampler.end_round()
                self.policies.simulator.end_round()
                self.reporter.round(number, self.config.run.rounds, record.metrics)
            check_attempted(self.config, store)
            return self.config.run.rounds

    def _older_agent(self, number: int) -> Path | None:
        """Return the folder of the older version of the agent that a round compares with the present one.

        It is in the checkpoint of an earlier round, so a resumed run compares the same versions.

        Returns:
            The agent in the checkpoint of `progress_rounds` rounds before the newest, or of round 0. None if
            that is the newest, or if nothing is compared.
        """
        wanted, newest = max(0, number - 1 - self.pool.compared_rounds), number - 1
        if wanted == newest:
            return None
        kept = [one for one in checkpoints(self.folder.checkpoints) if wanted <= one <= newest]
        if (oldest := min(kept)) != wanted:  # a branch has none before its origin
            self.reporter.note(
                f"round {number} measures progress since round {oldest}, as the checkpoint of round {wanted} "
                "is not here"
            )
        return None if oldest == newest else self.folder.checkpoint(oldest)[0]

    async def _resume(self, store: PoolStore) -> int | None:
        """Verify what is needed, restore the state after the last committed round, and return its number."""
        reread = parts_reread(self.config)
        last = self.folder.prove(store, self.reporter.note, also=reread)
        try:
            store.put_base(*self.pool.data(), base=self.pool.base.values())
        except ValueError as error:
            raise DataError(
                f"{self.folder.path} was made with other base data ({error}); "
                "continue it with the data and the version that it was started with, or start a new run"
            ) from error
        if last is not None:
            self.pool.recall(store, last)
            if isinstance(self.policies.simulator, FixedTaskSource):
                since = self.pool.written_alike_since(store, "per_seed", "writes")
                batches = [batch for number in range(since, last + 1) for batch in store.batches(number)]
                self.policies.simulator.recall(
                    [batch.context for batch in batches],
                    [proposal.generation for batch in batches for proposal in batch.proposals],
                )
            if self.config.simulator.accumulate:
                self.learner.recall(store, last, since=self.pool.written_alike_since(store, "writes"))
            await self.policies.load(checkpoint_path(self.folder.checkpoints, last))
        self.folder.tidy(store, last, self.reporter.note)
        return last

    async def _in_flight(self, last: int, store: PoolStore) -> None:
        """Produce the rounds again that were in flight after a round, with the same weights as before."""
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
                await self.policies.load(path)
            await self.pipeline.produce(number, store)
        if loaded != last:
            await self.policies.load(checkpoint_path(self.folder.checkpoints, last))

    async def _start(self) -> RoundRecord:
        """Run round 0: the warm-up and its evaluation."""
        stage, warmup = Stages(self.reporter, 0, self.config.run.rounds), self.policies.warmup
        metrics: Mapping[str, float] = {}
        for name, weights in first_weights(self.config).items():
            trainer = self.policies.agents[name].trainer
            await trainer.load(weights)
            await trainer.anchor("none")  # its own reference, and no moments of another run
        with stage("warmup"):
            if warmup is not None:
                metrics = await warmup(self.pool.seeds, list(self.pool.base.values()), self.reporter)
        record = RoundRecord(number=0, metrics=metrics, state=self.pool.state())
        return await self._measured(record, stage)

    async def _round(self, number: int, store: PoolStore) -> RoundRecord:
        """Run one round: produce it or take it from the pipeline, run both updates, publish."""
        stage = Stages(self.reporter, number, self.config.run.rounds)
        produced, learned = await self.pipeline.learned(
            number, store, lambda produced: self.learner.learn(produced, stage)
        )
        with stage("publish"):
            await self.policies.publish()
        stage.add(produced.seconds)
        record = RoundRecord(
            number=number,
            metrics={**produced.metrics, **learned},
            state=produced.state,
            batches=produced.batches,
            groups=produced.groups,
            samples=produced.selection.samples,
            surfaces={group.task.id: self.env.surface(group.task) for group in produced.groups},
            reminded=[task.id for task in produced.replayed],
            evaluations=produced.entered,
        )
        return await self._measured(record, stage)

    async def _measured(self, record: RoundRecord, stage: Stages) -> RoundRecord:
        """Return the record with evaluation results, if due, and timings; all metric names are checked."""
        found: list[Evaluation] = []
        if self.pool.measures(record.number):
            found = await evaluate(self.policies, self.env, self.pool.held_out, stage)
        await self.policies.check_samples()
        columns = {task.id: column for task in self.pool.held_out if (column := member_of(task)) is not None}
        counted = self.policies.of_task(found)
        metrics = {**record.metrics, **evaluation_metrics(counted, columns), **stage.metrics()}
        if self.policies.others:
            own = {name: [one for one in found if one.agent == name] for name in self.policies.agents}
            metrics |= named_by_agent({name: evaluation_metrics(some, columns) for name, some in own.items()})
        check_names(metrics)
        return replace(record, metrics=metrics, evaluations=[*record.evaluations, *found])


def check_attempted(config: RunConfig, store: PoolStore) -> None:
    """Refuse to finish a run in which no task was rolled out.

    Raises:
        GenenvError: the agent rolled out no task in any round.
    """
    played = [metrics for number, metrics in store.metrics_by_round().items() if number > 0]
    if played and not any(metrics.get("agent/attempts", 1.0) for metrics in played):
        reasons = refusals_said(refusals(played))
        mend = "change the settings of [environment]"
        if config.simulator.source == "model":
            mend = "warm the simulator up (simulator.warmup.steps)"
        raise GenenvError(
            f"no task was attempted in any of {len(played)} rounds: nothing that the simulator wrote is a "
            f"task (refused: {reasons or 'nothing'}), and no base task was taken; {mend}, or set "
            "curriculum.base_share above 0"
        )
