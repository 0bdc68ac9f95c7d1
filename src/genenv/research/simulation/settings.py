"""Settings of the laboratory: the learner, the writer, and how large a round is."""

from __future__ import annotations

from pydantic import Field

from genenv.settings import Settings


class LabConfig(Settings, frozen=True):
    """Simulated players. `learner` and `writer` have the equations in which these stand."""

    rounds: int = Field(default=10, ge=1, le=1000)
    """Rounds of a life."""
    contexts: int = Field(default=8, ge=1, le=48)
    """Seeds that the simulator varies in a round; fewer where base tasks or reviews take their share."""
    variations: int = Field(default=4, ge=1, le=64)
    """Tasks that it writes for each; contexts x variations tasks are attempted in each round of each arm."""
    rollouts: int = Field(default=8, ge=2, le=64)
    """G, attempts at each task."""
    skills: int = Field(default=4, ge=1, le=32)
    """S, skills of the agent."""
    levels: int = Field(default=12, ge=2, le=64)
    """D, levels of difficulty."""
    slope: float = Field(default=1.75, gt=0, le=20)
    """How fast success falls with difficulty, per level, in logits."""
    ability_mean: float = Field(default=3.0, ge=-10, le=64)
    """Level that the average skill solves half the time, before the first round."""
    ability_sd: float = Field(default=1.0, ge=0, le=10)
    """Standard deviation of that between skills."""
    rate: float = Field(default=0.14, ge=0, le=10)
    """eta: what one group with full signal adds to the ability it practises, in levels."""
    spread_levels: float = Field(default=3.5, gt=0, le=1000)
    """Distance in levels over which practice loses a factor e."""
    spread_skills: float = Field(default=0.2, ge=0, le=1)
    """Share of practice that reaches every other skill."""
    forgetting: float = Field(default=0.05, ge=0, le=1)
    """Share of what was learned that is lost each round."""
    noise: float = Field(default=0.05, ge=0, le=10)
    """Standard deviation of the drift of each ability per round, in levels."""
    copy_share: float = Field(default=0.0, ge=0, le=1)
    """Chance that a written task has its seed's level, whatever the simulator has learned."""
    step: float = Field(default=8.0, ge=0, le=1000)
    """Length of the simulator's steps, the same for each of its algorithms."""
    anchor: float = Field(default=0.02, ge=0, le=100)
    """Weight of the KL divergence to the initial simulator."""
    goal: float = Field(default=0.4, gt=0, lt=1)
    """Held-out success at which the attempts until then are counted."""

    @property
    def tasks(self) -> int:
        """Tasks of a round."""
        return self.contexts * self.variations
