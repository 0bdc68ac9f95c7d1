"""The loop: two players, one round after the other, each committed whole.

Round 0 is what the warm-up left: it is measured and committed like any other, so that a run can be
continued from it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from genenv.agent.player import Agent
from genenv.backends.settings import PolicyConfig
from genenv.config.run import RunConfig
from genenv.curriculum.replay import Replay, choose_seeds
from genenv.curriculum.score import Selection, curriculum_metrics, score_batch, select
from genenv.curriculum.stats import SkillStats
from genenv.domains.base import Domain
from genenv.errors import DataError
from genenv.gate.gate import Gate, base_tasks
from genenv.runs.checkpoint import checkpoint_path
from genenv.runs.folder import RunFolder
from genenv.runs.metrics import Sink, check_names, write_all
from genenv.runs.progress import Reporter, Silent, Stage
from genenv.runs.round_metrics import attempt_metrics, evaluation_metrics
from genenv.runs.store.records import Evaluation, RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.seeding import generator
from genenv.simulator.player import Simulator, make_contexts
from genenv.types import Context, Group, JsonObject, Proposal, Seed, Task, TaskBatch


class Warmup(Protocol):
    """What brings the players to where co-evolution can start."""

    def __call__(
        self, seeds: Sequence[Seed], tasks: Sequence[Task], reporter: Reporter
    ) -> Mapping[str, float]:
        """Train both players on base data; returns metrics of round 0."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Players:
    """The two players, and what happens to them before the first round."""

    agent: Agent
    simulator: Simulator
    warmup: Warmup | None = None
    settled: PolicyConfig | None = None
    """The settings of their models with what is automatic decided; None where nothing was."""

    def save(self, folder: Path) -> None:
        """Write both players into a checkpoint."""
        self.agent.learner.save(folder / "agent")
        self.simulator.learner.save(folder / "simulator")

    def load(self, folder: Path) -> None:
        """Restore both players."""
        self.agent.learner.load(folder / "agent")
        self.simulator.learner.load(folder / "simulator")


