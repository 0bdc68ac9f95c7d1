from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.curriculum.replay import Replay
from genenv.curriculum.settings import CurriculumConfig
from genenv.errors import DataError, UsageError
from genenv.types import Group, Origin


@pytest.fixture
def seeds(make):
    return [make.seed(f"s{index}", "add") for index in range(10)]


def test_a_quarter_of_a_round_is_base_tasks() -> None:
    # 32 new tasks are 70% of 45.7: 25% are 11.4, rounded up to keep the floor; 5% are 2.3
    assert Replay(CurriculumConfig(base_share=0.25, review_share=0.05)).sizes(32) == (12, 2, 0)
    assert Replay(CurriculumConfig(base_share=0, review_share=0)).sizes(32) == (0, 0, 0)
    assert Replay(CurriculumConfig(base_share=0.25, review_share=0)).sizes(3) == (1, 0, 0)


@given(st.integers(1, 200), st.floats(0, 0.6), st.floats(0, 0.3))
def test_base_tasks_never_fall_below_their_floor(planned: int, base: float, review: float) -> None:
    config = CurriculumConfig(base_share=base, review_share=review)
    base_tasks, reviews, _ = Replay(config).sizes(planned)
    assert base_tasks >= base * (planned + base_tasks) - 1e-6 or reviews > 0
    assert base_tasks >= base * planned / (1 - base - review) - 1e-6


def test_every_base_task_comes_once_before_any_comes_twice(seeds) -> None:
    replay, rng = Replay(CurriculumConfig(base_share=0.5, review_share=0)), random.Random(0)
    drawn = [replay.draw(round_, planned=3, seeds=seeds, rng=rng).seeds for round_ in range(10)]
    assert all(len({seed.id for seed in hand}) == 3 for hand in drawn)
    assert Counter(seed.id for hand in drawn for seed in hand) == {seed.id: 3 for seed in seeds}


def test_with_fewer_seeds_than_the_floor_each_comes_once_a_round(seeds) -> None:
    replay = Replay(CurriculumConfig(base_share=0.5, review_share=0))
    revisit = replay.draw(0, planned=40, seeds=seeds, rng=random.Random(0))
    assert sorted(seed.id for seed in revisit.seeds) == sorted(seed.id for seed in seeds)


def test_a_floor_without_seeds_says_so() -> None:
    with pytest.raises(UsageError, match=r"curriculum.base_share"):
        Replay(CurriculumConfig()).draw(0, planned=8, seeds=[], rng=random.Random(0))


def test_only_mastered_generated_tasks_come_back(make, seeds) -> None:
    replay = Replay(CurriculumConfig(base_share=0, review_share=0.5))
    replay.observe(
        0,
        [
            make.group("mastered", 8, 8),
            make.group("half", 4, 8),
            make.group(make.task("base", origin=Origin.SEED), 8, 8),
            make.group("lost", 0, 0, broken=8),
        ],
    )
    assert replay.draw(1, planned=8, seeds=seeds, rng=random.Random(0)).task_ids == ("mastered",)


def test_a_mastered_task_that_fails_later_stays_due_and_the_longest_waiting_comes_first(make) -> None:
    replay = Replay(CurriculumConfig(base_share=0, review_share=0.5))
    replay.observe(0, [make.group("old", 8, 8), make.group("forgotten", 8, 8)])
    replay.observe(1, [make.group("new", 8, 8)])
    replay.observe(2, [make.group("forgotten", 0, 8)])
    assert replay.draw(3, planned=3, seeds=[], rng=random.Random(0)).task_ids == ("old", "new", "forgotten")
    assert replay.draw(3, planned=1, seeds=[], rng=random.Random(0)).task_ids == ("old",)


def test_a_generated_task_comes_back_for_so_many_rounds_only(make) -> None:
    replay = Replay(CurriculumConfig(base_share=0, review_share=0.5, staleness_rounds=3))
    replay.observe(5, [make.group("task", 8, 8)])
    came_back = []
    for round_ in range(6, 11):
        came_back.append(bool(replay.draw(round_, planned=1, seeds=[], rng=random.Random(0)).task_ids))
        replay.observe(round_, [])
    assert came_back == [True, True, True, False, False]


@given(st.integers(0, 6), st.integers(0, 1000))
def test_a_restored_replay_goes_on_equally(make, rounds: int, state: int) -> None:
    config = CurriculumConfig(base_share=0.3, review_share=0.3)
    seeds = [make.seed(f"s{index}") for index in range(7)]
    base = [f"p{index}" for index in range(9)]
    replay, restored, rng = Replay(config), Replay(config), random.Random(state)
    last_seen: dict[str, int] = {}  # what the store knows
    for round_ in range(rounds):
        replay.draw(round_, planned=4, seeds=seeds, rng=rng)
        groups = [make.group(f"t{round_}", rng.randint(6, 8), 8), make.group(base[round_], 8, 8)]
        replay.observe(round_, groups)
        reminded = replay.longest_unseen(round_, base=base, groups=groups, n=2, rng=rng)
        last_seen |= dict.fromkeys([*(group.task.id for group in groups), *reminded], round_)
    restored.load_state_dict(json.loads(json.dumps(replay.state_dict())))
    restored.recall(last_seen)
    once, again = (
        [each.draw(rounds + step, planned=4, seeds=seeds, rng=random.Random(step)) for step in range(4)]
        for each in (replay, restored)
    )
    assert once == again
    once, again = (
        [
            each.longest_unseen(rounds + step, base=base, groups=[], n=4, rng=random.Random(step))
            for step in range(5)
        ]
        for each in (replay, restored)
    )
    assert once == again


