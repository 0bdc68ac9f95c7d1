"""All settings of a run: the sections that other packages define, read from TOML and written back.

Later sources override earlier ones: defaults, preset, file, variant, `--set`. A wrong key or value ends in
one sentence.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

from pydantic import BaseModel, Field, JsonValue, SerializeAsAny, model_validator
from pydantic.fields import FieldInfo

from genenv.agent.policy import AgentConfig, NamedAgentConfig
from genenv.backends.settings import BEHIND_ENDPOINT, EndpointConfig, PolicyConfig
from genenv.config.tables import (
    apply_override,
    check_keys,
    dump_tables,
    merged,
    not_allowed,
    read_tables,
    validated,
)
from genenv.config.variants import with_variant
from genenv.curriculum.settings import CurriculumConfig, preset
from genenv.environments import (
    code_plays_seats,
    environment_config,
    environment_name,
    environment_seats,
)
from genenv.errors import UsageError
from genenv.settings import Settings, may_change, walk
from genenv.simulator.settings import COPIES, SEARCHING, SimulatorConfig
from genenv.types import AGENT, Json, JsonObject

_AGENT_NAME = re.compile(r"(?!simulator$)[a-z][a-z0-9-]{0,31}")
"""Names of agents. They become names of folders, metrics and adapters."""


CODE = "code"
"""Stands for the environment's code where an agent of a seat is named."""


class RunSettings(Settings, frozen=True):
    """Settings of the run as a whole."""

    name: str = Field(
        default="run",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        json_schema_extra=may_change("is shown in charts"),
    )
    """Name of the run, used for its folder in `runs/` and in charts."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of all randomness. Two runs with equal settings on one machine have equal results."""
    rounds: int = Field(
        default=10, ge=0, le=1_000_000, json_schema_extra=may_change("a run may grow; it cannot shrink")
    )
    """Number of rounds to train. 0: only the warm-up, from which other runs can start."""
    eval_every: int = Field(
        default=5,
        ge=0,
        le=1_000_000,
        json_schema_extra=may_change("measuring teaches nothing, and draws from streams of its own"),
    )
    """Evaluate on held-out tasks every this many rounds, before the first and after the last; 0: never."""
    eval_tasks: int = Field(default=64, ge=1, le=1_000_000)
    """Number of held-out tasks to evaluate on; all of them if there are fewer."""
    keep_checkpoints: int = Field(
        default=2, ge=1, le=1_000_000, json_schema_extra=may_change("the newest one is always kept")
    )
    """Number of newest checkpoints that are kept on disk."""
    staleness: int = Field(default=0, ge=0, le=64)
    """Maximum off-policy lag in rounds; 0 is fully on-policy. With 1, the previous policy samples round t + 1
    while round t is trained on, if the backend can sample and train at the same time."""


class EnvironmentConfig(Settings, frozen=True):
    """Which environment the tasks come from. In a file, settings of the environment are next to `name`."""

    name: str = "tool_calling"
    """Name of the environment."""
    seats: dict[str, str] = Field(default_factory=dict)
    """The agent at each seat of an environment with several, such as `{asker = "agent", answerer = "code"}`.
    `code` is the environment's code. Left out: the agent at the first seat, code at the others."""
    settings: SerializeAsAny[BaseModel] = Field(default_factory=lambda: environment_config("tool_calling")())
    """Settings that the environment defines."""


class ShiftConfig(Settings, frozen=True):
    """A change of the environment during training. Neither policy gets a notice."""

    round: int = Field(default=0, ge=0, le=1_000_000)
    """The first round in the changed environment. The agent is also evaluated just before it. 0: no
    change."""
    eval_every: int = Field(
        default=1,
        ge=1,
        le=1_000_000,
        json_schema_extra=may_change("measuring teaches nothing, and draws from streams of its own"),
    )
    """From that round on, evaluate every this many rounds; never if `run.eval_every` is 0."""
    environment: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the environment that change in that round. Of a table, the keys that stand here change; a
    mixture's member with another `name` is replaced."""


