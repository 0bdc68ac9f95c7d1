"""Settings of environments of other libraries (OpenEnv, verifiers, TextArena), and of datasets."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, JsonValue, model_validator

from genenv.settings import PLACE, Settings, may_change
from genenv.tools.settings import Style

Table = dict[str, JsonValue]


class ImportedConfig(Settings, frozen=True):
    """Settings shared by environments of OpenEnv, verifiers and TextArena."""

    vary: Table = Field(default_factory=dict)
    """Parameters that the simulator sets: a list of values for each name; tables may be nested."""
    given: Table = Field(default_factory=dict)
    """Further arguments that every task gets."""
    given_held_out: Table = Field(default_factory=dict)
    """Arguments that replace those of `given` for held-out tasks, such as another split; other values of the
    same table stay. None may be in `vary`.
    """
    base: int = Field(default=32, ge=1, le=100_000)
    """The number of base tasks."""
    held_out: int = Field(default=32, ge=0, le=100_000)
    """The number of held-out tasks."""
    max_turns: int = Field(default=16, ge=1, le=1000)
    """The most replies of the agent in a rollout; the reward reached by then counts."""
    tools: Literal["native", "prompt"] = "native"
    """How the agent is offered tools: `native`, by its chat template; or `prompt`, as JSON in the prompt, for
    models whose chat template has no tools.
    """
    success_at: float | None = None
    """A task counts as solved from this reward of the environment on; left out: from `reward_high` on; 0: by
    any reward above 0 if the rollout has ended.
    """
    reward_low: float = 0.0
    """The environment's reward that counts as 0."""
    reward_high: float = 1.0
    """The environment's reward that counts as 1; higher rewards also count as 1."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.reward_low >= self.reward_high:
            raise ValueError("reward_low must be less than reward_high")
        return self


class OpenEnvConfig(ImportedConfig, frozen=True):
    """Settings of an OpenEnv server: `[environment] name = "openenv:http://HOST:PORT"`."""

    seeds: int = Field(default=1000, ge=0, le=1_000_000_000)
    """Training tasks are reset with a seed below this. Held-out tasks use other seeds, or the same seeds if
    `given_held_out` makes them different. 0: tasks have no seed.
    """
    show: tuple[str, ...] = Field(default=(), strict=False)
    """Fields of an observation that the agent sees; empty: all fields with a value, except `done`, `reward`
    and `metadata`.
    """
    system: str = ""
    """The system message; empty: the server's description of itself and how to reply."""
    reward: Literal["sum", "last", "best"] = "sum"
    """How the rewards of a rollout's steps are combined: their sum, the last, or the best."""
    sessions: int = Field(default=32, ge=1, le=10_000)
    """The most sessions open at a time; fewer if the server allows fewer."""
    connect_s: float = Field(default=20.0, ge=0.1, le=3600)
    """Seconds to retry connecting to a server that does not answer or has no free session."""
    step_s: float = Field(default=60.0, ge=0.05, le=86_400)
    """Seconds that an answer may take; after that the rollout fails."""


class VerifiersConfig(ImportedConfig, frozen=True):
    """Settings of a verifiers taskset: `[environment] name = "verifiers:TASKSET"`."""

    rows: int = Field(default=1000, ge=1, le=100_000_000)
    """Training tasks are at most this many first rows. Held-out tasks are the rows after them, or the first
    rows of another set if `given_held_out` selects it.
    """
    python: str = ""
    """The Python that has verifiers and the taskset; empty: the Python that runs genenv."""
    path: str = Field(default="", json_schema_extra=PLACE)
    """A further folder in which that Python looks for the taskset."""
    harness: str = "auto"
    """The harness that runs the conversation: `auto` for the taskset's harness, or a plain one with tool
    calls if it has none; or the id of one of verifiers' harnesses.
    """
    env: Table = Field(default_factory=dict)
    """Further settings of verifiers' environment, in the form of its configuration files."""
    roles: tuple[str, ...] = Field(default=(), strict=False)
    """The roles of an environment of several agents that are seats, the one that is asked first before the
    others, such as `["user", "assistant"]`. Each other role has a model and a client in `env`."""
    sessions: int = Field(default=32, ge=1, le=10_000)
    """The most rollouts that the process runs at a time. Each one's time includes what the others take."""
    step_s: float = Field(default=120.0, ge=0.1, le=86_400)
    """Seconds that an answer may take; after that the rollout fails."""


class TextArenaConfig(ImportedConfig, frozen=True):
    """Settings of a game of TextArena: `[environment] name = "textarena:GAME"`. It has no tools."""

    seeds: int = Field(default=1000, ge=1, le=1_000_000_000)
    """Training tasks begin with a seed below this. Held-out tasks use other seeds."""
    system: str = ""
    """The system message of every player; empty: none."""
    opening_moves: int = Field(default=0, ge=0, le=1000)
    """Number of first moves, of all players together, that code makes at random by the seed. Without them
    games that are always set up alike are one task between agents, whatever the seed."""
    legal_moves: bool = False
    """Whether the only replies are legal moves, for games whose moves are words or numbers in brackets. They
    are found by trying moves on a copy of the game."""


class DatasetConfig(Settings, frozen=True):
    """Settings of a dataset with a reward function: `[environment] name = "dataset"`."""

    data: str = Field(default="", json_schema_extra=PLACE)
    """The file of rows, JSON Lines: each has a `prompt`, text or chat messages, and any other columns. A JSON
    list of rows and a Parquet file are read too, and so are files that gzip has compressed.
    """
    reward: str = Field(default="", json_schema_extra=PLACE)
    """The reward function, `FILE.py:NAME` or `module:name`. It takes `prompt`, `completion` and columns of
    the row by name, and returns a number from 0 to 1.
    """
    reward_s: float = Field(
        default=120.0,
        ge=0.05,
        le=86_400,
        json_schema_extra=may_change("it only ends a reward function that hangs"),
    )
    """Seconds that a call of the reward function may take; after that the run stops. Of an asynchronous
    function, the time that it waits counts as the environment's (`agent.episode_timeout_s`).
    """
    columns: tuple[str, ...] = Field(default=(), strict=False)
    """Columns whose values are the skills of a row's task, such as `level`: kinds of tasks, among which a
    task bandit chooses (`curriculum.candidates`).
    """
    held_out: float = Field(default=0.1, ge=0, le=0.9)
    """Share of the rows that are held out, by a hash of their prompts; at least one row, unless it is 0."""
    eval_data: str = Field(default="", json_schema_extra=PLACE)
    """The file with the held-out rows; empty: a share of those of `data`."""
    success_at: float = Field(default=1.0, ge=0.001, le=1)
    """A task counts as solved from this reward on."""
    demonstration: str = ""
    """Column with a reply that solves the task, for supervised fine-tuning and likelihood scoring; empty:
    none is known.
    """
    tools: str = Field(default="", json_schema_extra=PLACE)
    """Tools that the agent may call, the functions or the class of a Python file: `tools.py` or
    `tools.py:Class`. Each rollout has a process and a copy of the state of its own.
    """
    style: Style = "native"
    """Format of tool calls. `native` is the model's own, by its chat template; the prompt explains `python`
    and `json`.
    """
    max_turns: int = Field(default=6, ge=2, le=1000)
    """The most replies of the agent in a rollout with tools; without tools there is one."""
