"""Environments of Gymnasium as systems: the same physics, trajectories that replay, refusals."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from pydantic import ValidationError

from genenv.environments.control.environment import Control, ControlConfig
from genenv.environments.control.simulation import Level, Simulation, replay, to_unit, written
from genenv.environments.control.systems import SCALARS, Parameter, find_system
from genenv.gate.gate import examined
from genenv.types import Lineage, Origin, Task
from typed import succeeds

gymnasium = pytest.importorskip("gymnasium", reason="needs gymnasium: pip install 'genenv[mujoco]'")
gymnasium.logger.min_level = 100

from genenv.environments.control.gymnasium_system import GymnasiumSystem  # noqa: E402

MUJOCO = ("inverted_pendulum", "inverted_double_pendulum")
LEVELS = {  # the first numbers are the environment's own
    "inverted_pendulum": {"force": 300, "length": 0.6, "mass": 5.01859, "gravity": 9.81, "friction": 1},
    "inverted_double_pendulum": {"force": 500, "mass": 4.19874, "gravity": 9.81, "friction": 0.05},
}


class Swing(GymnasiumSystem):
    """A system of one's own: Gymnasium's pendulum."""

    name = "swing"
    job = "Swing the pendulum up."
    env_id = "Pendulum-v1"
    rewards = (-16.2736044, 0.0)
    steps = 60
    parameters: ClassVar = {"gravity": Parameter((5.0, 10.0), 1, 50, "m/s^2")}

    def set_physics(self, env: Any, physics: Any) -> None:
        env.g = physics["gravity"]

    def read(self, env: Any) -> Any:
        return env.state.tolist()

    def write(self, env: Any, state: Any) -> None:
        env.state = np.array(state)

    def first(self, physics: Any, rng: random.Random) -> Any:
        return rng.uniform(-3, 3), rng.uniform(-1, 1)

    def reached(self, state: Any, physics: Any, xp: Any) -> Any:
        return xp.cos(state[0]) > 0.9

    def observe(self, state: Any, physics: Any, xp: Any) -> Any:
        return xp.cos(state[0]), xp.sin(state[0]), state[1] / 8


class Discrete(Swing):
    """Has two actions."""

    env_id = "CartPole-v1"


class Unset(GymnasiumSystem):
    """Does not say how a state is set."""

    env_id, steps, job, parameters = Swing.env_id, 5, "", Swing.parameters
    set_physics, first, reached, observe = Swing.set_physics, Swing.first, Swing.reached, Swing.observe


class Unfinished(GymnasiumSystem):
    """Lacks methods."""

    env_id, steps, job, parameters = Swing.env_id, 5, "", Swing.parameters


class Nowhere(Swing):
    """Names no environment."""

    env_id = "Pendulum-v99"


@pytest.fixture(scope="module", params=MUJOCO)
def env(request: pytest.FixtureRequest) -> Control:
    pytest.importorskip("mujoco", reason="needs mujoco: pip install 'genenv[mujoco]'")
    return Control(ControlConfig(system=request.param, base_tasks=2, held_out_tasks=3))


def start_of(env: Control, *state: float) -> tuple[float, ...]:
    size = len(
        env.system.start(
            {name: one.values[0] for name, one in env.system.parameters.items()}, random.Random(0)
        )
    )
    return (*state, *(0.0,) * (size - len(state)))


def test_a_task_is_one_that_a_controller_solves_and_the_gate_accepts(env: Control) -> None:
    assert len(env.held_out()) == 4
    for task in env.held_out():
        assert env.check(task, task.oracle).success
        assert not env.check(task, env.random_replies(task, random.Random(1))).success
    seed, rng = env.seeds()[0], random.Random(0)
    spec = env.spec.model_validate(env.variation(seed, rng))
    lineage = Lineage(origin=Origin.GENERATED, seed_id=seed.id, context_id="c", generation_id="g")
    task = env.build(spec, task_id="t", lineage=lineage, rng=rng)
    assert isinstance(task, Task)
    assert examined(env, task, rng) is None


def test_steps_are_those_of_gymnasium(env: Control) -> None:
    """The plain environment keeps the solver's warm start and is not rounded; so the two differ a little."""
    plain = gymnasium.make(cast(Any, env.system).env_id).unwrapped
    plain.reset(seed=0)
    first = np.full(plain.model.nq, 0.01)
    plain.set_state(first, np.zeros(plain.model.nv))
    easiest = {name: one.values[0] for name, one in env.system.parameters.items()}
    physics = {**easiest, **LEVELS[env.settings.system]}
    state: Any = (*first.tolist(), *(0.0,) * (plain.model.nv + 2))
    high, rng = float(plain.action_space.high[0]), np.random.default_rng(0)
    for _ in range(15):
        action = float(rng.uniform(-0.1, 0.1))
        _, reward, terminated, _, _ = plain.step(np.array([action * high], dtype=np.float32))
        state = env.system.step(state, action, physics, SCALARS)
        assert state[:-2] == pytest.approx([*plain.data.qpos, *plain.data.qvel], abs=2e-4)
        assert state[-2] == pytest.approx(reward, abs=2e-3)
        assert state[-1] == terminated


