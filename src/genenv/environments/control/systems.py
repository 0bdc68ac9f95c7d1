"""Mechanical systems: physics, goal and controller of the pendulum, cart-pole, mountain car and two-link arm.

The equations are those of gymnasium's classic control, with continuous actions and settable physics. The code
of a system runs for floats (one trajectory) and for arrays (many at once); `xp` is the module of the
functions: `SCALARS` or numpy. To add a system, write a subclass of `System`; `environment.system` may then
name it, as `module:Class`.

Shapes: N = trajectories.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

from genenv.errors import GenenvError, UsageError, unknown_name
from genenv.plugins import load, own_part
from genenv.settings import is_own

Number: TypeAlias = Any
"""A float, or [N] an array of float64."""
State: TypeAlias = tuple[Number, ...]
Physics: TypeAlias = Mapping[str, Number]
"""The values of all parameters, by name."""
Controller: TypeAlias = Callable[[State], float]
"""Maps the state of one trajectory to an action; it is clipped to [-1, 1]."""


def _clip(x: float, low: float, high: float) -> float:
    return low if x < low else high if x > high else x


def _where(condition: bool, yes: float, no: float) -> float:
    return yes if condition else no


SCALARS: Any = SimpleNamespace(
    sin=math.sin, cos=math.cos, clip=_clip, rint=round, where=_where, isfinite=math.isfinite
)
"""The functions of numpy that systems use, for floats: a step of one trajectory takes microseconds."""


class Parameter(NamedTuple):
    """A parameter of a task: physics or goal."""

    values: tuple[float, ...]
    """The values that a simulator may set by default, easiest first."""
    low: float
    high: float
    """The range of values with which the equations work."""
    about: str
    """What it is, with its unit, for prompts and documentation."""


Line: TypeAlias = Sequence[tuple[float, float]]
"""Points (x, y) of a line in a picture from -1 to 1; y points up. One point is a dot."""


class System(ABC):
    """One mechanical system. A task gives its parameters and the state in which it starts."""

    name: ClassVar[str]
    job: ClassVar[str]
    """What the agent is to do, in one sentence."""
    steps: ClassVar[int]
    """The most actions of an episode."""
    parameters: ClassVar[Mapping[str, Parameter]]
    """Parameters by name, the most important for the difficulty first."""
    levels: ClassVar[Mapping[str, tuple[Mapping[str, float], tuple[float, ...]]]] = {}
    """Held-out tasks with a name: parameters that differ from the easiest values, and the first state."""
    choices: ClassVar[Sequence[float]] = ()
    """The actions, if there are only a few: the policy network then chooses one of them."""
    reply: ClassVar[str] = (
        "the torque or force as a share of the largest, from -1 to 1. Numbers beyond count as -1 or 1."
    )
    """What the numbers of a reply mean, for the prompt."""
    dense: ClassVar[float] = 0.75
    """Weight of the mean quality in the reward; success has the rest."""
    start_is_level: ClassVar[bool] = False
    """Whether the first state is the whole level, and the parameters only say how it was drawn. The policy
    network then does not see them, and tasks with equal parameters are not alike."""
    whole: ClassVar[bool] = False
    """Whether all numbers of a state are whole, so that they need no rounding and no decimals."""
    random_tries: ClassVar[int] = 4
    """A task that one of so many random trajectories solves is not among base and held-out tasks."""
    unsolved: ClassVar[str] = "none of the system's controllers does."
    """The end of the sentence of a rejection: "Nobody is known to solve it: ..."."""

    @abstractmethod
    def start(self, physics: Physics, rng: random.Random) -> tuple[float, ...]:
        """Draw the state in which an episode starts."""

    @abstractmethod
    def step(self, state: State, action: Number, physics: Physics, xp: Any) -> State:  # noqa: ANN401
        """Return the state after one time step with an action in [-1, 1], a share of the largest one."""

    @abstractmethod
    def reached(self, state: State, physics: Physics, xp: Any) -> Number:  # noqa: ANN401
        """Return whether a state fulfills the goal. It must do so for `hold` steps in a row."""

    @abstractmethod
    def quality(self, state: State, physics: Physics, xp: Any) -> Number:  # noqa: ANN401
        """Return how good a state is, in [0, 1]: the dense part of the reward."""

    @abstractmethod
    def observe(self, state: State, physics: Physics, xp: Any) -> Sequence[Number]:  # noqa: ANN401
        """Return the numbers that a policy network sees of a state, each of a size near 1."""

    def failed(self, state: State, physics: Physics) -> Number:
        """Return whether an episode ends without success in a state."""
        return state[0] != state[0]

    def drawn(self, state: State, physics: Physics) -> Sequence[Line]:
        """Return a picture of a state, for the film strips of the viewer; none by default."""
        return ()

    def controllers(self, physics: Physics) -> Iterator[Controller]:
        """Yield controllers; the gate accepts a task that one of them solves."""
        yield from ()

    def impossible(self, physics: Physics) -> str | None:
        """Return why no controller can solve a task; None if this is not known. For systems without one."""
        return None

    def wrong_start(self, start: Sequence[float]) -> str | None:
        """Return why a first state of the right size cannot be one, as a sentence; None if it can."""
        return None

    def randomized(
        self, values: Mapping[str, Sequence[float]], rng: random.Random, near: Physics | None = None
    ) -> Physics:
        """Draw parameters uniformly from their values; near others, about half of them."""
        return {
            name: rng.choice(own) if near is None or rng.random() < 0.5 else near[name]
            for name, own in values.items()
        }

    def measured(self, physics: Physics, start: Sequence[float]) -> Physics:
        """Return the parameters of a task whose first state was drawn; by default those that were set."""
        return physics

    def edited(
        self, physics: Physics, start: Sequence[float], rng: random.Random
    ) -> tuple[Physics, Sequence[float]]:
        """Return parameters and first state after a small change of the level, as ACCEL makes it.

        A system that defines this has `edits`; by default the levels of a system are their parameters.
        """
        raise NotImplementedError

    def random_action(self, rng: random.Random) -> float:
        """Draw an action uniformly, in thousandths."""
        return rng.choice(self.choices) if self.choices else round(rng.uniform(-1, 1), 3)


def even(low: float, high: float) -> tuple[float, ...]:
    """Return eight evenly spaced values with three significant digits; descending if `low` is greater."""
    return tuple(float(f"{low + (high - low) * i / 7:.3g}") for i in range(8))


class Pendulum(System):
    """Swing a pendulum up and hold it: gymnasium's Pendulum, with friction (0 there).

    omega' = 3 g / (2 l) sin(theta) + 3 u / (m l^2) - b omega, theta = 0 upright, |omega| <= 8. The largest
    torque is `lift` m g l / 2: below 1 it does not lift the pole, which has to swing. The mass then cancels.
    """

    name = "pendulum"
    job = "Swing the pendulum up and hold it upright."
    steps = 120
    dt = 0.05
    top_speed = 8.0
    parameters: ClassVar = {
        "lift": Parameter(even(1.6, 0.2), 0.01, 10, "largest torque, share of what lifts the pole"),
        "tolerance": Parameter(even(0.8, 0.1), 0.001, 3, "largest angle from upright at the goal, rad"),
        "hold": Parameter(tuple(range(5, 41, 5)), 1, 110, "steps in a row at the goal"),
        "gravity": Parameter(even(4, 18), 0.1, 50, "m/s^2"),
        "length": Parameter(even(1.9, 0.5), 0.1, 10, "length of the pole, m"),
        "friction": Parameter(even(0, 0.35), 0, 10, "1/s"),
    }
    levels: ClassVar = {
        "earth": ({"lift": 0.5, "gravity": 9.8, "length": 1, "tolerance": 0.2, "hold": 20}, (3.003, 0.0)),
        "mars": ({"lift": 0.5, "gravity": 3.7, "length": 1, "tolerance": 0.2, "hold": 20}, (3.003, 0.0)),
        "weak-motor": (
            {"lift": 0.25, "gravity": 9.8, "length": 1, "tolerance": 0.2, "hold": 20},
            (3.003, 0.0),
        ),
        "long-hold": ({"lift": 0.5, "gravity": 9.8, "length": 1, "tolerance": 0.2, "hold": 40}, (3.003, 0.0)),
        "narrow": ({"lift": 0.5, "gravity": 9.8, "length": 1, "tolerance": 0.05, "hold": 20}, (3.003, 0.0)),
    }

    def start(self, physics: Physics, rng: random.Random) -> tuple[float, ...]:
        """Draw angle and speed as gymnasium does."""
        return rng.uniform(-math.pi, math.pi), rng.uniform(-1, 1)

    def step(self, state: State, action: Number, physics: Physics, xp: Any) -> State:  # noqa: ANN401
        """See `System`."""
        theta, omega = state
        pull = 1.5 * physics["gravity"] / physics["length"]
        push = pull * (xp.sin(theta) + physics["lift"] * action)
        omega = omega + (push - physics["friction"] * omega) * self.dt
        omega = xp.clip(omega, -self.top_speed, self.top_speed)
        return theta + omega * self.dt, omega

    def reached(self, state: State, physics: Physics, xp: Any) -> Number:  # noqa: ANN401
        """See `System`."""
        return abs(_wrapped(state[0])) <= physics["tolerance"]

    def quality(self, state: State, physics: Physics, xp: Any) -> Number:  # noqa: ANN401
        """Return 1 - cost / (largest cost): gymnasium's reward without the cost of the torque."""
        most = math.pi**2 + 0.1 * self.top_speed**2
        return 1 - (_wrapped(state[0]) ** 2 + 0.1 * state[1] ** 2) / most

    def observe(self, state: State, physics: Physics, xp: Any) -> Sequence[Number]:  # noqa: ANN401
        """See `System`."""
        return xp.cos(state[0]), xp.sin(state[0]), state[1] / self.top_speed

    def drawn(self, state: State, physics: Physics) -> Sequence[Line]:
        """Return the pole and the bounds of the goal."""
        bounds = [_ray(0, 0, sign * physics["tolerance"], 1) for sign in (-1, 1)]
        return [_ray(0, 0, state[0], 0.8), [(0, 0)], *[[(x * 0.9, y * 0.9), (x, y)] for _, (x, y) in bounds]]

    def controllers(self, physics: Physics) -> Iterator[Controller]:
        """Yield energy pumping with a linear controller near the top, at three gains of the latter."""
        pull = 1.5 * physics["gravity"] / physics["length"]
        torque = pull * physics["lift"]
        for stiffness in (4.0, 12.0, 30.0):

            def act(state: State, stiffness: float = stiffness) -> float:
                theta, omega = _wrapped(state[0]), state[1]
                wanted = -pull * math.sin(theta) - stiffness * theta - 2 * math.sqrt(stiffness) * omega
                if abs(wanted) <= torque and abs(theta) < 1:
                    return wanted / torque
                missing = pull * (1 - math.cos(theta)) - omega**2 / 2
                return math.copysign(1.0, (omega or 1.0) * missing)

            yield act


