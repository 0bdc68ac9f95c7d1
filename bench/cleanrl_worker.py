"""CleanRL's PPO in one environment, with its own Python: see `cleanrl_ppo.py`, which starts it.

    PY bench/cleanrl_worker.py CLEANRL ENVIRONMENT STEPS SEED [OPTION ...]

Executes CleanRL's `ppo_continuous_action.py` unchanged, measures the agent that it leaves behind, and prints
a JSON line. Imports nothing of genenv.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, TypeAlias

Anything: TypeAlias = Any
"""Of Gymnasium, whose versions differ in types."""
Act: TypeAlias = Callable[[Any, int], float]
"""Maps an observation of the environment, and the number of steps before it, to an action."""
EPISODES = 50
"""Episodes of each measurement; their first states are those of the seeds from `FIRST_SEED`."""
FIRST_SEED = 10_000


def measured(env: Anything, act: Act) -> float:
    """Return the mean return over `EPISODES` episodes."""
    import numpy as np

    returns = list[float]()
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=FIRST_SEED + episode)
        total, done, steps = 0.0, False, 0
        while not done:
            action = np.array([act(observation, steps)], dtype=np.float32)
            action = np.clip(action, env.action_space.low, env.action_space.high)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, done, steps = total + float(reward), terminated or truncated, steps + 1
        returns.append(total)
    return mean(returns)


def trained(cleanrl: Path, name: str, steps: int, seed: int, said: Sequence[str]) -> Mapping[str, Any]:
    """Run CleanRL's script, and measure the agent that it leaves behind."""
    import gymnasium
    import numpy as np
    import torch

    torch.set_num_threads(1)
    script = cleanrl.resolve() / "cleanrl" / "ppo_continuous_action.py"
    words = ["--env-id", name, "--total-timesteps", str(steps), "--seed", str(seed)]
    printed, before, began = io.StringIO(), sys.argv, time.monotonic()
    sys.argv = [str(script), *words, "--no-cuda", *said]
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(printed),
    ):
        found = runpy.run_path(str(script), run_name="__main__")
    sys.argv = before
    seconds, agent, wrapped = time.monotonic() - began, found["agent"], found["envs"].envs[0]
    while not isinstance(wrapped, gymnasium.wrappers.NormalizeObservation):
        wrapped = wrapped.env
    center, scale = wrapped.obs_rms.mean, np.sqrt(wrapped.obs_rms.var + wrapped.epsilon)

    def act(observation: Anything, sampled: bool) -> float:
        seen = torch.tensor(np.clip((observation - center) / scale, -10, 10), dtype=torch.float32)[None]
        with torch.no_grad():
            action = agent.get_action_and_value(seen)[0] if sampled else agent.actor_mean(seen)
        return action.item()

    env, training = gymnasium.make(name), re.findall(r"episodic_return=\[?\s*(-?[\d.]+)", printed.getvalue())
    torch.manual_seed(seed)
    return {
        "sampled": measured(env, lambda observation, _: act(observation, True)),
        "mean": measured(env, lambda observation, _: act(observation, False)),
        "training": mean(map(float, training[-20:])) if training else None,
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    folder, environment, number, seed, *options = sys.argv[1:]
    print(json.dumps(trained(Path(folder), environment, int(number), int(seed), options)))
