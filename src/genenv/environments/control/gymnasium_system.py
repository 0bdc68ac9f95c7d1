# pyright: basic
"""Gymnasium environments as systems of the environment `control`, and two tasks of MuJoCo.

A subclass of `GymnasiumSystem` names an environment and says how its physics are set, and how its state is
set if it is not one of MuJoCo. The environment gets the whole state before each step, and the new state is
rounded like that of every system. So the same actions lead to the same trajectory, in another order of levels
and in another process. Needs `gymnasium`, and for tasks of MuJoCo `mujoco`; an instance imports them.
"""

from __future__ import annotations

import math
import random
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from genenv.environments.control.systems import (
    SCALARS,
    Controller,
    Number,
    Parameter,
    Physics,
    State,
    System,
    even,
)
from genenv.errors import UsageError

LARGEST = 1e3
"""An episode fails where a number of the state is larger: the integration diverges."""


class GymnasiumSystem(System):
    """A system whose steps are those of an environment of Gymnasium with one action.

    A state is that of the environment, then the reward of the last step, and 1 if that step terminated the
    episode, otherwise 0. Actions in [-1, 1] are scaled to the environment's action space.

    Raises:
        UsageError: gymnasium or mujoco is missing, there is no such environment, its actions are not one
            bounded number, or its state cannot be set.
    """

    env_id: ClassVar[str]
    """The environment's name in `gymnasium.make`."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Further arguments of `gymnasium.make`."""
    rewards: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """The lowest and the highest reward of a step; `quality` maps them to 0 and 1."""

    def __init__(self) -> None:
        self._env, self._lock = opened(self.env_id, self.options), threading.Lock()
        space = self._env.action_space
        if getattr(space, "shape", None) != (1,) or not (hasattr(space, "low") and space.is_bounded()):
            raise UsageError(
                f"environment.system: {self.env_id} takes actions of {space}, but the environment control "
                "writes one bounded number per step"
            )
        if not hasattr(self._env, "model") and type(self).write is GymnasiumSystem.write:
            raise UsageError(
                f"environment.system: {self.env_id} is not simulated by MuJoCo, so {type(self).__name__} "
                "needs `read` and `write`, which read and set its state"
            )
        low, high = space.low, space.high
        self._middle, self._half = float(low[0] + high[0]) / 2, float(high[0] - low[0]) / 2
        self._physics: Mapping[str, float] | None = None

    @abstractmethod
    def set_physics(self, env: Any, physics: Mapping[str, float]) -> None:  # noqa: ANN401
        """Set the parameters on the environment, `gymnasium.make(...).unwrapped`.

        Set absolute values: they are not reset in between. Of MuJoCo's constants that depend on them
        (`mj_setConst`) this class takes care.
        """

    @abstractmethod
    def first(self, physics: Physics, rng: random.Random) -> Sequence[float]:
        """Draw the environment's state in which an episode starts."""

    def read(self, env: Any) -> Sequence[float]:  # noqa: ANN401
        """Return the environment's state; by default MuJoCo's positions and velocities."""
        return [*env.data.qpos.tolist(), *env.data.qvel.tolist()]

    def write(self, env: Any, state: Sequence[float]) -> None:  # noqa: ANN401
        """Set the environment's state; by default MuJoCo's, without what an earlier step left behind."""
        mujoco: Any = import_module("mujoco")
        mujoco.mj_resetData(env.model, env.data)  # the solver's warm start, too
        values = np.array(state)
        env.set_state(values[: env.model.nq], values[env.model.nq :])

    def start(self, physics: Physics, rng: random.Random) -> tuple[float, ...]:
        """See `System`."""
        return *self.first(physics, rng), 0.0, 0.0

    def step(self, state: State, action: Number, physics: Physics, xp: Any) -> State:  # noqa: ANN401
        """Take one step of the environment; with arrays, one of each trajectory after the other."""
        with self._lock:
            if not isinstance(state[0], np.ndarray):
                return self._stepped(state, action, physics)
            columns = np.broadcast_arrays(*state, action, *physics.values())
            rows = [
                self._stepped(
                    row[: len(state)], row[len(state)], dict(zip(physics, row[len(state) + 1 :], strict=True))
                )
                for row in zip(*(column.tolist() for column in columns), strict=True)
            ]
        return tuple(np.array(rows).T)

    def _stepped(self, state: Sequence[float], action: float, physics: Mapping[str, float]) -> State:
        if not all(abs(one) <= LARGEST for one in state[:-2]):
            return *(0.0 for _ in state[:-2]), self.rewards[0], 1.0
        env = self._env
        if physics != self._physics:
            self.set_physics(env, physics)
            if hasattr(env, "model"):
                mujoco: Any = import_module("mujoco")
                mujoco.mj_setConst(env.model, env.data)
            self._physics = dict(physics)
        self.write(env, state[:-2])
        _, reward, terminated, _, _ = env.step(
            np.array([self._middle + action * self._half], dtype=np.float32)
        )
        found = self.read(env)
        if not (all(abs(one) <= LARGEST for one in found) and math.isfinite(reward)):
            return *state[:-2], self.rewards[0], 1.0
        return *found, float(reward), float(terminated)

    def failed(self, state: State, physics: Physics) -> Number:
        """Return whether the environment terminated the episode."""
        return state[-1] > 0

    def quality(self, state: State, physics: Physics, xp: Any) -> Number:  # noqa: ANN401
        """Return the reward of the last step, with `rewards` mapped to [0, 1]."""
        low, high = self.rewards
        return xp.clip((state[-2] - low) / (high - low), 0.0, 1.0)

    def linear_controllers(
        self, physics: Physics, at: Sequence[float], costs: Sequence[float], action_cost: float
    ) -> Iterator[Controller]:
        """Yield the linear-quadratic regulator, linearized by finite differences, if there is one.

        Args:
            physics: the parameters.
            at: an equilibrium of the environment's state.
            costs: weights of the squared distances from it.
            action_cost: weight of the squared action.
        """
        from scipy.linalg import solve_discrete_are

        size, small = len(at), 1e-4

        def after(change: NDArray[np.float64], action: float) -> NDArray[np.float64]:
            return np.array(
                self.step((*(np.array(at) + change).tolist(), 0.0, 0.0), action, physics, SCALARS)[:size]
            )

        none, changes = np.zeros(size), np.eye(size) * small
        by_state = np.stack([after(one, 0.0) - after(-one, 0.0) for one in changes], 1) / (2 * small)
        by_action = (after(none, small) - after(none, -small))[:, None] / (2 * small)
        try:
            left = solve_discrete_are(by_state, by_action, np.diag(costs), np.array([[action_cost]]))
        except (np.linalg.LinAlgError, ValueError):  # no force stabilizes it
            return
        gain = by_action.T @ left @ by_state / (action_cost + by_action.T @ left @ by_action)
        row = gain[0].tolist()
        yield lambda state: -math.fsum(k * (s - m) for k, s, m in zip(row, state, at, strict=False))