class CartPole(System):
    """Balance a pole on a cart near the middle: gymnasium's CartPole with a continuous force."""

    name = "cartpole"
    job = "Balance the pole near the middle of the track."
    steps = 200
    tau = 0.02
    parameters: ClassVar = {
        "hold": Parameter(tuple(range(30, 171, 20)), 1, 190, "steps in a row at the goal"),
        "width": Parameter(even(1.2, 0.15), 0.01, 2.4, "largest distance from the middle at the goal, m"),
        "tilt": Parameter(even(0.02, 0.16), 0.01, 0.2, "largest angle at the start, rad"),
        "force": Parameter(even(16, 2), 0.1, 100, "largest force, N"),
        "length": Parameter(even(1.2, 0.15), 0.05, 5, "half of the pole's length, m"),
        "mass": Parameter(even(0.1, 1.5), 0.01, 10, "mass of the pole, kg; the cart has 1 kg"),
        "gravity": Parameter(even(6, 20), 0.1, 50, "m/s^2"),
    }
    levels: ClassVar = {
        "earth": ({"hold": 110, "force": 10, "length": 0.5, "gravity": 9.8}, (0.0, 0.0, 0.049, 0.0)),
        "short-pole": ({"hold": 110, "force": 10, "length": 0.2, "gravity": 9.8}, (0.0, 0.0, 0.049, 0.0)),
        "weak-motor": ({"hold": 110, "force": 3, "length": 0.5, "gravity": 9.8}, (0.0, 0.0, 0.049, 0.0)),
        "far-out": ({"hold": 70, "length": 0.5, "gravity": 9.8, "width": 0.3}, (1.001, 0.0, 0.0, 0.0)),
    }

    def start(self, physics: Physics, rng: random.Random) -> tuple[float, ...]:
        """Draw the angle up to `tilt`, and the rest as gymnasium does."""
        x, speed, spin = (rng.uniform(-0.05, 0.05) for _ in range(3))
        return x, speed, rng.uniform(-physics["tilt"], physics["tilt"]), spin

    def step(self, state: State, action: Number, physics: Physics, xp: Any) -> State:  # noqa: ANN401
        """See `System`."""
        x, speed, theta, spin = state
        mass, length, total = physics["mass"], physics["length"], physics["mass"] + 1.0
        sin, cos = xp.sin(theta), xp.cos(theta)
        push = (physics["force"] * action + mass * length * spin**2 * sin) / total
        turn = (physics["gravity"] * sin - cos * push) / (length * (4.0 / 3.0 - mass * cos**2 / total))
        pace = push - mass * length * turn * cos / total
        tau = self.tau
        return x + tau * speed, speed + tau * pace, theta + tau * spin, spin + tau * turn

    def reached(self, state: State, physics: Physics, xp: Any) -> Number:  # noqa: ANN401
        """See `System`."""
        return abs(state[0]) <= physics["width"]

    def failed(self, state: State, physics: Physics) -> Number:
        """Return whether the pole leans by 12 degrees or the cart has left the track, as in gymnasium."""
        return (abs(state[0]) > 2.4) | (abs(state[2]) > 12 * 2 * math.pi / 360)

    def quality(self, state: State, physics: Physics, xp: Any) -> Number:  # noqa: ANN401
        """See `System`."""
        return 1 - 0.5 * xp.clip(abs(state[0]) / 2.4, 0, 1)

    def observe(self, state: State, physics: Physics, xp: Any) -> Sequence[Number]:  # noqa: ANN401
        """See `System`."""
        return state[0] / 2.4, state[1] / 2, state[2] / 0.2, state[3] / 2

    def drawn(self, state: State, physics: Physics) -> Sequence[Line]:
        """Return track, bounds of the goal, cart, and pole, which leans five times as much as it does."""
        x, goal = state[0] / 2.4, physics["width"] / 2.4
        cart = [(x - 0.15, -0.7), (x + 0.15, -0.7), (x + 0.15, -0.5), (x - 0.15, -0.5), (x - 0.15, -0.7)]
        marks = [[(sign * goal, -0.8), (sign * goal, -0.65)] for sign in (-1, 1)]
        return [[(-1, -0.7), (1, -0.7)], *marks, cart, _ray(x, -0.5, 5 * state[2], 1.2)]

    def controllers(self, physics: Physics) -> Iterator[Controller]:
        """Yield a controller that leans the pole towards the middle, at three speeds."""
        mass, length, total = physics["mass"], physics["length"], physics["mass"] + 1.0
        for rate in (4.0, 7.0, 12.0):

            def act(state: State, rate: float = rate) -> float:
                x, speed, theta, spin = state
                sin, cos = math.sin(theta), math.cos(theta)
                lean = _clip(-(x + 1.5 * speed) * 1.5 / physics["gravity"], -0.12, 0.12)
                turn = -(rate**2) * (theta - lean) - 2 * rate * spin
                push = (physics["gravity"] * sin - turn * length * (4.0 / 3.0 - mass * cos**2 / total)) / cos
                return (push * total - mass * length * spin**2 * sin) / physics["force"]

            yield act


