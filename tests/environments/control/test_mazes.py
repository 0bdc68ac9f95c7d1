"""Mazes: rules against a slow step, named levels with a path, tasks, edits, runs that learn and resume."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from genenv.algorithms.advantages import ppo_credit
from genenv.algorithms.settings import GrpoConfig, OptimizerConfig
from genenv.algorithms.update import learn
from genenv.backends.base import Role, open_backend
from genenv.backends.local.ppo import FIRST, ActionSampler, ChoicePolicy, PpoTrainer
from genenv.backends.settings import PolicyConfig, PpoConfig
from genenv.environments import load_environment
from genenv.environments.base import Environment
from genenv.environments.control.environment import Control, ControlConfig
from genenv.environments.control.mazes import CORRIDORS, ROOMS, Maze, anywhere, corridors, rooms
from genenv.environments.control.simulation import Level, Simulation, film_of, replay, written
from genenv.environments.control.systems import SCALARS, find_system
from genenv.rollout.driver import Sampling, roll_out
from genenv.runs.store.store import PoolStore
from genenv.simulator.parameter_search import WholeSlot
from genenv.types import Lineage, Origin, Rejection, RejectReason, Task
from typed import refused, stopped_in_round_two, succeeds

SIZE = 13
AHEAD = {0: (1, 0), 1: (0, 1), 2: (-1, 0), 3: (0, -1)}
PHYSICS = {"distance": 4.0, "walls": 0.0, "layout": 1.0}


@pytest.fixture(scope="module")
def env() -> Control:
    settings = ControlConfig(system="maze", base_tasks=8, held_out_tasks=24)
    return cast(Control, load_environment("control", settings))


def walls_of(start: Sequence[float]) -> set[tuple[int, int]]:
    return {(x, y) for y in range(SIZE) for x in range(SIZE) if int(start[5 + y]) & 2**x}


class Slow:
    """The rules of JaxUED's maze, one cell at a time: what is stepped and what is seen."""

    def __init__(self, start: Sequence[float]) -> None:
        x, y, self.direction, goal_x, goal_y = map(int, start[:5])
        self.at, self.goal, self.walls = (x, y), (goal_x, goal_y), walls_of(start)
        self.been, self.reward, self.done, self.t = set[tuple[int, int]](), 0.0, False, 0

    def blocked(self, cell: tuple[int, int]) -> bool:
        return cell in self.walls or not (0 <= cell[0] < SIZE and 0 <= cell[1] < SIZE)

    def step(self, action: float) -> None:
        self.been.add(self.at)
        self.t += 1
        if action == -1:
            self.direction = {0: 3, 1: 0, 2: 1, 3: 2}[self.direction]
        elif action == 1:
            self.direction = {0: 1, 1: 2, 2: 3, 3: 0}[self.direction]
        else:
            to = self.at[0] + AHEAD[self.direction][0], self.at[1] + AHEAD[self.direction][1]
            self.at = self.at if self.blocked(to) else to
        if self.at == self.goal:
            self.reward, self.done = 1 - 0.9 * self.t / 250, True
        self.done |= self.t == 250

    def seen(self) -> list[bool]:
        """Walls, goal and earlier places, row by row from the agent's own, each from left to right."""
        left, cells = AHEAD[(self.direction - 1) % 4], list[tuple[int, int]]()
        for far in range(5):
            for side in (2, 1, 0, -1, -2):
                cells.append(
                    tuple(self.at[i] + far * AHEAD[self.direction][i] + side * left[i] for i in (0, 1))  # pyright: ignore[reportArgumentType]
                )
        return [
            *map(self.blocked, cells),
            *(cell == self.goal for cell in cells),
            *(cell in self.been for cell in cells),
            *(self.direction == one for one in range(4)),
        ]


