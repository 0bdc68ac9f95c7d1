"""Simulated runs of `genenv lab`, and the arms (curricula) that it compares.

A run has the structure of `genenv.training.loop` and uses the same code for its decisions: `choose_seeds`,
`Controller`, `Replay`, `score_batches`, `select`, `trained_groups`, `SkillStats`. Two arms with the same seed
have the same agent and random numbers, so they differ only in the curriculum.

An arm is this loop with a few changed settings. `genenv` and `robust` are complete presets, including base
tasks. The others change the preset `paper`, without its base tasks and choice of seeds: they differ only in
the source of the tasks' levels.

Tasks and traces are genenv's dataclasses. They are frozen, so they are cached and shared: all successes are
one trace, and so are all failures.

Shapes: N = tasks of a round, S = skills, D = levels, R = rounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, cast

import numpy as np

from genenv.curriculum.replay import Replay
from genenv.curriculum.scoring import score_batches
from genenv.curriculum.seed_choice import Controller, choose_seeds
from genenv.curriculum.settings import CurriculumConfig, preset
from genenv.curriculum.stats import SkillStats
from genenv.curriculum.update_selection import Selection, select, trained_groups
from genenv.errors import registered
from genenv.research.simulation.learner import Floats, Integers, LabConfig, SimulatedAgent, SimulatedSimulator
from genenv.seeding import generator, stream
from genenv.types import (
    Context,
    Generation,
    Group,
    Json,
    JsonObject,
    Lineage,
    Origin,
    Profile,
    Proposal,
    Seed,
    StopReason,
    Task,
    Trace,
    accepted,
)

_WRITTEN_ONCE = 5
"""The variations of each seed in the arm `static`: GenEnv (arXiv:2512.19682)."""


_NO_SPREAD = 1e-12
"""Standard deviations of rewards below this are rounding errors."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The learning curve of one run."""

    held_out: tuple[float, ...]
    """True success over all skills and levels, before the first round and after each, [R + 1]."""
    mixed: tuple[float, ...]
    """The share of each round's tasks that some but not all rollouts solve, [R]."""


