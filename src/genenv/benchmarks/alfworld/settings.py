"""Settings of the ALFWorld benchmark."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from genenv.settings import Settings


class AlfWorldConfig(Settings, frozen=True):
    """Settings of the ALFWorld benchmark."""

    form: Literal["episode", "step"] = "episode"
    """episode: the model plays whole games, as ALFWorld is scored. step: it sees a recorded game up to some
    command, and must give the expert's next one (GenEnv's decomposition into single steps)."""
    max_steps: int = Field(default=50, ge=1, le=200)
    """Commands in a game, those that do nothing included; ALFWorld's number is 50. Of form episode."""
    show_commands: bool = True
    """List the commands that are possible now, as agents trained with reinforcement learning are shown them
    (GiGPO, verl-agent); off, the model finds them out for itself, as with ReAct and BUTLER."""
    history: int = Field(default=10, ge=0, le=50)
    """How many of the last commands, with their answers, are shown; recorded games have up to 9. Of form
    step."""
