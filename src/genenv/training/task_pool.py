"""The task pool: the state of a run except weights (base data, profile, archive), and the choice of tasks."""

from __future__ import annotations

import random
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from statistics import fmean
from typing import Protocol

from genenv.config.run import RunConfig
from genenv.curriculum.predictors import History, Probe, TextModel
from genenv.curriculum.replay import Replay
from genenv.curriculum.seed_choice import (
    Controller,
    SeedChooser,
    checked_choice,
    checked_state,
    choose_seeds,
    own_chooser,
    pass_sizes,
)
from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.simulator_rewards import in_round
from genenv.curriculum.stats import SkillStats
from genenv.curriculum.task_choice import Choice, Predicted, by_attempts, worth_most, worth_most_that_pass
from genenv.environments.base import Environment
from genenv.environments.wrappers import ShiftingEnvironment
from genenv.gate.gate import Gate, base_tasks
from genenv.runs.store.store import PoolStore
from genenv.seeding import generator
from genenv.settings import is_own
from genenv.simulator.policy import make_contexts
from genenv.types import Context, Group, Json, JsonObject, Profile, Proposal, Seed, Task, accepted, leading


class Tasks(Protocol):
    """Finds tasks of a run by id. `PoolStore` and `Ahead` implement it."""

    def task(self, task_id: str) -> Task:
        """Return the task with this id."""
        ...