class LoggingConfig(Settings, frozen=True):
    """Where metrics are written besides `metrics.jsonl`, which is always written."""

    tensorboard: bool = Field(default=False, json_schema_extra=may_change("a copy of the metrics"))
    """Also write event files for TensorBoard into the run's folder (needs the package tensorboard)."""
    wandb: bool = Field(default=False, json_schema_extra=may_change("a copy of the metrics"))
    """Also log to Weights & Biases (needs the package wandb)."""
    wandb_project: str = Field(
        default="genenv", min_length=1, json_schema_extra=may_change("where that copy goes")
    )
    """Project of the runs in Weights & Biases."""


class RunConfig(Settings, frozen=True):
    """All settings of a run, by section."""

    preset: Literal["paper", "robust"] = "robust"
    """Defaults of the settings that you leave out: `paper` as published, `robust` with corrections."""
    variant: str = ""
    """Named overrides, as with `--variant`; the run keeps their name."""
    agents: dict[str, NamedAgentConfig] = Field(default_factory=dict)
    """Several agents with one simulator: a section `[agents.NAME]` for each, with the settings of `[agent]`
    that are others for it. Left out: one agent."""
    run: RunSettings = Field(default_factory=RunSettings)
    """Settings of the run as a whole."""
    environment: EnvironmentConfig = Field(default_factory=EnvironmentConfig)
    """The environment of the tasks."""
    shift: ShiftConfig = Field(default_factory=ShiftConfig)
    """A shift test: from one round on, `[shift.environment]` overrides `[environment]`."""
    curriculum: CurriculumConfig = Field(default_factory=CurriculumConfig)
    """How tasks are rewarded, chosen and repeated."""
    simulator: SimulatorConfig = Field(default_factory=SimulatorConfig)
    """The policy that writes tasks."""
    agent: AgentConfig = Field(default_factory=AgentConfig)
    """The policy that solves tasks."""
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    """The models behind both policies."""
    logging: LoggingConfig = Field(default_factory=LoggingConfig)
    """Where metrics are written."""

    @model_validator(mode="before")
    @classmethod
    def _preset_beneath(cls, values: object) -> object:
        """Fill in the preset's values for missing keys; a section given as an object is unchanged."""
        if not isinstance(values, Mapping):
            return values
        found = _with_preset(cast(Mapping[str, Json], values))
        return {**found, "agents": _inherited(found)} if found.get("agents") else found

    @model_validator(mode="after")
    def _may_be_ahead(self) -> RunConfig:
        """Refuse settings with which rounds cannot be sampled off-policy."""
        if not self.run.staleness:
            return self
        if self.shift.round:
            raise ValueError(
                "rounds of two worlds cannot be in flight: set run.staleness to 0, or shift.round"
            )
        if self.curriculum.predicts and self.curriculum.foretold_by == "likelihoods":
            raise ValueError(
                "a round in flight cannot ask weights that are learning how likely solutions are: set "
                'run.staleness to 0, or curriculum.foretold_by to "attempts" or "text"'
            )
        return self

    @model_validator(mode="after")
    def _agent_may_progress(self) -> RunConfig:
        """Refuse the reward `progress` for an agent that does not change."""
        if self.curriculum.compares_versions and not self.agent.train:
            raise ValueError(
                'a frozen agent makes no progress: set agent.train to true, or another reward than "progress"'
            )
        return self

    @model_validator(mode="after")
    def _may_replay_specs(self) -> RunConfig:
        """Refuse a search that replays whole specs where the gate rejects copies."""
        searches = self.simulator.writes == "spec" and self.simulator.source in SEARCHING
        if searches and self.environment.name == "mixture":
            raise ValueError(
                f"simulator.source {self.simulator.source!r} with simulator.writes 'spec' replays specs at "
                "other seeds, and those of a mixture's members differ: set simulator.writes to 'parameters'"
            )
        if searches and self.curriculum.novelty_threshold:
            raise ValueError(
                f"simulator.source {self.simulator.source!r} with simulator.writes 'spec' replays specs, "
                f"{COPIES}"
            )
        return self

    @model_validator(mode="after")
    def _seats_have_agents(self) -> RunConfig:
        """Refuse seats without an agent, agents without a seat, and settings that seats cannot have."""
        env, given, agents = self.environment.name, self.environment.seats, list(self.population)
        by_code = code_plays_seats(env)
        if not given and by_code:
            return self
        there = environment_seats(env, self.environment.settings)
        if not given and not there:
            return self
        if not by_code and (not given or CODE in given.values()):
            raise ValueError(
                f"no code plays a seat of {env}: name an agent for each in environment.seats "
                f"({', '.join(there)})"
            )
        named = ", ".join(agents)
        if not there:
            raise ValueError(f"the environment {env} has no seats: leave environment.seats out")
        if strange := [seat for seat in given if seat not in there]:
            raise ValueError(
                f"environment.seats names {strange[0]!r}, but the seats of {env} are {', '.join(there)}"
            )
        if empty := [seat for seat in there if seat not in given]:
            raise ValueError(
                f"the seat {empty[0]!r} of {env} has no agent: set environment.seats.{empty[0]} to one of "
                f'{named}, or to "{CODE}" for the environment\'s code'
            )
        if CODE in agents:
            raise ValueError(
                f"an agent is called {CODE!r}, which stands for the environment's code in environment.seats: "
                f"rename [agents.{CODE}]"
            )
        if unknown := [who for who in given.values() if who not in (CODE, *agents)]:
            raise ValueError(
                f"environment.seats names the agent {unknown[0]!r}, but the agents are {named}; "
                f"add a section [agents.{unknown[0]}]"
            )
        if idle := [name for name in agents if name not in given.values()]:
            raise ValueError(
                f"the agent {idle[0]!r} has no seat: name it in environment.seats, or leave out its section"
            )
        rollouts = {name: agent.rollouts for name, agent in self.population.items()}
        if len(set(rollouts.values())) > 1:
            told = ", ".join(f"{name} {number}" for name, number in rollouts.items())
            raise ValueError(f"agents that share episodes have as many rollouts each, not {told}")
        if self.curriculum.agents_reward != "mean" or not self.curriculum.share_tasks:
            raise ValueError(
                "agents at seats are not compared with each other, and share all tasks: leave out "
                "curriculum.agents_reward and curriculum.share_tasks, or environment.seats"
            )
        return self

    @model_validator(mode="after")
    def _agents_have_models(self) -> RunConfig:
        """Refuse agents behind endpoints that would be trained or scored, and several backends ahead."""
        for name, agent in self.agents.items():
            if agent.address is not None:
                self._check_endpoint(f"agents.{name}", agent)
            elif agent.endpoint != EndpointConfig():
                raise ValueError(
                    f"agents.{name}.endpoint says how requests are sent, but to no model: set "
                    f"agents.{name}.address, or leave it out"
                )
        backends = {policy.backend for policy in self.policies.values()}
        if backends == {BEHIND_ENDPOINT}:
            raise ValueError(
                "all agents are models behind endpoints and the simulator is no model, so nothing could be "
                "trained: leave out agents.NAME.address of one of them"
            )
        if self.run.staleness and len(backends) > 1:
            raise ValueError(
                "rounds in flight need all agents on one backend: set run.staleness to 0, or leave out "
                "agents.NAME.backend and agents.NAME.address"
            )
        return self

    def _check_endpoint(self, section: str, agent: NamedAgentConfig) -> None:
        address, rates = agent.address or "", self.curriculum
        if not all(address.partition("#")[::2]):
            raise ValueError(
                f"{section}.address is {address!r}, but an endpoint is named BASE_URL#MODEL, such as "
                "http://localhost:8000/v1#my-model"
            )
        if agent.train:
            raise ValueError(
                f"{section} is a model behind an endpoint, which cannot be trained: set {section}.train to "
                "false"
            )
        given = [key for key in ("model", "backend", "checkpoint") if getattr(agent, key) is not None]
        if given:
            raise ValueError(
                f"{section} is a model behind an endpoint and has no weights here: leave out "
                f"{section}.{given[0]} or {section}.address"
            )
        if rates.compares_versions or (rates.predicts and rates.foretold_by == "likelihoods"):
            raise ValueError(
                f"{section} is a model behind an endpoint, which cannot score demonstrations: set "
                'curriculum.foretold_by to "attempts" or "text", and another reward than "progress"'
            )

    @model_validator(mode="after")
    def _teams_have_seats(self) -> RunConfig:
        """Refuse a weight of the team where no team plays, or where advantages do not come from rewards."""
        for name, agent in self.population.items():
            if not agent.team_weight:
                continue
            where = f"agents.{name}" if self.agents else "agent"
            if len(self.seated) < 2:
                raise ValueError(
                    f"{where}.team_weight is {agent.team_weight:g}, but there is no team: give two or more "
                    "seats to agents in environment.seats, or set it to 0"
                )
            if isinstance(agent, NamedAgentConfig) and not agent.train:
                raise ValueError(f"{where}.team_weight is {agent.team_weight:g}, but {name} is not trained")
            if agent.algorithm in ("ppo", "sft", "rft"):
                raise ValueError(
                    f"{where}.team_weight is {agent.team_weight:g}, but the algorithm {agent.algorithm} has "
                    "no advantages of groups: set it to 0, or the algorithm to grpo"
                )
        return self

    @model_validator(mode="after")
    def _agents_fit_together(self) -> RunConfig:
        """Refuse settings that several agents cannot have, and rewards of agents that there are not."""
        rates, names = self.curriculum, list(self.agents)
        if strange := [name for name in rates.regret_agents if name not in names]:
            close = difflib.get_close_matches(strange[0], names, n=1)
            raise ValueError(
                f"curriculum.regret_agents names {strange[0]!r}, but the agents are "
                f"{', '.join(names) or 'one without a name'}; "
                + (f"did you mean {close[0]!r}?" if close else f"add a section [agents.{strange[0]}]")
            )
        if len(names) < 2:
            if rates.agents_reward != "mean":
                raise ValueError(
                    f'curriculum.agents_reward is "{rates.agents_reward}", which compares several agents: '
                    "add sections [agents.NAME], or leave it out"
                )
            return self
        if rates.agents_reward != "mean" and not rates.share_tasks:
            raise ValueError(
                f'curriculum.agents_reward is "{rates.agents_reward}", which needs rollouts of all agents on '
                "each task: set curriculum.share_tasks to true"
            )
        if rates.share_tasks and (rates.predicts or rates.compares_versions or rates.candidates > 1):
            raise ValueError(
                "success rates of several agents are predicted only if each task is for one of them: set "
                "curriculum.share_tasks to false; or curriculum.candidates to 1, "
                'curriculum.foretold_attempts to 0 and another reward than "progress"'
            )
        for name, agent in self.agents.items():
            if agent.replayed != self.agent.replayed:
                raise ValueError(
                    f"agents.{name}.replayed is {agent.replayed}, but all agents train on the same replayed "
                    f"demonstrations: set agent.replayed to {agent.replayed}"
                )
        return self

    @property
    def population(self) -> Mapping[str, AgentConfig]:
        """The settings of each agent by name: those of `agents`, or else `agent` alone."""
        return self.agents or {AGENT: self.agent}

    @property
    def seated(self) -> Mapping[str, str]:
        """The agent at each seat that is not played by code, the leading seat first; empty without seats.

        The leading seat is the first one of the environment whose agent is trained.
        """
        given, agents = self.environment.seats, self.population
        if not given:
            return {}
        there = environment_seats(self.environment.name, self.environment.settings)
        order = [seat for seat in there if given.get(seat, CODE) != CODE]
        return {seat: given[seat] for seat in sorted(order, key=lambda seat: not agents[given[seat]].train)}

    def seat_of(self, agent: str | None) -> str | None:
        """Return the first seat of an agent; None if it has none."""
        return next((seat for seat, name in self.seated.items() if name == agent), None)

    @property
    def offered_tools(self) -> Sequence[str]:
        """The agents that are offered the tools of tasks: of the first seat, or all without seats."""
        seated = self.seated
        if not seated:
            return list(self.population)
        first = environment_seats(self.environment.name, self.environment.settings)[0]
        return [seated[first]] if first in seated else []

    def policy_of(self, agent: str) -> PolicyConfig:
        """Return the settings of an agent's policy: its own backend and base model, and `[policy]` otherwise.

        An agent behind an endpoint has the backend `BEHIND_ENDPOINT`, and its address as the model.
        """
        own = self.agents.get(agent)
        if own is None:
            return self.policy
        if own.address is not None:
            return self.policy.model_copy(update={"backend": BEHIND_ENDPOINT, "model": own.address})
        changes = {"backend": own.backend, "model": own.model}
        return self.policy.model_copy(update={key: one for key, one in changes.items() if one is not None})

    @property
    def learns_here(self) -> bool:
        """Return whether any language model learns on this machine."""
        return any(policy.learns_here for policy in self.policies.values())

    @property
    def policies(self) -> dict[str, PolicyConfig]:
        """The settings of each policy: of the agents by name, and of a simulator that is a model."""
        own = {name: self.policy_of(name) for name in self.population}
        return own | ({"simulator": self.policy} if self.simulator.source == "model" else {})

    def agent_named(self, name: str) -> str:
        """Return the name of an agent of the run. `agent` also stands for the only one, whatever its name.

        Raises:
            UsageError: there is no such agent, or several, of which none is called `agent`.
        """
        names = list(self.population)
        if name in names or (name == AGENT and len(names) == 1):
            return name if name in names else names[0]
        raise UsageError(
            f"{self.run.name} has the agents {', '.join(names)}; name one of them after a colon, as in "
            f"runs/{self.run.name}:{names[0]}"
        )

    def agent_of(self, policy: str) -> str | None:
        """Return the agent that a policy's name stands for (see `agent_named`); None for the simulator."""
        return None if policy == "simulator" else self.agent_named(policy)

    def later_environment(self) -> BaseModel | None:
        """Return the environment's settings after the shift; None if there is no shift."""
        return self.shifted_environment() if self.shift.round else None

    def shifted_environment(self) -> BaseModel:
        """Return the environment's settings with those of `[shift.environment]` in them."""
        own = self.environment.settings
        changed = _overridden(own.model_dump(), self.shift.environment)
        return validated(type(own), changed, "shift.environment.")


