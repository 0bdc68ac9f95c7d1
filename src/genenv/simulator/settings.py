"""Settings of the simulator: how many tasks it writes, and how it is trained."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from genenv.algorithms.settings import (
    Batch,
    LearningRate,
    OptimizerConfig,
    SimulatorLearningConfig,
    Steps,
    WarmupConfig,
)
from genenv.backends.settings import EndpointConfig
from genenv.errors import UsageError
from genenv.settings import PLACE, Address, Settings, only_with

COPIES = "which the gate rejects as copies: set curriculum.novelty_threshold to 0"
"""How a sentence about tasks that come again ends."""
SEARCHING = ("table", "cem", "plr", "accel", "sfl")
"""The sources that search over task parameters: the names of `genenv.simulator.parameter_search.SEARCHES`."""


_CEM, _PLR, _SFL, _CEM_OR_SFL = (
    only_with(**{"simulator.source": names})
    for names in (("cem",), ("plr", "accel"), ("sfl",), ("cem", "sfl"))
)


class SearchConfig(Settings, frozen=True):
    """The searches of `simulator.source` but `table`. `plr` and `accel` have ACCEL's values for mazes."""

    elite_share: float = Field(default=0.2, ge=0.001, le=1, json_schema_extra=_CEM_OR_SFL)
    """`cem`: share of a round's specs, those with the highest rewards, to which the probabilities move.
    `sfl`: share of the scored levels that are kept."""
    smoothing: float = Field(default=0.7, ge=0.01, le=0.99, json_schema_extra=_CEM)
    """`cem`: how far they move: at 0.7, to 0.3 of the old probability plus 0.7 of the share in the elite."""
    replay_probability: float = Field(default=0.8, ge=0, le=1, json_schema_extra=_PLR)
    """`plr`, `accel`: chance that a level of the buffer is replayed (`accel`: and edited), and not drawn
    anew."""
    buffer_size: int = Field(default=4000, ge=1, le=1_000_000, json_schema_extra=_PLR)
    """`plr`, `accel`: maximum number of levels in the buffer."""
    staleness: float = Field(default=0.3, ge=0, le=1, json_schema_extra=_PLR)
    """`plr`, `accel`: weight of a level's age, against its score, in the chance to be replayed."""
    rank_temperature: float = Field(default=0.3, ge=0.01, le=100, json_schema_extra=_PLR)
    """`plr`, `accel`: the chance falls with the rank of the score, as rank^(-1 / rank_temperature)."""
    train_on_new: bool = True
    """`plr`, `accel`: whether the agent trains on new (`accel`: and edited) levels too. false: their rollouts
    only score them, and the agent trains on replayed levels alone: robust PLR, and ACCEL as published."""
    period: int = Field(default=10, ge=1, le=1_000_000, json_schema_extra=_SFL)
    """`sfl`: rounds after which the buffer is made anew."""
    scored_rounds: int = Field(default=4, ge=1, le=1_000_000, json_schema_extra=_SFL)
    """`sfl`: the first rounds of a period, whose rollouts only score uniformly drawn levels. By default these
    are 40% of all rollouts; the authors spend 43% of all steps on it (JaxNav)."""
    buffer_share: float = Field(default=0.5, ge=0, le=1, json_schema_extra=_SFL)
    """`sfl`: chance that a task of another round has a level of the buffer, and not a uniformly drawn one."""

    @model_validator(mode="after")
    def _trains_on_something(self) -> Self:
        if self.scored_rounds >= self.period:
            raise ValueError(
                f"scored_rounds is {self.scored_rounds} of a period of {self.period} rounds, so no round is "
                "left to train in: set scored_rounds lower, or period higher"
            )
        if not self.train_on_new and not self.replay_probability:
            raise ValueError(
                "train_on_new is false, so the agent trains on replayed levels alone, but replay_probability "
                "is 0: set it above 0"
            )
        return self


class SimulatorWarmupConfig(WarmupConfig, frozen=True):
    """Supervised steps on random variations by the environment, before the first round."""

    steps: Steps = Field(default=0, json_schema_extra=only_with(**{"simulator.source": ("model",)}))
    """Optimizer steps; 0 turns the warm-up off."""
    batch: Batch = 8
    """Variations per step."""