class InvertedPendulum(GymnasiumSystem):
    """Balance a pole on a cart near the middle: Gymnasium's InvertedPendulum-v5, for 8 seconds."""

    name = "inverted_pendulum"
    job = "Balance the pole near the middle of the rail."
    env_id = "InvertedPendulum-v5"
    steps = 200
    costs: ClassVar[tuple[float, ...]] = (1, 10, 0.1, 0.1)
    """Weights of the squared numbers of the state, for the controllers."""
    parameters: ClassVar = {
        "hold": Parameter(tuple(range(30, 171, 20)), 1, 190, "steps in a row at the goal"),
        "width": Parameter(even(0.8, 0.1), 0.005, 1, "largest distance from the middle at the goal, m"),
        "tilt": Parameter(even(0.02, 0.16), 0.01, 0.19, "largest angle at the start, rad"),
        "force": Parameter(even(300, 40), 1, 3000, "largest force, N; the cart has 10.5 kg"),
        "length": Parameter(even(1.2, 0.15), 0.05, 5, "length of the pole, m"),
        "mass": Parameter(even(2, 16), 0.1, 100, "mass of the pole, kg"),
        "gravity": Parameter(even(6, 20), 0.1, 50, "m/s^2"),
        "friction": Parameter(even(0, 35), 0, 1000, "viscous friction of the rail, N s/m"),
    }
    levels: ClassVar = {
        "gymnasium": (
            {"hold": 110, "force": 300, "length": 0.6, "mass": 5.0186, "gravity": 9.81, "friction": 1},
            (0.007, -0.009, 0.003, 0.002, 0.0, 0.0),
        ),
    }

    def set_physics(self, env: Any, physics: Physics) -> None:  # noqa: ANN401
        """See `GymnasiumSystem`."""
        model, pole = env.model, 2
        model.body_mass[pole] = physics["mass"]
        model.body_ipos[pole, 2] = physics["length"] / 2
        model.body_inertia[pole, :2] = 0.10447 * physics["mass"] * physics["length"] ** 2
        model.actuator_gear[0, 0] = physics["force"] / 3
        model.opt.gravity[2] = -physics["gravity"]
        model.dof_damping[0] = physics["friction"]

    def first(self, physics: Physics, rng: random.Random) -> Sequence[float]:
        """Draw position, angle up to `tilt`, and speeds."""
        x, speed, spin = (rng.uniform(-0.05, 0.05) for _ in range(3))
        return x, rng.uniform(-physics["tilt"], physics["tilt"]), speed, spin

    def reached(self, state: State, physics: Physics, xp: Any) -> Number:  # noqa: ANN401
        """See `System`."""
        return (abs(state[0]) <= physics["width"]) & (state[-1] == 0)

    def observe(self, state: State, physics: Physics, xp: Any) -> Sequence[Number]:  # noqa: ANN401
        """See `System`."""
        return state[0], state[1] / 0.2, state[2] / 2, state[3] / 2

    def controllers(self, physics: Physics) -> Iterator[Controller]:
        """Yield linear controllers, of a weak and of a strong action."""
        upright = (0,) * len(self.costs)
        for action_cost in (1.0, 0.01):
            yield from self.linear_controllers(physics, upright, self.costs, action_cost)


