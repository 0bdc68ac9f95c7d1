"""Which tasks come back in a round: base tasks, reviews of mastered tasks, replay, and reminders.

Without them the agent forgets what the curriculum has moved away from.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from genenv.curriculum.settings import CurriculumConfig
from genenv.errors import DataError, UsageError
from genenv.types import Group, JsonObject, Origin, Seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Revisit:
    """What a round sees again, beside its new tasks."""

    seeds: tuple[Seed, ...]
    """Base tasks."""
    task_ids: tuple[str, ...]
    """Generated tasks: first those that were mastered, then replayed ones. The store has them."""


class _Mastered(BaseModel, extra="forbid"):
    """A generated task that the agent has mastered at least once."""

    since: int
    """Round in which it was first seen."""
    last: int
    """Round of its latest rollout."""


class _State(BaseModel, extra="forbid"):
    """What the store holds of it."""

    deck: list[str]
    mastered: dict[str, _Mastered]


_NEVER = -1
"""Stands for the round in which a task was last seen, where there was none."""


class Replay:
    """Remembers which tasks are due: base tasks, those that were mastered, and those of valid traces.

    Base tasks are dealt from a shuffled deck, so that each comes up once before any comes up twice. Its state
    does not grow with the run: the deck has the base tasks, what was mastered is forgotten after
    `staleness_rounds`, and when a task was last seen, and of which there is a valid trace, follows from the
    rounds in the store (`recall`, `recall_valid`).

    What is replayed are the tasks of D_train, GenEnv's pool of valid traces, and not the traces: GRPO learns
    from what its present policy samples, so they are rolled out anew.

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

    def sizes(self, planned: int) -> tuple[int, int, int]:
        """How many base tasks, reviews and replayed tasks go with a number of new tasks.

        Counted from the planned number, not from what passes the gate: when the simulator writes rubbish,
        the floor of base tasks still stands. It is rounded up, the others are rounded to the nearest.

        Args:
            planned: new tasks asked of the simulator, contexts x variations.

        Returns:
            (base tasks, reviews, replayed tasks).
        """
        base, review, replay = (
            self._config.base_share,
            self._config.review_share,
            self._config.replay_share,
        )
        total = planned / (1 - base - review - replay)
        return (
            math.ceil(base * total - 1e-9),
            math.floor(review * total + 0.5),
            math.floor(replay * total + 0.5),
        )

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
        """Choose what comes back in a round.

        Args:
            round_: the round about to start.
            planned: new tasks asked of the simulator.
            seeds: the base data. With fewer than the floor asks for, each comes once.
            rng: the same state gives the same choice.
            base_alone: whether base tasks stand in the place of all others, so that a round is as large.
            candidates: how many base tasks are dealt for each that is to be rolled out.

        Raises:
            UsageError: base tasks are wanted, but there are no seeds.
        """
        base, reviews, replayed = self.sizes(planned)
        if base_alone:
            base, reviews, replayed = planned + base + reviews + replayed, 0, 0
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
        """Choose tasks whose demonstrations are imitated again: those not seen for longest.

        They come from the base tasks and from all that was rolled out in earlier rounds.

        Args:
            round_: the round, whose rollouts are over.
            base: ids of the base tasks; one that was never seen comes before all others.
            groups: the round's rollouts; their tasks count as seen and are not chosen.
            n: how many; all there are when they are fewer.
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
        """Know again when each task was last rolled out or reminded of, from what the store holds."""
        for name, round_ in last_seen.items():
            self._see(name, round_)

    def recall_valid(self, task_ids: Iterable[str]) -> None:
        """Know again of which generated tasks there is a valid trace, from what the store holds."""
        self._valid.update(task_ids)

    def observe(self, round_: int, groups: Sequence[Group]) -> None:
        """Note which generated tasks were mastered in a round, and forget those that have become stale.

        Those with a valid trace are noted too, and never forgotten. A task once mastered stays due for review
        when it fails later: that is what forgetting looks like.
        """
        for group in groups:
            if group.task.lineage.origin is not Origin.GENERATED or not group.valid:
                continue
            if self._config.replay_share and any(trace.readable for trace in group.traces):
                self._valid.add(group.task.id)
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
        """What `load_state_dict` needs, as JSON; the rest is told to `recall` and `recall_valid`."""
        return _State(deck=self._deck, mastered=self._mastered).model_dump(mode="json")

    def load_state_dict(self, state: JsonObject) -> None:
        """Continue from what `state_dict` gave.

        Raises:
            DataError: the state is damaged.
        """
        try:
            loaded = _State.model_validate(state)
        except ValidationError as err:
            raise DataError(
                f"the replay state in this run's store is damaged: {err.errors()[0]['msg']}"
            ) from err
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
            # the rest of the new deck also holds this hand's first cards: they start their next turn
            self._deck = fresh[missing:] + hand
            hand += fresh[:missing]
        else:
            self._deck = [seed_id for seed_id in self._deck if seed_id in by_id][n:]
        return tuple(by_id[seed_id] for seed_id in hand)

    def _review(self, round_: int, n: int, rng: random.Random) -> tuple[str, ...]:
        """The tasks that have waited longest; ties are broken by chance."""
        oldest = round_ - self._config.staleness_rounds
        due = [name for name, entry in sorted(self._mastered.items()) if entry.since >= oldest]
        rng.shuffle(due)
        return tuple(sorted(due, key=lambda name: self._mastered[name].last)[:n])
