"""What both players learn from a round that was produced."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from genenv.algorithms.credit import agent_credit, simulator_credit
from genenv.algorithms.credit.grpo import zero_advantage_rate
from genenv.config.run import RunConfig
from genenv.curriculum.rewards import in_round
from genenv.curriculum.score import Selection, scored
from genenv.environments.base import Environment
from genenv.runs.metrics import Stages
from genenv.seeding import generator
from genenv.simulator.policy import Simulator, asked, spec_schemas
from genenv.training.policies import Players, together
from genenv.training.producing import Produced
from genenv.types import Group, Profile, Scored, Seed, Task, TaskBatch

Update = Callable[[], Coroutine[Any, Any, Mapping[str, float]]]


class Learner:
    """Has both players learn. Neither samples with what it has learned before it is published."""

    def __init__(self, config: RunConfig, env: Environment, players: Players) -> None:
        self.config, self.env, self.players = config, env, players

    async def learn(self, produced: Produced, stage: Stages) -> Mapping[str, float]:
        """Both updates of a round; returns their metrics, and how freely the simulator decided in it.

        That can be known only where nothing was learned since: not of a round that was in flight.
        """
        number, decided = produced.number, dict[str, float]()
        if not self.config.run.staleness:
            schemas = spec_schemas(self.env, produced.contexts)
            decided |= await self.players.simulator.decided(produced.generations, schemas)
        learned = await self.both(
            lambda: self.agent_learns(number, produced.taught, produced.reminders, stage),
            lambda: self.simulator_learns(number, produced.batches, produced.selection, produced.told, stage),
        )
        return {**decided, **learned}

    async def agent_learns(
        self, number: int, groups: Sequence[Group], reminders: Sequence[Task], stage: Stages
    ) -> Mapping[str, float]:
        """The agent's update.

        Args:
            number: of the round.
            groups: attempts.
            reminders: other tasks whose known solutions it sees again.
            stage: times it.
        """
        agent, config = self.players.agent, self.config.agent
        if not config.train:
            return {"agent/zero_advantage_rate": zero_advantage_rate(groups, config)}
        sequences = len(reminders) + sum(len(g.traces) + (config.guidance != "none") for g in groups)
        with stage("agent_update", "agent learns", items=sequences * config.epochs, unit="sequences"):
            known = await agent.solutions(self.env, groups, reminders)
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

    async def simulator_learns(
        self, number: int, batches: Sequence[TaskBatch], selection: Selection, told: Profile, stage: Stages
    ) -> Mapping[str, float]:
        """The simulator's update, where it learns.

        Args:
            number: of the round.
            batches: what was written, and how the agent did on it.
            selection: of it, weighed.
            told: how the agent did.
            stage: times it.
        """
        simulator, config = self.players.simulator, self.config.simulator
        if not simulator.learns:
            return {}
        wanted = in_round(self.config.curriculum, number, self.config.run.rounds)
        earned = scored(batches, wanted, generator(self.config.run.seed, "shuffled", number))
        if config.algorithm == "hindsight" and isinstance(simulator, Simulator):
            seeds = {batch.context.id: batch.context.seed for batch in batches}
            earned = [
                self._in_hindsight(simulator, seeds[one.generation.context_id], told, one) for one in earned
            ]
        schemas = spec_schemas(self.env, [batch.context for batch in batches])
        credit = simulator_credit(config)
        lesson = credit(selection.samples, schemas, config, temperature=config.temperature, scored=earned)
        specs = len(lesson.data) * config.epochs
        with stage("simulator_update", "simulator learns", items=specs, unit="specs"):
            return await simulator.learn(lesson, round_=number, rounds=self.config.run.rounds)

    def _in_hindsight(self, simulator: Simulator, seed: Seed, told: Profile, one: Scored) -> Scored:
        """With the prompt that asks for the rate which the task came to, to the nearest tenth."""
        if one.rate is None:
            return one
        messages = self.env.simulator_messages(seed, told, round(one.rate, 1))
        return replace(one, asked=asked(simulator.sampler, messages))

    async def both(self, *updates: Update) -> Mapping[str, float]:
        """Both updates, at the same time where the players have devices of their own; tokens are added up."""
        if self.players.apart:
            found = await together(*(update() for update in updates))
        else:
            found = [await update() for update in updates]
        trained = sum(metrics.get("tokens/trained", 0.0) for metrics in found)
        return {name: value for metrics in found for name, value in metrics.items()} | {
            "tokens/trained": trained
        }