def _overridden(own: Mapping[str, object], change: Mapping[str, object]) -> dict[str, object]:
    """Return settings with changes: of a table single keys, of one with another name all."""
    found = dict(own)
    for key, value in change.items():
        below = found.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            tables = cast(Mapping[str, object], below), cast(Mapping[str, object], value)
            other = tables[1].get("name", tables[0].get("name")) != tables[0].get("name")
            found[key] = value if other else _overridden(*tables)
        else:
            found[key] = value
    return found


def load_config(path: Path | None = None, overrides: Sequence[str] = (), *, variant: str = "") -> RunConfig:
    """Read the settings of a run.

    Args:
        path: a TOML file; None: only defaults.
        overrides: settings as `key=value`, e.g. `curriculum.alpha=0.6`. The value is TOML, or else plain
            text.
        variant: a variant that overrides the file; if empty, the one that the file or an override names.

    Raises:
        UsageError: the file cannot be read, a key is unknown, a value is not allowed, or there is no such
            variant.
    """
    document = read_tables(path) if path is not None else {}
    of_older = path is not None and path.name == "config.toml" and (path.parent / "checkpoints").is_dir()
    own = document.get(RESOLVED) is True or of_older  # the settings of a run, not a preset
    names = [one for one in overrides if one.partition("=")[0].strip() == "variant"]
    if variant and names:
        raise UsageError(f"--variant {variant} and --set {names[0]} both name the variant; leave one out")
    named: dict[str, Json] = {"variant": variant} if variant else {}
    for override in names:
        apply_override(named, override)
    name = named.get("variant", "" if own else document.get("variant"))  # a run's own file has its variant
    document = with_variant(document, name) if isinstance(name, str) and name else {**document, **named}
    known = [key for key, _ in walk(RunConfig)]
    for override in overrides:
        if override not in names:
            apply_override(document, override, known)
    return parse_config(document)


