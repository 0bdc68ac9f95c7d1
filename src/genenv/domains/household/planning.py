"""Shortest plans: the oracle of household tasks.

The agent has one hand and nothing ever blocks it, so a shortest plan fetches each object that the goal needs,
treats it where that must be, and puts it down: every choice of object, appliance and place is tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from genenv.domains.household.engine import TREATMENTS, Game, Play
from genenv.domains.household.world import VERB, Item, Place


class _Route:
    """Commands written one visit after another, walking and opening only where needed."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.location = game.world.start
        self.opened = {p.id for p in game.world.places if p.opened}
        self.commands: list[str] = []

    def reach(self, place: Place, *, inside: bool) -> None:
        if place.location != self.location:
            self.commands.append(f"go to {place.name}")
            self.location = place.location
        if inside and place.openable and place.id not in self.opened:
            self.commands.append(f"open {place.name}")
            self.opened.add(place.id)

    def take(self, item: Item) -> None:
        place = self.game.place_of_id[item.at]
        self.reach(place, inside=True)
        self.commands.append(f"take {item.name} from {place.name}")

    def put(self, item: Item, place: Place) -> None:
        self.reach(place, inside=True)
        self.commands.append(f"move {item.name} to {place.name}")


def _routes(game: Game) -> Iterator[_Route]:
    world = game.world
    targets = [i for i in world.items if i.type == world.target and i.pickupable and i.at]
    if world.task == "look_at_obj_in_light":
        lamps = [i for i in world.items if i.type == world.goal and i.toggleable and i.at]
        for item in targets:
            for lamp in lamps:
                for first in (True, False):  # a lamp that stands where the walk begins may be used before
                    route, desk = _Route(game), game.place_of_id[lamp.at]
                    if first and desk.location != route.location:
                        continue
                    if first:
                        route.commands.append(f"use {lamp.name}")
                    route.take(item)
                    route.reach(desk, inside=False)
                    if not first:
                        route.commands.append(f"use {lamp.name}")
                    yield route
        return
    goals = [p for p in world.places if p.type == world.goal]
    fits = world.target in world.can_contain.get(world.goal, ())
    if world.task == "pick_two_obj_and_place":
        for goal in goals:
            there = [i for i in world.items if i.type == world.target and i.at == goal.id]
            fetch = [i for i in targets if i.at != goal.id]
            missing = max(0, 2 - len(there))
            for chosen in permutations(fetch, missing) if fits or not missing else ():
                route = _Route(game)
                for item in chosen:
                    route.take(item)
                    route.put(item, goal)
                yield route
        return
    verb = VERB.get(world.task)
    appliances: list[Place | None] = [None]
    if verb is not None:
        kind, able = TREATMENTS[verb]
        appliances = [p for p in world.places if p.type == kind]
        targets = [item for item in targets if able(item)]
    for item in targets if fits else ():
        for appliance in appliances:
            for goal in goals:
                route = _Route(game)
                route.take(item)
                if appliance is not None:
                    route.reach(appliance, inside=False)
                    route.commands.append(f"{verb} {item.name} with {appliance.name}")
                route.put(item, goal)
                yield route


def plan(game: Game) -> list[str] | None:
    """A shortest plan, which has been replayed; empty when the goal holds at the start, None without one."""
    play = game.start()
    if play.won:
        return []
    best = min((r.commands for r in _routes(game)), key=len, default=None)
    if best is not None:
        _replay(play, best)
    return best


def _replay(play: Play, commands: list[str]) -> None:
    for command in commands:
        play.step(command)
    if not play.won:
        raise AssertionError(f"the plan does not win: {commands}")
