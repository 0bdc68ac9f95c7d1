"""`genenv` with two scripted players instead of models: a real run on the disk in a second, without torch.

Run as a program it takes the arguments of `genenv`. A setting that depends on a model is given in its TOML.
"""

from __future__ import annotations

import json
import random
from typing import Any

import genenv.domains.tool_calling.seeds as base_data
from genenv.agent.player import Agent
from genenv.api import opening
from genenv.backends.scripted import ScriptedSampler, ScriptedTrainer
from genenv.cli.app import main
from genenv.domains.base import Domain
from genenv.domains.tool_calling.prompting import offered
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.rounds.players import Players
from genenv.simulator.player import Simulator
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


def few_base_data(
    monkeypatch: Any = None, *, seeds: int = SEEDS, held_out: int = HELD_OUT, small: bool = False
) -> None:
    """Cut the base data of the tool-calling domain: making all of it takes longer than such a run.

    With `small`, the seeds are those whose tools have the fewest parameters: their grammars compile fast.
    """
    put = setattr if monkeypatch is None else monkeypatch.setattr
    training, measured = base_data.training_specs(), base_data.held_out_specs()[:held_out]
    some = (sorted(training, key=_parameters) if small else training)[:seeds]
    put(base_data, "training_specs", lambda: some)
    put(base_data, "held_out_specs", lambda: measured)


def _parameters(item: tuple[str, ToolSpec]) -> int:
    seed = Seed(id=item[0], domain="tool_calling", spec=item[1].model_dump(mode="json"), skills=())
    return sum(len(tool.parameters) for tool in offered(seed))


def scripted_players(config: Any, domain: Domain, *_: object) -> Players:
    """An agent that gives up ever more often, and a simulator that writes the domain's own variations.

    Giving up is right where a value is missing. The simulator sometimes breaks off.
    """
    target = config.curriculum.alpha
    seeds = {domain.simulator_messages(s, Profile(), target)[-1].content: s for s in domain.seeds()}
    learned = 0

    def solve(prompt: str, rng: random.Random) -> str:
        return "I cannot do that." if rng.random() < 0.3 + 0.1 * learned else 'get_weather(city="Oslo")'

    def write(prompt: str, rng: random.Random) -> str:
        if rng.random() < 0.2:
            return '{"n_calls":'
        return json.dumps(domain.variation(next(seed for text, seed in seeds.items() if text in prompt), rng))

    def learn(count: int) -> None:
        nonlocal learned
        learned = count

    seed = config.run.seed
    return Players(
        agent=Agent(ScriptedSampler(solve), ScriptedTrainer(learn), config.agent, seed=seed),
        simulator=Simulator(ScriptedSampler(write), ScriptedTrainer(), config.simulator, seed=seed),
    )


if __name__ == "__main__":
    few_base_data()
    opening.load_players = scripted_players
    main()