def test_many_mazes_at_once_are_stepped_and_seen_by_the_rules(env: Control) -> None:
    levels = [Level.read(str(task.payload["level"])) for task in env.held_out()]
    rng = np.random.default_rng(0)
    actions = rng.choice([-1.0, 0.0, 0.0, 0.0, 1.0], (len(levels), 250))
    together, slow = Simulation(env.system, levels), [Slow(level.start) for level in levels]
    rewards = np.zeros(len(levels))
    for t in range(250):
        seen = together.observe()
        assert seen.shape == (len(levels), 81)
        for one, row in zip(slow, seen, strict=True):
            assert one.done or [bool(x) for x in row[:79]] == one.seen()
        rewards += together.step(actions[:, t])
        for one, action in zip(slow, actions[:, t], strict=True):
            if not one.done:
                one.step(action)
        assert together.done.tolist() == [one.done for one in slow]
    assert rewards == pytest.approx([one.reward for one in slow])
    assert 0 < (rewards > 0).sum() < len(levels)
    for level, own, one in zip(levels, actions, slow, strict=True):
        alone = replay(level, own.tolist())
        assert (alone.success, len(alone.actions)) == (one.reward > 0, one.t)
        assert alone.reward == pytest.approx(one.reward)
        assert replay(level, list(alone.actions)) == alone


@pytest.mark.parametrize("action", [-1.0, -0.6, -0.4, 0.0, 0.3, 0.9, 1.0])
def test_any_number_is_the_nearest_of_the_three_actions(action: float) -> None:
    maze = Maze()
    start = maze.levels["labyrinth"][1]
    alone = maze.step(start, action, PHYSICS, SCALARS)
    rows = maze.step(tuple(np.array([one]) for one in start), np.array([action]), PHYSICS, np)
    assert [float(one[0]) for one in rows] == list(map(float, alone))
    assert alone[:3] == {-1: (0, 12, 2), 0: (0, 11, 3), 1: (0, 12, 0)}[round(action)]


def shortest(start: Sequence[float]) -> float:
    """Fewest steps to the goal, by breadth-first search over the slow rules."""
    first = Slow(start)
    waiting, seen = deque([(first.at, first.direction, 0)]), {(first.at, first.direction)}
    while waiting:
        at, direction, steps = waiting.popleft()
        if at == first.goal:
            return steps
        for action in (-1.0, 0.0, 1.0):
            one = Slow(start)
            one.at, one.direction = at, direction
            one.step(action)
            if (one.at, one.direction) not in seen:
                seen.add((one.at, one.direction))
                waiting.append((one.at, one.direction, steps + 1))
    return math.inf


def test_the_named_levels_have_shortest_paths_that_their_demonstrations_take(env: Control) -> None:
    named = env.held_out()[: len(Maze.levels)]
    assert [task.id.removeprefix("held-out-") for task in named] == [
        "sixteen-rooms", "sixteen-rooms-2", "labyrinth", "labyrinth-flipped", "labyrinth-2",
        "standard-maze", "standard-maze-2", "standard-maze-3",
    ]  # fmt: skip
    for task, (physics, start) in zip(named, Maze.levels.values(), strict=True):
        assert physics["distance"] == shortest(start) == env.steps(task) < 250
        assert physics["walls"] == len(walls_of(start))
        verdict = env.check(task, task.oracle)
        assert verdict.success
        assert verdict.reward == pytest.approx(1 - 0.9 * physics["distance"] / 250)


def free_parts(walls: set[tuple[int, int]]) -> tuple[int, int]:
    """Number of connected parts of the free cells, and of loops in them."""
    free = {(x, y) for x in range(SIZE) for y in range(SIZE)} - walls
    pairs = sum((x + dx, y + dy) in free for x, y in free for dx, dy in ((1, 0), (0, 1)))
    left, parts = set(free), 0
    while left:
        parts += 1
        waiting = [left.pop()]
        while waiting:
            x, y = waiting.pop()
            near = {(x + dx, y + dy) for dx, dy in AHEAD.values()} & left
            left -= near
            waiting += near
    return parts, pairs - len(free) + parts


def test_layouts_have_the_walls_that_are_set_and_one_part() -> None:
    for seed in range(5):
        for walls in (0, 17, 40, 60):
            assert len(walls_of((0,) * 5 + anywhere(walls, random.Random(seed)))) == walls
            assert len(walls_of((0,) * 5 + rooms(walls, random.Random(seed)))) == min(walls, 54)
            assert len(walls_of((0,) * 5 + corridors(walls, random.Random(seed)))) == walls
        assert free_parts(walls_of((0,) * 5 + corridors(72, random.Random(seed)))) == (1, 0)  # a perfect maze
        assert free_parts(walls_of((0,) * 5 + rooms(54, random.Random(seed))))[0] == 1


