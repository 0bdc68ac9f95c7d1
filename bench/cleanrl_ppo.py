# pyright: standard
"""Is the backend `ppo` as good as CleanRL's PPO on plain environments of Gymnasium?

    python bench/cleanrl_ppo.py theirs Pendulum-v1 CLEANRL --python PY --seeds 1-10 > theirs.jsonl
    python bench/cleanrl_ppo.py ours Pendulum-v1 --seeds 1-10 > ours.jsonl
    python bench/cleanrl_ppo.py table theirs.jsonl ours.jsonl

CLEANRL is a clone of vwxyzjn/cleanrl, and PY a Python with what it requires (gymnasium 0.29, tyro). Its
`ppo_continuous_action.py` is executed unchanged; `--options` are options of it. Our side trains on tasks that
have the environment's own physics, first states and reward, by `GymnasiumSystem` and without a curriculum.
Both final policies are judged in the unchanged environment of `gymnasium.make`, by mean returns over the same
first states: `sampled` from the distribution of the actions, and `mean` by its mean; `training` is the mean
return of the last 20 episodes of training. Prints a JSON line for each seed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, ClassVar, cast

import numpy as np
from cleanrl_worker import Anything, measured

from genenv.algorithms.advantages import ppo_credit
from genenv.algorithms.settings import GrpoConfig, OptimizerConfig
from genenv.algorithms.update import learn
from genenv.backends.base import Role, open_backend
from genenv.backends.settings import PolicyConfig, PpoConfig
from genenv.environments.control.environment import Control, ControlConfig
from genenv.environments.control.gymnasium_system import GymnasiumSystem
from genenv.environments.control.systems import Number, Parameter, Physics, State
from genenv.rollout.driver import Sampling, roll_out
from genenv.types import Lineage, Origin, Task


def theirs(options: argparse.Namespace, seed: int) -> Mapping[str, Any]:
    """Run CleanRL's script in a process of its own."""
    worker = Path(__file__).with_name("cleanrl_worker.py")
    words = [options.python, "-W", "ignore", worker, options.folder, options.env, options.steps, seed]
    words = [*map(str, words), *options.said]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - its own script
    if done.returncode:
        sys.exit(f"{worker.name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def ours(options: argparse.Namespace, seed: int) -> Mapping[str, Any]:
    """Train genenv's policy network on plain tasks, and measure it."""
    import gymnasium

    began, run = time.monotonic(), Training(options, seed)
    asyncio.run(run.run())
    network, width, steps = run.sampler.network, PLAIN[options.env].width, run.system.steps
    env = cast(Any, gymnasium.make(options.env))
    half, noise = float(env.action_space.high[0]), np.random.default_rng(seed)
    linear = [(one.weight.detach().numpy(), one.bias.detach().numpy()) for one in network.mean[::2]]
    std = network.log_std.exp().item()

    def act(observation: Anything, step: int, sampled: bool) -> float:
        x = np.array([*(observation / width), 0.0, 2 * step / steps - 1, 0.0], dtype=np.float32)
        for weight, bias in linear[:-1]:
            x = np.tanh(weight @ x + bias)
        center = (linear[-1][0] @ x + linear[-1][1]).item()
        return half * (center + sampled * std * noise.standard_normal())

    seconds = time.monotonic() - began
    return {
        "sampled": measured(env, lambda observation, step: act(observation, step, True)),
        "mean": measured(env, lambda observation, step: act(observation, step, False)),
        "training": mean(run.returns[-20:]),
        "taken": run.taken,
        "rounds": run.rounds,
        "seconds": round(seconds, 1),
    }


class Training:
    """PPO on tasks without a curriculum: a new first state for every two episodes."""

    def __init__(self, options: argparse.Namespace, seed: int) -> None:
        self.options, self.seed = options, seed
        where = f"{Path(__file__).stem}:{PLAIN[options.env].__name__}"
        self.env = Control(ControlConfig(system=where, base_tasks=1, held_out_tasks=1))
        self.system = cast(Plain, self.env.system)
        network = PpoConfig(hidden=options.hidden, initial_std=options.std, gamma=options.gamma)
        policy = PolicyConfig(backend="ppo", context_tokens=4096, threads=1, ppo=network)
        role = Role(name="agent", optimizer=OptimizerConfig(max_grad_norm=0.5), reference=False)
        opened = open_backend(policy, [role], self.env, seed=seed)
        self.sampler, self.trainer = cast(Any, opened.samplers["agent"]), opened.trainers["agent"]
        self.taken, self.rounds, self.returns = 0, 0, list[float]()

    async def run(self) -> None:
        """Collect at least `--batch` steps, and update, until as many steps were taken as CleanRL's."""
        options, length, rng = self.options, PLAIN[self.options.env].typical, random.Random(self.seed)
        while self.taken + options.batch <= options.steps:
            self.rounds += 1
            share = 1 - self.taken / options.steps if options.anneal else 1.0
            sampling = Sampling(
                temperature=1.0, max_new_tokens=self.system.steps + 1, timeout_s=600, seed=self.seed
            )
            tasks = [self._task(i, rng) for i in range(max(1, round(options.batch / length / 2)))]
            groups = await roll_out(self.env, self.sampler, tasks, rollouts=2, sampling=sampling)
            traces = [trace for group in groups for trace in group.traces]
            lengths = [len(trace.replies[0].split()) for trace in traces]
            low, high = self.system.rewards
            for steps, trace in zip(lengths, traces, strict=True):
                quality = trace.reward * self.system.steps / self.system.dense
                self.returns.append(quality * (high - low) + low * steps)
            self.taken, length = self.taken + sum(lengths), mean(lengths)
            credit = GrpoConfig(
                epochs=options.epochs,
                updates_per_epoch=options.updates,
                kl_coefficient=0.0,
            )
            batch = ppo_credit(groups, {}, credit, temperature=1.0)
            await learn(
                self.trainer,
                batch,
                player="agent",
                learning_rate=options.lr * share,
                seed=rng.randrange(2**31),
            )
            await self.trainer.publish()

    def _task(self, number: int, rng: random.Random) -> Task:
        physics = {name: values[0] for name, values in self.env.values.items()}
        spec = self.env.spec.model_validate({**physics, "start": self.system.start(physics, rng)})
        lineage = Lineage(origin=Origin.HELD_OUT)
        task = self.env.build(spec, task_id=f"{self.rounds}-{number}", lineage=lineage, rng=rng)
        assert isinstance(task, Task)
        return task


class Plain(GymnasiumSystem):
    """An environment as it is: nothing can be set, and there is no success."""

    job = "Earn the environment's reward."
    parameters: ClassVar = {"none": Parameter((0.0,), 0, 0, "no parameter")}
    width: ClassVar[tuple[float, ...]]
    """Sizes of the observed numbers."""
    typical: ClassVar[float]
    """Steps of an episode of random actions."""

    def set_physics(self, env: Anything, physics: Physics) -> None:
        """Leave the environment as it is."""

    def reached(self, state: State, physics: Physics, xp: Anything) -> Number:
        """Return that there is no goal."""
        return state[0] != state[0]


class PlainPendulum(Plain):
    """Gymnasium's pendulum."""

    name, env_id, steps, rewards, width = "p", "Pendulum-v1", 200, (-16.2736044, 0.0), (1, 1, 8)
    typical = 200.0

    def first(self, physics: Physics, rng: random.Random) -> Sequence[float]:
        """Draw a state as Gymnasium does."""
        return rng.uniform(-math.pi, math.pi), rng.uniform(-1, 1)

    def read(self, env: Anything) -> Sequence[float]:
        """Return angle and speed."""
        return env.state.tolist()

    def write(self, env: Anything, state: Sequence[float]) -> None:
        """Set angle and speed."""
        env.state = np.array(state)

    def observe(self, state: State, physics: Physics, xp: Anything) -> Sequence[Number]:
        """Return Gymnasium's observation."""
        return xp.cos(state[0]), xp.sin(state[0]), state[1] / 8


class PlainInvertedPendulum(Plain):
    """Gymnasium's cart-pole with a continuous force, of MuJoCo."""

    name, env_id, steps, width = "i", "InvertedPendulum-v4", 1000, (1, 0.2, 2, 2)
    typical = 8.0

    def first(self, physics: Physics, rng: random.Random) -> Sequence[float]:
        """Draw a state as Gymnasium does."""
        return [rng.uniform(-0.01, 0.01) for _ in range(4)]

    def observe(self, state: State, physics: Physics, xp: Anything) -> Sequence[Number]:
        """Return Gymnasium's observation."""
        return [one / width for one, width in zip(state[:4], self.width, strict=True)]


PLAIN: Mapping[str, type[Plain]] = {
    system.env_id: system for system in (PlainPendulum, PlainInvertedPendulum)
}


def table(files: Sequence[Path]) -> None:
    """Print means and standard deviations over seeds, as a table of Markdown."""
    print("| side | environment | options | steps | seeds | sampled | mean action | training |")
    print("|---|---|---|---|---|---|---|---|")
    for file in files:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        one, cells = rows[0], list[str]()
        for name in ("sampled", "mean", "training"):
            values = [row[name] for row in rows if row[name] is not None]
            spread = stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{mean(values):.1f} ± {spread:.1f}" if values else "")
        told = one["side"], one["env"], " ".join(one["options"]), f"{one['steps']:,}", str(len(rows))
        print(f"| {' | '.join([*told, *cells])} |")


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.side == "table":
        table(options.files)
        return
    for seed in options.seeds:
        found = (theirs if options.side == "theirs" else ours)(options, seed)
        told = {"side": options.side, "env": options.env, "steps": options.steps, "seed": seed}
        print(json.dumps({**told, **found, "options": options.said}), flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    sides = parser.add_subparsers(dest="side", required=True)
    for side in ("theirs", "ours"):
        one = sides.add_parser(side)
        one.add_argument("env", choices=PLAIN)
        if side == "theirs":
            one.add_argument("folder", type=Path, help="a clone of CleanRL")
            one.add_argument("--python", default=sys.executable, help="has what CleanRL requires")
        one.add_argument("--steps", type=int, default=200_000, help="of the environment, in training")
        one.add_argument("--seeds", type=seeds, default=[1], metavar="FIRST-LAST")
        if side == "theirs":
            one.add_argument(
                "--options", dest="said", type=shlex.split, default=[], help="of CleanRL's script"
            )
            continue
        for name, kind, default in (
            ("batch", int, 2048), ("lr", float, 3e-4), ("gamma", float, 0.99), ("epochs", int, 10),
            ("updates", int, 32), ("hidden", int, 64), ("std", float, 0.5),
        ):  # fmt: skip
            one.add_argument(f"--{name}", type=kind, default=default)
        one.add_argument("--anneal", action=argparse.BooleanOptionalAction, default=True)
    sides.add_parser("table").add_argument("files", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    if options.side == "ours":
        options.said = [
            f"{name}={getattr(options, name)}"
            for name in ("batch", "lr", "gamma", "epochs", "updates", "std", "anneal")
        ]
    return options


def seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


if __name__ == "__main__":
    main()
