"""Mechanical systems: physics as gymnasium's, tasks that a controller solves, trajectories that replay."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from pydantic import ValidationError

from genenv.environments import load_environment
from genenv.environments.common import at_random, schema_of
from genenv.environments.control.environment import Control, ControlConfig
from genenv.environments.control.simulation import (
    Level,
    Simulation,
    film_of,
    read_actions,
    replay,
    written,
)
from genenv.environments.control.systems import SCALARS, SYSTEMS, Parameter, Pendulum, find_system
from genenv.errors import UsageError
from genenv.gate.gate import base_tasks, examined
from genenv.types import JsonObject, Lineage, Origin, Profile, Rejection, RejectReason, Task

STEPS = 25_000
"""Random steps of each system; 10^5 of all four."""

Step = Callable[[Any, float], Any]


def pendulum(env: Any) -> tuple[Step, dict[str, float], list[float]]:
    env.g, env.l, env.m, env.max_torque = 9.8, 0.7, 1.3, 0.4 * 1.3 * 9.8 * 0.7 / 2

    def step(state: Any, action: float) -> Any:
        env.state = state.copy()
        env.step(np.array([action * env.max_torque]))
        return env.state

    return step, {"gravity": 9.8, "length": 0.7, "lift": 0.4, "friction": 0.0}, [4, 8]


def cartpole(env: Any) -> tuple[Step, dict[str, float], list[float]]:
    env.gravity, env.masspole, env.length, env.total_mass, env.polemass_length = 12.0, 0.4, 0.8, 1.4, 0.32

    def step(state: Any, action: float) -> Any:
        env.state, env.steps_beyond_terminated = state.copy(), 1
        env.force_mag = 7 * np.clip(action, -1, 1)
        env.step(1)
        return env.state

    return step, {"gravity": 12.0, "mass": 0.4, "length": 0.8, "force": 7.0}, [2, 2, 0.2, 2]


def mountain_car(env: Any) -> tuple[Step, dict[str, float], list[float]]:
    def step(state: Any, action: float) -> Any:
        env.state = state.copy()
        env.step(np.array([action]))
        return env.state

    return step, {"power": 0.0015, "gravity": 0.0025}, [0.6, 0.07]


def arm(env: Any) -> tuple[Step, dict[str, float], list[float]]:
    env.LINK_MASS_2 = 1.7

    def step(state: Any, action: float) -> Any:
        env.state, env.AVAIL_TORQUE = state.copy(), [2 * float(np.clip(action, -1, 1))]
        env.step(0)
        return env.state

    return step, {"torque": 2.0, "mass": 1.7, "gravity": 9.8}, [3, 3, 8, 8]


@pytest.mark.long
@pytest.mark.parametrize(
    ("theirs", "setup"),
    [
        ("Pendulum-v1", pendulum),
        ("CartPole-v1", cartpole),
        ("MountainCarContinuous-v0", mountain_car),
        ("Acrobot-v1", arm),
    ],
)
def test_a_step_is_that_of_gymnasium(theirs: str, setup: Callable[[Any], Any]) -> None:
    gym = pytest.importorskip("gymnasium", reason="needs gymnasium: pip install 'genenv[gymnasium]'")
    gym.logger.min_level = 100
    step, physics, width = setup(gym.make(theirs).unwrapped)
    rng, system = np.random.default_rng(0), find_system(setup.__name__)
    states = rng.uniform(-np.array(width), np.array(width), (STEPS, len(width)))
    actions = rng.uniform(-1.5, 1.5, STEPS)
    ours = system.step(tuple(states.T), np.clip(actions, -1, 1), physics, np)
    expected = np.array([step(state, action) for state, action in zip(states, actions, strict=True)])
    assert np.abs(np.stack(ours, 1) - expected).max() < 1e-6


@pytest.fixture(scope="module", params=SYSTEMS)
def env(request: pytest.FixtureRequest) -> Control:
    return cast(
        Control,
        load_environment("control", ControlConfig(system=request.param, base_tasks=4, held_out_tasks=16)),
    )


def built(env: Control, spec: Any) -> Task | Rejection:
    lineage = Lineage(origin=Origin.GENERATED, seed_id="seed-0000", context_id="c", generation_id="g")
    model = env.spec.model_validate(spec) if isinstance(spec, dict) else spec
    return env.build(model, task_id="t", lineage=lineage, rng=random.Random(0))


def test_what_the_simulator_sets_is_a_task_that_a_controller_solves(env: Control) -> None:
    rng, reasons = random.Random(0), []
    for _ in range(10):
        places = at_random(env.parameter_options(env.seeds()[0]), rng)
        task = built(env, env.drawn(env.parameters.model_validate(places), env.seeds()[0], random.Random(1)))
        if isinstance(task, Task):
            for name, place in cast(dict[str, int], places).items():
                assert task.spec[name] == env.values[name][place - 1]
                assert f"{name}:{place}" in task.skills
            assert env.check(task, task.oracle).success
            assert env.steps(task) == len(task.oracle[0].split()) <= env.system.steps
            reasons.append(examined(env, task, rng))
        else:
            assert task.reason is RejectReason.ORACLE_FAILS
    assert reasons.count(None) >= 4


@pytest.mark.long
def test_a_model_can_write_all_that_can_be_set(
    env: Control, written_under: Callable[[JsonObject, JsonObject], bool]
) -> None:
    seed, rng = env.seeds()[0], random.Random(0)
    options = env.parameter_options(seed)
    for place in range(8):
        chosen = {name: values[place % len(values)] for name, values in options[0].items()}
        assert written_under(schema_of(options), chosen)
        assert written_under(env.spec_schema(seed), env.variation(seed, rng))


def test_many_trajectories_at_once_are_each_of_them_alone(env: Control) -> None:
    rng = np.random.default_rng(2)
    levels = [Level.read(str(task.payload["level"])) for task in env.held_out()[:16]]
    actions = np.rint(rng.normal(0, 0.7, (16, env.system.steps)) * 1000) / 1000
    together, rewards, lengths = Simulation(env.system, levels), np.zeros(16), np.zeros(16, int)
    for t in range(env.system.steps):
        lengths += ~together.done
        rewards += together.step(actions[:, t])
    for i, level in enumerate(levels):
        alone = replay(level, actions[i].tolist())
        assert alone.reward == pytest.approx(rewards[i], abs=1e-6)
        assert len(alone.actions) == lengths[i]
        assert replay(level, cast(list[float], read_actions(written(alone.actions)))) == alone


def test_held_out_tasks_are_named_levels_and_starts_that_no_other_task_has(env: Control) -> None:
    named = len(env.system.levels)
    assert [task.id for task in env.held_out()[:named]] == [f"held-out-{name}" for name in env.system.levels]
    assert all(env.check(task, task.oracle).success for task in env.held_out())
    task = env.held_out()[named]
    refused = built(env, dict(task.spec))
    assert isinstance(refused, Rejection)
    assert refused.reason is RejectReason.HELD_OUT


def test_a_reward_is_in_0_to_1_and_success_earns_more_than_failure(env: Control) -> None:
    for task in env.held_out():
        good, bad = env.check(task, task.oracle), env.check(task, env.random_replies(task, random.Random(3)))
        assert 0 <= bad.reward <= 1
        assert 0 <= good.reward <= 1
        assert good.reward > bad.reward or bad.success


EASY = {"lift": 1.6, "tolerance": 0.8, "hold": 5, "gravity": 4, "length": 1.9, "friction": 0}


def test_a_pendulum_that_stands_upright_has_held_the_goal_after_as_many_steps() -> None:
    level = Level(system="pendulum", physics={**EASY, "hold": 4}, start=(0.0, 0.0))
    found = replay(level, [0.0] * 120)
    assert (found.success, len(found.actions)) == (True, 4)
    # qualities are 1; steps 1 to 3 earn 0.75 / 120 each, the last one the rest
    assert found.reward == pytest.approx(1.0)


def test_a_pendulum_that_hangs_still_stays_down() -> None:
    state = Pendulum().step((np.pi, 0.0), 0.0, EASY, SCALARS)
    assert state == pytest.approx((np.pi, 0.0))


@pytest.mark.parametrize("reply", ["", "swing it", "0.1 nan", "0.1 inf 0.2", "0.1 and 0.2", "1e999"])
def test_a_reply_that_is_no_list_of_numbers_is_not_readable(reply: str) -> None:
    env = Control(ControlConfig(base_tasks=1, held_out_tasks=1))
    verdict = env.check(env.held_out()[0], (reply,))
    assert not verdict.success
    assert not verdict.readable
    assert "finite numbers" in verdict.explanation


def test_a_pole_that_cannot_be_lifted_is_refused() -> None:
    env = Control(ControlConfig(base_tasks=1, held_out_tasks=1))
    rejected = built(env, {**EASY, "lift": 0.02, "friction": 5, "tolerance": 0.01, "start": (3, 0)})
    assert isinstance(rejected, Rejection)
    assert rejected.reason is RejectReason.ORACLE_FAILS


@pytest.mark.parametrize("wrong", [{"lift": -1}, {"lift": float("nan")}, {"mass": 1}, {"start": []}])
def test_physics_outside_their_range_are_no_spec(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Control().spec.model_validate({**EASY, "start": [1.0, 0.0], **wrong})


def test_a_start_of_another_size_is_refused() -> None:
    rejected = built(Control(ControlConfig(base_tasks=1, held_out_tasks=1)), {**EASY, "start": (1, 0, 0)})
    assert isinstance(rejected, Rejection)
    assert rejected.explanation == "The first state has 3 numbers, not 2."


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"system": "pendulun"}, "did you mean 'pendulum'"),
        ({"system": "os:path"}, "environment.system"),
        ({"system": "collections:Counter"}, "Counter lacks parameters, steps, job"),
        ({"values": {"mass": [1.0]}}, "pendulum has no parameter 'mass'; it has lift, tolerance"),
        ({"values": {"lift": [0.5, -2.0]}}, r"lift is \[0.5, -2.0\], but takes one number or more from 0.01"),
        ({"values": {"lift": []}}, "takes one number or more"),
    ],
)
def test_wrong_settings_are_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        ControlConfig.model_validate(settings)


def test_values_of_the_settings_are_those_of_all_tasks() -> None:
    env = Control(ControlConfig(values={"lift": [0.5, 0.7]}, base_tasks=20))
    assert {cast(float, seed.spec["lift"]) for seed in env.seeds()} == {0.5, 0.7}
    assert env.parameter_options(env.seeds()[0])[0]["lift"] == [1, 2]
    (asked,) = env.parameter_messages(env.seeds()[0], Profile(overall=0.25), 0.5)
    assert asked.content == (
        "It solves 25% now.\nSet lift 1-2, tolerance 1-8, hold 1-8, gravity 1-8, length 1-8, friction 1-8 "
        "(1 is easiest) to be solved 50%."
    )


class Slow(Pendulum):
    """A system of one's own: a pendulum that is stopped at a lower speed."""

    name = "slow"
    top_speed = 6.0
    parameters: ClassVar = {**Pendulum.parameters, "length": Parameter((1.0,), 0.5, 2, "m")}
    levels: ClassVar = {}