def built(env: Control, spec: Any) -> Task | Rejection:
    lineage = Lineage(origin=Origin.GENERATED, seed_id="seed-0000", context_id="c", generation_id="g")
    model = env.spec.model_validate(spec) if isinstance(spec, dict) else spec
    return env.build(model, task_id="t", lineage=lineage, rng=random.Random(0))


def start_with(rows: dict[int, int], agent: Sequence[int] = (0, 0, 0), goal: Sequence[int] = (4, 4)) -> Any:
    found = [*agent, *goal, *(rows.get(y, 0) for y in range(SIZE))]
    if sum(found) % 7 == 0:  # belongs to held-out tasks: another direction does not
        found[2] = (found[2] + 1) % 4
    return {**PHYSICS, "start": [float(one) for one in found]}


def test_a_goal_behind_walls_is_refused(env: Control) -> None:
    rejected = built(env, start_with({6: 2**SIZE - 1}, goal=(4, 9)))
    assert isinstance(rejected, Rejection)
    assert rejected.reason is RejectReason.ORACLE_FAILS
    assert rejected.explanation == "Nobody is known to solve it: no path of 250 steps leads to the goal."
    assert isinstance(built(env, start_with({6: 2**SIZE - 2}, goal=(4, 9))), Task)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (start_with({}, agent=(13, 0, 0)), "whole numbers from 0 to 12"),
        (start_with({}, agent=(-1, 0, 0)), "whole numbers from 0 to 12"),
        (start_with({}, agent=(0, 0, 5)), "A direction is 0 to 3"),
        (start_with({3: 2**SIZE}), "a row 0 to 8191"),
        (start_with({4: 2**4}), "in a wall"),
        (start_with({}, goal=(0, 0)), "begins at the goal"),
        ({**PHYSICS, "start": [0.0, 1.0]}, "has 2 numbers, not 18"),
        ({**PHYSICS, "start": [0.5, *start_with({})["start"][1:]]}, "whole numbers"),
    ],
)
def test_a_start_that_is_no_maze_is_refused(env: Control, spec: Any, sentence: str) -> None:
    rejected = built(env, spec)
    assert isinstance(rejected, Rejection)
    assert rejected.reason is RejectReason.SCHEMA
    assert sentence in rejected.explanation