class MountainCar(System):
    """Drive a weak car up a hill: gymnasium's MountainCarContinuous."""

    name = "mountain_car"
    job = "Drive the car up the right hill."
    steps = 200
    parameters: ClassVar = {
        "power": Parameter(even(0.0025, 0.0004), 0.0001, 0.1, "largest change of speed per step"),
        "goal": Parameter(even(0.1, 0.55), -0.4, 0.599, "position of the goal, between -1.2 and 0.6"),
        "speed": Parameter(even(0.0, 0.035), 0, 0.069, "least speed at the goal"),
        "gravity": Parameter(even(0.0018, 0.0032), 0.0001, 0.1, "pull of the hill per step"),
        "spread": Parameter(even(0.1, 0.02), 0.01, 0.3, "largest distance of the start from -0.5"),
    }
    levels: ClassVar = {
        "gymnasium": ({"power": 0.0015, "goal": 0.45, "gravity": 0.0025}, (-0.497, 0.0)),
        "fast": ({"power": 0.0015, "goal": 0.45, "gravity": 0.0025, "speed": 0.03}, (-0.497, 0.0)),
        "weak-motor": ({"power": 0.0009, "goal": 0.45, "gravity": 0.0025}, (-0.497, 0.0)),
    }

    def start(self, physics: Physics, rng: random.Random) -> tuple[float, ...]:
        """Draw the position."""
        return -0.5 + rng.uniform(-physics["spread"], physics["spread"]), 0.0

    def step(self, state: State, action: Number, physics: Physics, xp: Any) -> State:  # noqa: ANN401
        """See `System`."""
        x, speed = state
        speed = speed + action * physics["power"] - physics["gravity"] * xp.cos(3 * x)
        speed = xp.clip(speed, -0.07, 0.07)
        x = xp.clip(x + speed, -1.2, 0.6)
        return x, xp.where((x == -1.2) & (speed < 0), 0.0, speed)

    def reached(self, state: State, physics: Physics, xp: Any) -> Number:  # noqa: ANN401
        """See `System`."""
        return (state[0] >= physics["goal"]) & (state[1] >= physics["speed"])

    def quality(self, state: State, physics: Physics, xp: Any) -> Number:  # noqa: ANN401
        """Return the energy of the car, as a share of that at the goal, at most 1."""
        gravity, goal = physics["gravity"], physics["goal"]
        most = gravity / 3 * (xp.sin(3 * goal) + 1) + physics["speed"] ** 2 / 2
        return xp.clip((gravity / 3 * (xp.sin(3 * state[0]) + 1) + state[1] ** 2 / 2) / most, 0, 1)

    def observe(self, state: State, physics: Physics, xp: Any) -> Sequence[Number]:  # noqa: ANN401
        """See `System`."""
        return (state[0] + 0.3) / 0.9, state[1] / 0.07, xp.cos(3 * state[0])

    def drawn(self, state: State, physics: Physics) -> Sequence[Line]:
        """Return the hill, the car and the goal."""

        def at(x: float) -> tuple[float, float]:
            return (x + 0.3) / 0.9, 0.6 * math.sin(3 * x) - 0.2

        goal = at(physics["goal"])
        hill = [at(-1.2 + 1.8 * i / 24) for i in range(25)]
        return [hill, [at(state[0])], [goal, (goal[0], goal[1] + 0.35)]]

    def controllers(self, physics: Physics) -> Iterator[Controller]:
        """Yield full power in the direction of travel."""
        yield lambda state: math.copysign(1.0, state[1])


