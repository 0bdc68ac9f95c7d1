"""The simulator's prompts, in one form for all environments: its job, the agent's success, an example."""

from __future__ import annotations

import json

from genenv.types import (
    JsonObject,
    Message,
    Profile,
)


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


def request(
    system: str, example: JsonObject, profile: Profile, skills: tuple[str, ...], *, thing: str
) -> tuple[Message, Message]:
    """The prompt of a simulator that writes specs: its job, how the agent does, and an example to vary.

    Args:
        system: the job, and what may be chosen.
        example: a spec.
        profile: the agent's success per skill.
        skills: those of the seed.
        thing: what is to be written, e.g. `task`.
    """
    shown = json.dumps(example, ensure_ascii=False, separators=(",", ":"))
    user = f"{profile_line(profile, skills)}Example: {shown}\nWrite one new, different {thing}."
    return Message(role="system", content=system), Message(role="user", content=user)


def asked_for(
    system: str, profile: Profile, skills: tuple[str, ...], *, thing: str
) -> tuple[Message, Message]:
    """The prompt of a simulator that sets parameters: its job, and how the agent does.

    Args:
        system: the job, and what may be chosen.
        profile: the agent's success per skill.
        skills: those of the seed.
        thing: what is wanted, e.g. `task`.
    """
    user = f"{profile_line(profile, skills)}Set up one {thing}."
    return Message(role="system", content=system), Message(role="user", content=user)
