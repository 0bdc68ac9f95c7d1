"""The agent policy: its settings, its rollouts, the scoring of demonstrations, and its updates."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, cast

from pydantic import Field, model_validator

from genenv.algorithms.advantages import imitate
from genenv.algorithms.datum import Datum, Trainer, UpdateBatch
from genenv.algorithms.settings import GrpoConfig, OptimizerConfig, Steps, WarmupConfig
from genenv.algorithms.update import learn, lr_scale
from genenv.backends.settings import BackendName, EndpointConfig
from genenv.environments.base import Environment, SeatView
from genenv.errors import GenenvError, UsageError
from genenv.rollout.driver import NO_ROOM, Player, Sampling, demonstration, roll_out
from genenv.rollout.driver import roll_out_seats as roll_out_players
from genenv.sampling import Sampler
from genenv.seeding import stream
from genenv.settings import PLACE, Address, Settings
from genenv.types import AGENT, Group, Origin, Task, Trace


class AgentWarmupConfig(WarmupConfig, frozen=True):
    """Supervised steps on demonstrations of the seeds before the first round; they may stop early."""

    steps: Steps = 0
    """Maximum number of optimizer steps; 0 turns the warm-up off."""
    target_low: float = Field(default=0.2, ge=0, le=1)
    """Success rate at which the warm-up stops: enough for rewards to differ, with much left to learn."""
    target_high: float = Field(default=0.5, ge=0, le=1)
    """Success rate above which the warm-up has gone too far, which is reported."""
    check_every: int = Field(default=2, ge=1, le=1_000_000)
    """Steps between two measurements of the success rate."""
    check_tasks: int = Field(default=24, ge=1, le=100_000)
    """Base tasks per measurement. The warm-up does not train on them."""
    skills: tuple[str, ...] = Field(default=(), strict=False)
    """Demonstrate and measure only base tasks that need one of these skills, such as `["reverse"]`; empty:
    all base tasks."""

    @model_validator(mode="after")
    def _range_is_ordered(self) -> Self:
        if self.target_low > self.target_high:
            raise ValueError(
                f"target_low is {self.target_low:g}, but must be at most target_high, {self.target_high:g}"
            )
        return self


class RolloutConfig(Settings, frozen=True):
    """Rollouts of the agent: number per task, sampling and limits."""

    rollouts: int = Field(default=8, ge=2, le=1024)
    """Rollouts per task: G of GRPO. p_hat is computed from the same rollouts."""
    max_new_tokens: int = Field(default=64, ge=1, le=1_000_000)
    """Maximum length of a reply, in tokens per turn."""
    temperature: float = Field(default=1.0, ge=0.05, le=10)
    """Sampling temperature of the rollouts."""
    episode_timeout_s: float = Field(default=120.0, ge=0.01, le=604_800)
    """Time limit of the environment per rollout, in seconds. A rollout that exceeds it does not count."""


class AgentConfig(OptimizerConfig, GrpoConfig, RolloutConfig, frozen=True):
    """Rollouts, and the GRPO update on them. In a file the settings of the last base class come first."""

    train: bool = True
    """Update the agent. false: the agent is frozen after the warm-up, and only the simulator is trained."""
    warmup: AgentWarmupConfig = Field(default_factory=AgentWarmupConfig)
    """Supervised steps before the first round."""

    @property
    def warms_up(self) -> bool:
        """Whether there are supervised steps before the first round."""
        return self.warmup.steps > 0


class NamedAgentConfig(AgentConfig, frozen=True):
    """One of several agents, `[agents.NAME]`. It has all settings of `[agent]`, whose values it inherits."""

    model: str | None = Field(default=None, min_length=1, json_schema_extra=PLACE)
    """Base model of this agent; default: `policy.model`."""
    checkpoint: str | None = Field(default=None, min_length=1)
    """First weights of this agent, those of an agent in a checkpoint of another run: `RUN`, `RUN@ROUND`,
    `RUN:NAME` or `RUN@ROUND:NAME`. It then has no warm-up."""
    backend: BackendName | None = None
    """What samples and trains this agent; default: `policy.backend`."""
    address: Address | None = Field(default=None, min_length=1)
    """Instead of weights, a model behind an OpenAI-compatible endpoint, `BASE_URL#MODEL`. It is frozen:
    `train` must be false."""
    endpoint: EndpointConfig = Field(default_factory=EndpointConfig)
    """How requests are sent to that model; the settings are those of `[simulator.endpoint]`."""

    @property
    def warms_up(self) -> bool:
        """Whether there are supervised steps before the first round: not on weights from elsewhere."""
        return self.checkpoint is None and self.address is None and self.warmup.steps > 0


def check_agents(agents: Mapping[str, AgentConfig]) -> None:
    """Refuse an agent that would be trained on demonstrations but has none, before a run starts.

    The settings of old runs may have one; they are still read.

    Args:
        agents: the settings of all agents of a run, by name.

    Raises:
        UsageError: says what to set.
    """
    for name, agent in agents.items():
        section = name if name == AGENT else f"agents.{name}"
        demonstrates = agent.guidance != "none" or agent.replayed > 0
        if agent.train and agent.algorithm == "sft" and not demonstrates:
            raise UsageError(
                f"{section}.algorithm is 'sft', which trains on demonstrations alone, but {section}.guidance "
                f"is 'none' and {section}.replayed is 0: set guidance to 'all'"
            )


class Agent:
    """An agent policy with its sampler and the trainer of its weights."""

    def __init__(
        self,
        sampler: Sampler,
        trainer: Trainer,
        config: AgentConfig,
        *,
        seed: int,
        name: str = AGENT,
        seats: Sequence[str] = (),
    ) -> None:
        """Wrap a sampler and a trainer.

        Args:
            sampler: samples with the agent's weights.
            trainer: trains these weights.
            config: settings of the agent.
            seed: of the run.
            name: of the agent. Agents of one run with different names have different random streams.
            seats: its seats in an environment with seats, the leading one first.
        """
        self.sampler, self.trainer, self.config, self.seed = sampler, trainer, config, seed
        self.name, self._own = name, () if name == AGENT else (name,)
        self.seats = tuple(seats)
        self._guided = dict[str, Trace]()
        """Demonstrations of base tasks, by id. They are cached because base tasks are repeated."""
        self._replied_in = 0
        """The last round in which a token was sampled."""

    async def roll_out(self, env: Environment, tasks: Sequence[Task], *, round_: int) -> list[Group]:
        """Roll out each task `rollouts` times; return one group per task.

        Raises:
            GenenvError: there are tasks, but no token was sampled in this round.
        """
        sampling = self._sampling(self.config.temperature, stream(self.seed, "rollout", round_, *self._own))
        groups = await self._rolled_out(env, tasks, rollouts=self.config.rollouts, sampling=sampling)
        if any(trace.response_tokens for group in groups for trace in group.traces):
            self._replied_in = round_
        return groups if self._replied_in == round_ else self.some_sampled(groups)

    async def seen(self, env: Environment, task: Task, number: int = 0) -> tuple[Environment, Task]:
        """Return an environment and a task as this agent has them, at one of its seats; else unchanged.

        Args:
            env: the environment.
            task: a task of it.
            number: an agent with several seats takes them in turn, by this number.
        """
        if not self.seats:
            return env, task
        view = SeatView(env, self.seats[number % len(self.seats)])
        return cast(Environment, view), await view.seen(task)

    async def solve(self, env: Environment, tasks: Sequence[Task]) -> list[Group]:
        """Roll out each task once, greedily, to measure success. Raises as `roll_out` does.

        In an environment with seats the agent plays its first seat, and code plays the others.
        """
        sampling = self._sampling(0.0, 0)
        groups = await self._rolled_out(env, tasks, rollouts=1, sampling=sampling)
        return self.some_sampled(groups)

    async def _rolled_out(
        self, env: Environment, tasks: Sequence[Task], *, rollouts: int, sampling: Sampling
    ) -> list[Group]:
        view = cast(Environment, SeatView(env, self.seats[0])) if self.seats else env
        groups = await roll_out(view, self.sampler, tasks, rollouts=rollouts, sampling=sampling)
        return [replace(group, agent=self.name) for group in groups]

    async def solutions(
        self, env: Environment, groups: Sequence[Group], others: Sequence[Task] = ()
    ) -> dict[str, Trace]:
        """Return demonstrations that pass the checker in this agent's tokens, by task id.

        Args:
            env: the environment that runs and grades the demonstrations.
            groups: rollouts. `guidance` decides for which of their tasks demonstrations are returned.
            others: tasks whose demonstrations are always returned.
        """
        guidance = self.config.guidance
        groups = [group for group in groups if group.seat in ("", *self.seats[:1])]
        wanted = [
            group.task
            for group in groups
            if guidance == "all" or (guidance == "unsolved" and not group.successes)
        ]
        tasks = [task for task in (*wanted, *others) if task.oracle]
        played = await self._played(env, tasks)
        return {task.id: known for task, known in zip(tasks, played, strict=True) if known.success}

    async def likelihoods(
        self, env: Environment, tasks: Sequence[Task], older: Path | None = None
    ) -> tuple[dict[str, float], int, int, dict[str, float] | None]:
        """Return the likelihoods of the tasks' demonstrations under the agent, at its sampling temperature.

        Args:
            env: the environment that runs and grades the demonstrations.
            tasks: tasks to score. Those whose demonstration fails or does not fit are left out.
            older: folder with an older version of the agent (`Trainer.save`), to score them under too.

        Returns:
            L = sum_t log pi(y_t) over the replies' tokens, nats, by task id; the number of these tokens; the
            number of processed tokens, including prompts; and L under the older version. Both numbers count
            the tokens of each version.
        """
        solved = [task for task in tasks if task.oracle]
        if tasks and not solved:
            raise UsageError(
                f"nobody knows solutions of tasks of {env.name}, so nothing can be foretold by them; set "
                'curriculum.foretold_by to "attempts" or "text", or curriculum.candidates to 1'
            )
        played = await self._played(env, solved)
        known = [
            (task.id, datum)
            for task, trace in zip(solved, played, strict=True)
            if trace.success
            for datum in imitate(trace)
        ]
        data = [replace(datum, temperature=self.config.temperature) for _, datum in known]
        names = [name for name, _ in known]
        likely = _summed(names, data, await self.trainer.logprobs(data))
        earlier = None
        if older is not None:
            earlier = _summed(names, data, await self.trainer.logprobs(data, written=older))
        versions = 1 if older is None else 2
        replies = versions * sum(sum(weight > 0 for weight in datum.weights) for datum in data)
        read = versions * sum(len(datum.prompt_ids) + len(datum.completion_ids) for datum in data)
        return likely, replies, read, earlier

    async def learn(self, batch: UpdateBatch, *, round_: int, rounds: int) -> Mapping[str, float]:
        """Update from a round's batch.

        Args:
            batch: the update batch.
            round_: number of the round, from 1; names the random stream.
            rounds: number of rounds of the run, for the learning-rate schedule.

        Returns:
            Metrics of the update, and `tokens/trained`.
        """
        rate = self.config.lr * lr_scale(self.config.lr_schedule, round_, rounds)
        seed = stream(self.seed, "agent-update", round_, *self._own)
        done = await learn(self.trainer, batch, player="agent", learning_rate=rate, seed=seed)
        return done.metrics()

    async def _played(self, env: Environment, tasks: Sequence[Task]) -> list[Trace]:
        """Return the demonstrations of tasks as traces, in order."""
        new = [task for task in tasks if task.id not in self._guided]
        given = [await self.seen(env, task) for task in new]
        played = await asyncio.gather(*(demonstration(seen, self.sampler, task) for seen, task in given))
        found = {task.id: trace for task, trace in zip(new, played, strict=True)}
        self._guided |= {task.id: found[task.id] for task in new if task.lineage.origin is Origin.SEED}
        return [found.get(task.id) or self._guided[task.id] for task in tasks]

    def player(self, round_: int | None) -> Player:
        """Return this agent as a player of a seat, in a round; None: greedily, to measure success."""
        temperature, seed = 0.0, 0
        if round_ is not None:
            temperature = self.config.temperature
            seed = stream(self.seed, "rollout", round_, *self._own)
        return Player(sampler=self.sampler, sampling=self._sampling(temperature, seed), agent=self.name)

    def some_sampled(self, groups: list[Group]) -> list[Group]:
        """Return the groups unchanged if any token was sampled, so that a broken run stops early.

        Raises:
            GenenvError: no trace has a sampled token. The message says why, and what to change.
        """
        traces = [trace for group in groups for trace in group.traces]
        if not traces or any(trace.response_tokens for trace in traces):
            return groups
        ((why, count),) = Counter(trace.explanation for trace in traces).most_common(1)
        advice = ""
        if why in NO_ROOM:
            advice = (
                f" The window has {self.sampler.context_tokens} tokens here: raise policy.context_tokens, "
                "choose a model with a longer context if its own is no longer, or lower "
                f"agent.max_new_tokens ({self.config.max_new_tokens})."
            )
        raise GenenvError(
            f"the agent could reply to none of {len(groups)} tasks, so there is nothing to learn from or to "
            f"measure; {count} of {len(traces)} attempts: {why or 'it was asked for nothing.'}{advice}"
        )

    def _sampling(self, temperature: float, seed: int) -> Sampling:
        return Sampling(
            temperature=temperature,
            max_new_tokens=self.config.max_new_tokens,
            timeout_s=self.config.episode_timeout_s,
            seed=seed,
        )


async def roll_out_seats(
    agents: Mapping[str, Agent], env: Environment, tasks: Sequence[Task], *, round_: int | None
) -> list[Group]:
    """Roll out each task with an agent at each of these seats; return the groups of one seat after another.

    Args:
        agents: the agents by seat, the leading seat first. Code plays the seats that are left out.
        env: the environment.
        tasks: the tasks.
        round_: number of the round. None: each task is rolled out once, greedily, to measure success.

    Raises:
        GenenvError: there are tasks, but no token was sampled.
    """
    leader = next(iter(agents.values()))
    rollouts = 1 if round_ is None else leader.config.rollouts
    players = {seat: agent.player(round_) for seat, agent in agents.items()}
    groups = await roll_out_players(env, players, tasks, rollouts=rollouts)
    return leader.some_sampled(groups)


def _summed(
    names: Sequence[str], data: Sequence[Datum], logprobs: Sequence[Sequence[float]]
) -> dict[str, float]:
    """Return the log-likelihood of each task's replies, nats; a task with several turns has several data."""
    likely: dict[str, float] = {}
    for name, datum, values in zip(names, data, logprobs, strict=True):
        likely[name] = likely.get(name, 0.0) + math.fsum(itertools.compress(values, datum.weights))
    return likely
