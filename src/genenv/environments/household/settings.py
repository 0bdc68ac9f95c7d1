"""Settings of the household environment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from genenv.settings import Settings


class HouseholdConfig(Settings, frozen=True):
    """Settings of the household environment."""

    mode: Literal["episode", "single"] = "episode"
    """episode: the agent plays the whole game, a command a turn. single: it sees a game that an expert has
    played up to some step, and must give the next command (the paper's decomposition into single steps);
    only steps that follow from what has been seen are asked for."""
    max_turns: int = Field(default=50, ge=11, le=200)
    """Commands in a whole game, those that do nothing included; ALFWorld allows 50, plans take up to 11."""
    show_commands: bool = False
    """List all commands that are possible now; off, the agent finds out for itself, as in ALFWorld."""
    held_to_commands: bool = False
    """Sample replies among exactly the commands that are possible now, and learn among these: nothing is lost
    on commands that are none. What is imitated is learned so too. Not with endpoints."""
    reward: Literal["exact", "progress"] = "exact"
    """exact: 1 for a won game (or a right step), else 0. progress: a game that is not won earns the share of
    its shortest plan by which the agent has come nearer to its end."""
