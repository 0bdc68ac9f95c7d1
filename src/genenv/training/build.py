"""Builds the two players that a configuration asks for, or what stands in the simulator's place."""

from __future__ import annotations

from pathlib import Path

from genenv.agent.policy import Agent
from genenv.agent.settings import AgentConfig
from genenv.backends.base import Role, open_backend
from genenv.config.run import RunConfig
from genenv.environments.base import Environment
from genenv.simulator.policy import Simulator
from genenv.simulator.settings import SimulatorConfig
from genenv.simulator.source import FileSource, GrammarSource, NoSource, TaskSource, VariationSource
from genenv.simulator.written_once import WrittenOnce
from genenv.training.policies import Players
from genenv.training.warmup import SupervisedWarmup


def build_players(config: RunConfig, env: Environment) -> Players:
    """An agent, and what writes its tasks, on the backend of the settings; and their warm-up.

    Raises:
        UsageError: a model cannot be loaded or used here, or a source of tasks cannot be opened.
    """
    seed = config.run.seed
    ahead = config.run.staleness > 0
    roles = [_role("agent", config.agent, ahead=ahead)]
    if config.simulator.source == "model":
        roles.append(_role("simulator", config.simulator, ahead=ahead))
    source = None if len(roles) == 2 else _source(config)  # what is asked for wrongly is known before loading
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
    return Players(
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
    """What writes tasks without a model of ours."""
    writing, seed = config.simulator, config.run.seed
    each = 1 if writing.per_seed else writing.variations
    if writing.source == "variation":
        return _once(config, VariationSource(each, seed=seed))
    if writing.source == "grammar":
        return _once(config, GrammarSource(each, seed=seed))
    if writing.source == "endpoint":
        from genenv.simulator.endpoint_source import EndpointSource  # needs the extra `api`

        return _once(config, EndpointSource(_of_one(writing) if writing.per_seed else writing, seed=seed))
    if writing.source == "file":
        per_round = writing.contexts * writing.variations
        return FileSource(Path(writing.file or ""), writing.variations, per_round=per_round, seed=seed)
    return NoSource()


def _once(config: RunConfig, source: TaskSource) -> TaskSource:
    """The source, or what draws from a fixed number of its specs a seed."""
    writing = config.simulator
    if not writing.per_seed:
        return source
    return WrittenOnce(source, per_seed=writing.per_seed, variations=writing.variations, seed=config.run.seed)


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
