"""The loop: two players, one round after the other, each committed whole.

Round 0 is what the warm-up left: it is measured and committed like any other, so that a run can be
continued from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Protocol

from genenv.agent.player import Agent
from genenv.backends.settings import PolicyConfig
from genenv.config.run import RunConfig
from genenv.curriculum.choice import Choice
from genenv.curriculum.foretold import Foretold
from genenv.curriculum.history import History
from genenv.curriculum.rewards import in_round
from genenv.curriculum.score import Selection, curriculum_metrics, score_batches, scored, select, taught
from genenv.domains.base import Domain
from genenv.errors import DataError
from genenv.learning.credit import agent_credit, simulator_credit
from genenv.learning.credit.grpo import zero_advantage_rate
from genenv.runs.checkpoint import checkpoint_path
from genenv.runs.folder import RunFolder
from genenv.runs.metrics import check_names
from genenv.runs.progress import Reporter, Silent
from genenv.runs.round_metrics import attempt_metrics, evaluation_metrics
from genenv.runs.sinks import Sink, write_all
from genenv.runs.stages import Stages
from genenv.runs.store.records import Evaluation, RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.runs.world import World
from genenv.seeding import generator
from genenv.simulator.player import Simulator, asked, spec_schemas
from genenv.simulator.source import TaskSource
from genenv.simulator.written_once import WrittenOnce
from genenv.types import Context, Generation, Group, Scored, Seed, Task, TaskBatch


class Warmup(Protocol):
    """What brings the players to where co-evolution can start."""

    async def __call__(
        self, seeds: Sequence[Seed], tasks: Sequence[Task], reporter: Reporter
    ) -> Mapping[str, float]:
        """Train both players on base data; returns metrics of round 0."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Players:
    """The two players, and what happens to them before the first round."""

    agent: Agent
    simulator: TaskSource
    warmup: Warmup | None = None
    settled: PolicyConfig | None = None
    """The settings of their models with what is automatic decided; None where nothing was."""
    apart: bool = False
    """Whether they have devices of their own, and so learn at the same time."""
    found: Mapping[str, object] = field(default_factory=dict[str, object])
    """What was found out of the server that they are on."""
    close: Callable[[], Awaitable[None]] | None = None
    """Ends their connections."""

    async def save(self, folder: Path) -> None:
        """Write both players into a checkpoint."""
        await self.agent.trainer.save(folder / "agent")
        await self.simulator.save(folder / "simulator")

    async def load(self, folder: Path) -> None:
        """Restore both players."""
        await self.agent.trainer.load(folder / "agent")
        await self.simulator.load(folder / "simulator")