@dataclass(slots=True)
class _Times:
    """Seconds of one round: of its stages, and since its start."""

    start: float = field(default_factory=time.perf_counter)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, name: str) -> Generator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


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
        self.seed = config.run.seed
        self.seeds = list(domain.seeds())
        held_out = domain.held_out()
        self.held_out = list(held_out)[: config.run.eval_tasks]
        self.stats, self.replay = SkillStats(config.curriculum), Replay(config.curriculum)
        self.gate = Gate(domain, config.curriculum, seed=self.seed)
        self.base = base_tasks(domain, self.seeds, seed=self.seed)
        self.gate.remember(self.base.values())
        self.gate.protect(held_out)

    def run(self, proven: Callable[[int | None], None] | None = None) -> int:
        """Play all rounds that are not committed yet; returns the number of the last one.

        Args:
            proven: told of the last committed round, when all that is needed to go on was proven whole.
        """
        with self.folder.lock(), PoolStore.open(self.folder.pool, create=False) as store:
            last = self.folder.prove(store)
            self._put_base(store)
            self._resume(store, last)
            if proven is not None:
                proven(last)
            if last is not None:  # a kill after the commit may have kept it from the sinks
                write_all(self.sinks, last, store.metrics(last))
            for number in range(0 if last is None else last + 1, self.config.run.rounds + 1):
                record = asyncio.run(self._round(number, store)) if number else self._start()
                self.folder.commit(store, record, self.players.save, keep=self.config.run.keep_checkpoints)
                write_all(self.sinks, number, record.metrics)
                for player in (self.players.agent, self.players.simulator):
                    player.policy.end_round()
                self.reporter.round(number, self.config.run.rounds, record.metrics)
            return self.config.run.rounds

    def _put_base(self, store: PoolStore) -> None:
        try:
            store.put_base(self.seeds, self.held_out)
        except ValueError as error:
            raise DataError(
                f"{self.folder.path} was made with other base data ({error}); "
                "continue it with the version that started it, or start a new run"
            ) from error

    def _resume(self, store: PoolStore, last: int | None) -> None:
        """Continue after the last committed round, which was proven whole; None for a new run."""
        if last is not None:
            state = store.state(last)
            self.stats.load_state_dict(_part(state, "stats"))
            self.replay.load_state_dict(_part(state, "replay"))
            if self.config.agent.replayed:
                self.replay.recall(store.last_seen())
            self.gate.recall(store.surfaces(), store.without_surface())
            self.players.load(checkpoint_path(self.folder.checkpoints, last))
        self.folder.tidy(store, last, self.reporter.note)

    def _start(self) -> RoundRecord:
        """Round 0: the warm-up, and what it left."""
        times = _Times()
        with times.measure("time/warmup_s"):
            warmup = self.players.warmup
            metrics = (
                {} if warmup is None else dict(warmup(self.seeds, list(self.base.values()), self.reporter))
            )
        record = RoundRecord(number=0, metrics=metrics, state=self._state())
        measured = asyncio.run(self._evaluated(record, times)) if self.config.run.eval_every else record
        return self._timed(measured, times)

    async def _round(self, number: int, store: PoolStore) -> RoundRecord:
        """One round: write, attempt, score, learn twice."""
        config, players, times = self.config, self.players, _Times()
        contexts = self._contexts(number)
        wanted = len(contexts) * config.simulator.variations
        with times.measure("time/propose_s"), self._stage(number, "writing tasks", wanted, "specs") as stage:
            generations = await players.simulator.propose(self.domain, contexts, stage=stage)
        with times.measure("time/gate_s"):
            proposals = self.gate.admit(contexts, generations)
        tasks = [p.outcome for p in proposals if isinstance(p.outcome, Task)] + self._revisited(number, store)
        attempts = len(tasks) * config.agent.rollouts
        with (
            times.measure("time/rollout_s"),
            self._stage(number, "attempting", attempts, "attempts") as stage,
        ):
            groups = await players.agent.attempt(self.domain, tasks, round_=number, stage=stage)
        batches = self._score(contexts, proposals, groups)
        selection = select(batches, config.curriculum)
        replayed = self._replayed(number, groups, store)
        learned = await self._learn(number, contexts, groups, replayed, selection, times)
        self.stats.observe(groups)
        self.replay.observe(number, groups)
        metrics = {
            **curriculum_metrics(batches, selection, config.curriculum),
            **attempt_metrics(groups, batches, players.agent.policy, self.domain),
            **{f"agent/skill/{name}": rate for name, rate in self.stats.profile().success.items()},
            **learned,
        }
        record = RoundRecord(
            number=number,
            metrics=metrics,
            state=self._state(),
            batches=batches,
            groups=groups,
            samples=selection.samples,
            surfaces={group.task.id: self.domain.surface(group.task) for group in groups},
            reminded=[task.id for task in replayed],
        )
        every = config.run.eval_every
        due = every and (number == config.run.rounds or number % every == 0)
        return self._timed(await self._evaluated(record, times) if due else record, times)

    def _contexts(self, number: int) -> list[Context]:
        """The seeds to vary, and what the simulator is told about each."""
        config = self.config
        rng = generator(self.seed, "seeds", number)
        chosen = choose_seeds(self.seeds, self.stats, config.simulator.contexts, rng, config.curriculum)
        return make_contexts(
            self.domain, chosen, self.stats.profile(), round_=number, target=config.curriculum.alpha
        )

    def _revisited(self, number: int, store: PoolStore) -> list[Task]:
        """Base tasks and mastered tasks that come back this round."""
        planned = self.config.simulator.contexts * self.config.simulator.variations
        rng = generator(self.seed, "replay", number)
        back = self.replay.draw(number, planned=planned, seeds=self.seeds, rng=rng)
        return [self.base[s.id] for s in back.seeds if s.id in self.base] + [
            store.task(i) for i in back.task_ids
        ]

    def _replayed(self, number: int, groups: Sequence[Group], store: PoolStore) -> list[Task]:
        """Tasks of the pool (base data and earlier rounds) whose solutions the agent sees again."""
        if not self.config.agent.replayed:
            return []
        base = {task.id: task for task in self.base.values()}
        chosen = self.replay.remind(
            number,
            base=list(base),
            groups=groups,
            n=self.config.agent.replayed,
            rng=generator(self.seed, "replayed", number),
        )
        return [base[name] if name in base else store.task(name) for name in chosen]

    def _score(
        self, contexts: Sequence[Context], proposals: Sequence[Proposal], groups: Sequence[Group]
    ) -> list[TaskBatch]:
        """p_hat and R_env of each context's variations."""
        attempted = {group.task.id: group for group in groups}
        batches: list[TaskBatch] = []
        for context in contexts:
            own = [p for p in proposals if p.generation.context_id == context.id]
            tried = [attempted[p.outcome.id] for p in own if isinstance(p.outcome, Task)]
            batches.append(score_batch(context, own, tried, self.config.curriculum))
        return batches

    async def _learn(
        self,
        number: int,
        contexts: Sequence[Context],
        groups: Sequence[Group],
        replayed: Sequence[Task],
        selection: Selection,
        times: _Times,
    ) -> Mapping[str, float]:
        """Both updates; what they trained on is added up."""
        players, trained = self.players, 0.0
        metrics: dict[str, float] = {}
        config = self.config.agent
        sequences = len(replayed) + sum(len(g.traces) + (config.guidance != "none") for g in groups)
        with (
            times.measure("time/agent_update_s"),
            self._stage(number, "agent learns", sequences * config.epochs, "sequences") as stage,
        ):
            metrics |= await players.agent.update(
                self.domain,
                groups,
                replayed=replayed,
                round_=number,
                rounds=self.config.run.rounds,
                stage=stage,
            )
        trained += metrics.pop("tokens/trained", 0.0)
        specs = len(selection.samples) * self.config.simulator.epochs
        with (
            times.measure("time/simulator_update_s"),
            self._stage(number, "simulator learns", specs, "specs") as stage,
        ):
            metrics |= players.simulator.update(
                self.domain,
                contexts,
                selection.samples,
                round_=number,
                rounds=self.config.run.rounds,
                stage=stage,
            )
        trained += metrics.pop("tokens/trained", 0.0)
        return metrics | {"tokens/trained": trained}

    async def _evaluated(self, record: RoundRecord, times: _Times) -> RoundRecord:
        """The record with held-out results."""
        with (
            times.measure("time/eval_s"),
            self._stage(record.number, "held-out tasks", len(self.held_out), "tasks") as stage,
        ):
            groups = await self.players.agent.solve(self.domain, self.held_out, stage=stage)
        evaluations = [
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
        metrics = {**record.metrics, **evaluation_metrics(groups)}
        return replace(record, metrics=metrics, evaluations=evaluations)

    def _timed(self, record: RoundRecord, times: _Times) -> RoundRecord:
        """The record with its timings, all names checked."""
        whole = time.perf_counter() - times.start
        metrics = {**record.metrics, **times.seconds, "time/round_s": whole}
        check_names(metrics)
        return replace(record, metrics=metrics)

    def _state(self) -> JsonObject:
        return {"stats": self.stats.state_dict(), "replay": self.replay.state_dict()}

    @contextmanager
    def _stage(self, number: int, name: str, items: int, unit: str) -> Generator[Stage]:
        label = f"round {number}/{self.config.run.rounds}: {name}" if number else name
        with self.reporter.stage(label, items=items, unit=unit) as stage:
            yield stage


def _part(state: JsonObject, name: str) -> JsonObject:
    part = state[name]
    assert isinstance(part, Mapping)  # noqa: S101 - `_state` wrote it
    return part
