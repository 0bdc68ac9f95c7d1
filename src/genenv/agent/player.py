"""Player 2: the agent, which attempts tasks and learns from the attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from genenv.agent.rollout import Sampling, attempt, guide
from genenv.agent.settings import AgentConfig
from genenv.backends.base import AgentLearner, Policy
from genenv.domains.base import Domain
from genenv.learning.schedules import lr_scale
from genenv.runs.progress import Stage
from genenv.seeding import stream
from genenv.types import Group, Task


class Agent:
    """A policy that attempts tasks, and the learner that updates it."""

    def __init__(self, policy: Policy, learner: AgentLearner, config: AgentConfig, *, seed: int) -> None:
        self.policy, self.learner, self.config, self.seed = policy, learner, config, seed

    async def attempt(
        self, domain: Domain, tasks: Sequence[Task], *, round_: int, stage: Stage
    ) -> list[Group]:
        """Attempt each task `rollouts` times."""
        sampling = self._sampling(self.config.temperature, stream(self.seed, "rollout", round_))
        return await attempt(
            domain, self.policy, tasks, rollouts=self.config.rollouts, sampling=sampling, stage=stage
        )

    async def solve(self, domain: Domain, tasks: Sequence[Task], *, stage: Stage) -> list[Group]:
        """Attempt each task once, greedily: how success is measured."""
        return await attempt(
            domain, self.policy, tasks, rollouts=1, sampling=self._sampling(0.0, 0), stage=stage
        )

    async def update(
        self,
        domain: Domain,
        groups: Sequence[Group],
        *,
        replayed: Sequence[Task] = (),
        round_: int,
        rounds: int,
        stage: Stage,
    ) -> Mapping[str, float]:
        """Learn from a round's attempts, and from known solutions where the settings ask for guidance.

        Args:
            domain: plays the known solutions.
            groups: the attempts.
            replayed: tasks that were not attempted, whose known solutions are imitated too.
            round_: from 1; names the random stream.
            rounds: of the whole run, over which the learning rate may fall.
            stage: told of progress.

        Returns:
            The learner's metrics; `agent/guided_rate`, the share of groups whose solution was imitated; and
            `agent/replayed`, how many other solutions were.
        """
        learned = [
            await self._with_solution(domain, group) if self._wants_solution(group) else group
            for group in groups
        ]
        known = [await self._with_solution(domain, Group(task=task, traces=())) for task in replayed]
        others = [group for group in known if group.guide is not None]
        self.learner.progress = stage
        metrics = self.learner.update(
            [*learned, *others],
            seed=stream(self.seed, "agent-update", round_),
            lr_scale=lr_scale(self.config.lr_schedule, round_, rounds),
        )
        guided = sum(group.guide is not None for group in learned)
        return {
            **metrics,
            "agent/guided_rate": guided / len(learned) if learned else 0.0,
            "agent/replayed": float(len(others)),
        }

    def _wants_solution(self, group: Group) -> bool:
        wanted = self.config.guidance
        return wanted == "all" or (wanted == "unsolved" and not group.successes)

    async def _with_solution(self, domain: Domain, group: Group) -> Group:
        """The group with its task's known solution, if that passes as it was played here."""
        known = await guide(domain, self.policy, group.task)
        return replace(group, guide=known) if known.success else group

    def _sampling(self, temperature: float, seed: int) -> Sampling:
        return Sampling(
            temperature=temperature,
            max_new_tokens=self.config.max_new_tokens,
            timeout_s=self.config.episode_timeout_s,
            seed=seed,
        )