class CoEvolution:
    """A run: settings, a domain, two players, and the folder it lives in."""

    def __init__(
        self,
        config: RunConfig,
        domain: Domain,
        players: Players,
        folder: RunFolder,
        *,
        sinks: Sequence[Sink] = (),
        reporter: Reporter | None = None,
    ) -> None:
        self.config, self.domain, self.players, self.folder = config, domain, players, folder
        self.sinks, self.reporter = sinks, reporter or Silent()
        self.world = World(config, domain)

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
            for number in range(0 if last is None else last + 1, self.config.run.rounds + 1):
                record = await (self._round(number, store) if number else self._start())
                with self.folder.committing(store, record, keep=self.config.run.keep_checkpoints) as empty:
                    await self.players.save(empty)
                write_all(self.sinks, number, record.metrics)
                self.players.agent.sampler.end_round()
                self.players.simulator.end_round()
                self.reporter.round(number, self.config.run.rounds, record.metrics)
            return self.config.run.rounds

    async def _resume(self, store: PoolStore) -> int | None:
        """Continue after the last committed round, after all that is needed was proven whole."""
        last = self.folder.prove(store)
        try:
            store.put_base(*self.world.data())
        except ValueError as error:
            raise DataError(
                f"{self.folder.path} was made with other base data ({error}); "
                "continue it with the version that started it, or start a new run"
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
        """One round: write, attempt, score, learn twice."""
        config, world = self.config, self.world
        agent, simulator = self.players.agent, self.players.simulator
        stage = Stages(self.reporter, number, config.run.rounds)
        entered = await self._evaluations(stage) if world.enter(number) and config.run.eval_every else []
        contexts = world.contexts(number)
        specs = len(contexts) * config.simulator.variations
        with stage("propose", "writing tasks", items=specs, unit="specs"):
            generations = await simulator.propose(self.domain, contexts)
        with stage("gate"):
            proposals = world.gate.admit(contexts, generations)
        written = [proposal.outcome for proposal in proposals if isinstance(proposal.outcome, Task)]
        base, back = world.revisited(number, store)
        foretold = await self._foretold([*written, *base], stage)
        if foretold is not None:
            proposals = foretold.noted(proposals)
        chosen = world.chosen(number, written, base, {} if foretold is None else foretold.rates)
        groups = await self._attempted(number, chosen, back, stage)
        new = world.joined(groups, written)
        wanted = in_round(config.curriculum, number, config.run.rounds)
        decided = await self._decided(generations, contexts)
        batches = score_batches(contexts, proposals, groups, wanted)
        selection = select(batches, wanted, generator(world.seed, "shuffled", number))
        reminders = world.reminders(number, groups, store)
        learned = await self._both(
            lambda: self._agent_learns(number, taught(groups, new, wanted), reminders, stage),
            lambda: self._simulator_learns(number, batches, selection, stage),
        )
        probed = {} if foretold is None else foretold.metrics(written, [group.task for group in groups])
        probed |= world.observe(number, groups, {task.id for task in new}, foretold)
        metrics = {
            **curriculum_metrics(batches, selection, wanted),
            **attempt_metrics(
                groups, batches, agent.sampler, self.domain, elsewhere=simulator.sampled_elsewhere()
            ),
            **decided,
            **probed,
            **{f"agent/skill/{name}": rate for name, rate in world.stats.profile().success.items()},
            **learned,
            **({"agent/eval_at_shift": fmean(one.success for one in entered)} if entered else {}),
        }
        record = RoundRecord(
            number=number,
            metrics=metrics,
            state=world.state(),
            batches=batches,
            groups=groups,
            samples=selection.samples,
            surfaces={group.task.id: self.domain.surface(group.task) for group in groups},
            reminded=[task.id for task in reminders],
            evaluations=entered,
        )
        return await self._measured(record, stage)

    async def _foretold(self, candidates: Sequence[Task], stage: Stages) -> Foretold | None:
        """Success rates of candidates, as far as they can be foretold; None where nobody wants to know."""
        foreteller = self.world.foreteller
        if foreteller is None:
            return None
        if isinstance(foreteller, History):
            return foreteller.foretell(candidates)
        with stage("probe", "looking at", items=len(candidates), unit="tasks"):
            return foreteller.foretell(*await self.players.agent.likelihoods(self.domain, candidates))

    async def _attempted(
        self, number: int, chosen: Choice, back: Sequence[Task], stage: Stages
    ) -> list[Group]:
        """Attempts at the tasks of a round, and at candidates in the stead of those that taught nothing."""
        groups, tasks = list[Group](), [*chosen.new, *chosen.base, *back]
        while tasks:
            items = len(tasks) * self.config.agent.rollouts
            with stage("rollout", "attempting", items=items, unit="attempts"):
                found = await self.players.agent.attempt(self.domain, tasks, round_=number)
            groups += found
            tasks = chosen.instead_of(found)
        return groups

    async def _agent_learns(
        self, number: int, groups: Sequence[Group], reminders: Sequence[Task], stage: Stages
    ) -> Mapping[str, float]:
        agent, config = self.players.agent, self.config.agent
        if not config.train:
            return {"agent/zero_advantage_rate": zero_advantage_rate(groups, config)}
        sequences = len(reminders) + sum(len(g.traces) + (config.guidance != "none") for g in groups)
        with stage("agent_update", "agent learns", items=sequences * config.epochs, unit="sequences"):
            known = await agent.solutions(self.domain, groups, reminders)
            lesson = agent_credit(config)(groups, known, config, temperature=config.temperature)
            metrics = await agent.learn(lesson, round_=number, rounds=self.config.run.rounds)
        guided = sum(group.task.id in known for group in groups)
        return {
            **metrics,
            "agent/zero_advantage_rate": zero_advantage_rate(groups, config),
            "agent/guided_rate": guided / len(groups) if groups else 0.0,
            "agent/replayed": float(len(known) - guided),
            "agent/imitated": float(sum(datum.loss == "nll" for datum in lesson.data)),
        }

    async def _simulator_learns(
        self, number: int, batches: Sequence[TaskBatch], selection: Selection, stage: Stages
    ) -> Mapping[str, float]:
        simulator, config = self.players.simulator, self.config.simulator
        if not simulator.learns:
            return {}
        wanted = in_round(self.config.curriculum, number, self.config.run.rounds)
        earned = scored(batches, wanted, generator(self.world.seed, "shuffled", number))
        if config.algorithm == "hindsight" and isinstance(simulator, Simulator):
            seeds = {batch.context.id: batch.context.seed for batch in batches}
            earned = [self._in_hindsight(simulator, seeds[one.generation.context_id], one) for one in earned]
        schemas = spec_schemas(self.domain, [batch.context for batch in batches])
        credit = simulator_credit(config)
        lesson = credit(selection.samples, schemas, config, temperature=config.temperature, scored=earned)
        specs = len(lesson.data) * config.epochs
        with stage("simulator_update", "simulator learns", items=specs, unit="specs"):
            return await simulator.learn(lesson, round_=number, rounds=self.config.run.rounds)

    def _in_hindsight(self, simulator: Simulator, seed: Seed, one: Scored) -> Scored:
        """With the prompt that asks for the rate which the task came to, to the nearest tenth."""
        if one.rate is None:
            return one
        messages = self.domain.simulator_messages(seed, self.world.told, round(one.rate, 1))
        return replace(one, asked=asked(simulator.sampler, messages))

    async def _decided(
        self, generations: Sequence[Generation], contexts: Sequence[Context]
    ) -> Mapping[str, float]:
        return await self.players.simulator.decided(generations, spec_schemas(self.domain, contexts))

    async def _both(self, *updates: Callable[[], Awaitable[Mapping[str, float]]]) -> Mapping[str, float]:
        """Both updates, at the same time where the players have devices of their own; tokens are added up."""
        if self.players.apart:
            found = await asyncio.gather(*(update() for update in updates))
        else:
            found = [await update() for update in updates]
        trained = sum(metrics.get("tokens/trained", 0.0) for metrics in found)
        return {name: value for metrics in found for name, value in metrics.items()} | {
            "tokens/trained": trained
        }

    async def _measured(self, record: RoundRecord, stage: Stages) -> RoundRecord:
        """The record with held-out results, where they are due, and with its timings; all names checked."""
        found = await self._evaluations(stage) if self.world.measures(record.number) else []
        metrics = {**record.metrics, **evaluation_metrics(found), **stage.metrics()}
        check_names(metrics)
        return replace(record, metrics=metrics, evaluations=[*record.evaluations, *found])

    async def _evaluations(self, stage: Stages) -> list[Evaluation]:
        """How the agent does on the held-out tasks of the world it is in."""
        with stage("eval", "held-out tasks", items=len(self.world.held_out), unit="tasks"):
            groups = await self.players.agent.solve(self.domain, self.world.held_out)
        return [
            Evaluation(
                task_id=group.task.id,
                success=trace.success,
                reward=trace.reward,
                replies=trace.replies,
                explanation=trace.explanation,
            )
            for group in groups
            for trace in group.traces
        ]
