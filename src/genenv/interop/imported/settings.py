"""Settings of environments that are environments of others."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, JsonValue, model_validator

from genenv.settings import PLACE, Settings

Table = dict[str, JsonValue]


class ImportedConfig(Settings, frozen=True):
    """What both kinds have in common. In a file the last class's settings come first."""

    vary: Table = Field(default_factory=dict)
    """What the simulator sets: a list of values for each name; tables in it lead deeper."""
    given: Table = Field(default_factory=dict)
    """What every task is given beside that."""
    given_held_out: Table = Field(default_factory=dict)
    """What is laid over it for held-out tasks, such as another split."""
    base: int = Field(default=32, ge=1, le=100_000)
    """How many base tasks."""
    held_out: int = Field(default=32, ge=0, le=100_000)
    """How many held-out tasks."""
    max_turns: int = Field(default=16, ge=1, le=1000)
    """Replies the agent gets in an attempt; what was reached by then counts."""
    tools: Literal["native", "prompt"] = "native"
    """How the agent is offered tools: by its chat template, in the model's own form; or by the prompt, as
    JSON, for models whose template has no such form."""
    success_at: float = 1.0
    """From this reward on a task is solved; 0: by any above 0, in an attempt that came to its end."""
    reward_low: float = 0.0
    """The reward of the environment that counts as 0."""
    reward_high: float = 1.0
    """The reward of the environment that counts as 1; what is beyond counts no more."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.reward_low >= self.reward_high:
            raise ValueError("reward_low must be less than reward_high")
        return self


class OpenEnvConfig(ImportedConfig, frozen=True):
    """Settings of a server of OpenEnv: `[environment] name = "openenv:http://HOST:PORT"`."""

    seeds: int = Field(default=1000, ge=0, le=1_000_000_000)
    """Tasks for training are reset with a seed below this; held-out ones with others, or with the same where
    `given_held_out` tells them apart. 0: no seed is given."""
    show: tuple[str, ...] = Field(default=(), strict=False)
    """Fields of an observation that the agent is shown; none: all that hold something."""
    system: str = ""
    """What the agent is told first; left out: what the server says of itself, and how to reply."""
    reward: Literal["sum", "last", "best"] = "sum"
    """Which of an attempt's rewards counts: all together, the last one, or the highest."""
    sessions: int = Field(default=32, ge=1, le=10_000)
    """So many sessions at a time at most; fewer where the server has no room for more."""
    connect_s: float = Field(default=20.0, ge=0.1, le=3600)
    """So long a server that is not there, or has no room, is asked again."""
    step_s: float = Field(default=60.0, ge=0.05, le=86_400)
    """So long one answer may take, in seconds; after that the attempt fails."""


class VerifiersConfig(ImportedConfig, frozen=True):
    """Settings of a taskset of verifiers: `[environment] name = "verifiers:TASKSET"`."""

    rows: int = Field(default=1000, ge=1, le=100_000_000)
    """Tasks for training are the first rows, so many at most; held-out ones come after them, or are the first
    rows of another set where `given_held_out` tells it apart."""
    python: str = ""
    """The Python that has verifiers and the taskset; left out: the one that runs genenv."""
    path: str = Field(default="", json_schema_extra=PLACE)
    """A folder where that Python finds the taskset beside what is installed."""
    harness: str = "auto"
    """Who leads the conversation: `auto`, the taskset's own harness, else a plain one that calls tools; or
    the id of one of verifiers'."""
    env: Table = Field(default_factory=dict)
    """More settings of verifiers' environment, as in its own files."""
    step_s: float = Field(default=120.0, ge=0.1, le=86_400)
    """So long one answer may take, in seconds; after that the attempt fails."""
