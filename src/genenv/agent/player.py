"""Player 2: the agent, which attempts tasks and learns from the attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from genenv.agent.rollout import Sampling, attempt
from genenv.agent.settings import AgentConfig
from genenv.domains.base import Domain
from genenv.policies.base import AgentLearner, Policy
from genenv.progress import Stage
from genenv.streams import stream
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

    def update(self, groups: Sequence[Group], *, round_: int, stage: Stage) -> Mapping[str, float]:
        """Learn from a round's attempts; returns metrics."""
        self.learner.progress = stage
        return self.learner.update(groups, seed=stream(self.seed, "agent-update", round_))

    def _sampling(self, temperature: float, seed: int) -> Sampling:
        return Sampling(
            temperature=temperature,
            max_new_tokens=self.config.max_new_tokens,
            timeout_s=self.config.episode_timeout_s,
            seed=seed,
        )