def test_a_system_of_ones_own_is_named_by_its_class() -> None:
    env = Control(ControlConfig(system=f"{__name__}:Slow", base_tasks=2, held_out_tasks=1))
    task = env.held_out()[0]
    assert json.loads(str(task.payload["level"]))["system"] == f"{__name__}:Slow"
    assert env.check(task, task.oracle).success


_OF_A_FILE = """
from genenv.environments.control.systems import Pendulum

class Swing(Pendulum):
    levels = {}
"""


def test_tasks_of_a_system_in_a_file_do_not_depend_on_where_the_file_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "swing.py").write_text(_OF_A_FILE)
    monkeypatch.chdir(tmp_path)
    found = []
    for folder in ("", f"{tmp_path}/"):
        env = Control(ControlConfig(system=f"{folder}swing.py:Swing", base_tasks=2, held_out_tasks=2))
        tasks = [*env.held_out(), *base_tasks(env, env.seeds(), seed=0).values()]
        assert all(env.check(task, task.oracle).success for task in tasks)
        found.append(tasks)
    assert found[0] == found[1]
    assert str(tmp_path) not in str(found)


@pytest.mark.parametrize("between", [", ", "\n", "; ", ","])
def test_actions_are_read_however_they_are_separated(env: Control, between: str) -> None:
    task = env.held_out()[0]
    actions = task.oracle[0].split()
    for text in (
        f"[{between.join(actions)}]",
        f"{between.join(actions)}{between}",
        f"\u00a0{between.join(actions)}",
    ):
        assert env.check(task, (text,)) == env.check(task, task.oracle)


