"""What training and writing tasks open, in this order: the names of models, the environment, the players."""

from __future__ import annotations

import random
from typing import cast

from pydantic import BaseModel

from genenv.config.run import RunConfig
from genenv.curriculum.seed_choice import choose_seeds
from genenv.curriculum.stats import SkillStats
from genenv.environments import load_environment
from genenv.environments.base import Environment
from genenv.environments.wrappers import ByParameters, ShiftingEnvironment
from genenv.progress import Reporter, staged
from genenv.training.build import build_players
from genenv.training.policies import Policies


def check_models(config: RunConfig) -> None:
    """Refuse names that no model has, before anything is loaded.

    Raises:
        UsageError: names the one that is spelt most alike.
    """
    if config.policy.backend != "local":
        return
    from genenv.backends.local import hub

    for name in (config.policy.model, config.policy.simulator_model):
        if name is not None:
            hub.check(name)


def open_environment(config: RunConfig, reporter: Reporter | None = None) -> Environment:
    """The environment, which may shift; too few seeds are refused before any model is loaded.

    Args:
        config: which.
        reporter: is told of tasks that the settings leave out.

    Raises:
        GenenvError: it cannot be loaded, or has too few seeds.
    """
    env, later = _env(config, config.environment.settings, reporter), config.later_environment()
    contexts, curriculum = config.simulator.contexts, config.curriculum
    choose_seeds(env.seeds(), SkillStats(curriculum), contexts, random.Random(0), curriculum)
    if later is None:
        return env
    after = _env(config, later, reporter)
    choose_seeds(after.seeds(), SkillStats(curriculum), contexts, random.Random(0), curriculum)
    return cast(Environment, ShiftingEnvironment(env, after))


def _env(config: RunConfig, settings: BaseModel, reporter: Reporter | None) -> Environment:
    env = load_environment(config.environment.name, settings)
    omitted = getattr(env, "omitted", None)
    if reporter is not None and omitted is not None:
        reporter.note(f"{config.environment.name}: {omitted}")
    return cast(Environment, ByParameters(env)) if config.simulator.writes == "parameters" else env


def load_players(config: RunConfig, env: Environment, reporter: Reporter) -> Policies:
    """The two players.

    Args:
        config: which.
        env: for it.
        reporter: is told that models are being loaded.

    Raises:
        UsageError: a model cannot be loaded or used here.
    """
    policy = config.policy
    loaded = policy.model if policy.backend == "local" else f"{policy.backend} players"
    with staged(reporter, f"loading {loaded}", items=None, unit=""):
        return build_players(config, env)