RESOLVED = "resolved"
"""Key of a file with all settings of a run, which older runs lack. Its variant only names their origin."""


def parse_config(document: JsonObject) -> RunConfig:
    """Check settings that are given as nested tables, in the form of a file, and fill in defaults.

    Raises:
        UsageError: a key is unknown or a value is not allowed.
    """
    agents = _agent_tables(document)
    document = {key: value for key, value in document.items() if key not in ("agents", RESOLVED)}
    field = EnvironmentConfig.model_fields["name"]
    section = document.get("environment", {})
    env: JsonObject = section if isinstance(section, Mapping) else {}
    name = env.get("name", field.default)
    if not isinstance(name, str):
        raise UsageError(not_allowed("environment.name", name, field))
    name = environment_name(name)
    known = [key for key, _ in all_settings(name) if key != "agents"]
    of_agents = [f"agents.{agent}.{key}" for agent in agents for key, _ in walk(NamedAgentConfig)]
    check_keys({**document, **({"agents": agents} if agents else {})}, [*known, *of_agents])
    own = {key: value for key, value in env.items() if key not in ("name", "seats")}
    settings = validated(environment_config(name), own, "environment.")
    several = _named_agents(document, agents) if agents else {}
    given = {"name": name, "seats": env.get("seats", {}), "settings": settings}
    chosen = validated(EnvironmentConfig, given, "environment.")
    config = validated(RunConfig, {**document, "agents": several, "environment": chosen}, "")
    if config.later_environment() == settings:
        raise UsageError(
            f"shift.round is {config.shift.round}, but [shift.environment] changes nothing; say there which "
            "settings of [environment] are others from then on, or set shift.round to 0"
        )
    return config


