"""Builds the two players that a configuration asks for, on this machine's hardware."""

from __future__ import annotations

from genenv.agent.grpo import GrpoLearner
from genenv.agent.player import Agent
from genenv.backends.local.arithmetic import settled
from genenv.backends.local.policy import LocalModel, LocalPolicy
from genenv.coevolve import Players
from genenv.config.run import RunConfig
from genenv.domains.base import Domain
from genenv.learning.warmup import SupervisedWarmup
from genenv.seeding import stream
from genenv.simulator.player import Simulator
from genenv.simulator.rwr import RwrLearner


def local_players(config: RunConfig, domain: Domain) -> Players:
    """Two players on local models: by default two adapters on one base, the base being both references.

    Raises:
        UsageError: a model cannot be loaded or used here.
    """
    agent_policy, simulator_policy = _policies(config)
    policy = settled(config.policy, agent_policy.model, simulator_policy.model)
    seed = config.run.seed
    agent = Agent(agent_policy, GrpoLearner(agent_policy, config.agent), config.agent, seed=seed)
    learner = RwrLearner(simulator_policy, config.simulator)
    simulator = Simulator(simulator_policy, learner, config.simulator, seed=seed)
    warmup = SupervisedWarmup(
        domain=domain, agent=agent, simulator=simulator, target=config.curriculum.alpha, seed=seed
    )
    return Players(agent=agent, simulator=simulator, warmup=warmup, settled=policy)


def _policies(config: RunConfig) -> tuple[LocalPolicy, LocalPolicy]:
    policy, seed = config.policy, config.run.seed
    base = LocalModel(policy.model, policy)
    apart = policy.simulator_model is not None or policy.tuning == "full"
    other = LocalModel(policy.simulator_model or policy.model, policy) if apart else base
    if policy.tuning == "full":
        return (
            LocalPolicy(base, None, keep_reference=config.agent.kl_coefficient > 0),
            LocalPolicy(other, None, keep_reference=config.simulator.kl_coefficient > 0),
        )
    base.add_adapter("agent", seed=stream(seed, "adapter", "agent") % 2**31)
    other.add_adapter("simulator", seed=stream(seed, "adapter", "simulator") % 2**31)
    return LocalPolicy(base, "agent"), LocalPolicy(other, "simulator")