def test_what_a_simulator_sets_is_what_the_maze_has(env: Control) -> None:
    options, (seed, *_) = env.parameter_options(env.seeds()[0])[0], env.seeds()
    assert {name: len(values) for name, values in options.items()} == {
        "distance": 8, "walls": 8, "layout": 3,
    }  # fmt: skip
    misses = list[float]()
    for number in range(30):
        rng = random.Random(number)
        places = {name: cast(int, rng.choice(values)) for name, values in options.items()}
        spec = cast(Any, env.drawn(env.parameters.model_validate(places), seed, rng)).model_dump()
        physics = {name: env.values[name][place - 1] for name, place in places.items()}
        assert {name: spec[name] for name in physics} == physics
        most = {ROOMS: 54, CORRIDORS: 72}.get(int(physics["layout"]), 168)
        assert len(walls_of(spec["start"])) == min(most, physics["walls"])
        if physics["distance"] <= 12:
            misses.append(abs(shortest(spec["start"]) - physics["distance"]))
        task = built(env, spec)
        if isinstance(task, Task):
            assert set(task.skills) == {f"{name}:{place}" for name, place in places.items()}
    assert sorted(misses)[len(misses) // 2] == 0


def test_domain_randomization_draws_0_to_60_walls_and_tells_what_it_drew(env: Control) -> None:
    rng, specs = random.Random(0), list[Any]()
    for _ in range(120):
        specs.append(env.variation(env.seeds()[0], rng))
    walls = [len(walls_of(one["start"])) for one in specs]
    assert [one["walls"] for one in specs] == walls
    assert min(walls) < 5
    assert max(walls) > 55
    assert {one["layout"] for one in specs} == {1}
    for one in specs[:20]:
        far = shortest(one["start"])
        assert one["distance"] == (0 if far == math.inf else far)


def test_an_edit_changes_a_few_walls_or_the_goal_and_is_measured_again(env: Control) -> None:
    rng, changes = random.Random(1), list[int]()
    before = env.variation(env.seeds()[0], rng)
    start = cast(list[float], before["start"])
    for _ in range(40):
        after: Any = env.edited(before, rng)
        changes.append(len(walls_of(after["start"]) ^ walls_of(start)))
        assert after["start"][:3] == start[:3]
        assert after["walls"] == len(walls_of(after["start"]))
        assert Maze().wrong_start(after["start"]) is None
        assert not isinstance(built(env, after), Rejection) or shortest(after["start"]) == math.inf
    assert max(changes) <= 5
    assert len(set(changes)) > 2


def test_tasks_with_equal_parameters_are_not_alike_and_equal_mazes_are(env: Control) -> None:
    one, other = built(env, start_with({2: 8})), built(env, start_with({2: 16}))
    assert isinstance(one, Task)
    assert isinstance(other, Task)
    assert not set(env.surface(one).split()) & set(env.surface(other).split())
    assert env.surface(one) == env.surface(cast(Task, built(env, start_with({2: 8}))))


def test_an_episode_is_drawn_with_walls_goal_and_agent(env: Control) -> None:
    task = env.held_out()[2]
    image = film_of(str(task.payload["level"]), task.oracle[0], frames=4)
    assert image.count("<g ") == 4
    assert "4 states of a trajectory of 108 steps. The goal is reached" in image
    assert film_of(str(task.payload["level"]).replace("[0, 12,", "[0, 99,"), "0 0 0") == ""


# --- the policy ---

CONFIG = PolicyConfig(backend="ppo", context_tokens=1024, ppo=PpoConfig(hidden=16))
RANDOM = Sampling(temperature=1.0, max_new_tokens=251, timeout_s=10, seed=0)


def opened(env: Any) -> tuple[ActionSampler, PpoTrainer]:
    role = Role(name="agent", optimizer=OptimizerConfig(), reference=False)
    found = open_backend(CONFIG, [role], env, seed=0)
    return cast(ActionSampler, found.samplers["agent"]), cast(PpoTrainer, found.trainers["agent"])


def test_the_network_chooses_among_three_actions_and_its_verdict_is_replayed(env: Control) -> None:
    sampler, trainer = opened(env)
    groups = asyncio.run(roll_out(env, sampler, env.held_out()[8:16], rollouts=4, sampling=RANDOM))
    traces = [trace for group in groups for trace in group.traces]
    chosen = {one for trace in traces for one in trace.token_ids[trace.prompt_tokens : -1]}
    assert chosen == {FIRST - 1000, FIRST, FIRST + 1000}
    assert 0 < sum(trace.success for trace in traces) < len(traces)
    for group in groups:
        for trace in group.traces:
            verdict = env.check(group.task, trace.replies)
            assert (verdict.success, verdict.reward) == (trace.success, trace.reward)
    data = ppo_credit(groups, {}, GrpoConfig(), temperature=1.0).data
    for datum, logprobs in zip(data, asyncio.run(trainer.logprobs(data)), strict=True):
        assert logprobs == pytest.approx(datum.old_logprobs, abs=1e-4)
    config = GrpoConfig(epochs=2, entropy_coefficient=0.01)
    batch = replace(ppo_credit(groups, {}, config, temperature=1.0), cap=1e-6, cap_retries=9)
    done = asyncio.run(learn(trainer, batch, player="agent", learning_rate=0.05, seed=0))
    assert done.region is not None
    assert 0 < done.region.moved <= 1e-6  # the KL of two categorical distributions


def test_choices_are_drawn_from_the_softmax_and_greedily_at_temperature_0() -> None:
    policy, rng = ChoicePolicy(3, PpoConfig(hidden=4), (-1.0, 0.0, 1.0)), np.random.default_rng(0)
    outputs = torch.tensor([[0.0, 1.0, 2.0]]).repeat(40_000, 1)
    noise = policy.noise(rng, 40_000)
    for temperature in (1.0, 0.5):
        drawn = policy.pick(outputs, noise, np.full(40_000, temperature))
        p = torch.softmax(torch.tensor([0.0, 1.0, 2.0]) / temperature, 0)
        assert [float((drawn == one).mean()) for one in (-1, 0, 1)] == pytest.approx(p.tolist(), abs=0.01)
        own = policy.of(outputs[:3], temperature).log_prob(torch.tensor([-1.0, 0.2, 1.0]))
        assert own.exp().tolist() == pytest.approx(p.tolist())
    assert set(policy.pick(outputs, noise, np.zeros(40_000)).tolist()) == {1.0}
    assert np.isnan(policy.pick(outputs * math.nan, noise, np.ones(40_000))).all()


# --- whole runs ---

SMALL = (
    "run.rounds=3", "run.eval_every=1", "run.eval_tasks=12", "simulator.contexts=6", "agent.rollouts=4",
    "environment.base_tasks=8", "environment.held_out_tasks=4", "agent.updates_per_epoch=2",
    "policy.ppo.hidden=8",
)  # fmt: skip


def train(out: Path, variant: str, *more: str) -> tuple[str, ...]:
    settings = [word for one in (*SMALL, *more) for word in ("--set", one)]
    return ("train", "maze", "--variant", variant, "--out", str(out), *settings)


@pytest.mark.long
@pytest.mark.parametrize("variant", ["table", "robust-accel+simulator.writes=spec"])
def test_a_killed_run_is_resumed_to_the_same_store(variant: str, tmp_path: Path) -> None:
    succeeds(*train(tmp_path / "whole", variant))
    stopped_in_round_two(*train(tmp_path / "run", variant))
    succeeds("train", "--resume", "--out", tmp_path / "run")
    with (
        PoolStore.open(tmp_path / "whole" / "pool.db", create=False) as whole,
        PoolStore.open(tmp_path / "run" / "pool.db", create=False) as run,
    ):
        assert whole.digest() == run.digest()
    out = tmp_path / "evaluation"
    succeeds("eval", "held-out", "--policy", tmp_path / "whole", "--out", out, "--split", "measured")
    assert "regraded: 0 of 12 scores" in succeeds("eval", "--regrade", out).stdout


@pytest.mark.long
def test_accel_replays_whole_levels_and_edits_them_wall_by_wall(tmp_path: Path) -> None:
    more = (
        "simulator.contexts=24",
        "environment.base_tasks=24",
        "run.eval_every=0",
        "simulator.search.replay_probability=1",
    )
    succeeds(*train(tmp_path / "run", "accel+simulator.writes=spec", *more))
    with PoolStore.open(tmp_path / "run" / "pool.db", create=False) as store:
        rounds = [[p.generation.text for b in store.batches(n) for p in b.proposals] for n in (1, 2, 3)]
    again = set(rounds[0]) & set(rounds[1])
    assert again
    edits = [json.loads(one) for one in rounds[1] if one not in again]
    assert len(edits) == 12
    starts = [json.loads(one)["start"] for one in again]
    assert all(min(len(walls_of(edit["start"]) ^ walls_of(one)) for one in starts) <= 5 for edit in edits)


def test_a_level_of_the_system_before_a_shift_is_not_edited(env: Control) -> None:
    slot = WholeSlot(cast(Environment, env), env.seeds()[0], random.Random(0))
    own, before = env.seeds()[1].spec, {"lift": 1.0, "start": [0.1, 0.2]}
    assert slot.kept(own) is own
    for level in (slot.kept(before), slot.changed(before)):
        assert env.spec.model_validate(level)


@pytest.mark.long
def test_edits_are_those_of_ones_own_environment_and_none_are_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from genenv.environments.control.environment import Control\nclass Mine(Control):\n    pass\n"
    (tmp_path / "own_mazes_of_a_test.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    more = ("simulator.search.replay_probability=1", "run.eval_every=0")
    own = "environment.name=own_mazes_of_a_test:"
    succeeds(*train(tmp_path / "run", "accel+simulator.writes=spec", *more, f"{own}Mine"))
    said = refused(
        *train(tmp_path / "no", "accel+simulator.writes=spec", *more, "environment.system=cartpole")
    )
    assert "edits no specs with these settings: set simulator.writes to 'parameters'" in said


@pytest.mark.slow
def test_a_run_learns_to_find_goals(tmp_path: Path) -> None:
    more = ("--set", "run.rounds=12", "--set", "run.eval_every=12", "--set", "simulator.writes=spec")
    succeeds("train", "maze", "--variant", "variation", "--out", tmp_path / "run", *more)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["agent/eval_success"] > 0.4


def test_maze_is_found_by_its_name() -> None:
    assert isinstance(find_system("maze"), Maze)
    assert written([-1, 0, 1]) == "-1 0 1"
