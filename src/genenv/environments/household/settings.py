"""Settings of the household environment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from genenv.settings import Settings


class HouseholdConfig(Settings, frozen=True):
    """Settings of the household environment."""

    mode: Literal["episode", "single"] = "episode"
    """episode: the agent plays the whole game, one command per turn. single: the agent sees a game in which
    an expert has played some steps, and must give the next command (the paper's decomposition into single
    steps); a step is asked only if it follows from the answers so far."""
    max_turns: int = Field(default=50, ge=11, le=200)
    """Maximum commands in a whole game, including those that do nothing; ALFWorld allows 50, plans have up to
    11."""
    show_commands: bool = False
    """List all commands that are possible now. If off, the agent must find out, as in ALFWorld."""
    held_to_commands: bool = False
    """Sample replies only from the commands that are possible now, and train on probabilities within this
    set, so no turn is lost on an invalid command. Demonstrations are learned in the same way. Not with
    endpoints."""
    reward: Literal["exact", "progress"] = "exact"
    """exact: 1 for a won game (or a right step), else 0. progress: a game that is not won earns 1 - (steps
    still needed) / (steps of its shortest plan), but at least 0."""
