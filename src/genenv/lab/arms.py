"""What is compared: every arm is one loop with a few settings of its own, by name.

Unless said otherwise an arm stands on the preset `paper`, and the simulator's algorithm learns from single tasks
(`p_hat_scope = "task"`), without the filter and with standardised rewards, where it is not the paper's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from genenv.curriculum.presets import preset
from genenv.curriculum.settings import CurriculumConfig
from genenv.errors import unknown_name
from genenv.types import Json, JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A curriculum."""

    about: str
    """What it is, for people."""
    preset: Literal["paper", "robust"] = "paper"
    curriculum: JsonObject = field(default_factory=dict[str, Json])
    """Settings of the curriculum that it changes."""
    source: Literal["none", "policy", "once", "seed", "oracle"] = "policy"
    """Where the level of a task comes from: there are none but base tasks; the simulator's policy; the same,
    written once before the first round; the seed's own; whatever the agent solves nearest to half the time."""
    algorithm: Literal["none", "rwr", "reinforce"] = "none"
    """How the simulator learns."""
    conditioned: bool = False
    """Whether the simulator is told how the agent has been doing."""
    agent_band: bool = False
    """Whether the agent learns from new tasks inside the band only."""

    def config(self) -> CurriculumConfig:
        """All settings of its curriculum."""
        chosen = {**preset(self.preset)["curriculum"], **self.curriculum}  # type: ignore[dict-item]
        return CurriculumConfig.model_validate(chosen)


_BY_TASK: JsonObject = {"p_hat_scope": "task", "band_filter": False, "standardise_rewards": True}

_STATE = Arm(
    about="REINFORCE, the simulator is told the agent's state",
    curriculum=_BY_TASK,
    algorithm="reinforce",
    conditioned=True,
)


def _paid(about: str, **settings: Json) -> Arm:
    """The best learner, paid otherwise."""
    return replace(_STATE, about=f"state, paid {about}", curriculum={**_BY_TASK, **settings})


ARMS: Mapping[str, Arm] = {
    "base": Arm(about="base tasks alone", source="none"),
    "random": Arm(about="a simulator that never learns"),
    "static": Arm(about="five variations of each seed, written once", source="once"),
    "genenv": Arm(about="preset paper: filter, RWR, by batch", algorithm="rwr"),
    "filter": Arm(
        about="genenv without its weights: the filter alone", algorithm="rwr", curriculum={"rwr_lambda": 0.0}
    ),
    "robust": Arm(about="preset robust: posterior, standardised weights", preset="robust", algorithm="rwr"),
    "task": Arm(about="genenv by task", algorithm="rwr", curriculum={"p_hat_scope": "task"}),
    "task-rwr": Arm(
        about="RWR by task, no filter, standardised weights", algorithm="rwr", curriculum=_BY_TASK
    ),
    "reinforce": Arm(
        about="REINFORCE by task, baseline of the context", algorithm="reinforce", curriculum=_BY_TASK
    ),
    "state": _STATE,
    "band": Arm(about="never learns; the agent learns from tasks in the band only", agent_band=True),
    "shuffled": _paid("the rewards of other tasks", env_reward="shuffled"),
    "state-alpha-0.3": _paid("alpha 0.3", alpha=0.3),
    "state-alpha-0.7": _paid("alpha 0.7", alpha=0.7),
    "state-learnability": _paid("p(1 - p)", env_reward="learnability"),
    "state-signal": _paid("the chance of a signal", env_reward="signal"),
    "state-variance": _paid("the variance of rewards", env_reward="variance"),
    "state-difficulty": _paid("1 - p", env_reward="difficulty"),
    "state-constant": _paid("alike for all", env_reward="constant"),
    "oracle": Arm(about="knows the true ability", source="oracle"),
}
"""Every arm of the laboratory."""


def chosen(names: Sequence[str]) -> dict[str, Arm]:
    """The arms of these names, in the order of the table; all of them without any.

    Raises:
        UsageError: no such arm.
    """
    for name in names:
        if name not in ARMS:
            raise unknown_name("arm", name, ARMS)
    return {name: arm for name, arm in ARMS.items() if not names or name in names}
