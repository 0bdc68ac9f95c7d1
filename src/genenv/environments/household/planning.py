"""Shortest plans, and the choice of the plan steps that can be asked as single-step tasks.

The planner knows the contents of closed places; the agent does not. A step is asked only if the answers so
far determine it, because otherwise the agent could only guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

from genenv.environments.household.engine import TREATMENTS, VERB, Game, Item, Place, Play


class _Route:
    """A list of commands under construction; adds walking and opening only if they are needed."""

    def __init__(self, play: Play) -> None:
        self.location = play.state.location
        self.opened = set(play.state.opened)
        self.commands: list[str] = []

    def reach(self, place: Place, *, inside: bool) -> None:
        if place.location != self.location:
            self.commands.append(f"go to {place.name}")
            self.location = place.location
        if inside and place.openable and place.id not in self.opened:
            self.commands.append(f"open {place.name}")
            self.opened.add(place.id)

    def take(self, item: Item, source: Place | None) -> None:
        """Pick up an item; source None means that the agent already holds it."""
        if source is not None:
            self.reach(source, inside=True)
            self.commands.append(f"take {item.name} from {source.name}")

    def put(self, item: Item, place: Place) -> None:
        self.reach(place, inside=True)
        self.commands.append(f"move {item.name} to {place.name}")


def _emptied(play: Play, wanted: set[str]) -> Iterator[_Route]:
    """Yield routes on which the agent holds nothing, or an item in `wanted` (ids)."""
    held = play.state.held
    if held is None or held in wanted:
        yield _Route(play)
        return
    item = play.game.item_of_id[held]
    for place in play.game.world.places:
        if item.type in play.game.world.can_contain.get(place.type, ()):
            route = _Route(play)
            route.put(item, place)
            yield route


def _routes(play: Play) -> Iterator[_Route]:
    world, state = play.game.world, play.state
    reachable = {state.held, *(item for item, places in state.inside.items() if places)}
    targets = [i for i in world.items if i.type == world.target and i.pickupable and i.id in reachable]
    if world.task == "look_at_obj_in_light":
        yield from _lit(play, targets)
    elif world.task == "pick_two_obj_and_place":
        yield from _collected(play, targets)
    else:
        yield from _treated(play, targets)


def _places(play: Play, item: Item) -> list[Place]:
    """Return the places that contain an item."""
    return [play.game.place_of_id[place] for place in sorted(play.state.inside.get(item.id, ()))]


def _sources(play: Play, item: Item) -> Sequence[Place | None]:
    """Return the places from which an item can be taken; None in the list means that it is held."""
    return [None] if item.id == play.state.held else _places(play, item)


def _lit(play: Play, targets: list[Item]) -> Iterator[_Route]:
    world, state = play.game.world, play.state
    lamps = [i for i in world.items if i.type == world.goal and i.toggleable]
    lamps_there = [(lamp, desk) for lamp in lamps for desk in _places(play, lamp)]
    for item in targets:
        for (lamp, desk), source in product(lamps_there, _sources(play, item)):
            lit = lamp.id in state.toggled
            for first in (True, False):  # a lamp that stands where the walk begins may be used before
                if first and (lit or desk.location != state.location):
                    continue
                for route in _emptied(play, {item.id}):
                    if first:
                        route.commands.insert(0, f"use {lamp.name}")
                    route.take(item, source)
                    route.reach(desk, inside=False)
                    if not first and not lit:
                        route.commands.append(f"use {lamp.name}")
                    yield route


def _collected(play: Play, targets: list[Item]) -> Iterator[_Route]:
    game, state = play.game, play.state
    if game.world.target not in game.world.can_contain.get(game.world.goal, ()):
        return
    for goal in (p for p in game.world.places if p.type == game.world.goal):
        there = [i for i in targets if goal.id in state.inside.get(i.id, ())]
        fetch = [i for i in targets if goal.id not in state.inside.get(i.id, ())]
        held = [i for i in fetch if i.id == state.held]
        for chosen in permutations(fetch, max(0, 2 - len(there))):
            if held and chosen[:1] != tuple(held):
                continue
            for sources in product(*(_sources(play, item) for item in chosen)):
                for route in _emptied(play, {i.id for i in held}):
                    for item, source in zip(chosen, sources, strict=True):
                        route.take(item, source)
                        route.put(item, goal)
                    yield route


def _treated(play: Play, targets: list[Item]) -> Iterator[_Route]:
    for item in targets:
        for source, appliance in product(_sources(play, item), _appliances(play, item)):
            for goal in _goals(play, item, source):
                for route in _emptied(play, {item.id}):
                    route.take(item, source)
                    if appliance is not None:
                        route.reach(appliance, inside=False)
                        verb = VERB[play.game.world.task]
                        route.commands.append(f"{verb} {item.name} with {appliance.name}")
                    if goal is not None:
                        route.put(item, goal)
                    yield route


def _appliances(play: Play, item: Item) -> Sequence[Place | None]:
    """Return the places where an item can be treated; None in the list means that no treatment is needed."""
    verb = VERB.get(play.game.world.task)
    if verb is None or item.id in play.done(verb):
        return [None]
    kind, able = TREATMENTS[verb]
    return [p for p in play.game.world.places if p.type == kind] if able(item) else []


def _goals(play: Play, item: Item, source: Place | None) -> Sequence[Place | None]:
    """Return the places where an item can be put; None in the list means that it is in a goal place."""
    world = play.game.world
    if any(place.type == world.goal for place in _places(play, item) if place != source):
        return [None]
    if world.target not in world.can_contain.get(world.goal, ()):
        return []
    return [p for p in world.places if p.type == world.goal]


def plan_from(play: Play) -> list[str] | None:
    """Return a shortest plan from the current state; empty if the goal holds, None if there is no plan."""
    if play.won:
        return []
    return min((route.commands for route in _routes(play)), key=len, default=None)


def plan(game: Game) -> list[str] | None:
    """Return a shortest plan, checked by a replay; empty if the goal holds at the start, None without one."""
    play = game.start()
    best = plan_from(play)
    if best:
        play.play(best)
        if not play.won:
            raise AssertionError(f"the plan does not win: {best}")
    return best


def good_commands(play: Play) -> tuple[str, ...]:
    """Return, sorted, the commands that reduce the length of the shortest plan by one."""
    best = plan_from(play)
    if not best:
        return ()
    nearer: list[str] = []
    for command in play.admissible:
        after = play.copy()
        after.step(command)
        rest = plan_from(after)
        if rest is not None and len(rest) == len(best) - 1:
            nearer.append(command)
    return tuple(nearer)


def askable_steps(game: Game, commands: Sequence[str]) -> list[int]:
    """Return the indices of the plan steps that can be asked as single-step tasks."""
    play = game.start()
    seen: set[str] = set()
    visited: set[str] = set()
    found: list[int] = []
    for step, command in enumerate(commands):
        if _follows(play, command, seen, visited):
            found.append(step)
        play.step(command)
        visited.add(play.state.location)
        seen |= {item.id for item in game.world.items if play.sees(item)}
    return found


def _follows(play: Play, command: str, seen: set[str], visited: set[str]) -> bool:
    """Return whether the agent's observations so far determine a command of a plan.

    Args:
        play: the state before the command.
        command: a command of a shortest plan.
        seen: ids of the objects seen so far.
        visited: locations that the agent has visited.
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