class TwoLinkArm(System):
    """Raise the tip of an arm that is driven in its middle joint: gymnasium's Acrobot, continuous torque."""

    name = "arm"
    job = "Raise the tip of the two-link arm above the goal."
    steps = 100
    dt = 0.2
    parameters: ClassVar = {
        "torque": Parameter(even(4, 0.5), 0.05, 50, "largest torque, N m"),
        "height": Parameter(even(-0.5, 1.6), -1.9, 1.95, "height of the goal over the fixed joint, m"),
        "hold": Parameter((1, 2, 3, 4), 1, 90, "steps in a row at the goal"),
        "mass": Parameter(even(0.6, 2), 0.1, 10, "mass of the outer link, kg; the inner one has 1 kg"),
        "gravity": Parameter(even(4, 18), 0.1, 50, "m/s^2"),
    }
    levels: ClassVar = {
        "gymnasium": ({"torque": 1, "height": 1, "mass": 1, "gravity": 9.8}, (0.049, -0.049, 0.0, 0.0)),
        "strong": ({"torque": 4, "height": 1.6, "mass": 1, "gravity": 9.8}, (0.049, -0.049, 0.0, 0.0)),
        "heavy": ({"torque": 2, "height": 0.5, "mass": 2, "gravity": 9.8}, (0.049, -0.049, 0.0, 0.0)),
    }

    def start(self, physics: Physics, rng: random.Random) -> tuple[float, ...]:
        """Draw the state as gymnasium does."""
        return tuple(rng.uniform(-0.1, 0.1) for _ in range(4))

    def step(self, state: State, action: Number, physics: Physics, xp: Any) -> State:  # noqa: ANN401
        """Take one Runge-Kutta step; see `System`."""
        torque, dt = physics["torque"] * action, self.dt
        k1 = self._change(state, torque, physics, xp)
        k2 = self._change(_moved(state, k1, dt / 2), torque, physics, xp)
        k3 = self._change(_moved(state, k2, dt / 2), torque, physics, xp)
        k4 = self._change(_moved(state, k3, dt), torque, physics, xp)
        one, two, fast, faster = (
            y + dt / 6 * (a + 2 * b + 2 * c + d) for y, a, b, c, d in zip(state, k1, k2, k3, k4, strict=True)
        )
        bounds = 4 * math.pi, 9 * math.pi
        speeds = xp.clip(fast, -bounds[0], bounds[0]), xp.clip(faster, -bounds[1], bounds[1])
        return _wrapped(one), _wrapped(two), *speeds

    def _change(self, state: State, torque: Number, physics: Physics, xp: Any) -> State:  # noqa: ANN401
        """Return the derivative of the state: the equations of Sutton and Barto (gymnasium's `book`)."""
        one, two, fast, faster = state
        mass, gravity = physics["mass"], physics["gravity"]  # links of 1 m, centers at 0.5 m, inertia 1
        cos, sin = xp.cos(two), xp.sin(two)
        d1 = 0.25 + mass * (1.25 + cos) + 2.0
        d2 = mass * (0.25 + 0.5 * cos) + 1.0
        phi2 = mass * 0.5 * gravity * xp.cos(one + two - math.pi / 2)
        phi1 = (
            -mass * 0.5 * faster**2 * sin
            - mass * faster * fast * sin
            + (0.5 + mass) * gravity * xp.cos(one - math.pi / 2)
            + phi2
        )
        outer = (torque + d2 / d1 * phi1 - mass * 0.5 * fast**2 * sin - phi2) / (
            mass * 0.25 + 1.0 - d2**2 / d1
        )
        return fast, faster, -(d2 * outer + phi1) / d1, outer

    def reached(self, state: State, physics: Physics, xp: Any) -> Number:  # noqa: ANN401
        """See `System`."""
        return self._height(state, xp) > physics["height"]

    def _height(self, state: State, xp: Any) -> Number:  # noqa: ANN401
        return -xp.cos(state[0]) - xp.cos(state[0] + state[1])

    def quality(self, state: State, physics: Physics, xp: Any) -> Number:  # noqa: ANN401
        """Return the height of the tip: its share of the way from the lowest point to the goal, at most 1."""
        return xp.clip((self._height(state, xp) + 2) / (physics["height"] + 2), 0, 1)

    def observe(self, state: State, physics: Physics, xp: Any) -> Sequence[Number]:  # noqa: ANN401
        """See `System`."""
        one, two, fast, faster = state
        return xp.cos(one), xp.sin(one), xp.cos(two), xp.sin(two), fast / 4, faster / 8

    def drawn(self, state: State, physics: Physics) -> Sequence[Line]:
        """Return both links and the height of the goal."""
        inner = _ray(0, 0, math.pi - state[0], 0.48)
        outer = _ray(*inner[1], math.pi - state[0] - state[1], 0.48)
        height = 0.48 * physics["height"]
        return [[*inner, outer[1]], [(0, 0)], [(-1, height), (1, height)]]

    def controllers(self, physics: Physics) -> Iterator[Controller]:
        """Yield energy pumping: torque with the turn of the outer link, or against that of the inner one."""
        yield lambda state: math.copysign(1.0, state[3])
        yield lambda state: -math.copysign(1.0, state[2])