def test_a_first_state_of_a_named_level_or_beyond_all_bounds_is_no_task(env: Control) -> None:
    lineage = Lineage(origin=Origin.GENERATED)
    maze = Control(ControlConfig(system="maze", base_tasks=1, held_out_tasks=1))
    for physics, start in maze.system.levels.values():
        spec = maze.spec.model_validate({**physics, "start": start})
        found = maze.build(spec, task_id="t", lineage=lineage, rng=random.Random(0))
        assert isinstance(found, Rejection)
        assert found.reason is RejectReason.HELD_OUT
    spec = env.spec.model_validate({**env.seeds()[0].spec, "start": (1e306, 0.0)})
    found = env.build(spec, task_id="t", lineage=lineage, rng=random.Random(0))
    assert isinstance(found, Rejection)
    assert found.reason is RejectReason.SCHEMA


class Levels(Pendulum):
    """Its first state is the level; its numbers are not whole."""

    start_is_level = True


def test_demonstrations_solve_levels_whose_numbers_are_not_whole() -> None:
    own = Control(ControlConfig(system=f"{__name__}:Levels", held_out_tasks=3))
    assert any(one % 1 for task in own.held_out() for one in cast("list[float]", task.spec["start"]))
    assert all(own.check(task, task.oracle).success for task in own.held_out())


