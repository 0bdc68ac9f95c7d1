"""Mazes as a system of the environment `control`: 13 x 13 cells, and an agent that sees 5 x 5 of them.

The rules are those of JaxUED's Maze (Coward et al., arXiv:2403.13091), which are minigrid's: the agent turns
left, turns right or moves forward, a wall or the border stops it, and an episode has at most 250 steps. The
reward is 1 - 0.9 t / 250 for reaching the goal in step t, and 0 otherwise. The agent sees the cells in front
of it, also behind walls: walls, goal, and where it has been. The last takes the place of the published LSTM.

A start has 18 numbers: x, y, direction (0 right, 1 down, 2 left, 3 up), x and y of the goal, and the walls of
each row from the top; a row is the sum of 2^x over its walls. Bits 13 to 25 of a row are the cells in which a
step began.

Shapes: N = trajectories, V = 25 cells of the view.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from genenv.environments.control.systems import Controller, Line, Number, Parameter, Physics, State, System

SIZE = 13
"""Cells in a row, and rows. The border is outside of them."""
VIEW = 5
"""Cells of the view in each direction; the agent is in the middle of its nearest row."""
MOST_WALLS = 60
"""Uniformly drawn mazes have 0 to this many walls (domain randomization of arXiv:2203.01302)."""
EDITS = 5
"""Edits of a level by `edited`, as many as JaxUED's script makes."""
ANYWHERE, ROOMS, CORRIDORS = 1, 2, 3
"""Layouts."""