def _wrapped(angle: Number) -> Number:
    """Return an angle in [-pi, pi)."""
    return (angle + math.pi) % (2 * math.pi) - math.pi


def _ray(x: float, y: float, angle: float, length: float) -> list[tuple[float, float]]:
    """Return a line from a point; angle 0 points up."""
    return [(x, y), (x + length * math.sin(angle), y + length * math.cos(angle))]


def _moved(state: State, change: State, by: float) -> State:
    return tuple(y + by * k for y, k in zip(state, change, strict=True))


SYSTEMS: Mapping[str, type[System]] = {
    system.name: system for system in (Pendulum, CartPole, MountainCar, TwoLinkArm)
}
"""The built-in systems of `environment.system`, by name."""
_ELSEWHERE = {
    "maze": "genenv.environments.control.mazes:Maze",
    "inverted_pendulum": "genenv.environments.control.gymnasium_system:InvertedPendulum",
    "inverted_double_pendulum": "genenv.environments.control.gymnasium_system:InvertedDoublePendulum",
}
"""Mazes, and the systems of MuJoCo. Their modules are imported when one is used."""


_NEEDED = ("parameters", "steps", "job", "start", "step", "reached", "quality", "observe")


_LABELS: dict[str, str] = {}
"""The names of users' systems that are in use, by their labels."""


