"""Prepares training and task writing: checks model names, opens the environment, loads both policies."""

from __future__ import annotations

import random
from pathlib import Path
from typing import cast

from pydantic import BaseModel

from genenv.agent.policy import Agent, AgentConfig
from genenv.backends.base import Role, open_backend
from genenv.config.run import RunConfig
from genenv.curriculum.seed_choice import choose_seeds
from genenv.curriculum.stats import SkillStats
from genenv.environments import load_environment
from genenv.environments.base import Environment
from genenv.environments.wrappers import ByParameters, ShiftingEnvironment
from genenv.progress import Reporter, staged
from genenv.simulator.policy import Simulator
from genenv.simulator.settings import SimulatorConfig
from genenv.simulator.source import (
    FileSource,
    FixedTaskSource,
    GrammarSource,
    NoSource,
    TaskSource,
    VariationSource,
)
from genenv.training.policies import Policies
from genenv.training.warmup import SupervisedWarmup


def check_models(config: RunConfig) -> None:
    """Refuse model names that do not exist, before anything is loaded.

    Raises:
        UsageError: a model does not exist. The message suggests the most similar name.
    """
    if config.policy.backend != "local":
        return
    from genenv.backends.local import hub

    for name in (config.policy.model, config.policy.simulator_model):
        if name is not None:
            hub.check(name)


def open_environment(config: RunConfig, reporter: Reporter | None = None) -> Environment:
    """Open the environment, and if it shifts in a later round, the later environment too.

    Too few seeds are refused before models are loaded.

    Args:
        config: settings of the run.
        reporter: shows which tasks the settings leave out.

    Raises:
        GenenvError: an environment cannot be loaded, or has too few seeds.
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
    """Load both policies and show that models are being loaded.

    Args:
        config: settings of the run.
        env: the environment of the tasks.
        reporter: shows the progress.

    Raises:
        UsageError: a model cannot be loaded or used on this machine.
    """
    policy = config.policy
    loaded = policy.model if policy.backend == "local" else f"{policy.backend} players"
    with staged(reporter, f"loading {loaded}", items=None, unit=""):
        return build_players(config, env)


def build_players(config: RunConfig, env: Environment) -> Policies:
    """Build the agent, the source of its tasks and the warm-up on the backend that the settings name.

    Raises:
        UsageError: a model cannot be loaded or used on this machine, or a source of tasks cannot be opened.
    """
    seed = config.run.seed
    ahead = config.run.staleness > 0
    roles = [_role("agent", config.agent, ahead=ahead)]
    if config.simulator.source == "model":
        roles.append(_role("simulator", config.simulator, ahead=ahead))
    source = None if len(roles) == 2 else _source(config)  # a wrong setting is refused before loading
    opened = open_backend(config.policy, roles, env, seed=seed)
    agent = Agent(opened.samplers["agent"], opened.trainers["agent"], config.agent, seed=seed)
    simulator = None
    if source is None:
        writing = _of_one(config.simulator) if config.simulator.per_seed else config.simulator
        simulator = Simulator(opened.samplers["simulator"], opened.trainers["simulator"], writing, seed=seed)
        source = _once(config, simulator)
    warmup = SupervisedWarmup(
        env=env, agent=agent, simulator=simulator, target=config.curriculum.alpha, seed=seed
    )
    return Policies(
        agent=agent,
        simulator=source,
        warmup=warmup if opened.warms_up else None,
        settled=opened.settled,
        apart=opened.parallel_updates,
        overlaps=opened.async_rollouts,
        found=opened.found,
        check=opened.check,
        close=opened.close,
    )


def _source(config: RunConfig) -> TaskSource:
    """Return the source of tasks if it is not a model of this run."""
    writing, seed = config.simulator, config.run.seed
    each = 1 if writing.per_seed else writing.variations
    if writing.source == "variation":
        return _once(config, VariationSource(each, seed=seed))
    if writing.source == "grammar":
        return _once(config, GrammarSource(each, seed=seed))
    if writing.source == "endpoint":
        from genenv.simulator.source import EndpointSource  # needs the extra `api`

        return _once(config, EndpointSource(_of_one(writing) if writing.per_seed else writing, seed=seed))
    if writing.source == "file":
        per_round = writing.contexts * writing.variations
        return FileSource(Path(writing.file or ""), writing.variations, per_round=per_round, seed=seed)
    return NoSource()


def _once(config: RunConfig, source: TaskSource) -> TaskSource:
    """Return the source; with `per_seed`, wrapped to draw from a fixed number of specs per seed."""
    writing = config.simulator
    if not writing.per_seed:
        return source
    return FixedTaskSource(
        source, per_seed=writing.per_seed, variations=writing.variations, seed=config.run.seed
    )


def _of_one(config: SimulatorConfig) -> SimulatorConfig:
    return config.model_copy(update={"variations": 1})


def _role(name: str, config: AgentConfig | SimulatorConfig, *, ahead: bool) -> Role:
    return Role(
        name=name,
        optimizer=config,
        reference=config.kl_coefficient > 0,
        ramped=config.warmup.steps > 0 and config.warmup.kept_moments == "none",
        ahead=ahead,
    )
