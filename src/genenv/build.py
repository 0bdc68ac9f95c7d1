"""Builds the two players that a configuration asks for."""

from __future__ import annotations

from genenv.agent.player import Agent
from genenv.agent.settings import AgentConfig
from genenv.backends.base import Role, open_backend
from genenv.coevolve import Players
from genenv.config.run import RunConfig
from genenv.domains.base import Domain
from genenv.learning.warmup import SupervisedWarmup
from genenv.simulator.player import Simulator
from genenv.simulator.settings import SimulatorConfig


def build_players(config: RunConfig, domain: Domain) -> Players:
    """Two players on the backend of the settings, and their warm-up.

    Raises:
        UsageError: a model cannot be loaded or used here.
    """
    seed = config.run.seed
    roles = [_role("agent", config.agent), _role("simulator", config.simulator)]
    opened = open_backend(config.policy, roles, domain, seed=seed)
    agent = Agent(opened.samplers["agent"], opened.trainers["agent"], config.agent, seed=seed)
    simulator = Simulator(
        opened.samplers["simulator"], opened.trainers["simulator"], config.simulator, seed=seed
    )
    warmup = SupervisedWarmup(
        domain=domain, agent=agent, simulator=simulator, target=config.curriculum.alpha, seed=seed
    )
    return Players(
        agent=agent,
        simulator=simulator,
        warmup=warmup if opened.warms_up else None,
        settled=opened.settled,
        apart=opened.apart,
    )


def _role(name: str, config: AgentConfig | SimulatorConfig) -> Role:
    return Role(
        name=name,
        optimizer=config,
        reference=config.kl_coefficient > 0,
        ramped=config.warmup.steps > 0 and config.warmup.kept_moments == "none",
    )