def label_of(name: str) -> str:
    """Return a system's name as tasks show it: of a user's `FOLDER/FILE.py:Class` without the folder.

    So tasks, and what is drawn for them, do not depend on where the file lies.
    """
    return name.rpartition("/")[2] if ".py:" in name else name


def labelled(label: str) -> str:
    """Return the name of the system in use that has a label; the label itself if there is none."""
    return _LABELS.get(label, label)


@functools.cache
def find_system(name: str) -> System:
    """Return a system by name: one of `SYSTEMS`, `maze`, one of MuJoCo, or an own class, `module:Class`.

    Raises:
        UsageError: there is no such system, or it needs a package that is missing.
    """
    if name in _ELSEWHERE:
        return cast(type[System], load(_ELSEWHERE[name]))()
    if is_own(name):
        own = cast(type[System], own_part("environment.system", name, methods=_NEEDED))
        try:
            found = own()
            _try_out(found)
        except (GenenvError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise UsageError(
                f"environment.system is {name!r}, which cannot be used: {type(error).__name__}: {error}"
            ) from error
        _LABELS[label_of(name)] = name
        return found
    if name not in SYSTEMS:
        raise unknown_name("system", name, [*SYSTEMS, *_ELSEWHERE])
    return SYSTEMS[name]()


def _try_out(system: System) -> None:
    """Take one step of a user-defined system with the easiest values, as a trajectory and as arrays.

    Raises:
        ValueError: the number of a state's numbers changes, or something is not finite.
        Exception: whatever the user's code raises.
    """
    import numpy as np

    if system.choices:
        steps = {round(1000 * one) for one in system.choices}
        if len(steps) < len(system.choices) or len(steps) < 2 or not steps <= set(range(-1000, 1001)):
            raise ValueError("`choices` are two numbers or more from -1 to 1, different in thousandths")
    physics = {name: one.values[0] for name, one in system.parameters.items()}
    start = system.start(physics, random.Random(0))
    controllers = list(itertools.islice(system.controllers(physics), 1))
    action = controllers[0](start) if controllers else 0.0
    state = system.step(start, action, physics, SCALARS)
    if len(state) != len(start):
        raise ValueError(f"`start` returns {len(start)} numbers and `step` {len(state)}")
    if (
        len({tuple(round(1000 * one) for one in system.start(physics, random.Random(i))) for i in range(9)})
        < 2
    ):
        raise ValueError("`start` always returns the same state; draw it with `rng`, as tasks differ by it")
    seen = [
        *state,
        system.quality(state, physics, SCALARS),
        *system.observe(state, physics, SCALARS),
    ]
    if not all(map(math.isfinite, seen)):
        raise ValueError(f"the first step leads to numbers that are not finite: {seen}")
    _ = system.reached(state, physics, SCALARS), system.failed(state, physics)
    many = {name: np.array([value, value], dtype=float) for name, value in physics.items()}
    rows = system.step(tuple(np.array([one, one], dtype=float) for one in start), np.zeros(2), many, np)
    _ = system.reached(rows, many, np), system.failed(rows, many)
    for what, value in (
        ("quality", system.quality(rows, many, np)),
        ("observe", system.observe(rows, many, np)[0]),
    ):
        if np.shape(value) not in ((2,), ()):
            raise ValueError(f"`{what}` of two trajectories has the shape {np.shape(value)}, not (2,)")