_FORWARD = ((1, 0), (0, 1), (-1, 0), (0, -1))
_ROWS = 5
"""Place of the first row in a state."""
_WALLS = (1 << SIZE) - 1
_MARGIN = VIEW - 1
_WIDE = (1 << SIZE + 2 * _MARGIN) - 1
"""A row of walls with a margin, so that the view never leaves it."""
_CELLS = [(x, y) for y in range(SIZE) for x in range(SIZE)]
_OFFSETS = np.array(
    [
        [(ahead * x - side * y, ahead * y + side * x) for x, y in _FORWARD]
        for ahead in range(VIEW)
        for side in range(-(VIEW // 2), VIEW // 2 + 1)
    ],
    dtype=np.int32,
)
"""[V, 4, 2] places of the cells of the view from the agent, by its direction."""

Cell = tuple[int, int]
Rows = tuple[int, ...]


def _stepped(state: State, action_N: Any) -> State:  # noqa: ANN401
    """Take one step of many trajectories."""
    ints = np.array(state).astype(np.int32)
    x_N, y_N, direction_N = ints[:3]
    rows_RN, each, turn_N = ints[_ROWS:], np.arange(len(x_N)), np.rint(action_N).astype(np.int32)
    forward_N2 = np.array(_FORWARD)[direction_N] * (turn_N == 0)[:, None]
    to_x_N, to_y_N = (
        np.clip(x_N + forward_N2[:, 0], 0, SIZE - 1),
        np.clip(y_N + forward_N2[:, 1], 0, SIZE - 1),
    )
    free_N = rows_RN[to_y_N, each] >> to_x_N & 1 == 0
    rows_RN[y_N, each] |= 1 << SIZE + x_N
    ints[0], ints[1] = np.where(free_N, to_x_N, x_N), np.where(free_N, to_y_N, y_N)
    ints[2] = (direction_N + turn_N) % 4
    return tuple(ints)


def _rows(state: Sequence[float]) -> Rows:
    """Return the walls of each row, without where the agent has been."""
    return tuple([int(row) & _WALLS for row in state[_ROWS:]])


def _start(rows: Sequence[int], agent: Cell, direction: int, goal: Cell) -> tuple[float, ...]:
    return tuple(map(float, (*agent, direction, *goal, *rows)))


def _runs(bits: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each run of walls in a row."""
    x = 0
    while x < SIZE:
        begin = x
        while x < SIZE and bits >> x & 1:
            x += 1
        if x > begin:
            yield begin, x
        x += 1


Pose = tuple[int, int, int]
"""x, y and direction."""
Poses = tuple[int, int, int, int]
"""Cells by direction, as bits: cell x of row y is bit `_LINE` y + x."""
_LINE = SIZE + 1
"""Bits of a row: its cells and one of the border, so that no step leads into the next row."""
_AHEAD = (1, _LINE, -1, -_LINE)


def steps_to(rows: Rows, goal: Cell, pose: Pose) -> int | None:
    """Return the fewest steps from a pose to the goal; None if there is no path."""
    x, y, direction = pose
    bit = 1 << _LINE * y + x
    layers = _searched(rows, (1 << _LINE * goal[1] + goal[0],) * 4, way=-1)
    return next((steps for steps, poses in enumerate(layers) if poses[direction] & bit), None)


def steps_from(rows: Rows, agent: Cell, direction: int) -> Mapping[Cell, int]:
    """Return the fewest steps to each cell that can be reached."""
    bit, seen, found = 1 << _LINE * agent[1] + agent[0], 0, dict[Cell, int]()
    first = cast("Poses", tuple([bit if one == direction else 0 for one in range(4)]))
    for steps, (east, south, west, north) in enumerate(_searched(rows, first, way=1)):
        new = (east | south | west | north) & ~seen
        seen |= new
        while new:
            y, x = divmod(new.bit_length() - 1, _LINE)
            found[x, y] = steps
            new ^= 1 << _LINE * y + x
    return found


@functools.lru_cache(maxsize=64)
def _searched(rows: Rows, first: Poses, *, way: int) -> Sequence[Poses]:
    """Return the poses at each number of steps, by breadth-first search over all poses of a step at once.

    Args:
        rows: the walls.
        first: where the search begins.
        way: 1 for the steps from there, -1 for the steps to there.
    """
    free = sum((~row & _WALLS) << _LINE * y for y, row in enumerate(rows))
    unseen, found = [free & ~one for one in first], list[Poses]()
    by = [way * bits for bits in _AHEAD]
    while any(first):
        found.append(first)
        ahead = [one << bits if bits > 0 else one >> -bits for one, bits in zip(first, by, strict=True)]
        nexts = [unseen[i] & (ahead[i] | first[i - 1] | first[(i + 1) % 4]) for i in range(4)]
        unseen = [left & ~new for left, new in zip(unseen, nexts, strict=True)]
        first = cast("Poses", tuple(nexts))
    return found


def _with_walls(cells: Sequence[Cell]) -> Rows:
    rows = [0] * SIZE
    for x, y in cells:
        rows[y] |= 1 << x
    return tuple(rows)


def anywhere(walls: int, rng: random.Random) -> Rows:
    """Return so many walls in uniformly drawn cells."""
    return _with_walls(rng.sample(_CELLS, walls))


def rooms(walls: int, rng: random.Random) -> Rows:
    """Return 4 x 4 rooms, two or three cells wide, joined by doors.

    There are 54 walls with as few doors as join the rooms, and 45 with a door in each wall between two rooms.
    For fewer, any walls are removed.
    """
    between = (3, 6, 9)
    spans = [range(3), range(4, 6), range(7, 9), range(10, 13)]
    solid = {(x, y) for x, y in _CELLS if x in between or y in between}
    pairs = [(pair, False) for pair in _tree(4, rng)]
    beside = [((x, y), (x + 1, y)) for x in range(3) for y in range(4)]
    below = [((x, y), (x, y + 1)) for x in range(4) for y in range(3)]
    known = {frozenset(pair) for pair, _ in pairs}
    others = [pair for pair in (*beside, *below) if frozenset(pair) not in known]
    for (room, other), spare in (*pairs, *((pair, True) for pair in rng.sample(others, len(others)))):
        if spare and len(solid) <= walls:
            break
        x, y = min(room, other)
        across = room[0] != other[0]
        along = rng.choice(spans[y if across else x])
        solid.remove((between[x], along) if across else (along, between[y]))
    return _thinned(solid, walls, rng)


def corridors(walls: int, rng: random.Random) -> Rows:
    """Return a perfect maze of corridors one cell wide; walls are removed down to `walls`."""
    solid = {(x, y) for x, y in _CELLS if x % 2 or y % 2}
    for (x, y), (to_x, to_y) in _tree(SIZE // 2 + 1, rng):
        solid.remove((x + to_x, y + to_y))
    return _thinned(solid, walls, rng)


def _tree(size: int, rng: random.Random) -> Iterator[tuple[Cell, Cell]]:
    """Yield the pairs of a random spanning tree of size x size cells, by depth-first search."""
    path, seen = [(0, 0)], {(0, 0)}
    while path:
        x, y = path[-1]
        open_ = [
            (x + dx, y + dy)
            for dx, dy in _FORWARD
            if 0 <= x + dx < size and 0 <= y + dy < size and (x + dx, y + dy) not in seen
        ]
        if not open_:
            path.pop()
            continue
        path.append(rng.choice(open_))
        seen.add(path[-1])
        yield (x, y), path[-1]


def _thinned(solid: set[Cell], walls: int, rng: random.Random) -> Rows:
    cells = sorted(solid)
    return _with_walls(rng.sample(cells, min(walls, len(cells))))


_LAYOUTS: Mapping[int, Callable[[int, random.Random], Rows]] = {
    ANYWHERE: anywhere,
    ROOMS: rooms,
    CORRIDORS: corridors,
}


def spiral(*, mirrored: bool = False) -> Rows:
    """Return one corridor from the lower left corner to the middle; mirrored, from the lower right one."""
    x, y, low, high = 0, SIZE - 1, 0, SIZE - 1
    corners = [(x, y)]
    while high - low > 1:
        corners += [(corners[-1][0], low), (high, low), (high, high), (low + 2, high)]
        low, high = low + 2, high - 2
    corners.append((corners[-1][0], low))
    free = {corners[0]}
    for (x, y), (to_x, to_y) in itertools.pairwise(corners):
        xs, ys = sorted((x, to_x)), sorted((y, to_y))
        free |= {(x, y) for x in range(xs[0], xs[1] + 1) for y in range(ys[0], ys[1] + 1)}
    if mirrored:
        free = {(SIZE - 1 - x, y) for x, y in free}
    return _with_walls([cell for cell in _CELLS if cell not in free])


def named_levels() -> Mapping[str, tuple[Mapping[str, float], tuple[float, ...]]]:
    """Return parameters and start of the named levels.

    They are made by this code after the descriptions of the levels of minigrid, DCD and JaxUED: sixteen rooms
    with doors, once with more and once with as few as join them; a labyrinth that is one long way, mirrored,
    and walked from its other end; three perfect mazes. Doors, ways and mazes differ from the published ones.
    """
    last, middle = SIZE - 1, SIZE // 2
    found: dict[str, tuple[int, tuple[float, ...]]] = {}
    for name, walls, seed in (("sixteen-rooms", 45, 16), ("sixteen-rooms-2", 54, 17)):
        start = _start(rooms(walls, random.Random(seed)), (1, 1), 0, (last - 1, last - 1))
        found[name] = ROOMS, start
    way, mirrored = spiral(), spiral(mirrored=True)
    found["labyrinth"] = CORRIDORS, _start(way, (0, last), 3, (middle, middle))
    found["labyrinth-flipped"] = CORRIDORS, _start(mirrored, (last, last), 3, (middle, middle))
    found["labyrinth-2"] = CORRIDORS, _start(way, (middle, middle), 1, (0, last))
    for name, seed in (("standard-maze", 1), ("standard-maze-2", 2), ("standard-maze-3", 3)):
        rows = corridors(SIZE * SIZE, random.Random(seed))
        found[name] = CORRIDORS, _start(rows, (0, 0), 0, (last, last))
    return {name: ({"layout": layout, **_measures(start)}, start) for name, (layout, start) in found.items()}


def _measures(start: Sequence[float]) -> dict[str, float]:
    """Return distance (0 if there is no path) and walls of a level."""
    x, y, direction, goal_x, goal_y = map(int, start[:_ROWS])
    rows = _rows(start)
    far = steps_to(rows, (goal_x, goal_y), (x, y, direction))
    return {"distance": far or 0, "walls": sum(row.bit_count() for row in rows)}


class Maze(System):
    """Find the goal of a maze, of which 5 x 5 cells are seen."""

    name = "maze"
    job = "Find the goal of the maze."
    reply = "-1 turns left, 0 moves forward, 1 turns right."
    unsolved = "no path of 250 steps leads to the goal."
    steps = 250
    dense = 0.9
    choices: ClassVar = (-1.0, 0.0, 1.0)
    start_is_level = True
    whole = True
    random_tries = 0
    parameters: ClassVar = {
        "distance": Parameter(
            (4, 8, 12, 18, 25, 35, 50, 70), 0, 4 * SIZE * SIZE, "steps to the goal; 0: any"
        ),
        "walls": Parameter((0, 10, 20, 30, 40, 50, 60, 72), 0, SIZE * SIZE - 2, "walls, at most"),
        "layout": Parameter((ANYWHERE, ROOMS, CORRIDORS), 1, 3, "walls anywhere; of rooms; of corridors"),
    }

    levels: ClassVar = named_levels()

    def start(self, physics: Physics, rng: random.Random) -> tuple[float, ...]:
        """Draw walls, agent and goal: of a few agents the one with a goal nearest to the distance set."""
        rows = _LAYOUTS[round(physics["layout"])](round(physics["walls"]), rng)
        free = [(x, y) for x, y in _CELLS if not rows[y] >> x & 1]
        wanted, found = float(physics["distance"]), list[tuple[float, Cell, int, Cell]]()
        for _ in range(8 if wanted else 1):
            agent, direction = rng.choice(free), rng.randrange(4)
            goals = [cell for cell in free if cell != agent]
            far: Mapping[Cell, int] = steps_from(rows, agent, direction) if wanted else {}
            misses = {cell: abs(far.get(cell, math.inf) - wanted) if wanted else 0.0 for cell in goals}
            least = min(misses.values())
            goal = rng.choice([cell for cell, miss in misses.items() if miss == least])
            found.append((least, agent, direction, goal))
            if least == 0:
                break
        _, agent, direction, goal = min(found, key=lambda one: one[0])
        return _start(rows, agent, direction, goal)

    def step(self, state: State, action: Number, physics: Physics, xp: Any) -> State:  # noqa: ANN401
        """See `System`. A trajectory and many of them have code of their own; a test compares them."""
        if isinstance(state[0], np.ndarray):
            return _stepped(state, np.asarray(action))
        new = [*map(int, state)]
        x, y, direction = new[:3]
        new[_ROWS + y] |= 1 << SIZE + x
        turn = round(action)
        if turn:
            new[2] = (direction + turn) % 4
            return tuple(new)
        ahead_x, ahead_y = _FORWARD[direction]
        to_x, to_y = x + ahead_x, y + ahead_y
        if 0 <= to_x < SIZE and 0 <= to_y < SIZE and not new[_ROWS + to_y] >> to_x & 1:
            new[0], new[1] = to_x, to_y
        return tuple(new)

    def reached(self, state: State, physics: Physics, xp: Any) -> Number:  # noqa: ANN401
        """See `System`."""
        return (state[0] == state[3]) & (state[1] == state[4])

    def quality(self, state: State, physics: Physics, xp: Any) -> Number:  # noqa: ANN401
        """Return 0: only the goal is rewarded."""
        return 0.0 * state[0]

    def observe(self, state: State, physics: Physics, xp: Any) -> Any:  # noqa: ANN401
        """Return [79, N] walls, goal and earlier places of 25 cells, and one of four directions."""
        ints = np.array(state).astype(np.int32)
        x_N, y_N, direction_N, goal_x_N, goal_y_N = ints[:_ROWS]
        outside = (_WIDE ^ _WALLS << _MARGIN) * np.ones_like(ints[_ROWS:])
        walls_PN = np.full((SIZE + 2 * _MARGIN, len(x_N)), _WIDE, dtype=np.int32)
        walls_PN[_MARGIN:-_MARGIN] = (ints[_ROWS:] & _WALLS) << _MARGIN | outside
        been_PN = np.zeros_like(walls_PN)
        been_PN[_MARGIN:-_MARGIN] = ints[_ROWS:] >> SIZE << _MARGIN
        x_VN, y_VN = _OFFSETS[:, direction_N, 0] + x_N, _OFFSETS[:, direction_N, 1] + y_N
        place, shift_VN = (y_VN + _MARGIN, np.arange(len(x_N))), x_VN + _MARGIN
        seen = [
            walls_PN[place] >> shift_VN & 1,
            (x_VN == goal_x_N) & (y_VN == goal_y_N),
            been_PN[place] >> shift_VN & 1,
            direction_N == np.arange(4)[:, None],
        ]
        return np.concatenate(seen)

    def randomized(
        self, values: Mapping[str, Sequence[float]], rng: random.Random, near: Physics | None = None
    ) -> Physics:
        """Return 0 to 60 walls anywhere, agent and goal anywhere: neither `values` nor `near` matter."""
        return {"distance": 0, "walls": rng.randint(0, MOST_WALLS), "layout": ANYWHERE}

    def measured(self, physics: Physics, start: Sequence[float]) -> Physics:
        """Return walls and distance of a level, where the distance was not set."""
        if physics["distance"]:
            return physics
        return {**physics, **_measures(start)}

    def edited(
        self, physics: Physics, start: Sequence[float], rng: random.Random
    ) -> tuple[Physics, tuple[float, ...]]:
        """Edit a level as JaxUED and minimax do: an edit flips a wall, moves the goal, or does nothing."""
        x, y, direction, *goal = map(int, start[:_ROWS])
        agent, at_goal, rows = (x, y), (goal[0], goal[1]), list(_rows(start))
        for _ in range(EDITS):
            kind = rng.randrange(3)
            if kind == 1:
                flip_x, flip_y = rng.choice([cell for cell in _CELLS if cell not in (agent, at_goal)])
                rows[flip_y] ^= 1 << flip_x
            elif kind == 2:
                free = [(x, y) for x, y in _CELLS if not rows[y] >> x & 1 and (x, y) not in (agent, at_goal)]
                at_goal = rng.choice(free or [at_goal])
        start = _start(rows, agent, direction, at_goal)
        return {**physics, **_measures(start)}, start

    def wrong_start(self, start: Sequence[float]) -> str | None:
        """Return why a start is no level, or None."""
        x, y, direction, goal_x, goal_y, *rows = start
        if any(one != int(one) or one < 0 for one in start) or max(x, y, goal_x, goal_y) >= SIZE:
            return f"Places must be whole numbers from 0 to {SIZE - 1}."
        if direction > 3 or max(rows) > _WALLS:
            return f"A direction is 0 to 3, and a row 0 to {_WALLS}."
        if any(int(rows[int(at[1])]) >> int(at[0]) & 1 for at in ((x, y), (goal_x, goal_y))):
            return "The agent or the goal is in a wall."
        return "The agent begins at the goal." if (x, y) == (goal_x, goal_y) else None

    def drawn(self, state: State, physics: Physics) -> Sequence[Line]:
        """Return border, walls of each row as boxes, the goal as a dot, and the agent as an arrow."""
        x, y, direction, goal_x, goal_y = map(int, state[:_ROWS])

        def at(x: float, y: float) -> tuple[float, float]:
            return 2 * x / SIZE - 1, 1 - 2 * y / SIZE

        def box(left: float, top: float, right: float, bottom: float) -> Line:
            corners = (left, top), (right, top), (right, bottom), (left, bottom), (left, top)
            return [at(*corner) for corner in corners]

        ahead_x, ahead_y = _FORWARD[direction]
        arrow = [
            at(
                x + 0.5 + 0.5 * (ahead * ahead_x - side * ahead_y),
                y + 0.5 + 0.5 * (ahead * ahead_y + side * ahead_x),
            )
            for ahead, side in ((-1, -1), (1, 0), (-1, 1), (-1, -1))
        ]
        walls = [
            box(left, row, right, row + 1)
            for row, bits in enumerate(_rows(state))
            for left, right in _runs(bits)
        ]
        return [box(0, 0, SIZE, SIZE), *walls, [at(goal_x + 0.5, goal_y + 0.5)], arrow]

    def controllers(self, physics: Physics) -> Iterator[Controller]:
        """Yield one that takes a shortest path, by breadth-first search over places and directions."""

        def act(state: State) -> float:
            x, y, direction, goal_x, goal_y = map(int, state[:_ROWS])
            rows, goal = _rows(state), (goal_x, goal_y)
            here = steps_to(rows, goal, (x, y, direction)) or 0
            turned = ((turn, (x, y, (direction + turn) % 4)) for turn in (-1, 1))
            return float(next((turn for turn, pose in turned if steps_to(rows, goal, pose) == here - 1), 0))

        yield act