class SimulatedRun:
    """One simulated run: an arm with a seed."""

    def __init__(self, arm: Arm, config: LabConfig, seed: int) -> None:
        self._arm, self._config, self._seed = arm, config, seed
        self._curriculum = arm.config()
        cells = itertools.product(range(config.skills), range(config.levels))
        self._seeds = [seed_of(skill, level) for skill, level in cells]
        self._agent = SimulatedAgent(config, np.random.default_rng(stream(seed, "agent")))
        self._simulator = SimulatedSimulator(config, conditioned=arm.conditioned)
        self._simulator_rng = np.random.default_rng(stream(seed, "simulator"))
        self._rng = generator(seed, "curriculum")
        self._shuffle = generator(seed, "shuffled")
        self._stats, self._replay = SkillStats(self._curriculum), Replay(self._curriculum)
        self._controller = self._made_controller() if self._curriculum.seed_choice == "controller" else None
        steered = self._curriculum.seed_choice != "uniform" or self._curriculum.seed_trim > 0
        self._counts = arm.conditioned or steered
        self._tasks: dict[str, Task] = {}
        self._contexts = self._most_contexts()
        shape = (config.skills, config.levels, _WRITTEN_ONCE)
        self._written = self._written_once(shape) if arm.source == "once" else None

    def _written_once(self, shape: tuple[int, ...]) -> Integers:
        """Return the levels that the simulator writes for each seed before the first round."""
        levels = self._simulator_rng.integers(self._config.levels, size=shape)
        if self._config.copy_share:
            copied = self._simulator_rng.random(shape) < self._config.copy_share
            levels = np.where(copied, np.arange(self._config.levels)[:, None], levels)
        return levels

    def run(self) -> Curve:
        """Simulate all rounds and return the curve."""
        held_out, mixed = [self._agent.held_out()], list[float]()
        for number in range(1, self._config.rounds + 1):
            mixed.append(self._round(number))
            held_out.append(self._agent.held_out())
        return Curve(tuple(held_out), tuple(mixed))

    def _round(self, number: int) -> float:
        """Simulate a round and update agent and simulator; return the share of tasks with mixed outcomes."""
        config, arm = self._config, self._arm
        contexts = self._choose(number)
        proposals, places = self._propose(contexts)
        new = accepted(proposals)
        back = self._revisited(number, len(new))
        tasks = [*new, *back]
        places_N2 = np.array([*places, *(place_of(task) for task in back)])
        successes_N = self._agent.attempt(places_N2[:, 0], places_N2[:, 1])
        groups = [
            group_of(task, successes, config.rollouts)
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
        difficulties = {seed.id: (float(place_of(seed)[1]),) for seed in self._seeds}
        return Controller(difficulties, alpha=self._curriculum.alpha)

    def _choose(self, number: int) -> list[Context]:
        if self._arm.source == "none":
            return []
        if self._controller is not None:
            chosen = self._controller.choose(self._seeds, self._contexts, self._rng)
        else:
            chosen = choose_seeds(self._seeds, self._stats, self._contexts, self._rng, self._curriculum)
        return [context_of(number, index, *place_of(seed)) for index, seed in enumerate(chosen)]

    def _propose(self, contexts: Sequence[Context]) -> tuple[list[Proposal], list[tuple[int, int]]]:
        """Return the proposals, context by context, and each task's skill and level."""
        if not contexts:
            return [], []
        each = self._config.variations
        skills_N, seeds_N = np.repeat([place_of(context.seed) for context in contexts], each, axis=0).T
        if self._arm.conditioned:
            self._simulator.observe_profile(self._solved_levels())
        levels_N = self._levels(skills_N, seeds_N)
        places = list(zip(skills_N.tolist(), levels_N.tolist(), strict=True))
        proposals = [
            proposal_of(contexts[index // each].id, index % each, *place)
            for index, place in enumerate(places)
        ]
        return proposals, places

    def _levels(self, skills_N: Integers, seeds_N: Integers) -> Integers:
        """Return the levels of new tasks, [N], from the arm's source."""
        if self._arm.source == "seed":
            return seeds_N
        if self._arm.source == "oracle":
            return np.abs(self._agent.success() - 0.5).argmin(axis=1)[skills_N]
        if self._written is not None:
            return self._written[
                skills_N, seeds_N, self._simulator_rng.integers(_WRITTEN_ONCE, size=len(skills_N))
            ]
        return self._simulator.write(skills_N, seeds_N, self._simulator_rng)

    def _solved_levels(self) -> Floats:
        return solved_levels(self._stats.profile(), self._config.skills, self._config.levels)

    def _most_contexts(self) -> int:
        """Return the most seeds with which new, base, review and replay tasks still fit into a round."""
        each, tasks = self._config.variations, self._config.tasks
        fitting = (
            n
            for n in range(self._config.contexts, 0, -1)
            if n * each + sum(self._replay.sizes(n * each)) <= tasks
        )
        return next(fitting, 1)

    def _revisited(self, number: int, new: int) -> list[Task]:
        """Return base, review and replay tasks, with further base tasks until the round is full."""
        if new == self._config.tasks:
            return []
        alone = self._arm.source == "none"
        planned = self._contexts * self._config.variations
        back = self._replay.draw(number, planned=planned, seeds=self._seeds, rng=self._rng, base_alone=alone)
        left = self._config.tasks - new
        generated = [self._tasks[name] for name in back.task_ids][:left]
        left -= len(generated)
        base = [*back.seeds[:left], *self._rng.choices(self._seeds, k=max(0, left - len(back.seeds)))]
        return [*(base_task(*place_of(seed)) for seed in base), *generated]

    def _taught(self, groups: Sequence[Group], new: Sequence[Task]) -> list[int]:
        """Return the indices of the groups that train the agent."""
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
        places = {one.id: (index, *place_of(one.seed)) for index, one in enumerate(contexts)}
        rows = [places[sample.generation.context_id] for sample in selection.samples]
        context_N, skills_N, seeds_N = np.array(rows).T
        levels_N = np.array([sample.generation.token_ids[0] for sample in selection.samples])
        weights_N = self._weights(selection, context_N)
        self._simulator.learn(skills_N, seeds_N, levels_N, weights_N)

    def _weights(self, selection: Selection, context_N: Integers) -> Floats:
        """Return each sample's weight (RWR), or its advantage within its context divided by N (REINFORCE)."""
        if self._arm.algorithm == "rwr":
            return np.array([sample.weight for sample in selection.samples])
        rewards_N = np.array(selection.env_rewards)
        spread = float(rewards_N.std())
        if spread < _NO_SPREAD:
            return np.zeros_like(rewards_N)
        means = np.bincount(context_N, rewards_N) / np.maximum(np.bincount(context_N), 1)
        return (rewards_N - means[context_N]) / spread / len(rewards_N)


_ENVIRONMENT = "lab"


def _trace(*, success: bool) -> Trace:
    return Trace(
        id="lab",
        task_id="lab",
        token_ids=(),
        sampled=(),
        logprobs=(),
        prompt_tokens=0,
        messages=(),
        reward=float(success),
        success=success,
        explanation="",
        stop_reason=StopReason.DONE,
        readable=True,
    )


_SUCCESS, _FAILURE = _trace(success=True), _trace(success=False)


@lru_cache(maxsize=4096)
def tag(skill: int, level: int) -> str:
    """Return the skill tag under which the agent's profile counts tasks of this skill and level."""
    return f"skill {skill} level {level}"


@lru_cache(maxsize=4096)
def seed_of(skill: int, level: int) -> Seed:
    """Return the seed of a skill and a level."""
    spec = {"skill": skill, "level": level}
    return Seed(id=f"seed-{skill}-{level}", environment=_ENVIRONMENT, spec=spec, skills=(tag(skill, level),))


def place_of(of: Seed | Task) -> tuple[int, int]:
    """Return the skill and level of a seed or task."""
    return cast(int, of.spec["skill"]), cast(int, of.spec["level"])


@lru_cache(maxsize=65536)
def context_of(round_: int, index: int, skill: int, level: int) -> Context:
    """Return the context in which the simulator varies a seed."""
    return Context(id=f"r{round_:04}-c{index:02}", round=round_, seed=seed_of(skill, level), messages=())


@lru_cache(maxsize=4096)
def base_task(skill: int, level: int) -> Task:
    """Return the base task of the seed of a skill and level."""
    name = seed_of(skill, level).id
    return _task(f"base-{name}", skill, level, Lineage(origin=Origin.SEED, seed_id=name))


@lru_cache(maxsize=65536)
def proposal_of(context_id: str, variation: int, skill: int, level: int) -> Proposal:
    """Return an accepted proposal of the simulator; the ids differ within a run."""
    name = f"{context_id}-g{variation}"
    lineage = Lineage(origin=Origin.GENERATED, context_id=context_id, generation_id=name)
    generation = Generation(
        id=name,
        context_id=context_id,
        prompt_ids=(),
        token_ids=(level,),
        logprobs=(0.0,),
        text=str(level),
        finished=True,
    )
    return Proposal(generation=generation, outcome=_task(f"task-{name}", skill, level, lineage))


def _task(name: str, skill: int, level: int, lineage: Lineage) -> Task:
    return Task(
        id=name,
        environment=_ENVIRONMENT,
        skills=(tag(skill, level),),
        messages=(),
        spec={"skill": skill, "level": level},
        payload={},
        oracle=(),
        lineage=lineage,
    )


@lru_cache(maxsize=4096)
def traces(successes: int, attempts: int) -> tuple[Trace, ...]:
    """Return the traces of a group of `attempts` rollouts, of which `successes` succeed."""
    return (_SUCCESS,) * successes + (_FAILURE,) * (attempts - successes)


def group_of(task: Task, successes: int, attempts: int) -> Group:
    """Return the group of a task's rollouts."""
    return Group(task=task, traces=traces(successes, attempts))


def solved_levels(profile: Profile, skills: int, levels: int) -> Floats:
    """Return the number of levels of each skill that the agent solves, estimated from its profile, [S].

    This is the area under the success rate over the levels. Rates are interpolated between levels with
    rollouts and constant beyond them. A skill without rollouts counts half of the levels.
    """
    areas, known = np.full(skills, levels / 2), profile.success
    for skill in range(skills):
        tried = [level for level in range(levels) if tag(skill, level) in known]
        if tried:
            rates = [known[tag(skill, level)] for level in tried]
            areas[skill] = np.interp(np.arange(levels), tried, rates).sum()
    return areas


Source = Literal["none", "policy", "once", "seed", "oracle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A curriculum to compare: a preset with changed settings and a source of the tasks' levels."""

    about: str
    """A short description for the table."""
    preset: Literal["paper", "robust"] = "paper"
    curriculum: JsonObject = field(default_factory=dict[str, Json])
    """Curriculum settings that differ from the preset."""
    source: Source = "policy"
    """The source of a task's level: `none`, only base tasks; `policy`, the simulator's policy; `once`, that
    policy before the first round, with the tasks reused; `seed`, the seed; `oracle`, the level with a
    success rate nearest to 1/2.
    """
    algorithm: Literal["none", "rwr", "reinforce"] = "none"
    """The simulator's training algorithm."""
    conditioned: bool = False
    """Whether the simulator is conditioned on the agent's success profile."""

    def config(self) -> CurriculumConfig:
        """Return the complete settings of the arm's curriculum."""
        return CurriculumConfig.model_validate({**preset(self.preset)["curriculum"], **self.curriculum})


_WRITTEN: JsonObject = {"base_share": 0.0, "review_share": 0.0, "replay_share": 0.0, "seed_trim": 0.0}
"""Settings under which every task is new and its seed is drawn uniformly."""
_BY_TASK: JsonObject = {**_WRITTEN, "p_hat_scope": "task", "band_filter": False, "standardise_rewards": True}
_STATE = Arm(
    about="REINFORCE, told the agent's state", curriculum=_BY_TASK, algorithm="reinforce", conditioned=True
)


def _rwr(about: str, **settings: Json) -> Arm:
    """Return an arm with the published algorithm and only new tasks."""
    return Arm(about=about, curriculum={**_WRITTEN, **settings}, algorithm="rwr")


def _untrained(about: str, source: Source = "policy", **settings: Json) -> Arm:
    return Arm(about=about, curriculum={**_WRITTEN, **settings}, source=source)


def _paid(about: str, **settings: Json) -> Arm:
    """Return the arm `state` with another reward of the simulator."""
    return replace(_STATE, about=f"state, paid {about}", curriculum={**_BY_TASK, **settings})


ARMS: Mapping[str, Arm] = {
    "base": _untrained("base tasks alone", "none"),
    "random": _untrained("a simulator that never learns"),
    "static": _untrained("five variations of each seed, written once", "once"),
    "genenv": Arm(about="preset paper", preset="paper", algorithm="rwr"),
    "robust": Arm(about="preset robust", preset="robust", algorithm="rwr"),
    "rwr": _rwr("the paper's filter and weights, new tasks alone"),
    "filter": _rwr("the paper's filter alone, all weights equal", rwr_lambda=0.0),
    "task": _rwr("the paper's filter and weights, by task", p_hat_scope="task"),
    "task-rwr": Arm(about="RWR by task, standardised, no filter", curriculum=_BY_TASK, algorithm="rwr"),
    "reinforce": Arm(
        about="REINFORCE by task, baseline of the context", curriculum=_BY_TASK, algorithm="reinforce"
    ),
    "state": _STATE,
    "band": _untrained("never learns; the agent skips tasks outside the band", agent_band=True),
    "controller": _untrained("the level of seeds is steered by feedback", "seed", seed_choice="controller"),
    "bandit": _untrained(
        "Thompson sampling of seeds", "seed", seed_choice="bandit", env_reward="learnability"
    ),
    "shuffled": _paid("for other tasks", env_reward="shuffled"),
    "state-alpha-0.3": _paid("for alpha 0.3", alpha=0.3),
    "state-alpha-0.7": _paid("for alpha 0.7", alpha=0.7),
    "state-learnability": _paid("p(1 - p)", env_reward="learnability"),
    "state-signal": _paid("the chance of a signal", env_reward="signal"),
    "state-variance": _paid("the variance of rewards", env_reward="variance"),
    "state-difficulty": _paid("1 - p", env_reward="difficulty"),
    "state-constant": _paid("alike for all", env_reward="constant"),
    "oracle": _untrained("knows the true ability", "oracle"),
}
"""All arms by name."""


def chosen(names: Sequence[str]) -> dict[str, Arm]:
    """Return the arms of these names in the order of `ARMS`; all arms if there are no names.

    Raises:
        UsageError: there is no such arm.
    """
    wanted = {registered("arm", name, ARMS) for name in names}
    return {name: arm for name, arm in ARMS.items() if not wanted or name in wanted}
