"""Which games of TextArena can be played here, and are their rewards TextArena's own?

    python bench/textarena_games.py --seeds 4

Each game is opened as an environment. Code plays all seats by random legal moves, from each seed, twice. The
moves are then made again in TextArena itself, without genenv. A line of JSON for each game, then the sums.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import textarena
from textarena.envs.registration import ENV_REGISTRY

from genenv.environments.base import Ask, OutOfTurns
from genenv.errors import GenenvError
from genenv.interop.imported.environment import start_of
from genenv.interop.imported.settings import TextArenaConfig
from genenv.interop.imported.textarena import TextArena
from genenv.types import Message, Task

_RAW = "-v0-raw"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=4, help="games of each kind")
    parser.add_argument("--turns", type=int, default=200, help="the most replies of a player")
    parser.add_argument("--games", help="names, separated by commas; left out, all")
    chosen = parser.parse_args(arguments)
    names = [name.removesuffix("-raw") for name in sorted(ENV_REGISTRY) if name.endswith(_RAW)]
    sums: Counter[str] = Counter()
    for name in chosen.games.split(",") if chosen.games else names:
        began = time.perf_counter()
        found = measured(name, chosen.seeds, chosen.turns)
        print(
            json.dumps({"game": name, **found, "seconds": round(time.perf_counter() - began, 2)}), flush=True
        )
        sums += Counter({key: int(value) for key, value in found.items() if isinstance(value, int)})
        sums["listed"] += 1
    print(json.dumps({"sums": dict(sums)}))


def measured(name: str, seeds: int, turns: int) -> dict[str, Any]:
    try:
        env = TextArena(TextArenaConfig(held_out=seeds, max_turns=turns), name)
        tasks = env.held_out()
    except GenenvError as error:
        return {"opened": False, "why": str(error)}
    found: dict[str, Any] = {"opened": True, "players": env.players}
    ended = equal = again = 0
    for task in tasks:
        try:
            moves, rewards = by_code(env, task)
        except GenenvError as error:
            return {**found, "by_code": False, "why": str(error)}
        again += (moves, rewards) == by_code(env, task)
        if rewards is not None:
            ended += 1
            equal += rewards == in_textarena(name, env.players, task, moves)
    return {
        **found,
        "by_code": True,
        "played": len(tasks),
        "alike_again": again,
        "ended": ended,
        "equal": equal,
    }


def by_code(env: TextArena, task: Task) -> tuple[list[str], list[float] | None]:
    """All moves of a game in order, and TextArena's reward of each seat; None if it did not end."""
    episode: Any = env.episode(task)
    moves = list[str]()

    def of(seat: str) -> Ask:
        async def ask(messages: Sequence[Message]) -> str:
            moves.append(episode.coded(seat, messages))
            return moves[-1]

        return ask

    with contextlib.suppress(OutOfTurns):
        asyncio.run(episode.take_turns({seat: of(seat) for seat in episode.seats}))
    game: Any = episode._game
    return moves, [game.outcome(player)[0] for player in range(env.players)] if game.done else None


def in_textarena(name: str, players: int, task: Task, moves: Sequence[str]) -> list[float]:
    """The rewards of these moves in TextArena alone, in the order of seats."""
    seed = start_of(task).number or 0
    random.seed(seed)
    np.random.seed(seed % 2**32)
    with contextlib.redirect_stdout(io.StringIO()):
        game: Any = textarena.make(f"{name}-raw")
        game.reset(num_players=players, seed=seed)
        first = game.state.current_player_id
        for move in moves:
            game.get_observation()
            game.step(action=move)
        rewards, _ = game.close()
    return [float(rewards.get((player + first) % players, 0.0)) for player in range(players)]


if __name__ == "__main__":
    main()
