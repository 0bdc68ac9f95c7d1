"""What training and writing tasks open, in this order: the names of models, the domain, the players."""

from __future__ import annotations

import random
from typing import cast

from pydantic import BaseModel

from genenv.config.run import RunConfig
from genenv.curriculum.seed_choice import choose_seeds
from genenv.curriculum.stats import SkillStats
from genenv.environments import load_domain
from genenv.environments.base import Domain
from genenv.environments.parameters import ByParameters
from genenv.environments.shifting import ShiftingDomain
from genenv.progress import Reporter, staged
from genenv.training.build import build_players
from genenv.training.policies import Players


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


def open_domain(config: RunConfig, reporter: Reporter | None = None) -> Domain:
    """The domain, which may shift; too few seeds are refused before any model is loaded.

    Args:
        config: which.
        reporter: is told of tasks that the settings leave out.

    Raises:
        GenenvError: it cannot be loaded, or has too few seeds.
    """
    domain, later = _domain(config, config.domain.settings, reporter), config.later_domain()
    contexts, curriculum = config.simulator.contexts, config.curriculum
    choose_seeds(domain.seeds(), SkillStats(curriculum), contexts, random.Random(0), curriculum)
    if later is None:
        return domain
    after = _domain(config, later, reporter)
    choose_seeds(after.seeds(), SkillStats(curriculum), contexts, random.Random(0), curriculum)
    return cast(Domain, ShiftingDomain(domain, after))


def _domain(config: RunConfig, settings: BaseModel, reporter: Reporter | None) -> Domain:
    domain = load_domain(config.domain.name, settings)
    omitted = getattr(domain, "omitted", None)
    if reporter is not None and omitted is not None:
        reporter.note(f"{config.domain.name}: {omitted}")
    return cast(Domain, ByParameters(domain)) if config.simulator.writes == "parameters" else domain


def load_players(config: RunConfig, domain: Domain, reporter: Reporter) -> Players:
    """The two players.

    Args:
        config: which.
        domain: for it.
        reporter: is told that models are being loaded.

    Raises:
        UsageError: a model cannot be loaded or used here.
    """
    policy = config.policy
    loaded = policy.model if policy.backend == "local" else f"{policy.backend} players"
    with staged(reporter, f"loading {loaded}", items=None, unit=""):
        return build_players(config, domain)