def test_reminders_are_of_tasks_not_seen_for_longest(make) -> None:
    replay, rng = Replay(CurriculumConfig()), random.Random(0)
    base = [f"t{index}" for index in range(8)]
    attempted = [make.group("t0", 1, 2), make.group("new1", 1, 2), make.group("new2", 0, 2)]

    def longest_unseen(round_: int, n: int, groups=()) -> set[str]:
        chosen = replay.longest_unseen(round_, base=base, groups=groups, n=n, rng=rng)
        assert len(chosen) == len(set(chosen))
        return set(chosen)

    first = longest_unseen(1, 5, attempted)
    second = longest_unseen(2, 2)
    assert len(first) == 5
    assert first | second == set(base[1:])
    assert longest_unseen(3, 8) == first | {"t0", "new1", "new2"}
    assert longest_unseen(4, 20, attempted) == set(base[1:])


def test_the_state_of_a_replay_does_not_grow_with_the_rounds(make) -> None:
    config = CurriculumConfig(base_share=0.3, review_share=0.3, staleness_rounds=5)
    seeds = [make.seed(f"s{index:02d}") for index in range(20)]
    base = [seed.id for seed in seeds]
    replay, rng, sizes = Replay(config), random.Random(0), []
    for round_ in range(10_001, 10_101):
        replay.draw(round_, planned=8, seeds=seeds, rng=rng)
        groups = [make.group(f"t{round_}-{index}", 8, 8) for index in range(8)]
        replay.observe(round_, groups)
        replay.longest_unseen(round_, base=base, groups=groups, n=4, rng=rng)
        sizes.append(len(json.dumps(replay.state_dict())))
    assert max(sizes[80:]) == max(sizes[:20])  # 20 rounds deal every deck and pass every mastered task


def test_a_damaged_state_is_a_data_error() -> None:
    with pytest.raises(DataError, match="the replay state in this run's store is damaged"):
        Replay(CurriculumConfig()).load_state_dict({"deck": "s1"})


def readable(group: Group, *flags: bool | None) -> Group:
    """Its attempts, marked."""
    return replace(group, traces=tuple(map(lambda t, flag: replace(t, readable=flag), group.traces, flags)))


def test_a_fifth_of_a_round_is_tasks_of_valid_traces() -> None:
    # 256 new tasks are 64% of 400: 64 of base data, 80 of earlier rounds
    config = CurriculumConfig(base_share=0.16, review_share=0, replay_share=0.2)
    assert Replay(config).sizes(256) == (64, 0, 80)


def test_generated_tasks_with_a_valid_trace_come_back_solved_or_not(make) -> None:
    replay = Replay(CurriculumConfig(base_share=0, review_share=0, replay_share=0.5, staleness_rounds=1))
    replay.observe(
        0,
        [
            readable(make.group("solved", 1, 2), True, False),
            readable(make.group("failed", 0, 2), False, True),
            readable(make.group("unread", 0, 2), False, False),
            readable(make.group("unknown", 2, 2), None, None),
            readable(make.group(make.task("base", origin=Origin.SEED), 2, 2), True, True),
        ],
    )
    replay.observe(9, [])  # they do not become stale
    drawn = replay.draw(10, planned=8, seeds=[], rng=random.Random(0)).task_ids
    assert sorted(drawn) == ["failed", "solved"]


def test_replayed_tasks_are_drawn_uniformly_without_those_under_review(make) -> None:
    replay = Replay(CurriculumConfig(base_share=0, review_share=0.25, replay_share=0.25))
    replay.observe(0, [readable(make.group(f"t{i}", 8 * (i < 2), 8), *[True] * 8) for i in range(10)])
    counts: Counter[str] = Counter()
    for state in range(400):
        drawn = replay.draw(1, planned=4, seeds=[], rng=random.Random(state)).task_ids
        assert sorted(drawn[:2]) == ["t0", "t1"]
        assert len({*drawn}) == 4
        counts.update(drawn[2:])
    assert counts.keys() == {f"t{i}" for i in range(2, 10)}
    assert all(70 < count < 135 for count in counts.values()), "100 each, four deviations"


def test_what_is_replayed_is_known_again_from_the_store(make) -> None:
    config = CurriculumConfig(base_share=0, review_share=0, replay_share=0.5)
    replay, restored = Replay(config), Replay(config)
    replay.observe(0, [readable(make.group(f"t{i}", 1, 1), True) for i in range(9)])
    restored.load_state_dict(json.loads(json.dumps(replay.state_dict())))
    restored.recall_valid([f"t{i}" for i in reversed(range(9))])
    once, again = (r.draw(1, planned=3, seeds=[], rng=random.Random(5)) for r in (replay, restored))
    assert once == again
    assert len(once.task_ids) == 3


def test_a_task_that_only_another_seat_answered_readably_is_replayed_too(make) -> None:
    replay = Replay(CurriculumConfig(base_share=0, review_share=0, replay_share=0.5))
    task = make.task("t", origin=Origin.GENERATED)
    unread, other = (
        replace(group, traces=tuple(replace(one, readable=readable) for one in group.traces))
        for group, readable in ((make.group(task, 1, 2), False), (make.group(task, 1, 2), True))
    )
    replay.observe(1, [unread])
    assert not replay._valid
    replay.observe(1, [unread], of_all_seats=[unread, other])
    assert replay._valid == {"t"}
