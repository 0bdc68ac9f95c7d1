"""What is compared: every arm is one loop with a few settings of its own, by name.

`genenv` and `robust` are the presets whole, base tasks and all. The others stand on the preset `paper`, but
without its base tasks and its choice of seeds: they differ in where the levels of tasks come from alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from genenv.curriculum.settings import CurriculumConfig, preset
from genenv.errors import registered
from genenv.types import Json, JsonObject

Source = Literal["none", "policy", "once", "seed", "oracle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A curriculum."""

    about: str
    """What it is, for people."""
    preset: Literal["paper", "robust"] = "paper"
    curriculum: JsonObject = field(default_factory=dict[str, Json])
    """Settings of the curriculum that it changes."""
    source: Source = "policy"
    """Where the level of a task comes from: base tasks alone; the simulator's policy; the same, written once
    before the first round; the task's seed; whatever the agent solves nearest to half the time."""
    algorithm: Literal["none", "rwr", "reinforce"] = "none"
    """How the simulator learns."""
    conditioned: bool = False
    """Whether the simulator is told how the agent has been doing."""

    def config(self) -> CurriculumConfig:
        """All settings of its curriculum."""
        return CurriculumConfig.model_validate({**preset(self.preset)["curriculum"], **self.curriculum})


_WRITTEN: JsonObject = {"base_share": 0.0, "review_share": 0.0, "replay_share": 0.0, "seed_trim": 0.0}
"""Every task is a new one, of a seed drawn uniformly."""
_BY_TASK: JsonObject = {**_WRITTEN, "p_hat_scope": "task", "band_filter": False, "standardise_rewards": True}
_STATE = Arm(
    about="REINFORCE, told the agent's state", curriculum=_BY_TASK, algorithm="reinforce", conditioned=True
)


def _rwr(about: str, **settings: Json) -> Arm:
    """The published algorithm on new tasks alone."""
    return Arm(about=about, curriculum={**_WRITTEN, **settings}, algorithm="rwr")


def _untrained(about: str, source: Source = "policy", **settings: Json) -> Arm:
    return Arm(about=about, curriculum={**_WRITTEN, **settings}, source=source)


def _paid(about: str, **settings: Json) -> Arm:
    """The arm `state`, paid otherwise."""
    return replace(_STATE, about=f"state, paid {about}", curriculum={**_BY_TASK, **settings})


ARMS: Mapping[str, Arm] = {
    "base": _untrained("base tasks alone", "none"),
    "random": _untrained("a simulator that never learns"),
    "static": _untrained("five variations of each seed, written once", "once"),
    "genenv": Arm(about="preset paper", preset="paper", algorithm="rwr"),
    "robust": Arm(about="preset robust", preset="robust", algorithm="rwr"),
    "rwr": _rwr("the paper's filter and weights, new tasks alone"),
    "filter": _rwr("the paper's filter alone, all weights equal", rwr_lambda=0.0),
    "task": _rwr("the paper's filter and weights, by task", p_hat_scope="task"),
    "task-rwr": Arm(about="RWR by task, standardised, no filter", curriculum=_BY_TASK, algorithm="rwr"),
    "reinforce": Arm(
        about="REINFORCE by task, baseline of the context", curriculum=_BY_TASK, algorithm="reinforce"
    ),
    "state": _STATE,
    "band": _untrained("never learns; the agent skips tasks outside the band", agent_band=True),
    "controller": _untrained("the level of seeds is steered by feedback", "seed", seed_choice="controller"),
    "bandit": _untrained(
        "Thompson sampling of seeds", "seed", seed_choice="bandit", env_reward="learnability"
    ),
    "shuffled": _paid("for other tasks", env_reward="shuffled"),
    "state-alpha-0.3": _paid("for alpha 0.3", alpha=0.3),
    "state-alpha-0.7": _paid("for alpha 0.7", alpha=0.7),
    "state-learnability": _paid("p(1 - p)", env_reward="learnability"),
    "state-signal": _paid("the chance of a signal", env_reward="signal"),
    "state-variance": _paid("the variance of rewards", env_reward="variance"),
    "state-difficulty": _paid("1 - p", env_reward="difficulty"),
    "state-constant": _paid("alike for all", env_reward="constant"),
    "oracle": _untrained("knows the true ability", "oracle"),
}
"""Every arm of the laboratory."""


def chosen(names: Sequence[str]) -> dict[str, Arm]:
    """The arms of these names, in the order of the table; all of them without any.

    Raises:
        UsageError: no such arm.
    """
    wanted = {registered("arm", name, ARMS) for name in names}
    return {name: arm for name, arm in ARMS.items() if not wanted or name in wanted}
