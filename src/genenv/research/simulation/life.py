"""One life: an agent and a simulator, round after round, through the project's own curriculum.

It reads as `genenv.training.loop` does, and what decides is the same code: `choose_seeds`, `Controller`,
`Replay`, `score_batches`, `select`, `trained_groups`, `SkillStats`. Two arms with one seed have the same
agent, the same luck in the attempts and the same dice in the writing, so that their difference is the
curriculum's.

Shapes: N = tasks of a round, S = skills, D = levels, R = rounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from genenv.curriculum.replay import Replay
from genenv.curriculum.scoring import score_batches
from genenv.curriculum.seed_choice import Controller, choose_seeds
from genenv.curriculum.selection import Selection, select, trained_groups
from genenv.curriculum.stats import SkillStats
from genenv.research.simulation import nouns
from genenv.research.simulation.arms import Arm
from genenv.research.simulation.learner import Floats, Integers, SimulatedAgent
from genenv.research.simulation.settings import LabConfig
from genenv.research.simulation.writer import SimulatedSimulator
from genenv.seeding import generator, stream
from genenv.types import Context, Group, Proposal, Task

_WRITTEN_ONCE = 5
"""Variations of each seed under `static`: GenEnv (arXiv:2512.19682)."""


_NO_SPREAD = 1e-12
"""Rewards that differ by less are equal but for rounding."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What a life leaves."""

    held_out: tuple[float, ...]
    """[R + 1] true success over all skills and levels, before the first round and after each."""
    mixed: tuple[float, ...]
    """[R] share of the round's tasks that were solved in some attempts but not in all."""