def _with_preset(given: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return settings with the values of their preset for missing keys."""
    chosen = given.get("preset", RunConfig.model_fields["preset"].default)
    return merged(preset(chosen), given) if isinstance(chosen, str) else given


def _inherited(found: Mapping[str, Json]) -> Json:
    """Return the sections `[agents.NAME]` with the values of `[agent]` for missing keys."""
    agents, agent = found["agents"], cast(object, found.get("agent", {}))
    if not isinstance(agents, Mapping):
        return agents
    base = cast(JsonObject, agent.model_dump() if isinstance(agent, BaseModel) else agent)
    return {name: merged(base, own) if isinstance(own, Mapping) else own for name, own in agents.items()}


def _named_agents(document: JsonObject, tables: Mapping[str, JsonObject]) -> dict[str, NamedAgentConfig]:
    """Return the agents of a file; a value that is not allowed is named by its section."""
    found = _with_preset({**document, "agents": tables})
    _ = validated(AgentConfig, cast(JsonObject, found.get("agent", {})), "agent.")
    inherited = cast(Mapping[str, JsonObject], _inherited(found))
    return {name: validated(NamedAgentConfig, own, f"agents.{name}.") for name, own in inherited.items()}


def _agent_tables(document: JsonObject) -> dict[str, JsonObject]:
    """Return the sections `[agents.NAME]` by name.

    Raises:
        UsageError: one is no section, or its name is not allowed.
    """
    tables = document.get("agents", {})
    if not isinstance(tables, Mapping):
        raise UsageError("'agents' is a section, not a value; write [agents.NAME] and its settings below")
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise UsageError(
                f"'agents.{name}' is a value; write [agents.NAME] and the agent's settings below"
            )
        if _AGENT_NAME.fullmatch(name) is None:
            raise UsageError(
                f"an agent cannot be called {name!r}; a name has lower-case letters, digits and hyphens, at "
                "most 32, begins with a letter, and is not 'simulator'"
            )
    return cast(dict[str, JsonObject], dict(tables))


def all_settings(environment_name: str) -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting with its dotted key, for one environment."""
    of_environments = ("environment.", "shift.environment")
    yield from (pair for pair in walk(RunConfig) if not pair[0].startswith(of_environments))
    yield from ((f"environment.{key}", EnvironmentConfig.model_fields[key]) for key in ("name", "seats"))
    for section in of_environments:
        yield from walk(environment_config(environment_name), f"{section.rstrip('.')}.")


def as_tables(config: RunConfig) -> dict[str, Json]:
    """Return the settings as nested tables, in the form of a file. Settings without a value are absent."""
    tables = cast(dict[str, Json], config.model_dump(mode="json", exclude_none=True))
    env = cast(dict[str, Json], tables["environment"])
    seats = {"seats": env["seats"]} if config.environment.seats else {}
    tables["environment"] = {"name": env["name"], **seats, **cast(JsonObject, env["settings"])}
    if not config.agents:
        del tables["agents"]
    for name, agent in config.agents.items():
        if agent.address is None:
            del cast(dict[str, dict[str, Json]], tables["agents"])[name]["endpoint"]
    if not config.shift.environment:  # an environment may have no settings that could be written there
        del cast(dict[str, Json], tables["shift"])["environment"]
    return tables


def dump_toml(config: RunConfig) -> str:
    """Return the settings as TOML, marked as all settings of a run; parsing it gives equal settings."""
    return dump_tables({RESOLVED: True, **as_tables(config)})