def test_many_at_once_are_each_of_them_alone_in_any_order(env: Control) -> None:
    rng = np.random.default_rng(2)
    levels = [Level.read(str(task.payload["level"])) for task in env.held_out()]
    actions = [[float(one) for one in task.oracle[0].split()] for task in env.held_out()]
    noisy = [[to_unit(one + rng.normal(0, 0.05)) / 1000 for one in row] for row in actions]
    longest = max(map(len, noisy))
    padded = np.array([row + [0.0] * (longest - len(row)) for row in noisy])
    together, rewards = Simulation(env.system, levels), np.zeros(len(levels))
    for t in range(longest):
        rewards += together.step(padded[:, t])
    for i in reversed(range(len(levels))):
        alone = replay(levels[i], padded[i].tolist())
        assert alone.reward == pytest.approx(rewards[i], abs=1e-9)
        assert replay(levels[i], alone.actions) == alone


REPLAYS = """
import json, sys
from genenv.environments.control.simulation import Level, replay
for text, actions in json.load(sys.stdin):
    found = replay(Level.read(text), [float(one) for one in actions.split()])
    print(repr(found.reward), found.why)
"""


@pytest.mark.long
def test_another_process_finds_the_same_trajectories(env: Control) -> None:
    pairs = [(str(task.payload["level"]), task.oracle[0]) for task in env.held_out()]
    pairs += [(text, written([0.1] * 50)) for text, _ in pairs]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", REPLAYS],
        input=json.dumps(list(reversed(pairs))),
        capture_output=True,
        text=True,
        check=True,
    )
    mine = [replay(Level.read(text), [float(one) for one in actions.split()]) for text, actions in pairs]
    assert done.stdout.splitlines() == [f"{one.reward!r} {one.why}" for one in reversed(mine)]


@pytest.mark.parametrize("wild", [900.0, 1e5, 1e300])
def test_a_state_that_diverges_fails(
    env: Control, wild: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log there
    level = Level.read(str(env.held_out()[0].payload["level"]))
    found = replay(
        Level(system=level.system, physics=level.physics, start=start_of(env, wild, wild)), [0.0] * 200
    )
    assert not found.success
    assert found.why == "It fails after 1 steps."


def test_a_class_of_ones_own_earns_the_rewards_of_its_environment() -> None:
    env = Control(ControlConfig(system=f"{__name__}:Swing", base_tasks=2, held_out_tasks=2))
    task = env.held_out()[0]
    assert task.oracle == ()  # it has no controller
    state = env.system.step((np.pi, 0.0, 0.0, 0.0), 0.0, {"gravity": 10.0}, SCALARS)
    assert state[2] == pytest.approx(-(np.pi**2))  # gymnasium's cost of hanging
    assert env.system.quality(state, {}, np) == pytest.approx(1 - np.pi**2 / 16.2736044)
    assert find_system(f"{__name__}:Swing") is env.system


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Nowhere", "gymnasium cannot make Pendulum-v99"),
        ("Discrete", "CartPole-v1 takes actions of Discrete"),
        ("Unset", "Pendulum-v1 is not simulated by MuJoCo, so Unset needs `read` and `write`"),
        ("Unfinished", "Unfinished', which cannot be used: .*abstract"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        ControlConfig(system=f"{__name__}:{name}")


@pytest.mark.parametrize("missing", ["gymnasium", "mujoco"])
def test_a_missing_package_is_one_sentence(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in sys.modules if name.split(".")[0] in {missing} or "gymnasium.envs.mujoco" in name
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    find_system.cache_clear()
    with pytest.raises(
        ValidationError, match=rf"needs the package {missing}: pip install 'genenv\[mujoco\]'"
    ):
        ControlConfig(system="inverted_pendulum")


@pytest.mark.long
def test_the_systems_without_gymnasium_do_not_import_it() -> None:
    code = (
        "import sys; from genenv.environments.control.environment import Control; Control().held_out(); "
        "import genenv; print({'gymnasium', 'mujoco', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


RUN = """
[environment]
name = "control"
system = "inverted_pendulum"
base_tasks = 2
held_out_tasks = 1
[simulator]
source = "table"
writes = "parameters"
contexts = 2
variations = 1
[agent]
algorithm = "ppo"
rollouts = 2
max_new_tokens = 201
[policy]
backend = "ppo"
context_tokens = 1024
"""


@pytest.mark.long
def test_a_run_on_a_task_of_mujoco_ends(tmp_path: Path) -> None:
    pytest.importorskip("mujoco", reason="needs mujoco: pip install 'genenv[mujoco]'")
    config = tmp_path / "mujoco.toml"
    config.write_text(RUN, encoding="utf-8")
    said = succeeds(
        "train", config, "--set", "run.rounds=1", "--set", "run.eval_tasks=2", "--out", tmp_path / "run"
    )
    assert "held-out" in said.stdout
