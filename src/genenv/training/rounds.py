"""One round: `Producer` samples tasks and rollouts, and `Learner` updates both policies from them.

With `run.staleness`, rounds are produced ahead of the round being trained on. The task pool's state is then
ahead too, so a `Produced` round holds everything that its commit needs.

`Policies` are the two policies of a run, agent and simulator, with warm-up, checks and connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from genenv.agent.policy import Agent, roll_out_seats
from genenv.algorithms.advantages import agent_credit, has_signal, zero_advantage_rate
from genenv.backends.base import Backend
from genenv.config.run import RunConfig
from genenv.curriculum.predictors import Probe
from genenv.curriculum.scoring import score_batches, scored
from genenv.curriculum.simulator_rewards import in_round
from genenv.curriculum.task_choice import Choice, Predicted, joined
from genenv.curriculum.update_selection import (
    Selection,
    curriculum_metrics,
    not_only_scored,
    select,
    trained_groups,
)
from genenv.environments.base import Environment
from genenv.progress import Reporter
from genenv.runs.metrics import Stages, by_agent, named_by_agent, rollout_metrics
from genenv.runs.store.records import Evaluation
from genenv.runs.store.store import PoolStore
from genenv.seeding import generator
from genenv.simulator.policy import TaskSource, spec_schemas
from genenv.training.task_pool import TaskPool, Tasks
from genenv.types import (
    AGENT,
    Context,
    Feedback,
    Generation,
    Group,
    JsonObject,
    Profile,
    Proposal,
    Seed,
    SimulatorSample,
    Task,
    TaskBatch,
    accepted,
    leading,
)

T = TypeVar("T")


Warmup = Callable[[Sequence[Seed], Sequence[Task], Reporter], Coroutine[Any, Any, Mapping[str, float]]]
"""Prepares the policies for co-evolution: trains them on base data and returns the metrics of round 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The policies of a run, its agents and its simulator, and the properties of their backend."""

    agent: Agent
    """The agent; the first one of several."""
    simulator: TaskSource
    others: Sequence[Agent] = ()
    """Further agents, in the order of the settings."""
    seats: Mapping[str, Agent] = field(default_factory=dict[str, Agent])
    """The agents by seat, the leading seat first; empty in a run without seats."""
    warmup: Warmup | None = None
    backend: Backend = field(default_factory=Backend)
    """What they run on."""

    @property
    def agents(self) -> Mapping[str, Agent]:
        """All agents by name, in the order of the settings."""
        return {agent.name: agent for agent in (self.agent, *self.others)}

    def of_task(self, found: Sequence[Evaluation]) -> Sequence[Evaluation]:
        """Return the results that count as success on a task: with seats those of the leading agent."""
        names = [agent.name for agent in self.seats.values()]
        return [one for one in found if one.agent == names[0]] if names else found

    async def check_samples(self) -> None:
        """Refuse samples of wrong weights before they are trained on.

        Raises:
            GenenvError: a sample is from wrong weights. The message names the server and the version.
        """
        if self.backend.check is not None:
            await self.backend.check()

    async def publish(self) -> None:
        """Use the updated weights of all policies for sampling."""
        for agent in self.agents.values():
            if agent.config.train:
                await agent.trainer.publish()
        if self.simulator.learns:
            await self.simulator.publish()

    async def save(self, folder: Path) -> None:
        """Write all policies into a checkpoint, each agent into the folder of its name."""
        for name, agent in self.agents.items():
            await agent.trainer.save(folder / name)
        await self.simulator.save(folder / "simulator")

    async def load(self, folder: Path) -> None:
        """Restore all policies."""
        for name, agent in self.agents.items():
            await agent.trainer.load(folder / name)
        await self.simulator.load(folder / "simulator")


async def together(*wanted: Coroutine[Any, Any, T]) -> list[T]:
    """Run coroutines concurrently and return their results; the first error cancels the others."""
    tasks = [asyncio.ensure_future(one) for one in wanted]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def evaluate(
    policies: Policies, env: Environment, held_out: Sequence[Task], stage: Stages
) -> list[Evaluation]:
    """Have each agent roll out each held-out task once, greedily, and return the results.

    Agents at seats do so together. An agent with several seats has the results of its first one.
    """
    if policies.seats:
        with stage("eval", "evaluation", items=len(held_out), unit="held-out tasks"):
            groups = await roll_out_seats(policies.seats, env, held_out, round_=None)
        return _results([one for one in groups if one.seat == policies.agents[one.agent].seats[0]])
    found: list[Evaluation] = []
    for agent in policies.agents.values():
        whose = "" if agent.name == AGENT else f" of {agent.name}"
        with stage("eval", f"evaluation{whose}", items=len(held_out), unit="held-out tasks"):
            found += _results(await agent.solve(env, held_out))
    return found


def _results(groups: Sequence[Group]) -> list[Evaluation]:
    return [
        Evaluation(
            task_id=group.task.id,
            success=trace.success,
            reward=trace.reward,
            replies=trace.replies,
            explanation=trace.explanation,
            agent=group.agent,
        )
        for group in groups
        for trace in group.traces
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """A round with its tasks and rollouts, before the policies are trained on it."""

    number: int
    contexts: Sequence[Context]
    generations: Sequence[Generation]
    batches: Sequence[TaskBatch]
    groups: Sequence[Group]
    """All rollouts of the round, by task."""
    trained: Sequence[Group]
    """The rollouts that the agents train on, each on its own."""
    selection: Selection
    """The generations that the simulator trains on with `rwr`."""
    replayed: Sequence[Task]
    """Tasks whose demonstrations the agent trains on again."""
    profile: Profile
    """The agent's profile before these rollouts, as the simulator's context had it."""
    entered: Sequence[Evaluation]
    """Results on the held-out tasks of another environment, before the first round in it."""
    metrics: Mapping[str, float]
    seconds: Mapping[str, float]
    """Seconds of each stage."""
    state: JsonObject
    """State of the run after this round, without weights."""


def _scored_only(generations: Sequence[Generation], new: Sequence[Task]) -> dict[str, float]:
    marked = {one.id for one in generations if one.scored_only}
    return {"tasks/scored_only": float(sum(task.lineage.generation_id in marked for task in new))}


def _skills(profile: Profile) -> dict[str, float]:
    return {f"agent/skill/{name}": rate for name, rate in profile.success.items()}


class Ahead:
    """Finds tasks by id, in committed rounds and in rounds that are produced but not committed."""

    def __init__(self, committed: Tasks, rounds: Mapping[int, Produced]) -> None:
        self._committed, self._rounds = committed, rounds

    def task(self, task_id: str) -> Task:
        """Return the task with this id."""
        ahead = (group.task for one in self._rounds.values() for group in one.groups)
        return next((task for task in ahead if task.id == task_id), None) or self._committed.task(task_id)


class Producer:
    """Produces rounds, in order: tasks, rollouts and metrics."""

    def __init__(
        self,
        policies: Policies,
        pool: TaskPool,
        reporter: Reporter,
        older: Callable[[int], Path | None] = lambda number: None,
    ) -> None:
        """Create a producer.

        Args:
            policies: the policies that sample.
            pool: the state of the run without weights.
            reporter: shows the progress.
            older: returns the checkpoint with the older agents to which a round's progress refers.
        """
        self.policies, self.pool, self.reporter, self._older = policies, pool, reporter, older

    async def produce(self, number: int, tasks: Tasks) -> Produced:
        """Sample a round with the latest published weights, and update the task pool with its rollouts.

        Args:
            number: number of the round; rounds must be produced in order.
            tasks: finds the tasks that may be repeated in it.
        """
        pool, simulator = self.pool, self.policies.simulator
        config, env = pool.config, pool.env
        stage = Stages(self.reporter, number, config.run.rounds)
        entered = await self._entered(number, stage)
        contexts = pool.contexts(number)
        specs = len(contexts) * config.simulator.variations
        with stage("propose", "writing tasks" if specs else "", items=specs, unit="specs"):
            generations = await simulator.propose(env, contexts)
        base, back = pool.revisited(number, tasks)
        proposals, candidates, predicted = await self._gated(number, contexts, generations, base, stage)
        written, examined = accepted(proposals), {proposal.generation.id for proposal in proposals}
        generations = [one for one in generations if one.id in examined]
        told = {one.context_id for one in generations}
        contexts = [context for context in contexts if context.id in told]
        chosen = pool.chosen(number, written, base, predicted)
        groups = await self._attempted(number, chosen, back, stage)
        new = pool.joined(groups, written)
        wanted = in_round(config.curriculum, number, config.run.rounds)
        batches = score_batches(contexts, proposals, leading(groups), wanted)
        selection = select(batches, wanted, generator(pool.seed, "shuffled", number))
        repeatable = not_only_scored(groups, generations)
        replayed, profile = pool.replayed(number, repeatable, tasks), pool.profile
        probed = {} if predicted is None else predicted.metrics(candidates, [group.task for group in groups])
        names = {task.id for task in new}
        probed |= pool.observe(number, groups, names, predicted, repeatable=repeatable)
        counted = self.policies.of_task(entered)
        sampler, elsewhere = self.policies.agent.sampler, simulator.tokens_sampled_elsewhere()
        return Produced(
            number=number,
            contexts=contexts,
            generations=generations,
            batches=batches,
            groups=groups,
            trained=trained_groups(repeatable, new, wanted),
            selection=selection,
            replayed=replayed,
            profile=profile,
            entered=entered,
            metrics={
                **curriculum_metrics(batches, selection, wanted),
                **rollout_metrics(groups, batches, sampler, env, elsewhere=elsewhere),
                **probed,
                **_skills(pool.stats.profile()),
                **named_by_agent({name: _skills(own.profile()) for name, own in pool.own_stats.items()}),
                **({"agent/eval_at_shift": fmean(one.success for one in counted)} if counted else {}),
                **(_scored_only(generations, new) if config.simulator.scores_without_training else {}),
            },
            seconds=stage.seconds,
            state=pool.state(),
        )

    async def _entered(self, number: int, stage: Stages) -> list[Evaluation]:
        """Evaluate the agents in another environment, if this is the first round in it."""
        if not self.pool.enter(number) or not self.pool.config.run.eval_every:
            return []
        return await evaluate(self.policies, self.pool.env, self.pool.held_out, stage)

    async def _gated(
        self,
        number: int,
        contexts: Sequence[Context],
        generations: Sequence[Generation],
        base: Sequence[Task],
        stage: Stages,
    ) -> tuple[Sequence[Proposal], Sequence[Task], Predicted | None]:
        """Check what was written, and predict success rates; a task bandit predicts and chooses first.

        Returns:
            What the gate examined, the candidates for new tasks, and the predictions for them and `base`.
        """
        pool = self.pool
        if pool.chooses_first:
            with stage("gate", "gate" if generations else "", items=len(generations), unit="specs"):
                built = list(pool.gate.build(contexts, generations))
                candidates = accepted(built)
                predicted = await self._predicted(number, [*candidates, *base], stage)
                proposals = pool.chosen_first(number, built, {} if predicted is None else predicted.rates)
        else:
            with stage("gate", "gate" if generations else "", items=len(generations), unit="specs"):
                proposals = pool.gate.admit(contexts, generations)
            candidates = accepted(proposals)
            predicted = await self._predicted(number, [*candidates, *base], stage)
        return proposals if predicted is None else predicted.noted(proposals), candidates, predicted

    async def _predicted(self, number: int, candidates: Sequence[Task], stage: Stages) -> Predicted | None:
        """Return predicted success rates of candidates; None if predictions are off."""
        if not self.pool.predictors:
            return None
        assigned, older = self.pool.assigned(candidates), self._older(number)
        found = list[Predicted]()
        for name, predictor in self.pool.predictors.items():
            if not isinstance(predictor, Probe):
                found.append(predictor.predict(assigned[name]))
                continue
            agent, then = self.policies.agents[name], older and older / name
            items = len(assigned[name]) * (1 if then is None else 2)
            with stage("probe", "likelihood scoring", items=items, unit="tasks"):
                found.append(predictor.predict(*await agent.likelihoods(self.pool.env, assigned[name], then)))
        return joined(found)

    async def _attempted(
        self,
        number: int,
        chosen: Choice,
        back: Sequence[Task],
        stage: Stages,
    ) -> list[Group]:
        """Roll out the tasks of a round, and substitutes for candidates whose rollouts teach nothing."""
        groups, tasks = list[Group](), [*chosen.new, *chosen.base, *back]
        while tasks:
            found = await self._rolled_out(number, tasks, stage)
            groups += found
            tasks = chosen.instead_of(
                leading(found), lambda group: has_signal(group, self.policies.agents[group.agent].config)
            )
        await self.policies.check_samples()
        return groups

    async def _rolled_out(self, number: int, tasks: Sequence[Task], stage: Stages) -> list[Group]:
        """Roll out tasks with the agents at their seats, or with each agent on its own."""
        agents, seats = self.policies.agents, self.policies.seats
        if seats:
            items = len(tasks) * self.policies.agent.config.rollouts
            with stage("rollout", "rollouts", items=items, unit="rollouts"):
                return await roll_out_seats(seats, self.pool.env, tasks, round_=number)
        assigned, found = self.pool.assigned(tasks), list[Group]()
        items = sum(len(own) * agents[name].config.rollouts for name, own in assigned.items())
        with stage("rollout", "rollouts", items=items, unit="rollouts"):
            for name, own in assigned.items():
                if own:
                    found += await agents[name].roll_out(self.pool.env, own, round_=number)
        return found


Update = Callable[[], Coroutine[Any, Any, Mapping[str, float]]]


class Learner:
    """Updates both policies from a round. The updated weights are used for sampling only once published."""

    def __init__(self, config: RunConfig, env: Environment, policies: Policies) -> None:
        self.config, self.env, self.policies = config, env, policies
        self._pool: list[tuple[SimulatorSample, JsonObject]] = []
        """D_env: the selected generations so far with their schemas, if they accumulate."""

    def recall(self, store: PoolStore, last: int, *, since: int) -> None:
        """Restore the generations that accumulate, from the committed rounds up to the last.

        Args:
            store: the store of the run.
            last: the last committed round.
            since: the first round whose generations have the present schema.
        """
        shift = self.config.shift.round
        for number in range(max(since, shift if shift <= last else 1), last + 1):
            samples = store.samples(number)
            used = {sample.generation.context_id for sample in samples}
            contexts = [batch.context for batch in store.batches(number) if batch.context.id in used]
            self._accumulated(samples, spec_schemas(self.env, contexts))

    def _accumulated(
        self, samples: Sequence[SimulatorSample], schemas: Mapping[str, JsonObject]
    ) -> tuple[Sequence[SimulatorSample], Mapping[str, JsonObject]]:
        """Add a round's samples to D_env; return all of it, and the schemas by context id.

        Weights of a round sum to 1. They are multiplied by the number of samples, so that a generation
        counts alike whether its round had few of them or many.
        """
        self._pool += [
            (replace(one, weight=one.weight * len(samples)), schemas[one.generation.context_id])
            for one in samples
        ]
        kept = {one.generation.context_id: schema for one, schema in self._pool}
        return [one for one, _ in self._pool], {**kept, **schemas}

    async def learn(self, produced: Produced, stage: Stages) -> Mapping[str, float]:
        """Run both updates of a round; return their metrics and the simulator's decision metrics.

        Decision metrics need the weights that sampled the round, so they are left out with `run.staleness`.
        """
        number, decision_metrics = produced.number, dict[str, float]()
        if not self.config.run.staleness:
            schemas = spec_schemas(self.env, produced.contexts)
            decision_metrics |= await self.policies.simulator.decision_metrics(produced.generations, schemas)
        learned = await self.both(
            lambda: self.agent_learns(number, produced.trained, produced.replayed, stage),
            lambda: self.simulator_learns(
                number, produced.batches, produced.selection, produced.profile, stage
            ),
        )
        return {**decision_metrics, **learned}

    async def agent_learns(
        self, number: int, groups: Sequence[Group], replayed: Sequence[Task], stage: Stages
    ) -> Mapping[str, float]:
        """Update each agent from its own rollouts, one after another, and return metrics.

        Args:
            number: number of the round.
            groups: rollouts to train on, of all agents.
            replayed: other tasks whose demonstrations are trained on again.
            stage: times the updates.
        """
        found: dict[str, Mapping[str, float]] = {}
        for name, agent in self.policies.agents.items():
            own = [group for group in groups if group.agent == name]
            found[name] = await self._learns(agent, number, own, replayed, stage)
        return by_agent(found)

    async def _learns(
        self, agent: Agent, number: int, groups: Sequence[Group], replayed: Sequence[Task], stage: Stages
    ) -> Mapping[str, float]:
        config = agent.config
        if not config.train:
            return {"agent/zero_advantage_rate": zero_advantage_rate(groups, config)}
        known = await agent.solutions(self.env, groups, replayed)
        batch = agent_credit(config)(groups, known, config, temperature=config.temperature)
        sequences = len(batch.data) * config.epochs  # groups without an advantage are left out
        whom = "the agent" if agent.name == AGENT else agent.name
        with stage("agent_update", f"update of {whom}", items=sequences, unit="sequences"):
            metrics = await agent.learn(batch, round_=number, rounds=self.config.run.rounds)
        told = leading(groups)  # demonstrations are of an agent's first seat
        guided = sum(group.task.id in known for group in told)
        return {
            **metrics,
            "agent/zero_advantage_rate": zero_advantage_rate(groups, config),
            "agent/guided_rate": guided / len(told) if told else 0.0,
            "agent/replayed": float(len(known) - guided),
            "agent/imitated": float(sum(datum.loss == "nll" for datum in batch.data)),
        }

    async def simulator_learns(
        self, number: int, batches: Sequence[TaskBatch], selection: Selection, profile: Profile, stage: Stages
    ) -> Mapping[str, float]:
        """Update the simulator, if it is trained, and return metrics.

        Args:
            number: number of the round.
            batches: the tasks of the round with their rollouts.
            selection: the selected and weighted generations.
            profile: the agent's profile in the simulator's contexts.
            stage: times the update.
        """
        simulator, config = self.policies.simulator, self.config.simulator
        if not simulator.learns:
            return {}
        wanted = in_round(self.config.curriculum, number, self.config.run.rounds)
        earned = scored(batches, wanted, generator(self.config.run.seed, "shuffled", number))
        schemas: Mapping[str, JsonObject] = spec_schemas(self.env, [batch.context for batch in batches])
        samples: Sequence[SimulatorSample] = selection.samples
        if config.accumulate:
            if number == self.config.shift.round:  # what was written for the environment before is left out
                self._pool.clear()
            samples, schemas = self._accumulated(samples, schemas)
        feedback = Feedback(batches=batches, samples=samples, schemas=schemas, scored=earned, profile=profile)
        specs = len(samples if config.algorithm == "rwr" else earned) * config.epochs
        with stage("simulator_update", "update of the simulator", items=specs, unit="specs"):
            return await simulator.learn(self.env, feedback, round_=number, rounds=self.config.run.rounds)

    async def both(self, *updates: Update) -> Mapping[str, float]:
        """Run both updates, concurrently if the policies have separate devices; return their metrics.

        `tokens/trained` is the sum over both.
        """
        if self.policies.backend.parallel_updates:
            found = await together(*(update() for update in updates))
        else:
            found = [await update() for update in updates]
        trained = sum(metrics.get("tokens/trained", 0.0) for metrics in found)
        return {name: value for metrics in found for name, value in metrics.items()} | {
            "tokens/trained": trained
        }