class InvertedDoublePendulum(InvertedPendulum):
    """Balance two poles, one on top of the other: Gymnasium's InvertedDoublePendulum-v5, for 10 seconds."""

    name = "inverted_double_pendulum"
    job = "Balance the two poles, one on top of the other, near the middle of the rail."
    env_id = "InvertedDoublePendulum-v5"
    rewards = (0.0, 10.0)
    costs = (1, 10, 10, 0.1, 0.1, 0.1)
    parameters: ClassVar = {
        "hold": Parameter(tuple(range(30, 171, 20)), 1, 190, "steps in a row at the goal"),
        "width": Parameter(even(0.8, 0.1), 0.005, 1, "largest distance from the middle at the goal, m"),
        "tilt": Parameter(even(0.02, 0.16), 0.01, 0.5, "largest angle of each pole at the start, rad"),
        "force": Parameter(even(500, 80), 1, 5000, "largest force, N; the cart has 10.5 kg"),
        "mass": Parameter(even(2, 9), 0.1, 100, "mass of the upper pole, kg; the lower one has 4.2 kg"),
        "gravity": Parameter(even(6, 20), 0.1, 50, "m/s^2"),
        "friction": Parameter(even(0, 35), 0, 1000, "viscous friction of the rail, N s/m"),
    }
    levels: ClassVar = {
        "gymnasium": (
            {"hold": 110, "force": 500, "mass": 4.1987, "gravity": 9.81, "friction": 0.05},
            (0.007, -0.049, 0.042, 0.003, 0.002, 0.002, 0.0, 0.0),
        ),
    }

    def set_physics(self, env: Any, physics: Physics) -> None:  # noqa: ANN401
        """See `GymnasiumSystem`."""
        model, upper = env.model, 3
        model.body_mass[upper] = physics["mass"]
        model.body_inertia[upper, :2] = 0.036909 * physics["mass"]
        model.actuator_gear[0, 0] = physics["force"]
        model.opt.gravity[2] = -physics["gravity"]
        model.dof_damping[0] = physics["friction"]

    def first(self, physics: Physics, rng: random.Random) -> Sequence[float]:
        """Draw position, angles up to `tilt`, and speeds."""
        x, *speeds = (rng.uniform(-0.05, 0.05) for _ in range(4))
        angles = (rng.uniform(-physics["tilt"], physics["tilt"]) for _ in range(2))
        return x, *angles, *speeds

    def observe(self, state: State, physics: Physics, xp: Any) -> Sequence[Number]:  # noqa: ANN401
        """See `System`."""
        x, lower, upper, speed, spin, faster = state[:6]
        return x, lower / 0.3, upper / 0.3, speed / 2, spin / 4, faster / 4


def opened(env_id: str, options: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return an environment of Gymnasium without wrappers.

    Raises:
        UsageError: a package is missing, or there is no such environment.
    """
    try:
        gymnasium: Any = import_module("gymnasium")
    except ImportError as error:
        raise UsageError(
            f"environment.system: {env_id} needs the package gymnasium: pip install 'genenv[mujoco]'"
        ) from error
    try:
        env = gymnasium.make(env_id, **options).unwrapped
    except gymnasium.error.DependencyNotInstalled as error:
        raise UsageError(
            f"environment.system: {env_id} needs the package mujoco: pip install 'genenv[mujoco]'"
        ) from error
    except (gymnasium.error.Error, TypeError) as error:
        raise UsageError(f"environment.system: gymnasium cannot make {env_id}: {error}") from error
    env.reset(seed=0)
    if hasattr(env, "model"):
        mujoco: Any = import_module("mujoco")
        env.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET  # the initial state may be a goal
    return env
