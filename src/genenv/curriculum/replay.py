"""Chooses the tasks that are repeated in a round: base tasks, reviews of mastered tasks, replay, reminders.

Repetition keeps the agent from forgetting tasks that the curriculum has moved away from.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.stats import restored
from genenv.errors import UsageError
from genenv.types import Group, JsonObject, Origin, Seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Revisit:
    """The repeated tasks of a round, which are added to its new tasks."""

    seeds: tuple[Seed, ...]
    """Base tasks."""
    task_ids: tuple[str, ...]
    """Ids of generated tasks: first mastered tasks, then replayed ones. The store has the tasks."""


class _Mastered(BaseModel, extra="forbid"):
    """A generated task that the agent has mastered at least once."""

    since: int
    """Round in which the task was first mastered."""
    last: int
    """Round of the task's latest rollout."""


class _State(BaseModel, extra="forbid"):
    """The state of `Replay` in the store."""

    deck: list[str]
    mastered: dict[str, _Mastered]


_NEVER = -1
"""The last round of a task that was never seen."""


class Replay:
    """Chooses which known tasks a round repeats: base tasks, mastered tasks, and tasks with valid traces.

    Base tasks are dealt from a shuffled deck, so each one comes up once before any comes up twice. The state
    does not grow with the run. The deck holds base tasks only, and mastered tasks are forgotten after
    `staleness_rounds`. The rounds in the store give the last round of each task (`recall`) and the tasks with
    a valid trace (`recall_valid`).

    Replay repeats the tasks of D_train, GenEnv's pool of valid traces, and not the traces. GRPO needs samples
    of the present policy, so the tasks are rolled out again.

    Args:
        config: the shares, `mastered_success` and `staleness_rounds` are read.
    """

    def __init__(self, config: CurriculumConfig) -> None:
        self._config = config
        self._deck: list[str] = []
        self._mastered: dict[str, _Mastered] = {}
        self._valid: set[str] = set()
        self._seen: dict[str, int] = {}
        self._seen_in: dict[int, set[str]] = {}

    def sizes(self, planned: int, *, base_alone: bool = False) -> tuple[int, int, int]:
        """Return the numbers of base tasks, reviews and replayed tasks that go with a number of new tasks.

        They depend on the planned number, not on the number that passes the gate. So the minimum of base
        tasks holds even if the simulator writes only rejected specs. Base tasks are rounded up, the others to
        the nearest.

        Args:
            planned: new tasks requested from the simulator, contexts x variations.
            base_alone: whether base tasks replace all other tasks, so that the round stays as large.

        Returns:
            (base tasks, reviews, replayed tasks).
        """
        base, review, replay = (
            self._config.base_share,
            self._config.review_share,
            self._config.replay_share,
        )
        total = planned / (1 - base - review - replay)
        sizes = (
            math.ceil(base * total - 1e-9),
            math.floor(review * total + 0.5),
            math.floor(replay * total + 0.5),
        )
        return (planned + sum(sizes), 0, 0) if base_alone else sizes

    def draw(
        self,
        round_: int,
        *,
        planned: int,
        seeds: Sequence[Seed],
        rng: random.Random,
        base_alone: bool = False,
        candidates: int = 1,
    ) -> Revisit:
        """Choose the repeated tasks of a round.

        Args:
            round_: the round about to start.
            planned: new tasks requested from the simulator.
            seeds: the base data. If there are fewer than needed, each comes once.
            rng: source of randomness; the same state gives the same choice.
            base_alone: see `sizes`.
            candidates: number of base tasks dealt for each one to be rolled out.

        Raises:
            UsageError: base tasks are needed, but there are no seeds.
        """
        base, reviews, replayed = self.sizes(planned, base_alone=base_alone)
        if base and not seeds:
            raise UsageError(
                "curriculum.base_share asks for base tasks, but the environment has no seeds; set it to 0"
            )
        dealt, due = self._deal(base * candidates, seeds, rng), self._review(round_, reviews, rng)
        pool = sorted(self._valid.difference(due)) if replayed else []
        return Revisit(seeds=dealt, task_ids=(*due, *rng.sample(pool, min(replayed, len(pool)))))

    def longest_unseen(
        self, round_: int, *, base: Sequence[str], groups: Sequence[Group], n: int, rng: random.Random
    ) -> list[str]:
        """Choose the tasks whose demonstrations are trained on again: those unseen for the longest time.

        They come from the base tasks and from all tasks of earlier rounds.

        Args:
            round_: the round that has just been rolled out.
            base: ids of the base tasks. Tasks never seen come first.
            groups: rollouts of the round. Their tasks count as seen and are not chosen.
            n: number of tasks; all if there are fewer.
            rng: breaks ties; the same state gives the same choice.

        Returns:
            Ids of tasks.
        """
        for name in base:
            if name not in self._seen:
                self._see(name, _NEVER)
        for group in groups:
            self._see(group.task.id, round_)
        chosen: list[str] = []
        for last in sorted(self._seen_in):
            if len(chosen) == n or last == round_:
                break
            waiting = sorted(self._seen_in[last])
            rng.shuffle(waiting)
            chosen += waiting[: n - len(chosen)]
        for name in chosen:
            self._see(name, round_)
        return chosen

    def recall(self, last_seen: Mapping[str, int]) -> None:
        """Restore the last round in which each task was rolled out or its demonstration was trained on.

        Args:
            last_seen: the rounds by task id, from the store.
        """
        for name, round_ in last_seen.items():
            self._see(name, round_)

    def recall_valid(self, task_ids: Iterable[str]) -> None:
        """Restore the ids of the generated tasks with a valid trace, from the store."""
        self._valid.update(task_ids)

    def observe(
        self, round_: int, groups: Sequence[Group], *, of_all_seats: Sequence[Group] | None = None
    ) -> None:
        """Record which generated tasks were mastered in a round, and forget stale ones.

        Tasks with a readable trace are recorded too, and never forgotten. A mastered task stays due for
        review even if it fails later, because that failure is forgetting.

        Args:
            round_: number of the round.
            groups: rollouts of the leading seat.
            of_all_seats: rollouts of all seats; None: there are no others.
        """
        if self._config.replay_share:
            self._valid |= {
                group.task.id
                for group in of_all_seats or groups
                if group.task.lineage.origin is Origin.GENERATED
                and any(trace.readable for trace in group.traces)
            }
        for group in groups:
            if group.task.lineage.origin is not Origin.GENERATED or not group.valid:
                continue
            known = self._mastered.get(group.task.id)
            if known is not None:
                self._mastered[group.task.id] = _Mastered(since=known.since, last=round_)
            elif (
                sum(trace.success for trace in group.valid)
                >= self._config.mastered_success * len(group.valid) - 1e-9
            ):
                self._mastered[group.task.id] = _Mastered(since=round_, last=round_)
        oldest = round_ + 1 - self._config.staleness_rounds
        self._mastered = {name: entry for name, entry in self._mastered.items() if entry.since >= oldest}

    def state_dict(self) -> JsonObject:
        """Return the state for `load_state_dict` as JSON. `recall` and `recall_valid` restore the rest."""
        return _State(deck=self._deck, mastered=self._mastered).model_dump(mode="json")

    def load_state_dict(self, state: JsonObject) -> None:
        """Restore the state that `state_dict` returned.

        Raises:
            DataError: the state is damaged.
        """
        loaded = restored(_State, state, "the replay state in this run's store is")
        self._deck, self._mastered = loaded.deck, loaded.mastered

    def _see(self, name: str, round_: int) -> None:
        before = self._seen.get(name)
        if before is not None:
            self._seen_in[before].discard(name)
            if not self._seen_in[before]:
                del self._seen_in[before]
        self._seen[name] = round_
        self._seen_in.setdefault(round_, set()).add(name)

    def _deal(self, n: int, seeds: Sequence[Seed], rng: random.Random) -> tuple[Seed, ...]:
        by_id = {seed.id: seed for seed in seeds}
        n = min(n, len(by_id))
        hand = [seed_id for seed_id in self._deck if seed_id in by_id][:n]
        if len(hand) < n:
            fresh = [seed_id for seed_id in by_id if seed_id not in hand]
            rng.shuffle(fresh)
            missing = n - len(hand)
            # the new deck also holds this hand's first cards, for the next pass through it
            self._deck = fresh[missing:] + hand
            hand += fresh[:missing]
        else:
            self._deck = [seed_id for seed_id in self._deck if seed_id in by_id][n:]
        return tuple(by_id[seed_id] for seed_id in hand)

    def _review(self, round_: int, n: int, rng: random.Random) -> tuple[str, ...]:
        """Return the tasks that have waited longest; ties are broken at random."""
        oldest = round_ - self._config.staleness_rounds
        due = [name for name, entry in sorted(self._mastered.items()) if entry.since >= oldest]
        rng.shuffle(due)
        return tuple(sorted(due, key=lambda name: self._mastered[name].last)[:n])
