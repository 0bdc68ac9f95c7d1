# pyright: standard
"""Before the first round: a short supervised warm-up of both players on base data.

It is the RWR code at equal weights, with the optimizers that both players go on with. What of their moments
is kept is a setting (`kept_moments`): those of imitation go on moving the weights its way for some ten steps
of learning from rewards; fresh ones move every weight by the learning rate at once, whatever its gradient,
unless the first steps are made shorter.

A small model cannot write a call or a spec at all before it has seen some. The agent's warm-up stops as soon
as the agent solves enough to learn from, so that most of the way is left to co-evolution.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from genenv.agent.grpo import GrpoLearner
from genenv.agent.player import Agent
from genenv.agent.rollout import GRADED, NO_ROOM, NO_ROOM_FOR_SOLUTION, guide
from genenv.agent.settings import AgentWarmupConfig
from genenv.backends.base import Policy
from genenv.backends.local.policy import LocalPolicy
from genenv.domains.base import Domain
from genenv.errors import DomainError, UpdateSkipped, UsageError
from genenv.learning.schedules import warmup_lr_scale
from genenv.learning.settings import WarmupConfig
from genenv.runs.progress import Reporter, silent
from genenv.seeding import generator
from genenv.simulator.player import Simulator, asked
from genenv.simulator.rwr import Demonstration, Imitator, RwrLearner
from genenv.types import Group, Profile, Seed, Task

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedWarmup:
    """Warms up a local agent and a local simulator."""

    domain: Domain
    agent: Agent
    simulator: Simulator
    target: float
    """The success rate that the simulator is told to aim at."""
    seed: int

    def __call__(
        self, seeds: Sequence[Seed], tasks: Sequence[Task], reporter: Reporter
    ) -> Mapping[str, float]:
        """Train both players; what they are then is the reference of both KL terms.

        Returns:
            `agent/warmup_steps`, `agent/warmup_success`, `simulator/warmup_loss`, and how many steps of each
            player were skipped because they were not finite.

        Raises:
            UsageError: there are too few base tasks to check the agent and to teach it, or nothing of what a
                player is to imitate fits into its context.
        """
        checked, solved = self._solved(tasks)
        written = self._written(seeds)
        metrics = {**self._warm_agent(checked, solved, reporter), **self._warm_simulator(written, reporter)}
        for player, steps in (
            (self.agent, self.agent.config.warmup.steps),
            (self.simulator, self.simulator.config.warmup.steps),
        ):
            if steps:
                _local(player.policy).anchor()
        return metrics

    def _solved(self, tasks: Sequence[Task]) -> tuple[Sequence[Task], Sequence[Demonstration]]:
        """The tasks that the agent is checked on, and solutions of others for it to imitate."""
        config = self.agent.config.warmup
        if not config.steps:
            return [], []
        shuffled = generator(self.seed, "agent-warmup").sample(list(tasks), len(tasks))
        checked, taught = shuffled[: config.check_tasks], shuffled[config.check_tasks :]
        if not taught:
            raise UsageError(
                f"agent.warmup.check_tasks is {config.check_tasks}, but the domain has {len(tasks)} base "
                "tasks, and some must be left to learn from; set it lower, or agent.warmup.steps to 0"
            )
        taught = taught[: config.steps * config.batch]  # no step comes to those behind
        policy = self.agent.policy
        given = [demonstrate(self.domain, policy, task) for task in taught]
        solved = [one for one in given if isinstance(one, Demonstration)]
        reasons = [one for one in given if isinstance(one, str)]
        _tell_left_out("agent", reasons, len(taught), policy.context_tokens)
        return checked, solved

    def _warm_agent(
        self, checked: Sequence[Task], solved: Sequence[Demonstration], reporter: Reporter
    ) -> Mapping[str, float]:
        config = self.agent.config.warmup
        if not config.steps:
            return {}
        policy, learner = _local(self.agent.policy), self.agent.learner
        assert isinstance(learner, GrpoLearner)  # noqa: S101 - local policies have local learners
        imitator = Imitator(policy, learner.optimizer)
        success, step, skipped = 0.0, 0, 0
        with reporter.stage("warm-up of the agent", items=config.steps, unit="steps") as stage:
            for step in range(1, config.steps + 1):
                demonstrations = [
                    solved[((step - 1) * config.batch + i) % len(solved)] for i in range(config.batch)
                ]
                skipped += _teach(imitator, demonstrations, _lr(config, step)) is None
                stage(sum(d.tokens for d in demonstrations), 1)
                if step % config.check_every == 0 or step == config.steps:
                    groups = asyncio.run(self._check(checked))
                    success = sum(group.successes for group in groups) / len(groups)
                    if success >= config.target_low:
                        break
        learner.optimizer.keep(config.kept_moments)
        reporter.note(_verdict(step, success, config))
        return {
            "agent/warmup_steps": float(step),
            "agent/warmup_success": success,
            "agent/skipped_updates": float(skipped),
        }

    async def _check(self, tasks: Sequence[Task]) -> list[Group]:
        return await self.agent.solve(self.domain, tasks, stage=silent)

    def _written(self, seeds: Sequence[Seed]) -> Sequence[Sequence[Demonstration]]:
        """What the simulator imitates, step by step: specs of the domain's own that vary seeds."""
        config = self.simulator.config.warmup
        if not config.steps:
            return []
        rng = generator(self.seed, "simulator-warmup")
        policy = _local(self.simulator.policy)
        variations = self.simulator.config.variations  # of one prompt, which then goes through the model once
        steps: list[list[Demonstration]] = []
        for _ in range(config.steps):
            chosen = rng.sample(list(seeds), min(-(-config.batch // variations), len(seeds)))
            written = [self._variation(policy, seed, rng) for seed in chosen for _ in range(variations)]
            steps.append(written[: config.batch])
        limit, total = policy.context_tokens, sum(map(len, steps))
        fitting = [[d for d in step if len(d.prompt_ids) + len(d.completion_ids) <= limit] for step in steps]
        reasons = [NO_ROOM_FOR_SOLUTION] * (total - sum(map(len, fitting)))
        _tell_left_out("simulator", reasons, total, limit)
        return [step for step in fitting if step]

    def _warm_simulator(
        self, written: Sequence[Sequence[Demonstration]], reporter: Reporter
    ) -> Mapping[str, float]:
        config = self.simulator.config.warmup
        if not config.steps:
            return {}
        policy, learner = _local(self.simulator.policy), self.simulator.learner
        assert isinstance(learner, RwrLearner)  # noqa: S101 - local policies have local learners
        imitator = Imitator(policy, learner.optimizer)
        loss, skipped = 0.0, 0
        with reporter.stage("warm-up of the simulator", items=len(written), unit="steps") as stage:
            for step, demonstrations in enumerate(written, start=1):
                taught = _teach(imitator, demonstrations, _lr(config, step))
                skipped += taught is None
                loss = loss if taught is None else taught
                stage(sum(d.tokens for d in demonstrations), 1)
        learner.optimizer.keep(config.kept_moments)
        return {"simulator/warmup_loss": loss, "simulator/skipped_updates": float(skipped)}

    def _variation(self, policy: LocalPolicy, seed: Seed, rng: random.Random) -> Demonstration:
        """A spec of the domain's own that varies a seed, as an answer to the simulator's prompt."""
        messages = self.domain.simulator_messages(seed, Profile(), self.target)
        spec = json.dumps(self.domain.variation(seed, rng), ensure_ascii=False, separators=(",", ":"))
        return Demonstration(prompt_ids=asked(policy, messages), completion_ids=policy.encode_reply(spec))


def _lr(config: WarmupConfig, step: int) -> float:
    """The learning rate of a step, from 1."""
    return config.lr * warmup_lr_scale(config.lr_decay, step, config.steps)


def demonstrate(domain: Domain, policy: Policy, task: Task) -> Demonstration | str:
    """A task solved by its oracle, as tokens: the replies count, what the environment says does not.

    Where the solution could not be played to its end, such as for want of room, a sentence that says why.

    Raises:
        DomainError: it was played to its end, and the domain says that it is wrong.
    """
    trace = asyncio.run(guide(domain, policy, task))
    if not trace.success and trace.stop_reason in GRADED:
        raise DomainError(
            f"domain {domain.name!r}, {task.id}: its own solution does not pass when it is played "
            f"({trace.explanation}); mend the domain's oracle, its episode or its check"
        )
    if not trace.success:
        return trace.explanation
    start = trace.prompt_tokens
    return Demonstration(
        prompt_ids=trace.token_ids[:start],
        completion_ids=trace.token_ids[start:],
        counted=trace.sampled[start:],
    )


def _tell_left_out(player: str, reasons: Sequence[str], total: int, context_tokens: int) -> None:
    """Log how many demonstrations are left out, and why: most often they do not fit into a player's context.

    Args:
        player: whose demonstrations they are.
        reasons: of each that is left out.
        total: how many there were.
        context_tokens: of the player.

    Raises:
        UsageError: none is left.
    """
    left_out = len(reasons)
    if others := [reason for reason in reasons if reason not in NO_ROOM]:
        said = f"demonstrations for the warm-up of the {player} cannot be given to its model: {others[0]}"
        if left_out == total:
            raise UsageError(said)
        log.warning("%d of %d %s; they are left out", left_out, total, said)
        return
    if left_out == total:
        raise UsageError(
            f"no demonstration for the warm-up of the {player} fits into its context of {context_tokens} "
            "tokens; raise policy.context_tokens, or choose a model with a longer context"
        )
    if left_out:
        log.warning(
            "%d of %d demonstrations for the warm-up of the %s do not fit into its context of %d tokens "
            "(policy.context_tokens) and are left out",
            *(left_out, total, player, context_tokens),
        )


def _teach(imitator: Imitator, demonstrations: Sequence[Demonstration], lr: float) -> float | None:
    """One step; returns its loss, or None when it was skipped because it is not finite."""
    try:
        loss = imitator.gradients(demonstrations, kl_coefficient=0.0)["loss"]
        imitator.optimizer.clip()
    except UpdateSkipped as problem:
        log.warning("a warm-up step was skipped: %s", problem)
        return None
    imitator.optimizer.step(lr)
    imitator.optimizer.clear()
    return loss


def _local(policy: Policy) -> LocalPolicy:
    assert isinstance(policy, LocalPolicy)  # noqa: S101 - only local players are built with this warm-up
    return policy


def _verdict(step: int, success: float, config: AgentWarmupConfig) -> str:
    text = f"the agent solves {success:.0%} of {config.check_tasks} base tasks after {step} warm-up steps"
    if success > config.target_high:
        return f"{text}: more than agent.warmup.target_high; lower agent.warmup.lr or check_every"
    if success < config.target_low:
        return f"{text}: less than agent.warmup.target_low; raise agent.warmup.steps or lr"
    return text
