"""Starts a new run from a round of another run: `genenv train --from RUN@ROUND`.

A branch is a separate run with a new id. It copies the other run's store up to that round, and the
checkpoint. So weights, optimizer states, task pools and statistics are the same. The other run does not
change. Several branches of one round are paired, because they share all earlier rounds.
"""

from __future__ import annotations

import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from genenv.backends.settings import BEHIND_ENDPOINT, WEIGHTS
from genenv.config.resolved import ResolvedConfig, anchored, by_key, with_values
from genenv.config.run import RunConfig
from genenv.errors import DataError, UsageError
from genenv.runs.checkpoint import (
    COMMITTED,
    MANIFEST,
    discard,
    manifest_sha256,
    mark_committed,
    new_checkpoint,
)
from genenv.runs.folder import UNFINISHED, RunFolder, changed, named_run
from genenv.runs.store.store import PoolStore
from genenv.simulator.parameter_search import STATE
from genenv.types import Json

_OF_AGENT = re.compile(r"(?P<of>.+?)(?::(?P<agent>[a-z][a-z0-9-]*))?")


@dataclass(frozen=True, slots=True)
class Origin:
    """A committed round of a run, from which branches can start."""

    folder: RunFolder
    round: int
    checkpoint: Path
    config: RunConfig

    @classmethod
    def named(cls, name: str) -> Origin:
        """Return the origin that `RUN@ROUND` names; without a round, that of the newest checkpoint.

        Raises:
            UsageError: there is no such run, or it has no checkpoint of that round.
            DataError: the checkpoint or the store is damaged.
        """
        path, wanted = named_run(name)
        folder = RunFolder.open(path)
        checkpoint, number = folder.checkpoint(wanted)
        return cls(folder, number, checkpoint, anchored(folder.settings()))

    def check(self, config: ResolvedConfig) -> None:
        """Refuse settings with which no branch can start from this round.

        Raises:
            UsageError: the settings have another environment, other weights, another seed, an earlier shift,
                or too few rounds, or they need a simulator that the checkpoint lacks.
        """
        if config.run.rounds <= self.round:
            raise UsageError(
                f"run.rounds is {config.run.rounds}, but {self} has come as far; rounds are counted from "
                "the beginning, so set it higher"
            )
        if config.run.seed != self.config.run.seed and self.round:
            raise UsageError(
                f"run.seed is {config.run.seed}, but the base tasks in {self} are those of seed "
                f"{self.config.run.seed}; another seed can begin at round 0 only"
            )
        now, then = by_key(config), by_key(self.config)
        fixed = [key for key in now.keys() | then.keys() if key.startswith("environment.")]
        fixed += [*WEIGHTS, "policy.backend"]
        fixed += [f"agents.{name}.{one}" for name in config.agents for one in ("model", "backend", "address")]
        for key in sorted(fixed, key=lambda key: (key != "environment.name", key)):
            if now.get(key) != then.get(key):
                raise UsageError(
                    f"{key} is {now.get(key)!r}, but {then.get(key)!r} in {self}, where weights and tasks "
                    "come from; a branch keeps it"
                )
        if _shifted(config, self.round) != _shifted(self.config, self.round):
            raise UsageError(
                f"by round {self.round} [shift] would have made another world than it is in {self}; keep its "
                "shift, or let yours begin later"
            )
        if (now := list(config.population)) != (then := list(self.config.population)):
            raise UsageError(
                f"the agents are {', '.join(now)}, but {', '.join(then)} in {self}; a branch keeps them"
            )
        if config.simulator.source == "model" and not self._has_simulator():
            raise UsageError(f"{self} has no simulator's weights to go on with; set simulator.source")
        learning = {name: own.kl_coefficient for name, own in config.population.items()}
        if config.simulator.source == "model":
            learning["simulator"] = config.simulator.kl_coefficient
        for name, coefficient in learning.items():
            if coefficient and self._lacks_reference(name):
                section = f"agents.{name}" if name in config.agents else name
                raise UsageError(
                    f"{section}.kl_coefficient is {coefficient:g}, but {self} was trained without a "
                    f"KL term and keeps no reference for it; set {section}.kl_coefficient to 0"
                )

    def fill(self, folder: RunFolder, config_toml: str) -> None:
        """Copy the store and the checkpoint into the folder of a branch, and write its settings."""
        run = uuid.uuid4().hex
        copied = folder.checkpoint_path(self.round)
        if copied.exists():  # of a start that failed
            discard(copied)
        with new_checkpoint(folder.checkpoints, self.round, run=run) as empty:
            own = shutil.ignore_patterns(MANIFEST, COMMITTED)
            shutil.copytree(self.checkpoint, empty, ignore=own, dirs_exist_ok=True)
        with PoolStore.open(self.folder.pool, create=False) as store:
            if found := store.damage(whole=True):
                raise DataError(
                    f"{self.folder.pool} is damaged ({changed(found, most=3)}), and a branch would copy "
                    "that; restore a copy of it first"
                )
            unfinished = folder.path / UNFINISHED
            unfinished.unlink(missing_ok=True)
            store.copy_to(unfinished)
        with PoolStore.open(unfinished, create=False) as store:
            store.branch(run, self.round, checkpoint=manifest_sha256(copied))
        folder.write_settings(config_toml)  # before the store: rounds without settings could not go on
        unfinished.rename(folder.pool)
        mark_committed(copied)

    def note(self) -> str:
        """Return the comment at the top of a branch's settings that names its origin."""
        return f"# goes on from {self}: these settings hold from round {self.round + 1} on\n\n"

    def _lacks_reference(self, name: str) -> bool:
        """Whether an agent, or the simulator, had no KL term and no weights in its checkpoint for one."""
        then = self.config
        own = then.population.get(name, then.simulator)
        policy = then.policy if own is then.simulator else then.policy_of(name)
        always_kept = policy.tuning == "lora" and policy.backend != "ppo"
        return not always_kept and not own.kl_coefficient

    def _has_simulator(self) -> bool:
        place = self.checkpoint / "simulator"
        return place.is_dir() and any(file.name != STATE for file in place.iterdir())

    def __str__(self) -> str:
        return f"{self.folder.path}@{self.round}"