class Life:
    """An arm, a seed, and how far they got."""

    def __init__(self, arm: Arm, config: LabConfig, seed: int) -> None:
        self._arm, self._config, self._seed = arm, config, seed
        self._curriculum = arm.config()
        cells = itertools.product(range(config.skills), range(config.levels))
        self._seeds = [nouns.seed(skill, level) for skill, level in cells]
        self._agent = SimulatedAgent(config, np.random.default_rng(stream(seed, "agent")))
        self._simulator = SimulatedSimulator(config, conditioned=arm.conditioned)
        self._dice = np.random.default_rng(stream(seed, "simulator"))
        self._rng = generator(seed, "curriculum")
        self._shuffle = generator(seed, "shuffled")
        self._stats, self._replay = SkillStats(self._curriculum), Replay(self._curriculum)
        self._controller = self._made_controller() if self._curriculum.seed_choice == "controller" else None
        steered = self._curriculum.seed_choice != "uniform" or self._curriculum.seed_trim > 0
        self._counts = arm.conditioned or steered
        self._tasks: dict[str, Task] = {}
        self._contexts = self._most_contexts()
        shape = (config.skills, config.levels, _WRITTEN_ONCE)
        self._written = self._dice.integers(config.levels, size=shape) if arm.source == "once" else None

    def live(self) -> Curve:
        """All rounds."""
        held_out, mixed = [self._agent.held_out()], list[float]()
        for number in range(1, self._config.rounds + 1):
            mixed.append(self._round(number))
            held_out.append(self._agent.held_out())
        return Curve(tuple(held_out), tuple(mixed))

    def _round(self, number: int) -> float:
        """Write, attempt, score, learn twice; returns the share of tasks with mixed outcomes."""
        config, arm = self._config, self._arm
        contexts = self._choose(number)
        proposals, places = self._propose(contexts)
        new = [proposal.outcome for proposal in proposals if isinstance(proposal.outcome, Task)]
        back = self._revisited(number, len(new))
        tasks = [*new, *back]
        places_N2 = np.array([*places, *(nouns.place(task) for task in back)])
        successes_N = self._agent.attempt(places_N2[:, 0], places_N2[:, 1])
        groups = [
            nouns.group(task, successes, config.rollouts)
            for task, successes in zip(tasks, successes_N.tolist(), strict=True)
        ]
        own = self._taught(groups, new)
        self._agent.learn(places_N2[own, 0], places_N2[own, 1], successes_N[own])
        if arm.algorithm != "none":
            self._simulator_learns(contexts, proposals, groups[: len(new)])
        if self._counts:
            self._stats.observe(groups)
        if self._controller is not None:
            self._controller.observe(groups[: len(new)])
        if self._curriculum.review_share or self._curriculum.replay_share:
            self._tasks.update((task.id, task) for task in new)
            self._replay.observe(number, groups)
        return float(((successes_N > 0) & (successes_N < config.rollouts)).mean())

    def _made_controller(self) -> Controller:
        difficulties = {seed.id: (float(nouns.place(seed)[1]),) for seed in self._seeds}
        return Controller(difficulties, alpha=self._curriculum.alpha)

    def _choose(self, number: int) -> list[Context]:
        if self._arm.source == "none":
            return []
        if self._controller is not None:
            chosen = self._controller.choose(self._seeds, self._contexts, self._rng)
        else:
            chosen = choose_seeds(self._seeds, self._stats, self._contexts, self._rng, self._curriculum)
        return [nouns.context(number, index, *nouns.place(seed)) for index, seed in enumerate(chosen)]

    def _propose(self, contexts: Sequence[Context]) -> tuple[list[Proposal], list[tuple[int, int]]]:
        """What is written, one context after the other; and of each task the skill and the level."""
        if not contexts:
            return [], []
        each = self._config.variations
        skills_N, seeds_N = np.repeat([nouns.place(context.seed) for context in contexts], each, axis=0).T
        if self._arm.conditioned:
            self._simulator.told(self._solved_levels())
        levels_N = self._levels(skills_N, seeds_N)
        places = list(zip(skills_N.tolist(), levels_N.tolist(), strict=True))
        proposals = [
            nouns.proposal(contexts[index // each].id, index % each, *place)
            for index, place in enumerate(places)
        ]
        return proposals, places

    def _levels(self, skills_N: Integers, seeds_N: Integers) -> Integers:
        """[N] the levels of new tasks."""
        if self._arm.source == "seed":
            return seeds_N
        if self._arm.source == "oracle":
            return np.abs(self._agent.success() - 0.5).argmin(axis=1)[skills_N]
        if self._written is not None:
            return self._written[skills_N, seeds_N, self._dice.integers(_WRITTEN_ONCE, size=len(skills_N))]
        return self._simulator.write(skills_N, seeds_N, self._dice)

    def _solved_levels(self) -> Floats:
        return nouns.solved_levels(self._stats.profile(), self._config.skills, self._config.levels)

    def _most_contexts(self) -> int:
        """So many seeds that all that comes back, on its shares, still fits into a round."""
        each, tasks = self._config.variations, self._config.tasks
        fitting = (
            n
            for n in range(self._config.contexts, 0, -1)
            if n * each + sum(self._replay.sizes(n * each)) <= tasks
        )
        return next(fitting, 1)

    def _revisited(self, number: int, new: int) -> list[Task]:
        """What comes back, with more base tasks where a round would not be as full as every arm's."""
        if new == self._config.tasks:
            return []
        alone = self._arm.source == "none"
        planned = self._contexts * self._config.variations
        back = self._replay.draw(number, planned=planned, seeds=self._seeds, rng=self._rng, base_alone=alone)
        left = self._config.tasks - new
        generated = [self._tasks[name] for name in back.task_ids][:left]
        left -= len(generated)
        base = [*back.seeds[:left], *self._rng.choices(self._seeds, k=max(0, left - len(back.seeds)))]
        return [*(nouns.base_task(*nouns.place(seed)) for seed in base), *generated]

    def _taught(self, groups: Sequence[Group], new: Sequence[Task]) -> list[int]:
        """Which groups the agent learns from."""
        if not self._curriculum.agent_band:
            return list(range(len(groups)))
        names = {group.task.id for group in trained_groups(groups, new, self._curriculum)}
        return [index for index, group in enumerate(groups) if group.task.id in names]

    def _simulator_learns(
        self, contexts: Sequence[Context], proposals: Sequence[Proposal], groups: Sequence[Group]
    ) -> None:
        batches = score_batches(contexts, proposals, groups, self._curriculum)
        selection = select(batches, self._curriculum, self._shuffle)
        if not selection.samples:
            return
        told = {context.id: (index, *nouns.place(context.seed)) for index, context in enumerate(contexts)}
        rows = [told[sample.generation.context_id] for sample in selection.samples]
        context_N, skills_N, seeds_N = np.array(rows).T
        levels_N = np.array([sample.generation.token_ids[0] for sample in selection.samples])
        weights_N = self._weights(selection, context_N)
        self._simulator.learn(skills_N, seeds_N, levels_N, weights_N)

    def _weights(self, selection: Selection, context_N: Integers) -> Floats:
        """What each sample counts: its weight, or its advantage in its context, over N."""
        if self._arm.algorithm == "rwr":
            return np.array([sample.weight for sample in selection.samples])
        rewards_N = np.array(selection.env_rewards)
        spread = float(rewards_N.std())
        if spread < _NO_SPREAD:
            return np.zeros_like(rewards_N)
        means = np.bincount(context_N, rewards_N) / np.maximum(np.bincount(context_N), 1)
        return (rewards_N - means[context_N]) / spread / len(rewards_N)
