"""The simulator's prompts, shared by all environments: instruction, the agent's success rates, example."""

from __future__ import annotations

import json

from genenv.types import (
    JsonObject,
    Message,
    Profile,
)


def profile_line(profile: Profile, skills: tuple[str, ...]) -> str:
    """Return the agent's success rates (overall, seed's skills, best, worst) in a line; empty if unknown."""
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
    """Return the prompt for a simulator that writes specs: instruction, success rates and an example.

    Args:
        system: the instruction, with the available choices.
        example: the spec to vary.
        profile: the agent's success rate per skill.
        skills: the skills of the seed.
        thing: the noun for what to write, such as `task`.
    """
    shown = json.dumps(example, ensure_ascii=False, separators=(",", ":"))
    user = f"{profile_line(profile, skills)}Example: {shown}\nWrite one new, different {thing}."
    return Message(role="system", content=system), Message(role="user", content=user)


def asked_for(
    system: str, profile: Profile, skills: tuple[str, ...], *, thing: str
) -> tuple[Message, Message]:
    """Return the prompt for a simulator that writes parameters: instruction and success rates.

    Args:
        system: the instruction, with the available choices.
        profile: the agent's success rate per skill.
        skills: the skills of the seed.
        thing: the noun for what to set up, such as `task`.
    """
    user = f"{profile_line(profile, skills)}Set up one {thing}."
    return Message(role="system", content=system), Message(role="user", content=user)
