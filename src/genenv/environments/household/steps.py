"""Single steps: at which points of an expert's game the next command follows from what has been seen.

The expert knows where everything is, the agent does not. Asked where to go first, it could only guess; such
steps would sit near any success rate and teach nothing. A step is asked where the agent, from the answers so
far, can know what is right.
"""

from __future__ import annotations

from collections.abc import Sequence

from genenv.environments.household.engine import Game, Play
from genenv.environments.household.planning import good_commands
from genenv.environments.household.world import Item


def askable_steps(game: Game, commands: Sequence[str]) -> list[int]:
    """The steps of a plan, from 0, that can be asked for."""
    play = game.start()
    seen: set[str] = set()
    visited: set[str] = set()
    found: list[int] = []
    for step, command in enumerate(commands):
        if _follows(play, command, seen, visited):
            found.append(step)
        play.step(command)
        visited.add(play.state.location)
        seen |= {item.id for item in visible(play)}
    return found


def visible(play: Play) -> list[Item]:
    """The objects that the agent can see now: those in open places in front of it."""
    return [item for item in play.game.world.items if play.sees(item)]


def _follows(play: Play, command: str, seen: set[str], visited: set[str]) -> bool:
    """Whether a command of a plan follows from what has been seen.

    Args:
        play: the state before it.
        command: of a shortest plan.
        seen: ids of the objects seen so far.
        visited: where the agent has been.
    """
    game, held = play.game, play.state.held
    verb, _, name = command.partition(" ")
    if verb == "open":
        return held is not None
    if verb != "go":
        return True
    if held is None or game.world.task == "look_at_obj_in_light":
        wanted = game.world.target if held is None else game.world.goal
        place = game.places[name.removeprefix("to ")]
        there = (
            i for i in game.world.items if i.type == wanted and place.id in play.state.inside.get(i.id, ())
        )
        return any(item.id in seen for item in there)
    # Of several places that would do, one may be closed, which nobody can know who has not been there.
    kind = game.places[name.removeprefix("to ")].type
    unknown = {p.name for p in game.world.places if p.type == kind and p.location not in visited}
    return {f"go to {name}" for name in unknown} <= set(good_commands(play))
