"""`genenv` with two scripted players instead of models: a real run on the disk in a second, without torch.

Run as a program it takes the arguments of `genenv`. A setting that depends on a model is given in its TOML.
"""

from __future__ import annotations

import functools
import json
import random
from functools import partial
from typing import Any

from genenv.agent.policy import Agent
from genenv.backends.scripted import ScriptedSampler, ScriptedTrainer
from genenv.cli.app import main
from genenv.environments.base import Environment
from genenv.simulator.policy import Simulator
from genenv.tools.bundle import Bundle
from genenv.tools.spec import Program
from genenv.tools.tool_calling import environment as world
from genenv.tools.tool_calling.environment import ToolCalling
from genenv.training import opening
from genenv.training.rounds import Policies
from genenv.types import Profile, Seed

SETTINGS = """
[run]
rounds = {rounds}
eval_tasks = 4

[simulator]
contexts = 3
variations = 2
max_new_tokens = 2000

[agent]
rollouts = 4
max_new_tokens = 2000

[policy]
device = "cpu"
dtype = "float32"
compiled = false
threads = 1
"""
SEEDS, HELD_OUT = 40, 4
_UNCACHED = world._held_out.__wrapped__


def few_base_data(
    monkeypatch: Any = None, *, seeds: int = SEEDS, held_out: int = HELD_OUT, small: bool = False
) -> None:
    """Cut the base data of the tool-calling environment: making all of it takes longer than such a run.

    A third of the seeds are ones that nothing solves, so that giving up is right often enough to be learned.

    With `small`, the seeds are those whose apps have the fewest parameters: their grammars compile fast.
    """
    put = setattr if monkeypatch is None else monkeypatch.setattr
    put(world, "_opened", partial(_cut, *_programs(seeds, held_out, small=small)))
    put(world, "_held_out", _UNCACHED)


@functools.cache
def _programs(seeds: int, held_out: int, *, small: bool) -> tuple[dict[str, Program], dict[str, Program]]:
    """The programs of some seeds and of some held-out tasks."""
    whole = ToolCalling()
    whole.bundle = Bundle.open(world.BUNDLE)
    some = sorted(whole.seeds(), key=partial(_parameters, whole)) if small else whole.seeds()
    unsolvable = [seed for seed in some if seed.spec["gap"] != "none"][: seeds // 3]
    chosen = [*unsolvable, *(seed for seed in some if seed not in unsolvable)][:seeds]
    base = {seed.id: whole.bundle.base[seed.id] for seed in chosen}
    measured = dict(list(whole.bundle.held_out.items())[:held_out])
    return base, measured


def _cut(base: dict[str, Program], measured: dict[str, Program]) -> Bundle:
    bundle = Bundle.open(world.BUNDLE)
    bundle.__dict__ |= {"base": dict(base), "held_out": dict(measured)}
    return bundle


def _parameters(env: ToolCalling, seed: Seed) -> int:
    return sum(len(tool.properties) for tool in env.tools_in_prompt(seed).values())


def scripted_players(config: Any, env: Environment, *_: object) -> Policies:
    """An agent that gives up ever more often, and a simulator that writes the environment's own variations.

    Giving up is right where a value is missing. The simulator sometimes breaks off.
    """
    target = config.curriculum.alpha
    seeds = {env.simulator_messages(s, Profile(), target)[-1].content: s for s in env.seeds()}
    learned = 0

    def solve(prompt: str, rng: random.Random) -> str:
        return "I cannot do that." if rng.random() < 0.3 + 0.1 * learned else 'get_weather(city="Oslo")'

    def write(prompt: str, rng: random.Random) -> str:
        if rng.random() < 0.2:
            return '{"n_calls":'
        return json.dumps(env.variation(next(seed for text, seed in seeds.items() if text in prompt), rng))

    def learn(count: int) -> None:
        nonlocal learned
        learned = count

    seed = config.run.seed
    return Policies(
        agent=Agent(ScriptedSampler(solve), ScriptedTrainer(learn), config.agent, seed=seed),
        simulator=Simulator(ScriptedSampler(write), ScriptedTrainer(), config.simulator, seed=seed),
    )


if __name__ == "__main__":
    few_base_data()
    opening.load_players = scripted_players
    main()
