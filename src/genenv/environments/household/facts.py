"""The second check: the PDDL problem's own facts and goal, followed through what the game answered.

The engine decides by its state whether a game is won. Here the problem that TextWorld would be given is read
back, each answer of a transcript changes the facts that it speaks of, and the goal formula is evaluated on
them. It trusts the game's answers (the tests hold those to TextWorld's) and checks what they amount to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from genenv.environments.household.layout import pddl_problem
from genenv.environments.household.world import World

Expression = str | list["Expression"]
Fact = tuple[str, ...]

_ANSWERS = {
    "go": re.compile(r"You arrive at (?P<place>.+?)\. "),
    "take": re.compile(r"You pick up the (?P<item>.+) from the (?P<place>.+)\.$"),
    "move": re.compile(r"You move the (?P<item>.+) to the (?P<place>.+)\.$"),
    "treat": re.compile(r"You (?P<verb>clean|heat|cool) the (?P<item>.+) using the .+\.$"),
    "use": re.compile(r"You turn on the (?P<item>.+)\.$"),
}
_STATES = {"clean": ("isClean", ""), "heat": ("isHot", "isCool"), "cool": ("isCool", "isHot")}


def wins(world: World, answers: Iterable[str]) -> bool:
    """Whether the goal of the PDDL problem holds after one of the answers, or at the start."""
    problem = _parse(pddl_problem(world))
    parts = {str(part[0]): part[1:] for part in problem if isinstance(part, list)}
    facts = {tuple(map(str, fact)) for fact in parts[":init"]}
    typed = _typed(parts[":objects"])
    ids = {p.name: p.id for p in world.places} | {i.name: i.id for i in world.items}
    goal = parts[":goal"][0]
    if _holds(goal, facts, typed, {}):
        return True
    return any(_follow(answer, facts, ids) and _holds(goal, facts, typed, {}) for answer in answers)


def _follow(answer: str, facts: set[Fact], ids: Mapping[str, str]) -> bool:
    """Change the facts as an answer says; returns whether it says anything."""
    for kind, pattern in _ANSWERS.items():
        if (found := pattern.match(answer)) is None:
            continue
        names = found.groupdict()
        item, place = ids.get(names.get("item", "")), ids.get(names.get("place", ""))
        match kind:
            case "go":
                here = next(fact[2] for fact in facts if fact[:2] == ("receptacleAtLocation", place))
                facts -= {fact for fact in facts if fact[0] == "atLocation"}
                facts.add(("atLocation", "agent1", here))
            case "take":
                facts.discard(("inReceptacle", str(item), str(place)))
                facts.add(("holds", "agent1", str(item)))
            case "move":
                facts.discard(("holds", "agent1", str(item)))
                facts.add(("inReceptacle", str(item), str(place)))
            case "treat":
                gained, lost = _STATES[names["verb"]]
                facts.discard((lost, str(item)))
                facts.add((gained, str(item)))
            case _:
                facts.add(("isToggled", str(item)))
        return True
    return False


def _holds(
    formula: Expression, facts: set[Fact], typed: Mapping[str, list[str]], bound: Mapping[str, str]
) -> bool:
    """Evaluate `and`, `not`, `=`, `exists` and atoms."""
    head, rest = formula[0], formula[1:]
    match head:
        case "and":
            return all(_holds(part, facts, typed, bound) for part in rest)
        case "not":
            return not _holds(rest[0], facts, typed, bound)
        case "=":
            return len({bound.get(str(name), str(name)) for name in rest}) == 1
        case "exists":
            variables = list(_declared(rest[0]))
            return _some(variables, rest[1], facts, typed, bound)
        case _:
            return tuple(bound.get(str(name), str(name)) for name in formula) in facts


def _some(
    variables: list[tuple[str, str]],
    formula: Expression,
    facts: set[Fact],
    typed: Mapping[str, list[str]],
    bound: Mapping[str, str],
) -> bool:
    if not variables:
        return _holds(formula, facts, typed, bound)
    (name, kind), *rest = variables
    return any(_some(rest, formula, facts, typed, {**bound, name: value}) for value in typed.get(kind, ()))


def _declared(words: Expression) -> Iterator[tuple[str, str]]:
    """`a b - kind` as (name, kind) pairs."""
    waiting: list[str] = []
    listed = iter(map(str, words))
    for word in listed:
        if word == "-":
            kind = next(listed)
            yield from ((name, kind) for name in waiting)
            waiting = []
        else:
            waiting.append(word)


def _typed(words: Expression) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, kind in _declared(words):
        found.setdefault(kind, []).append(name)
    return found


def _parse(text: str) -> list[Expression]:
    """The lists of an s-expression."""
    stack: list[list[Expression]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", text):
        if token == "(":  # noqa: S105 - a bracket
            stack.append([])
        elif token == ")":  # noqa: S105
            closed = stack.pop()
            stack[-1].append(closed)
        else:
            stack[-1].append(token)
    found = stack[0][0]
    assert isinstance(found, list)  # noqa: S101 - a problem is one list
    return found
