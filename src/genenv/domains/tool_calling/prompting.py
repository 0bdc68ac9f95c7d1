"""What the simulator is told.

The prompt is short because on small machines each token costs: the job, today's date in the world the task
will play in, the tools of the seed and two more, the agent's success in one line, and the seed itself as the
example, with blanks in place of its values: a small simulator that is rewarded for valid tasks soon finds
that nothing is as valid as the example, word for word.
"""

from __future__ import annotations

import json
import random
from datetime import date as Day

from genenv.domains.tool_calling.expressions import Manner
from genenv.domains.tool_calling.literals import reading, spans
from genenv.domains.tool_calling.mentions import mentions
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS, Parameter, Tool, tools_of
from genenv.domains.tool_calling.worlds import today_of
from genenv.types import Json, JsonObject, Message, Profile, Seed

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
    tools = "\n".join(tool.signature for tool in _offered(spec, seed.id))
    system = (
        "Write tasks for an assistant with tools, as JSON: difficulty, calls, then an instruction that "
        f"states every value. It should solve {target:.0%}.\n"
        f"Today is {today:%A}, {today.isoformat()}. Tools:\n{tools}"
    )
    rates = profile_line(profile, seed.skills)
    example = json.dumps(blanked(spec, today), ensure_ascii=False, separators=(",", ":"))
    user = f"{rates}Example: {example}\nWrite one new, different task."
    return Message(role="system", content=system), Message(role="user", content=user)


def profile_line(profile: Profile, skills: tuple[str, ...]) -> str:
    """The agent's success in one line: overall, the seed's skills, the best, the worst. Empty at first."""
    if profile.overall is None:
        return ""
    rates = profile.success
    parts = [f"{skill} {rates[skill]:.0%}" for skill in skills if skill in rates]
    ranked = sorted(rates, key=lambda skill: (rates[skill], skill))
    for rank, skill in (("best", ranked[-1:]), ("worst", ranked[:1])):
        parts += [f"{rank} {name} {rates[name]:.0%}" for name in skill if name not in skills]
    return f"It solves {', '.join([f'{profile.overall:.0%} now', *parts])}.\n"


def blanked(spec: ToolSpec, today: Day) -> JsonObject:
    """A spec with a blank, such as `<title>`, for every value that a variation should choose anew.

    Choices, flags and references to results stay, and so does what is not said as it is written ("a week from
    today"): such words are what a `relative` phrasing consists of.
    """
    words = spec.instruction
    calls: list[Json] = []
    for call in spec.calls:
        args: dict[str, Json] = dict(call.args)
        for parameter in TOOLS[call.tool].parameters:
            value = args.get(parameter.name)
            if value is None or parameter.kind in ("choice", "flag"):
                continue
            if reading(parameter.kind, value, spec.instruction, today, parameter.name) is Manner.LITERAL:
                args[parameter.name] = blank = f"<{parameter.name}>"
                words = _replaced(words, _said(parameter, value, words, today), blank)
        calls.append({"tool": call.tool, "args": args})
    return {**spec.model_dump(mode="json"), "calls": calls, "instruction": words}


def _replaced(words: str, places: list[tuple[int, int]], blank: str) -> str:
    """Words with a blank in each place; of places that overlap in the longest."""
    kept: list[tuple[int, int]] = []
    for start, end in sorted(places, key=lambda place: place[0] - place[1]):
        if all(end <= other[0] or other[1] <= start for other in kept):
            kept.append((start, end))
    for start, end in sorted(kept, reverse=True):
        words = words[:start] + blank + words[end:]
    return words


def _said(parameter: Parameter, value: Json, words: str, today: Day) -> list[tuple[int, int]]:
    """Where an instruction says a value."""
    if parameter.kind in ("name", "text"):
        return spans(parameter.kind, str(value), words)
    wanted = float(value) if isinstance(value, int | float) else value
    found = mentions(parameter.kind, words, today, parameter.name)
    return [(mention.start, mention.end) for mention in found if wanted in mention.values]


def _offered(spec: ToolSpec, seed_id: str) -> list[Tool]:
    """The tools the seed uses, and others of the same apps, always the same ones for a seed."""
    used = list(dict.fromkeys(call.tool for call in spec.calls))
    apps = sorted({TOOLS[name].app for name in used})
    others = [tool.name for app in apps for tool in tools_of(app) if tool.name not in used]
    extra = random.Random(f"{seed_id}/offered").sample(others, min(_OTHER_TOOLS, len(others)))
    return [TOOLS[name] for name in used + extra]
