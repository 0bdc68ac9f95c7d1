"""What is sampled in a round: tasks are written, checked, attempted and scored, and nobody has learned yet.

With `run.staleness` rounds are produced ahead of the one that is learned from. All that a run knows apart
from its weights then runs ahead too, so what a commit needs of it is taken down here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from genenv.config.run import RunConfig
from genenv.curriculum.choice import Choice
from genenv.curriculum.foretold import Foretold
from genenv.curriculum.history import History
from genenv.curriculum.rewards import in_round
from genenv.curriculum.score import Selection, curriculum_metrics, score_batches, select, taught
from genenv.environments.base import Environment
from genenv.progress import Reporter
from genenv.runs.metrics import Stages, rollout_metrics
from genenv.runs.store.records import Evaluation
from genenv.seeding import generator
from genenv.training.measuring import evaluate
from genenv.training.policies import Players
from genenv.training.task_pool import Tasks, World
from genenv.types import Context, Generation, Group, JsonObject, Profile, Task, TaskBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """A round before anybody has learned from it."""

    number: int
    contexts: Sequence[Context]
    generations: Sequence[Generation]
    batches: Sequence[TaskBatch]
    groups: Sequence[Group]
    """All attempts."""
    taught: Sequence[Group]
    """Those that the agent learns from."""
    selection: Selection
    """What the simulator learns from by `rwr`."""
    reminders: Sequence[Task]
    """Whose known solutions the agent sees again."""
    told: Profile
    """How the agent did before these attempts, as the simulator was told."""
    entered: Sequence[Evaluation]
    """Of another world, before the first round in it."""
    metrics: Mapping[str, float]
    seconds: Mapping[str, float]
    """Of its stages."""
    state: JsonObject
    """What the run knew after it, apart from weights."""


class Ahead:
    """Tasks by id: of committed rounds, and of those that are produced and not committed yet."""

    def __init__(self, committed: Tasks, rounds: Mapping[int, Produced]) -> None:
        self._committed, self._rounds = committed, rounds

    def task(self, task_id: str) -> Task:
        """The task of that id."""
        ahead = (group.task for one in self._rounds.values() for group in one.groups)
        return next((task for task in ahead if task.id == task_id), None) or self._committed.task(task_id)


class Producer:
    """Produces rounds, in order."""

    def __init__(
        self, config: RunConfig, env: Environment, players: Players, world: World, reporter: Reporter
    ) -> None:
        self.config, self.env, self.players, self.world = config, env, players, world
        self.reporter = reporter

    async def produce(self, number: int, tasks: Tasks) -> Produced:
        """Sample a round with the weights that were published last; the world takes its attempts in.

        Args:
            number: of the round, the one after that which was produced last.
            tasks: that may come back in it.
        """
        config, world, simulator = self.config, self.world, self.players.simulator
        stage = Stages(self.reporter, number, config.run.rounds)
        entered = await self._entered(number, stage)
        contexts = world.contexts(number)
        specs = len(contexts) * config.simulator.variations
        with stage("propose", "writing tasks", items=specs, unit="specs"):
            generations = await simulator.propose(self.env, contexts)
        with stage("gate"):
            proposals = world.gate.admit(contexts, generations)
        written = [proposal.outcome for proposal in proposals if isinstance(proposal.outcome, Task)]
        base, back = world.revisited(number, tasks)
        foretold = await self._foretold([*written, *base], stage)
        if foretold is not None:
            proposals = foretold.noted(proposals)
        chosen = world.chosen(number, written, base, {} if foretold is None else foretold.rates)
        groups = await self._attempted(number, chosen, back, stage)
        new = world.joined(groups, written)
        wanted = in_round(config.curriculum, number, config.run.rounds)
        batches = score_batches(contexts, proposals, groups, wanted)
        selection = select(batches, wanted, generator(world.seed, "shuffled", number))
        reminders, told = world.reminders(number, groups, tasks), world.told
        probed = {} if foretold is None else foretold.metrics(written, [group.task for group in groups])
        probed |= world.observe(number, groups, {task.id for task in new}, foretold)
        sampler, elsewhere = self.players.agent.sampler, simulator.sampled_elsewhere()
        return Produced(
            number=number,
            contexts=contexts,
            generations=generations,
            batches=batches,
            groups=groups,
            taught=taught(groups, new, wanted),
            selection=selection,
            reminders=reminders,
            told=told,
            entered=entered,
            metrics={
                **curriculum_metrics(batches, selection, wanted),
                **rollout_metrics(groups, batches, sampler, self.env, elsewhere=elsewhere),
                **probed,
                **{f"agent/skill/{name}": rate for name, rate in world.stats.profile().success.items()},
                **({"agent/eval_at_shift": fmean(one.success for one in entered)} if entered else {}),
            },
            seconds=stage.seconds,
            state=world.state(),
        )

    async def _entered(self, number: int, stage: Stages) -> list[Evaluation]:
        """How the agent does in another world, where this is the first round in it."""
        if not self.world.enter(number) or not self.config.run.eval_every:
            return []
        return await evaluate(self.players.agent, self.env, self.world.held_out, stage)

    async def _foretold(self, candidates: Sequence[Task], stage: Stages) -> Foretold | None:
        """Success rates of candidates, as far as they can be foretold; None where nobody wants to know."""
        foreteller = self.world.foreteller
        if foreteller is None:
            return None
        if isinstance(foreteller, History):
            return foreteller.foretell(candidates)
        with stage("probe", "looking at", items=len(candidates), unit="tasks"):
            return foreteller.foretell(*await self.players.agent.likelihoods(self.env, candidates))

    async def _attempted(
        self, number: int, chosen: Choice, back: Sequence[Task], stage: Stages
    ) -> list[Group]:
        """Attempts at the tasks of a round, and at candidates in the stead of those that taught nothing."""
        groups, tasks = list[Group](), [*chosen.new, *chosen.base, *back]
        while tasks:
            items = len(tasks) * self.config.agent.rollouts
            with stage("rollout", "attempting", items=items, unit="attempts"):
                found = await self.players.agent.attempt(self.env, tasks, round_=number)
            groups += found
            tasks = chosen.instead_of(found)
        await self.players.check_samples()
        return groups
