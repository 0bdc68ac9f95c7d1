"""What the simulator is told.

The prompt is short because on small machines each token costs: the job, today's date in the world the task
will play in, the tools of the seed and two more, the agent's success in one line, and the seed itself as the
example, with blanks in place of its values: a small simulator that is rewarded for valid tasks soon finds
that nothing is as valid as the example, word for word.
"""

from __future__ import annotations

import random

from genenv.domains.common import request
from genenv.domains.tool_calling.blanks import as_example
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS, Tool, tools_of
from genenv.domains.tool_calling.worlds import today_of
from genenv.types import Message, Profile, Seed

_OTHER_TOOLS = 2


def simulator_messages(seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
    """The conversation that asks the simulator for a variation of a seed.

    Args:
        seed: the item to vary; its id fixes the world, and so today's date, of every variation of it.
        profile: the agent's success per skill.
        target: the success rate to aim at, in (0, 1).
    """
    today = today_of(seed.id)
    spec = ToolSpec.model_validate(seed.spec)
    tools = "\n".join(tool.signature for tool in offered(seed))
    system = (
        "Write tasks for an assistant with tools, as JSON: difficulty, calls with values of your own, then "
        f"an instruction with a <blank> for each value. It should solve {target:.0%}.\n"
        f"Today is {today:%A}, {today.isoformat()}. Tools:\n{tools}"
    )
    return request(system, as_example(spec, today), profile, seed.skills, thing="task")


def offered(seed: Seed) -> list[Tool]:
    """The tools the seed uses, and others of the same apps, always the same ones for a seed."""
    spec = ToolSpec.model_validate(seed.spec)
    used = list(dict.fromkeys(call.tool for call in spec.calls))
    apps = sorted({TOOLS[name].app for name in used})
    others = [tool.name for app in apps for tool in tools_of(app) if tool.name not in used]
    extra = random.Random(f"{seed.id}/offered").sample(others, min(_OTHER_TOOLS, len(others)))
    return [TOOLS[name] for name in used + extra]