def first_weights(config: RunConfig) -> dict[str, Path]:
    """Return the folders of the first weights of agents that begin with those of another run, by agent.

    Raises:
        UsageError: there is no such run, checkpoint or agent, or it has another model or kind of adapter.
        DataError: a checkpoint is damaged.
    """
    return {name: origin.checkpoint / theirs for name, (origin, theirs) in _origins(config).items()}


def pinned(config: ResolvedConfig) -> ResolvedConfig:
    """Return the settings of a run that starts, whose agents name folder and round of their first weights.

    The newest checkpoint of another run may be a later one when the run is resumed.
    """
    places = {
        f"agents.{name}.checkpoint": f"{origin.folder.path.resolve()}@{origin.round}:{theirs}"
        for name, (origin, theirs) in _origins(config).items()
    }
    return ResolvedConfig(with_values(config, places))


def is_pinned(kept: str, named: str) -> bool:
    """Return whether the first weights that a run keeps (`pinned`) are those that a setting names.

    Args:
        kept: folder, round and agent.
        named: the same, perhaps relative, without a round or without an agent.
    """
    own, theirs = (_OF_AGENT.fullmatch(text) for text in (kept, named))
    if own is None or theirs is None:
        return False
    (run, round_), (other, wanted) = named_run(own["of"]), named_run(theirs["of"])
    return (
        run.resolve() == other.resolve()
        and wanted in (None, round_)
        and theirs["agent"] in (None, own["agent"])
    )


def _origins(config: RunConfig) -> dict[str, tuple[Origin, str]]:
    """Return the rounds and the agents whose weights agents begin with, by agent.

    Raises:
        UsageError: there is no such run, checkpoint or agent, or it has another model or kind of adapter.
        DataError: a checkpoint is damaged.
    """
    found: dict[str, tuple[Origin, str]] = {}
    for name, agent in config.agents.items():
        if agent.checkpoint is None:
            continue
        named = _OF_AGENT.fullmatch(agent.checkpoint)
        assert named is not None  # noqa: S101 - anything matches, but nothing at all, which no setting is
        origin, theirs = Origin.named(named["of"]), named["agent"]
        agents = origin.config.population
        theirs = theirs or next(iter(agents))
        setting = f"agents.{name}.checkpoint"
        if theirs not in agents:
            raise UsageError(
                f"{setting}: {origin} has no agent {theirs!r}; its agents are {', '.join(agents)}"
            )
        if origin.config.policy_of(theirs).backend == BEHIND_ENDPOINT:
            raise UsageError(
                f"{setting}: {theirs} of {origin} is a model behind an endpoint, without weights; set "
                f"agents.{name}.address instead"
            )
        now, then = _of_weights(config, name), _of_weights(origin.config, theirs)
        for key, value in now.items():
            if value != then[key]:
                raise UsageError(
                    f"{setting}: {key} is {value!r} here, but {then[key]!r} in {origin}; an agent keeps the "
                    "model and the kind of adapter of its weights"
                )
        found[name] = (origin, theirs)
    return found


def _of_weights(config: RunConfig, agent: str) -> dict[str, Json]:
    """Return the settings that decide which model an agent's weights belong to."""
    policy = {key: value for key, value in by_key(anchored(config)).items() if key in WEIGHTS}
    own = config.policy_of(agent)
    policy |= {"policy.backend": own.backend, "policy.model": own.model}
    policy.pop("policy.simulator_model", None)
    return policy


def _shifted(config: RunConfig, number: int) -> tuple[int, BaseModel | None] | None:
    """Return the round of the shift and the environment's settings after it; None before a shift."""
    return (config.shift.round, config.later_environment()) if 0 < config.shift.round <= number else None