@pytest.mark.long
def test_the_environment_loads_neither_gymnasium_nor_torch() -> None:
    code = (
        "import sys; import genenv; from genenv.environments import load_environment; "
        "load_environment('control').seeds(); print({'torch', 'gymnasium'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_trajectory_is_drawn_as_a_film_strip(env: Control) -> None:
    task = env.held_out()[0]
    image = film_of(str(task.payload["level"]), task.oracle[0], frames=5)
    assert image.count("<g ") == 5
    assert f"5 states of a trajectory of {len(task.oracle[0].split())} steps. The goal is reached" in image
    points = [float(one) for one in re.findall(r"-?\d+\.\d", image)]
    assert all(-40 <= one <= 400 for one in points)


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("no level", "0.1 0.2"),
        ('{"system": "pendulum", "start": [1.0, 0.0]}', "0.1 0.2"),
        ('{"system": "pendulum", "lift": 1, "gravity": 9, "length": 0, "start": [1.0, 0.0]}', "0.1"),
        ('{"system": "unknown", "start": [1.0, 0.0]}', "0.1"),
        ('{"system": "os:system", "start": [1.0, 0.0]}', "0.1"),
        ("{level}", "swing it up"),
    ],
)
def test_nothing_is_drawn_of_what_cannot_be_read_or_is_not_ours(line: str, reply: str) -> None:
    few = ControlConfig(base_tasks=4, held_out_tasks=3)
    task = load_environment("control", few).held_out()[0]
    assert film_of(line.replace("{level}", str(task.payload["level"])), reply) == ""


