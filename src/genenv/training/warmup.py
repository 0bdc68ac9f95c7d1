"""A short supervised warm-up of both policies on base data, before the first round.

It minimizes `nll` with equal weights, with the optimizers that the rounds continue with. `kept_moments` says
which moments are kept. Kept moments move the weights in the direction of the demonstrations for some ten more
steps. Fresh moments move every weight by the learning rate at once, whatever its gradient, unless the first
steps are made smaller.

A small model cannot write a call or a spec before it has seen some. The agent's warm-up stops as soon as the
agent solves enough for RL, so that co-evolution has much left to improve.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from genenv.agent.policy import Agent, AgentWarmupConfig
from genenv.algorithms.advantages import imitate
from genenv.algorithms.datum import Datum, Objective, Trainer, averaged
from genenv.algorithms.settings import WarmupConfig
from genenv.algorithms.update import warmup_lr_scale
from genenv.curriculum.seed_choice import pass_sizes
from genenv.environments.base import Environment
from genenv.errors import EnvironmentCodeError, UpdateSkipped, UsageError
from genenv.progress import Reporter, aside, staged
from genenv.rollout.driver import GRADED, NO_ROOM, NO_ROOM_FOR_SOLUTION, demonstration
from genenv.runs.metrics import by_agent
from genenv.sampling import Sampler
from genenv.seeding import generator
from genenv.simulator.policy import Simulator, simulator_prompt
from genenv.types import AGENT, Profile, Seed, Task

log = logging.getLogger(__name__)

_IMITATION = Objective()


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedWarmup:
    """Trains an agent and the simulator on demonstrations."""

    env: Environment
    agent: Agent
    simulator: Simulator | None
    """None if no trainable model writes the tasks."""
    target: float
    """The target success rate in the simulator's prompts."""
    seed: int

    async def __call__(
        self, seeds: Sequence[Seed], tasks: Sequence[Task], reporter: Reporter
    ) -> Mapping[str, float]:
        """Train both policies. The results become the reference models of both KL terms.

        Returns:
            `agent/warmup_steps`, `agent/warmup_success`, `simulator/warmup_loss`, and for each policy the
            number of steps that were skipped because they were not finite.

        Raises:
            UsageError: there are too few base tasks to check and to train the agent, or no demonstration fits
                into a policy's context.
        """
        checked, solved = await self._solved(tasks)
        written = self._written(seeds)
        metrics = {
            **await self._warm_agent(checked, solved, reporter),
            **await self._warm_simulator(written, reporter),
        }
        if self.agent.config.warms_up:
            await self.agent.trainer.anchor(self.agent.config.warmup.kept_moments)
        if self.simulator is not None and self.simulator.config.warmup.steps:
            await self.simulator.trainer.anchor(self.simulator.config.warmup.kept_moments)
        return metrics

    async def _solved(self, tasks: Sequence[Task]) -> tuple[Sequence[Task], Sequence[Datum]]:
        """Return the tasks that measure the agent, and the demonstrations of other tasks for training."""
        config = self.agent.config.warmup
        if not self.agent.config.warms_up:
            return [], []
        named, whose = self._named
        tasks = [
            task for task in tasks if not config.skills or not set(config.skills).isdisjoint(task.skills)
        ]
        shuffled = generator(self.seed, "agent-warmup", *named).sample(tasks, len(tasks))
        checked, taught = shuffled[: config.check_tasks], shuffled[config.check_tasks :]
        if not taught:
            raise UsageError(
                f"{whose}.warmup.check_tasks is {config.check_tasks}, but the environment has {len(tasks)} "
                f"base tasks{' with these skills' if config.skills else ''}, and some must be left to learn "
                f"from; set it lower, or {whose}.warmup.steps to 0"
            )
        taught = taught[: config.steps * config.batch]  # later ones are in no step
        sampler = self.agent.sampler
        seen = [await self.agent.seen(self.env, task, number) for number, task in enumerate(taught)]
        given = [await demonstrate(env, sampler, task) for env, task in seen]
        reasons = [one for one in given if isinstance(one, str)]
        _tell_left_out("agent", reasons, len(taught), sampler.context_tokens)
        return checked, [datum for one in given if not isinstance(one, str) for datum in one]

    @property
    def _whom(self) -> str:
        return "the agent" if self.agent.name == AGENT else self.agent.name

    @property
    def _named(self) -> tuple[tuple[str, ...], str]:
        """Names of the agent's random streams, and the section of its settings."""
        name = self.agent.name
        return ((), AGENT) if name == AGENT else ((name,), f"agents.{name}")

    async def _warm_agent(
        self, checked: Sequence[Task], solved: Sequence[Datum], reporter: Reporter
    ) -> Mapping[str, float]:
        config = self.agent.config.warmup
        if not self.agent.config.warms_up:
            return {}
        success = 0.0

        async def solves_enough(step: int) -> bool:
            nonlocal success
            if step % config.check_every and step != config.steps:
                return False
            await self.agent.trainer.publish()  # the check must use the trained weights
            with aside():
                groups = await self.agent.solve(self.env, checked)
            success = sum(group.successes for group in groups) / len(groups)
            return success >= config.target_low

        batches = [
            [solved[(step * config.batch + i) % len(solved)] for i in range(config.batch)]
            for step in range(config.steps)
        ]
        wanted, whom = config.steps * config.batch, self._whom
        with staged(reporter, f"warm-up of {whom}", items=wanted, unit="demonstrations"):
            losses = await teach(self.agent.trainer, batches, config, until=solves_enough)
        reporter.note(_verdict(whom, self._named[1], len(losses), success, config))
        return {
            "agent/warmup_steps": float(len(losses)),
            "agent/warmup_success": success,
            "agent/skipped_updates": float(losses.count(None)),
            **_cost("agent", batches[: len(losses)], losses),
            "agent/imitated": float(sum(map(len, batches[: len(losses)]))),
        }

    def _written(self, seeds: Sequence[Seed]) -> Sequence[Sequence[Datum]]:
        """Return the simulator's training data by step: random variations of seeds by the environment."""
        simulator = self.simulator
        if simulator is None or not simulator.config.warmup.steps:
            return []
        config = simulator.config.warmup
        rng = generator(self.seed, "simulator-warmup")
        sampler = simulator.sampler
        variations = simulator.config.variations  # of one prompt, so that its prefill is shared
        steps: list[list[Datum]] = []
        for _ in range(config.steps):
            sizes = pass_sizes(-(-config.batch // variations), len(seeds))
            chosen = [seed for size in sizes for seed in rng.sample(list(seeds), size)]
            written = [self._variation(sampler, seed, rng) for seed in chosen for _ in range(variations)]
            steps.append(written[: config.batch])
        limit, total = sampler.context_tokens, sum(map(len, steps))
        fitting = [[d for d in step if len(d.prompt_ids) + len(d.completion_ids) <= limit] for step in steps]
        reasons = [NO_ROOM_FOR_SOLUTION] * (total - sum(map(len, fitting)))
        _tell_left_out("simulator", reasons, total, limit)
        return [step for step in fitting if step]

    async def _warm_simulator(
        self, written: Sequence[Sequence[Datum]], reporter: Reporter
    ) -> Mapping[str, float]:
        if self.simulator is None or not self.simulator.config.warmup.steps:
            return {}
        trainer, wanted = self.simulator.trainer, sum(map(len, written))
        with staged(reporter, "warm-up of the simulator", items=wanted, unit="demonstrations"):
            losses = await teach(trainer, written, self.simulator.config.warmup)
        await trainer.publish()
        made = [loss for loss in losses if loss is not None]
        return {
            "simulator/warmup_loss": made[-1] if made else 0.0,
            "simulator/skipped_updates": float(losses.count(None)),
            **_cost("simulator", written, losses),
        }

    def _variation(self, sampler: Sampler, seed: Seed, rng: random.Random) -> Datum:
        """Return the environment's random variation of a seed as an answer to the simulator's prompt."""
        messages = self.env.simulator_messages(seed, Profile(), self.target)
        spec = json.dumps(self.env.variation(seed, rng), ensure_ascii=False, separators=(",", ":"))
        written = sampler.encode_reply(spec)
        return Datum(
            prompt_ids=simulator_prompt(sampler, messages),
            completion_ids=written,
            weights=(1.0,) * len(written),
            loss="nll",
        )


async def warm_up(
    warmups: Sequence[SupervisedWarmup], seeds: Sequence[Seed], tasks: Sequence[Task], reporter: Reporter
) -> Mapping[str, float]:
    """Train all policies that begin with initial weights, one after another; return metrics of round 0.

    The warm-up of the first agent also trains the simulator.
    """
    return by_agent({one.agent.name: await one(seeds, tasks, reporter) for one in warmups})


async def teach(
    trainer: Trainer,
    batches: Sequence[Sequence[Datum]],
    config: WarmupConfig,
    *,
    until: Callable[[int], Awaitable[bool]] | None = None,
) -> list[float | None]:
    """Train on demonstrations, one batch per step.

    Args:
        trainer: trainer of the policy.
        batches: data of each step.
        config: the learning rate and its decay.
        until: called after each step with its number, from 1; returns whether to stop.

    Returns:
        The loss of each step; None if it was skipped because it is not finite.
    """
    losses: list[float | None] = []
    for step, batch in enumerate(batches, start=1):
        rate = config.lr * warmup_lr_scale(config.lr_decay, step, config.steps)
        try:
            found = await trainer.forward_backward(averaged(batch, {"nll": 1.0}), _IMITATION)
            await trainer.step(rate)
            losses.append(found["loss"])
        except UpdateSkipped as problem:
            log.warning("a warm-up step was skipped: %s", problem)
            losses.append(None)
        if until is not None and await until(step):
            break
    return losses


async def demonstrate(env: Environment, sampler: Sampler, task: Task) -> list[Datum] | str:
    """Return a task's demonstration as training data, in which only the replies have weight.

    If the demonstration could not run to its end, for example for lack of context, return a sentence that
    says why.

    Raises:
        EnvironmentCodeError: the demonstration ran to its end and failed the checker.
    """
    if not task.oracle:
        return f"nobody knows solutions of tasks of {env.name}; set agent.warmup.steps to 0"
    trace = await demonstration(env, sampler, task)
    if not trace.success and trace.stop_reason in GRADED:
        raise EnvironmentCodeError(
            f"environment {env.name!r}, {task.id}: its own solution does not pass when it is played "
            f"({trace.explanation}); mend the environment's oracle, its episode or its check"
        )
    if not trace.success:
        return trace.explanation
    return imitate(trace)


def _cost(
    player: str, batches: Sequence[Sequence[Datum]], losses: Sequence[float | None]
) -> Mapping[str, float]:
    """Return the cost of a warm-up as metrics of a round: completed steps and trained tokens."""
    made = [batch for batch, loss in zip(batches, losses, strict=True) if loss is not None]
    tokens = sum(weight > 0 for batch in made for datum in batch for weight in datum.weights)
    return {f"{player}/steps": float(len(made)), f"tokens/{player}_trained": float(tokens)}


def _tell_left_out(player: str, reasons: Sequence[str], total: int, context_tokens: int) -> None:
    """Log how many demonstrations are left out, and why. Most often they do not fit into the context.

    Args:
        player: the policy, `agent` or `simulator`.
        reasons: the reason for each demonstration that is left out.
        total: number of demonstrations.
        context_tokens: context window of the policy.

    Raises:
        UsageError: no demonstration is left.
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


def _verdict(whom: str, section: str, step: int, success: float, config: AgentWarmupConfig) -> str:
    text = f"{whom} solves {success:.0%} of {config.check_tasks} base tasks after {step} warm-up steps"
    if success > config.target_high:
        return f"{text}: more than {section}.warmup.target_high; lower {section}.warmup.lr or check_every"
    if success < config.target_low:
        return f"{text}: less than {section}.warmup.target_low; raise {section}.warmup.steps or lr"
    return text
