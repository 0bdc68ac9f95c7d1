"""How TravelPlanner is asked."""

from __future__ import annotations

from typing import Literal

from genenv.settings import Settings


class TravelPlannerSettings(Settings, frozen=True):
    """What the prompt of TravelPlanner is like."""

    mode: Literal["sole-planning", "two-stage"] = "sole-planning"
    """`sole-planning` gives all information; in `two-stage` the model searches for it with tools first."""
    strategy: Literal["direct", "cot"] = "direct"
    """`direct` wants the plan at once, `cot` some thinking before it: two of the authors' four strategies."""
    form: Literal["json", "text"] = "json"
    """`json` wants the form in which plans are submitted, `text` the authors' lines (`Breakfast: ...`)."""
    prompt: Literal["ours", "authors"] = "ours"
    """`authors` is theirs, word for word, from `travelplanner/prompts.py` of the data; wants their lines."""