class TaskPool:
    """Base data, the agent's statistics, the archive of tasks, and the choice of the next tasks."""

    def __init__(self, config: RunConfig, env: Environment) -> None:
        self.config, self.env, self.seed = config, env, config.run.seed
        self._settle()
        self.stats, self.replay = SkillStats(config.curriculum), Replay(config.curriculum)
        several = list(config.population) if len(config.population) > 1 else []
        self.own_stats = {name: SkillStats(config.curriculum) for name in several}
        """With several agents, the statistics of each by name; `stats` are over all. Empty with one agent."""
        self.taught = [name for name, agent in config.population.items() if agent.train] or [
            *config.population
        ]
        """The agents for whom tasks are written: those that are trained, or all if none is. With seats it is
        the leading one, whose success is that of the task."""
        self.taught = list(config.seated.values())[:1] or self.taught
        self.chooser = self._seed_chooser()
        self.predictors = {name: one for name in several or config.population if (one := self._predictor())}
        """What predicts the success rates of each agent, by name; empty if predictions are off."""
        self._owners = dict[str, str]()
        """For which agent each context and each repeated task of the present round is, by id."""
        self.gate = Gate(env, config.curriculum, seed=self.seed)
        self.gate.enter(self.base.values(), env.held_out())
        if isinstance(env, ShiftingEnvironment) and not env.shifted:
            self.gate.protect_texts(env.surfaces_to_come())

    def _settle(self) -> None:
        """Read base data and held-out tasks from the present environment."""
        self.seeds = list(self.env.seeds())
        self.held_out = list(self.env.held_out())[: self.config.run.eval_tasks]
        self.base = base_tasks(self.env, self.seeds, seed=self.seed)

    def data(self) -> tuple[Sequence[Seed], Sequence[Task]]:
        """Return all seeds and held-out tasks of the run, including those after an environment shift."""
        if not isinstance(self.env, ShiftingEnvironment):
            return self.seeds, self.held_out
        seeds, held_out = self.env.to_come
        return [*self.seeds, *seeds], [*self.held_out, *held_out[: self.config.run.eval_tasks]]

    def enter(self, number: int) -> bool:
        """Switch to the environment of a round; return whether it is the first round in a new environment.

        Generated tasks of the old environment are not repeated, because the new one cannot check them. The
        agent's statistics and the archive are kept.
        """
        if not isinstance(self.env, ShiftingEnvironment) or number < self.config.shift.round:
            return False
        if not self.env.shifted:
            self.env.shift()
            self._settle()
            self.replay = Replay(self.config.curriculum)
            self.gate.enter(self.base.values(), self.env.held_out())
            if isinstance(self.chooser, Controller):
                level, self.chooser = self.chooser.level, self._controller()
                self.chooser.level = level
        return number == self.config.shift.round

    def measures(self, number: int) -> bool:
        """Return whether an evaluation is due after a round: at an interval, at both ends, around a shift."""
        run, shift = self.config.run, self.config.shift
        if not run.eval_every:
            return False
        if number == run.rounds or number == shift.round - 1:
            return True
        if 0 < shift.round <= number:
            return (number - shift.round) % shift.eval_every == 0
        return number % run.eval_every == 0

    def recall(self, store: PoolStore, last: int) -> None:
        """Restore the state after the last committed round from the store."""
        self.enter(last)
        state = store.state(last)
        since = self.config.shift.round if self.config.shift.round <= last else 0
        self.stats.load_state_dict(_part(state, "stats"))
        for name, stats in self.own_stats.items():
            stats.load_state_dict(_part(_part(state, "agents"), name))
        self.replay.load_state_dict(_part(state, "replay"))
        kept = next((key for key in (self._chooser_key, "seed_choice") if key in state), None)
        if self.chooser is not None and kept is not None:  # a branch may start with a chooser
            self.chooser.load_state_dict(_part(state, kept))
        if self.predictors and self._predictor_key in state:
            known = _part(state, self._predictor_key)
            for name, predictor in self.predictors.items():
                predictor.load_state_dict(_part(known, name) if self.own_stats else known)
        if self.config.agent.replayed:
            self.replay.recall(store.last_seen(since=since))
        if self.config.curriculum.replay_share:
            self.replay.recall_valid(store.valid_tasks(since=since))
        self.gate.recall(store.surfaces())

    def state(self) -> JsonObject:
        """Return the state that `recall` needs besides the tasks, as JSON."""
        steered = dict[str, JsonObject]()
        if self.chooser is not None:
            name = self.config.curriculum.seed_choice
            steered = {self._chooser_key: checked_state(self.chooser.state_dict(), name)}
        learned = {name: predictor.state_dict() for name, predictor in self.predictors.items()}
        known = learned if self.own_stats else next(iter(learned.values()), None)
        predicted = {self._predictor_key: known} if known else {}
        own = {name: stats.state_dict() for name, stats in self.own_stats.items()}
        return {
            **{"stats": self.stats.state_dict(), "replay": self.replay.state_dict(), **steered, **predicted},
            **({"agents": own} if own else {}),
            "written": self._writing,
        }

    @property
    def _writing(self) -> dict[str, Json]:
        """How tasks are written: the settings that a branch may have changed (`written_alike_since`)."""
        return {"per_seed": self.config.simulator.per_seed, "writes": self.config.simulator.writes}

    def written_alike_since(self, store: PoolStore, *keys: str) -> int:
        """Return the first round since which these settings of the simulator are as they are now.

        Rounds that do not name them, of earlier commits, count as written like those of now.

        Args:
            store: the store of the run. A branch has rounds of the run that it came from.
            keys: `per_seed` or `writes`, or both.
        """
        now, since = {key: self._writing[key] for key in keys}, 1
        for number in store.rounds():
            then = {**self._writing, **_part({"written": {}, **store.state(number)}, "written")}
            if any(then[key] != value for key, value in now.items()):
                since = number + 1
        return since

    def observe(
        self,
        number: int,
        groups: Sequence[Group],
        new: Container[str],
        predicted: Predicted | None = None,
        *,
        repeatable: Sequence[Group] | None = None,
    ) -> Mapping[str, float]:
        """Update the state with the rollouts of a round.

        Args:
            number: number of the round.
            groups: all rollouts.
            new: ids of the round's new tasks.
            predicted: predictions made before the rollouts.
            repeatable: rollouts of tasks that later rounds may repeat; None: all.

        Returns:
            Metrics of the predictions' error.
        """
        counted = leading(groups)
        self.stats.observe(counted)
        for name, stats in self.own_stats.items():
            stats.observe([group for group in groups if group.agent == name])
        again = groups if repeatable is None else repeatable
        self.replay.observe(number, leading(again), of_all_seats=again)
        if isinstance(self.chooser, Controller):
            self.chooser.alpha = self._in_round(number).alpha
        if self.chooser is not None:
            self.chooser.observe([group for group in counted if group.task.id in new])
        if predicted is None:
            return {}
        errors = dict[str, list[float]]()
        for name, predictor in self.predictors.items():
            own = [group for group in counted if group.agent == name]
            for metric, value in predictor.observe(predicted, own).items():
                errors.setdefault(metric, []).append(value)
        return {metric: fmean(values) for metric, values in errors.items()}

    def _predictor(self) -> Probe | History | TextModel | None:
        """Return the predictor of success rates that the settings name; None if predictions are off."""
        if not self.config.curriculum.predicts:
            return None
        if self.config.curriculum.foretold_by == "likelihoods":
            return Probe()
        kind = History if self.config.curriculum.foretold_by == "attempts" else TextModel
        return kind(self.config.curriculum)

    @property
    def compared_rounds(self) -> int:
        """Rounds between the two versions of the agent that the reward `progress` compares; 0 without it."""
        curriculum = self.config.curriculum
        return curriculum.progress_rounds if curriculum.compares_versions else 0

    @property
    def _predictor_key(self) -> str:
        """Key of the predictor's state. A branch with another predictor starts it without state."""
        return next(iter(self.predictors.values())).key

    def _seed_chooser(self) -> SeedChooser | None:
        """Return the stateful chooser of seeds; None if `choose_seeds` chooses from the agent's profile."""
        if is_own(self.config.curriculum.seed_choice):
            return own_chooser(self.config.curriculum)
        return self._controller() if self.config.curriculum.seed_choice == "controller" else None

    @property
    def _chooser_key(self) -> str:
        """Key of the chooser's state. A branch with another chooser starts it without state."""
        name = self.config.curriculum.seed_choice
        return f"seed_choice {PurePath(name).name}" if is_own(name) else name

    def _controller(self) -> Controller:
        """Return a controller that ranks seeds by their demonstrations: number of steps, then text length."""
        difficulties = {
            name: (float(self.env.steps(task)), float(sum(map(len, task.oracle))))
            for name, task in self.base.items()
        }
        return Controller(difficulties, alpha=self.config.curriculum.alpha)

    def contexts(self, number: int, *, most: int | None = None, purpose: str = "seeds") -> list[Context]:
        """Choose the seeds to vary, and return the simulator's context for each.

        Args:
            number: number of the round.
            most: maximum number, if fewer than in a round are needed.
            purpose: names the random stream.
        """
        config = self.config
        if config.simulator.source == "none":
            return []
        wanted = config.simulator.contexts
        if most is not None:
            wanted = min(wanted, most)
        elif config.curriculum.candidates > 1:
            many = wanted * config.curriculum.candidates
            wanted = max(wanted, min(many, len(self.seeds))) if config.simulator.per_seed else many
        rng = generator(self.seed, purpose, number)
        curriculum = self._in_round(number)
        seeds, agents = list[Seed](), list[str]()
        for agent, share in self._dealt(wanted, number).items():
            chosen = self._seeds_for(agent, share, rng, curriculum) if share else ()
            seeds += chosen
            agents += [agent] * len(chosen)
        contexts = make_contexts(
            self.env, seeds, self.profile, round_=number, target=curriculum.alpha, agents=agents
        )
        self._owners = {context.id: context.agent for context in contexts}
        return contexts

    def _in_round(self, number: int) -> CurriculumConfig:
        """Return the settings of the curriculum in a round, as alpha may move."""
        return in_round(self.config.curriculum, number, self.config.run.rounds)

    def _dealt(self, wanted: int, number: int) -> dict[str, int]:
        """Return how many contexts or tasks of a round are for each agent. The rest goes round by round."""
        n = len(self.taught)
        return {
            name: wanted // n + ((place - number) % n < wanted % n) for place, name in enumerate(self.taught)
        }

    def _seeds_for(
        self, agent: str, wanted: int, rng: random.Random, curriculum: CurriculumConfig
    ) -> Sequence[Seed]:
        """Choose the seeds of an agent's contexts, by its own statistics.

        Where candidates need more contexts than there are seeds, seeds are chosen in several passes.
        """
        sizes = pass_sizes(wanted, len(self.seeds))
        return [seed for size in sizes for seed in self._different_seeds(agent, size, rng, curriculum)]

    def _different_seeds(
        self, agent: str, wanted: int, rng: random.Random, curriculum: CurriculumConfig
    ) -> Sequence[Seed]:
        """Choose different seeds, at most as many as there are."""
        if self.chooser is not None:
            chosen = self.chooser.choose(self.seeds, wanted, rng)
            return checked_choice(chosen, wanted, curriculum.seed_choice)
        stats = self.own_stats.get(agent, self.stats)
        return choose_seeds(self.seeds, stats, wanted, rng, curriculum, base=self.base)

    @property
    def profile(self) -> Profile:
        """The agent's profile for the simulator: success by skill before this round's rollouts.

        With several agents it has the profile of each, unless the simulator is given the rates over all.
        """
        if self.config.simulator.per_seed:
            return Profile()
        if self.config.curriculum.profile_of == "all":
            return self.stats.profile()
        own = {name: stats.profile() for name, stats in self.own_stats.items()}
        return replace(self.stats.profile(), by_agent=own)

    def assigned(self, tasks: Sequence[Task]) -> Mapping[str, Sequence[Task]]:
        """Return those of a round's tasks that each agent attempts, by its name.

        A new task is for the agent for whom it was written; repeated tasks were dealt to the agents in turn.
        """
        names = list(self.config.population)
        if len(names) == 1 or self.config.curriculum.share_tasks:
            return dict.fromkeys(names, tasks)
        owners = [self._owners.get(task.lineage.context_id or "") or self._owners[task.id] for task in tasks]
        return {
            name: [task for task, owner in zip(tasks, owners, strict=True) if owner == name] for name in names
        }

    def _places(self, tasks: Sequence[Task], most: int, number: int) -> list[tuple[Sequence[Task], int]]:
        """Return the candidates of each agent and how many of them it attempts; one item if all share."""
        if not self.own_stats or self.config.curriculum.share_tasks:
            return [(tasks, most)]
        dealt = self._dealt(most, number)
        return [(own, dealt.get(name, 0)) for name, own in self.assigned(tasks).items()]

    def revisited(self, number: int, tasks: Tasks) -> tuple[list[Task], list[Task]]:
        """Return the base tasks of a round (or candidates for them), and the generated tasks to repeat."""
        rng = generator(self.seed, "replay", number)
        back = self.replay.draw(
            number,
            planned=self._planned,
            seeds=self.seeds,
            rng=rng,
            base_alone=self._base_alone,
            candidates=self.config.curriculum.candidates,
        )
        base = [self.base[seed.id] for seed in back.seeds if seed.id in self.base]
        found = [tasks.task(name) for name in back.task_ids]
        repeated = [task.id for task in (*base, *found)]
        self._owners |= {
            name: self.taught[(place + number) % len(self.taught)] for place, name in enumerate(repeated)
        }
        return base, found

    @property
    def chooses_first(self) -> bool:
        """Whether candidates are chosen before the gate, which then checks only those that are chosen.

        Task bandit and text model predict from the task alone, which exists once its spec has been executed.
        The gate's other checks take most of a round if there are many candidates. Candidates that a model
        wrote all go through the gate: their rejections are counted, and may be trained on.
        """
        curriculum, simulator = self.config.curriculum, self.config.simulator
        chooses = curriculum.candidates > 1 and curriculum.candidate_choice == "foretold"
        drawn = simulator.source in ("variation", "grammar", "file") and not simulator.per_seed
        return chooses and drawn and curriculum.foretold_by != "likelihoods"

    def chosen_first(
        self, number: int, built: Sequence[Proposal], rates: Mapping[str, float]
    ) -> list[Proposal]:
        """Choose new tasks among candidates that were built, until as many as planned have passed the gate.

        Exact copies of an earlier candidate are left out, as the gate would reject them.

        Args:
            number: number of the round.
            built: all candidates.
            rates: predicted success rates by task id.

        Returns:
            The candidates that the gate examined, in their first order.
        """
        by_id = {one.outcome.id: one for one in built if isinstance(one.outcome, Task)}
        if self.config.curriculum.novelty_threshold:
            tasks = accepted(reversed(built))
            first = set({self.env.surface(task): task.id for task in tasks}.values())
            by_id = {name: one for name, one in by_id.items() if name in first}
        examined = dict[str, Proposal]()

        def passes(name: str) -> bool:
            examined[name] = self.gate.examine(by_id[name])
            return isinstance(examined[name].outcome, Task)

        tasks = accepted(by_id.values())
        rng = generator(self.seed, "candidates-new", number)
        for candidates, most in self._places(tasks, self._planned, number):
            own = {task.id: rates[task.id] for task in candidates}
            worth_most_that_pass(own, most, rng, self._in_round(number), passes)
        return [examined[name] for name in by_id if name in examined]

    def chosen(
        self, number: int, new: Sequence[Task], base: Sequence[Task], predicted: Predicted | None
    ) -> Choice:
        """Choose the new tasks and the base tasks that are rolled out, among all candidates.

        New tasks compete with new tasks, base tasks with base tasks. Only tasks that are rolled out join the
        archive.

        Args:
            number: number of the round.
            new: tasks that passed the gate.
            base: base tasks that were dealt.
            predicted: predictions; None if there are none. If they decide, tasks without one are not rolled
                out.
        """
        curriculum, each = self._in_round(number), self.config.curriculum.candidates
        if each == 1:
            return Choice(new=new, base=base)
        most_base, _, _ = self.replay.sizes(self._planned, base_alone=self._base_alone)
        places = [self._places(*kind, number) for kind in ((new, self._planned), (base, most_base))]
        if predicted is None or curriculum.candidate_choice == "attempted":
            return by_attempts(places, generator(self.seed, "candidates", number))
        rates, progress, kept = predicted.rates, predicted.progress, list[list[Task]]()
        for kind, by_agent in zip(("new", "base"), places, strict=True):
            rng, names = generator(self.seed, f"candidates-{kind}", number), set[str]()
            for tasks, most in by_agent:
                own = {task.id: rates[task.id] for task in tasks if task.id in rates}
                names |= worth_most(own, most, rng, curriculum, progress)
            kept.append([task for tasks, _ in by_agent for task in tasks if task.id in names])
        return Choice(new=kept[0], base=kept[1])

    def joined(self, groups: Sequence[Group], written: Sequence[Task]) -> list[Task]:
        """Return the new tasks that were rolled out. If tasks are candidates, add these to the archive.

        Args:
            groups: all rollouts of the round.
            written: new tasks of the round.
        """
        attempted = {group.task.id for group in groups}
        new = [task for task in written if task.id in attempted]
        if self.config.curriculum.candidates > 1:
            self.gate.remember(new)
        return new

    @property
    def _planned(self) -> int:
        return self.config.simulator.contexts * self.config.simulator.variations

    @property
    def _base_alone(self) -> bool:
        return self.config.simulator.source == "none"

    def replayed(self, number: int, groups: Sequence[Group], tasks: Tasks) -> list[Task]:
        """Return tasks (base data and earlier rounds) whose demonstrations the agent trains on again."""
        if not self.config.agent.replayed:
            return []
        base = {task.id: task for task in self.base.values()}
        chosen = self.replay.longest_unseen(
            number,
            base=list(base),
            groups=groups,
            n=self.config.agent.replayed,
            rng=generator(self.seed, "replayed", number),
        )
        return [base[name] if name in base else tasks.task(name) for name in chosen]


def _part(state: JsonObject, name: str) -> JsonObject:
    part = state[name]
    assert isinstance(part, Mapping)  # noqa: S101 - `TaskPool.state` wrote it
    return part