class Crane(Pendulum):
    """A system with mistakes: each test makes one."""


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"step": lambda self, state, *rest: state[:1]},
            "cannot be used: ValueError: `start` returns 2 numbers and `step` 1",
        ),
        (
            {"step": lambda self, state, action, physics, xp: physics["motor"]},
            "raised KeyError: 'motor' (test_",
        ),
        ({"quality": lambda self, *rest: float("nan")}, "numbers that are not finite"),
        ({"observe": lambda self, state, physics, xp: [[1.0], [2.0]]}, "TypeError"),
    ],
)
def test_a_system_of_ones_own_with_a_mistake_is_one_sentence(
    changes: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, function in changes.items():
        monkeypatch.setattr(Crane, name, function)
    find_system.cache_clear()
    with pytest.raises(
        ValidationError, match=rf"environment\.system is '{__name__}:Crane', which "
    ) as caught:
        ControlConfig(system=f"{__name__}:Crane")
    assert sentence in str(caught.value)
    find_system.cache_clear()


@pytest.mark.parametrize("choices", [(1.0,), (-3.0, 3.0), (0.0001, 0.0002)])
def test_actions_to_choose_from_are_checked(
    choices: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_OwnPendulum, "choices", choices)
    with pytest.raises(UsageError, match="`choices` are two numbers or more from -1 to 1"):
        find_system(f"{__name__}:_OwnPendulum")


class _OwnPendulum(Pendulum):
    """A system of one's own."""


class Diverging(Pendulum):
    """Each test sets how its numbers grow."""

    grow: ClassVar[Callable[[Any, Any], Any]]
    worth: ClassVar[float]

    def step(self, state: Any, action: Any, physics: Any, xp: Any) -> Any:
        theta, omega = super().step(state, action, physics, xp)
        return theta, type(self).grow(theta, omega)

    def controllers(self, physics: Any) -> Iterator[Any]:
        yield lambda state: float("nan")

    def quality(self, state: Any, physics: Any, xp: Any) -> Any:
        return super().quality(state, physics, xp) * type(self).worth


@pytest.mark.parametrize(
    ("grow", "worth"),
    [
        (lambda theta, omega: omega * 1e200 * 1e200, 1.0),  # infinite
        (lambda theta, omega: (omega * 1e200) ** 2, 1.0),  # OverflowError of floats
        (lambda theta, omega: omega + theta * float("inf") * 0, 1.0),
        (lambda theta, omega: omega, float("nan")),
    ],
    ids=["inf", "overflow", "nan", "quality"],
)
def test_a_trajectory_that_diverges_fails_alone_and_among_others(
    grow: Any, worth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Diverging, "grow", staticmethod(grow), raising=False)
    monkeypatch.setattr(Diverging, "worth", worth, raising=False)
    system = Diverging()
    monkeypatch.setitem(cast(Any, SYSTEMS), "diverging", Diverging)
    level = Level(system="diverging", physics={**EASY, "hold": 1}, start=(0.1, 0.5))
    alone, together = replay(level, [0.5] * 9), Simulation(system, [level])
    assert (alone.success, alone.why, alone.reward) == (False, "It fails after 1 steps.", 0)
    assert together.step(np.array([0.5])) == [0]
    assert together.done.all()
    assert np.isfinite(together.observe()).all()
    monkeypatch.setattr(Diverging, "grow", staticmethod(lambda theta, omega: omega))
    monkeypatch.setattr(Diverging, "worth", 1.0)
    find_system.cache_clear()
    by_controller = replay(level, next(system.controllers(EASY)))  # returns NaN
    assert set(by_controller.actions) == {0.0}
    find_system.cache_clear()


@pytest.mark.parametrize("start", [(0.0, 0.0), (0.001, 0.0)])
def test_first_states_of_one_split_alone_are_one_sentence(
    start: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = Control(ControlConfig(base_tasks=1, held_out_tasks=1))
    env.system = cast(Any, type("Same", (Pendulum,), {"start": lambda self, physics, rng: start})())
    with pytest.raises(UsageError, match="whose `start` returned only first states of one split"):
        _ = env.seeds(), env.held_out()
    monkeypatch.setattr(_OwnPendulum, "start", lambda self, physics, rng: start)
    find_system.cache_clear()
    with pytest.raises(UsageError, match="`start` always returns the same state"):
        find_system(f"{__name__}:_OwnPendulum")


def test_controllers_that_solve_nothing_are_named() -> None:
    class Idle(Pendulum):
        def controllers(self, physics: Any) -> Iterator[Any]:
            yield lambda state: 0.0

    env = Control(ControlConfig(base_tasks=2))
    env.system = Idle()
    with pytest.raises(UsageError, match=r"none of the system's controllers solves \d+.*write better"):
        env.seeds()