class WritingConfig(Settings, frozen=True):
    """Where tasks come from and how they are written."""

    source: Literal[
        "model", "variation", "grammar", "file", "endpoint", "none", "table", "cem", "plr", "accel", "sfl"
    ] = "model"
    """A model, the environment's random variations, random specs, a file, an endpoint; `none`: only base
    tasks. `table`, `cem`, `plr`, `accel` and `sfl` search over task parameters without a model: baselines for
    a trained simulator."""
    writes: Literal["spec", "parameters"] = "spec"
    """What the simulator writes: the whole spec, or only its parameters; the environment draws the rest. With
    whole specs `plr`, `accel` and `sfl` replay the very same level, and draw new ones as `variation` does;
    `accel` needs an environment that edits specs, such as `control` with the system `maze`."""
    per_seed: int = Field(
        default=0,
        ge=0,
        le=100_000,
        json_schema_extra=only_with(source=("model", "variation", "grammar", "endpoint")),
    )
    """Write this many specs per seed once and draw from them (GenEnv-Static: 5), which needs
    `curriculum.novelty_threshold = 0`; 0: always write new ones."""
    file: str | None = Field(
        default=None, min_length=1, json_schema_extra=PLACE | only_with(source=("file",))
    )
    """The specs of `source = "file"`: JSON Lines, as `genenv generate --out` writes them. The `tokens` of a
    line count as the simulator's when its spec is used first. If the run is longer than the file, its specs
    come again, which needs `curriculum.novelty_threshold = 0`."""
    file_tasks: int = Field(default=0, ge=0, le=100_000_000, json_schema_extra=only_with(source=("file",)))
    """Use the first so many specs of that file; 0: all."""
    address: Address = Field(default="", json_schema_extra=only_with(source=("endpoint",)))
    """The model of `source = "endpoint"`: BASE_URL#MODEL."""
    endpoint: EndpointConfig = Field(default_factory=EndpointConfig)
    """How requests are sent to that model."""
    contexts: int = Field(default=8, ge=1, le=100_000)
    """Seeds varied per round: the number of task batches."""
    variations: int = Field(default=4, ge=1, le=1024)
    """Tasks written per context."""
    max_new_tokens: int = Field(default=192, ge=1, le=1_000_000)
    """Maximum length of a spec, in tokens."""
    temperature: float = Field(default=1.0, ge=0.05, le=10)
    """Sampling temperature of the specs."""

    @property
    def writes_tasks(self) -> bool:
        """Whether anything writes tasks; otherwise a run has base tasks only."""
        return self.source != "none"

    @model_validator(mode="after")
    def _source_is_named(self) -> Self:
        if self.source == "file" and not self.file:
            raise ValueError("source is 'file', so file must name one")
        if self.source == "endpoint" and "#" not in self.address:
            raise ValueError("source is 'endpoint', so address must name a model, as BASE_URL#MODEL")
        if self.source == "file" and self.writes == "parameters":
            raise ValueError("source is 'file', which holds whole specs, so writes must be 'spec'")
        if self.source in ("table", "cem") and self.writes != "parameters":
            raise ValueError(
                f"source is {self.source!r}, which sets parameters, so writes must be 'parameters'"
            )
        if self.source in SEARCHING and self.per_seed:
            raise ValueError(
                f"source is {self.source!r}, which learns from round to round, so per_seed must be 0"
            )
        if self.per_seed and self.per_seed < self.variations:
            raise ValueError(
                f"per_seed is {self.per_seed}, but a context takes {self.variations} variations of its seed"
            )
        return self


class SimulatorConfig(OptimizerConfig, SimulatorLearningConfig, WritingConfig, frozen=True):
    """Task writing, and training on the tasks. In a file the settings of the last base class come first."""

    lr: LearningRate = 1.5e-4
    """Learning rate of AdamW. The paper uses half of the agent's."""
    weight_decay: float = Field(default=0.0, ge=0, le=1, json_schema_extra=only_with(source=("model",)))
    """Weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, ge=1e-6, le=1e6, json_schema_extra=only_with(source=("model",)))
    """Maximum norm of the gradient. A longer gradient is scaled down to it."""
    explore: float = Field(
        default=0.0, ge=0, le=0.9, json_schema_extra=only_with(source=("model", *SEARCHING))
    )
    """Chance that a spec is drawn at random by the environment and not by the model, `table` or `cem`. A spec
    that is never written earns no reward and is never learned."""
    warmup: SimulatorWarmupConfig = Field(default_factory=SimulatorWarmupConfig)
    """Supervised steps before the first round."""
    search: SearchConfig = Field(default_factory=SearchConfig)
    """The searches over task parameters."""

    @model_validator(mode="after")
    def _table_learns_by_weights(self) -> Self:
        if self.source == "table" and self.algorithm != "rwr":
            raise ValueError(
                "source is 'table', which learns by reward-weighted regression, so algorithm must be 'rwr'"
            )
        return self

    @model_validator(mode="after")
    def _scores_what_it_replays(self) -> Self:
        if self.search.train_on_new:
            return self
        if self.source not in ("plr", "accel"):
            raise ValueError(
                f"search.train_on_new is false, which is a setting of 'plr' and 'accel', but source is "
                f"{self.source!r}: leave it out, or set source to one of them"
            )
        if not self.train:
            raise ValueError(
                "search.train_on_new is false, so the agent trains on replayed levels alone, but train is "
                "false, so none is ever replayed: set one of them to true"
            )
        return self

    @property
    def writes_once(self) -> bool:
        """Whether the specs of a seed are written once, and then drawn from."""
        return self.per_seed > 0 and self.source not in ("file", "none")

    @property
    def scores_without_training(self) -> bool:
        """Whether some rollouts only score their tasks (`Generation.scored_only`)."""
        return self.source == "sfl" or not self.search.train_on_new


def check_simulator(simulator: SimulatorConfig, novelty_threshold: float) -> None:
    """Refuse a simulator that is trained but can never change, or whose tasks cannot come again.

    The settings of old runs may have one; they are still read.

    Args:
        simulator: the settings of a run that is to start.
        novelty_threshold: that of the gate.

    Raises:
        UsageError: says what to set.
    """
    learns = simulator.train and simulator.source == "model"
    if learns and simulator.algorithm == "grpo" and simulator.variations == 1:
        raise UsageError(
            "simulator.variations is 1, but simulator.algorithm 'grpo' compares what was written for one "
            "context: set variations to 4, say, and simulator.contexts to a quarter, or algorithm to 'rwr'"
        )
    if simulator.writes_once and novelty_threshold:
        raise UsageError(
            f"simulator.per_seed is {simulator.per_seed}, so the same tasks come again, {COPIES}"
        )
