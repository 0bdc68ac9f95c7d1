"""Games of TextArena as environments: `[environment] name = "textarena:TicTacToe-v0"`.

A task is a game, the arguments that it is made with, and a seed. In games of several players each player is
a seat: agents play the seats that `environment.seats` gives them, and code plays the others by random legal
moves. `player-0` moves first. It needs the package `textarena` (0.7).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import io
import itertools
import random
import re
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, cast

import numpy as np
from pydantic import BaseModel

from genenv.environments.base import Ask, Episode, OutOfTurns, SeatedEpisode
from genenv.errors import RolloutError, UsageError, first_line, unknown_name
from genenv.interop.imported.environment import (
    HELD_OUT_SEED,
    RANDOM_WORDS,
    ImportedEnvironment,
    RemoteRollout,
    Start,
    start_of,
)
from genenv.interop.imported.settings import TextArenaConfig
from genenv.interop.imported.space import Space
from genenv.types import Message, Task, Verdict

_RAW = "-raw"
"""End of the id of a game whose observations come as single messages, not as one text."""
_MOST_PLAYERS = 15
_MOVE = re.compile(r"\[[^\[\]\n]{1,40}\]")
"""A move in the form that nearly all games read."""
_PLACE = re.compile(r"\d+|(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
"""A number or a single letter in a move, in whose place another one is tried."""
_TRIES = 400
"""Moves like those in the texts of a game that are tried where the texts name fewer than two legal ones."""
_MOST_MOVES, _HALF = 10_000, 0.5
_LONGEST_MOVE = 4000
"""Characters of a reply that a game reads, from its end: patterns of some games take minutes for more."""
_RANDOM = threading.Lock()

_Closed = tuple[Mapping[int, float] | None, Mapping[int, Mapping[str, object]]]
"""What a game returns at its end: rewards, and what is known of each player."""


@contextlib.contextmanager
def _random_state(own: list[Any]) -> Generator[None]:
    """Run code of a game with the game's own state of the global random generators; keep what it prints.

    Games draw from the generators of `random` and numpy, so games at the same time would disturb each other.
    """
    with _RANDOM:
        before = random.getstate(), np.random.get_state()
        if own:
            random.setstate(own[0])
            np.random.set_state(own[1])
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                yield
        finally:
            own[:] = random.getstate(), np.random.get_state()
            random.setstate(before[0])
            np.random.set_state(before[1])


class Game:
    """A game in progress. Its players are numbered from 0 by the order of the first round of moves."""

    def __init__(self, name: str, start: Start, players: int, opening: int = 0) -> None:
        """Begin a game.

        Args:
            name: of the game, such as `TicTacToe-v0`.
            start: the arguments that the game is made with, and its seed.
            players: the number of players.
            opening: the number of first moves that are random, by the seed.

        Raises:
            RolloutError: the game cannot begin. The message says why.
        """
        self._name, self._players, self._state = name, players, list[Any]()
        self._seed, self._moves = start.number or 0, 0
        self.done, self._given = False, set[int]()
        with self._call("begin"):
            random.seed(self._seed)
            np.random.seed(self._seed % 2**32)
            self._env = _textarena().make(f"{name}{_RAW}", **start.given)
            self._env.reset(num_players=players, seed=self._seed)
        self._first: int = 0
        self._texts, self._news = [""] * players, [""] * players
        """All that each player was told, and what it has not been given yet; by TextArena's numbers."""
        for _ in range(opening):
            number = self._look(own=True)
            self.move(self._random_move(number))
            if self.done:
                raise RolloutError(f"TextArena's {name} ends within {opening} random moves")
        self._first = self._env.state.current_player_id

    @contextlib.contextmanager
    def _call(self, what: str) -> Generator[None]:
        try:
            with _random_state(self._state):
                yield
        except SyntaxError as error:
            raise RolloutError(
                f"TextArena's {self._name} needs a newer Python ({first_line(error)})"
            ) from error
        except Exception as error:
            sentence = f"TextArena's {self._name} cannot {what}: {type(error).__name__}: {first_line(error)}"
            raise RolloutError(sentence) from error

    def _look(self, *, own: bool = False) -> int:
        """Read what the player whose turn it is has not been told yet; return its number in TextArena.

        Args:
            own: whether the player's own moves are told, too: those of the opening.
        """
        with self._call("go on"):
            number, found = self._env.get_observation()
        if not isinstance(found, str):
            roles = cast("Mapping[int, str]", getattr(self._env.state, "role_mapping", None) or {})
            found = "\n".join(filter(None, (_told(roles, None if own else number, one) for one in found)))
        number %= self._players  # QuantumTicTacToe-v0 has a second player, though it begins with one
        if found.strip():
            self._texts[number] += f"{found.strip()}\n"
            self._news[number] += f"{found.strip()}\n"
        return number

    def told(self) -> tuple[int, Message]:
        """Return the player whose turn it is, and what this player is told since its last turn."""
        number = self._look(own=self._env.state.current_player_id not in self._given)
        self._given.add(number)
        text, self._news[number] = self._news[number].strip() or "It is your turn.", ""
        return (number - self._first) % self._players, Message(role="user", content=text)

    def move(self, text: str) -> None:
        """Make the move of the player whose turn it is."""
        self._moves += 1
        if self._moves > _MOST_MOVES:
            raise RolloutError(f"TextArena's {self._name} has not ended after {_MOST_MOVES:,} moves")
        with self._call("take this move"):
            self.done = bool(self._env.step(action=text[-_LONGEST_MOVE:])[0])

    def legal_moves(self, player: int) -> list[str]:
        """Return legal moves of the player whose turn it is, each tried on a copy of the game."""
        return sorted(set(self._legal(self._number(player))))

    def random_move(self, player: int) -> str:
        """Return a random legal move of the player whose turn it is.

        Raises:
            RolloutError: no legal move was found.
        """
        return self._random_move(self._number(player))

    def _number(self, player: int) -> int:
        """Return TextArena's number of a player."""
        return (player + self._first) % self._players

    def _random_move(self, number: int) -> str:
        for move in self._legal(number):
            return move
        seat = seat_name((number - self._first) % self._players)
        raise RolloutError(
            f"no legal move of TextArena's {self._name} was found, so code cannot play {seat}; give this "
            "seat an agent in environment.seats"
        )

    def _legal(self, number: int) -> Iterator[str]:
        """Yield legal moves in random order.

        Moves are tried that the game's texts name, in brackets as nearly all games read them. If fewer than
        two of these are legal, moves are tried that have other numbers and letters in the same places.
        """
        rng = random.Random(f"{self._seed}/{self._moves}")
        named = sorted(set(_MOVE.findall(self._texts[number])))
        rng.shuffle(named)
        legal = filter(self._accepts, named)
        found = list(itertools.islice(legal, 2))
        if len(found) < 2:
            alike = {_like(rng.choice(named or ["[0]"]), rng) for _ in range(_TRIES)}
            tried = sorted({*alike.difference(named), *found})
            rng.shuffle(tried)
            found, legal = [], filter(self._accepts, tried)
        yield from found
        yield from legal

    def _accepts(self, text: str) -> bool:
        with contextlib.suppress(Exception), _random_state(list(self._state)):
            other = copy.deepcopy(self._env)
            number, errors = other.state.current_player_id, other.state.error_count
            other.step(action=text)
            invalid = other.state.game_info[number].get("invalid_move")
            return not invalid and other.state.error_count <= errors
        return False

    def outcome(self, player: int) -> tuple[float, str]:
        """Return a player's reward in TextArena, and the reason for the end of the game."""
        with self._call("end"):
            rewards, info = cast(_Closed, self._env.close())
        number = self._number(player)
        return (rewards or {}).get(number, 0.0), str(info[number].get("reason") or "")


def _told(roles: Mapping[int, str], player: int | None, entry: Sequence[object]) -> str:
    """Return what a player is told by an entry of an observation: sender, text and type, in any order.

    Nothing if the player is the sender.
    """
    sender = next((part for part in entry if isinstance(part, int)), -1)
    text = next((part for part in entry if isinstance(part, str)), "")
    if sender == player or not text.strip():
        return ""
    return text if sender < 0 else f"[{roles.get(sender, f'Player {sender}')}] {text}"


def _like(move: str, rng: random.Random) -> str:
    """Return a move with other numbers and single letters; a letter may stand for a number, too."""
    numbers_alone = rng.random() < _HALF

    def other(found: re.Match[str]) -> str:
        number = str(rng.randrange(10 if rng.random() < _HALF else 30))
        if numbers_alone or found[0].isdigit():
            return number
        return rng.choice("ABCDEFGHIJ" if found[0].isupper() else "abcdefghij")

    return _PLACE.sub(other, move)


def seat_name(player: int) -> str:
    """Return the name of a player's seat: `player-0` moves first."""
    return f"player-{player}"


@functools.cache
def _textarena() -> ModuleType:
    """Return the module `textarena`.

    Raises:
        UsageError: it is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module("textarena")
    except ImportError as error:
        raise UsageError(
            f"games of TextArena need its package: pip install 'textarena>=0.7.4' ({first_line(error)})"
        ) from error


@functools.cache
def players_of(name: str) -> int:
    """Return the fewest players of a game.

    Raises:
        UsageError: there is no such game, or it cannot begin on this machine.
    """
    known = _textarena().envs.registration.ENV_REGISTRY
    games = [one.removesuffix(_RAW) for one in known if one.endswith(_RAW)]
    if name not in games:
        raise unknown_name("game of TextArena", name, games)
    problem = ""
    for players in range(1, _MOST_PLAYERS + 1):
        try:
            Game(name, Start(given={}, number=0), players)
        except RolloutError as error:
            of_number = isinstance(error.__cause__, AssertionError)
            problem = problem or ("" if of_number else str(error))
        else:
            return players
    raise UsageError(problem or f"TextArena's {name} accepts no number of players up to {_MOST_PLAYERS}")


def _check_arguments(game: str, given: Mapping[str, object]) -> None:
    """Refuse arguments that a game does not take.

    Raises:
        UsageError: it does not take one of them. The message lists those that it takes.
    """
    where = _textarena().envs.registration.ENV_REGISTRY[f"{game}{_RAW}"].entry_point
    module, _, name = str(where).partition(":")
    made = getattr(importlib.import_module(module), name) if isinstance(where, str) else where
    taken = inspect.signature(made).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values()):
        return
    if strange := [name for name in given if name not in taken]:
        known = ", ".join(taken) or "none"
        raise UsageError(f"TextArena's {game} takes no argument {strange[0]!r}; it takes: {known}")


class TextArena(ImportedEnvironment):
    """A game of TextArena as an environment.

    Args:
        settings: see `TextArenaConfig`.
        game: the game, such as `TicTacToe-v0`.
    """

    name: ClassVar[str] = "textarena"
    config: ClassVar[type[BaseModel]] = TextArenaConfig
    thing: ClassVar[str] = "game"
    first_held_out = HELD_OUT_SEED

    def __init__(self, settings: TextArenaConfig | None, game: str) -> None:
        chosen = settings or TextArenaConfig()
        super().__init__(chosen, Space(chosen.vary, "seed", chosen.seeds))
        self.game, self.players = game, players_of(game)
        _check_arguments(game, {**chosen.given, **chosen.given_held_out, **chosen.vary})
        self.chosen, self.seats = chosen, self.seats_of(game)

    @staticmethod
    def seats_of(game: str) -> tuple[str, ...]:
        """Return the seats of a game; none if it has one player."""
        players = players_of(game)
        return tuple(map(seat_name, range(players))) if players > 1 else ()

    @property
    def about(self) -> str:
        """See `ImportedEnvironment`."""
        return f"The game is {self.game} of TextArena."

    def begin(self, start: Start) -> RemoteRollout:
        """Begin a game in which code plays all but the first player; see `ImportedEnvironment`."""
        return _WithCode(self, start)

    def fresh(self, start: Start) -> Game:
        """Begin a game."""
        return Game(self.game, start, self.players, self.chosen.opening_moves)

    def first(self, message: Message) -> tuple[Message, ...]:
        """Return the first messages of a player, with the system message of the settings."""
        said = self.chosen.system
        return (Message(role="system", content=said), message) if said else (message,)

    def choices(self, game: Game, player: int) -> Sequence[str]:
        """Return the replies that a player can give: its legal moves, if only these are allowed."""
        return game.legal_moves(player) if self.chosen.legal_moves else ()

    def episode(self, task: Task) -> Episode:
        """Return a fresh game with a seat for each player."""
        return _Match(self, task)

    def result(self, game: Game, player: int) -> tuple[float, str]:
        """Return a player's reward and the reason; a game that did not end has the lowest reward."""
        if not game.done:
            return self.settings.reward_low, "The game has not ended."
        reward, reason = game.outcome(player)
        return reward, f"TextArena gives {reward:g}. {reason}".strip()


class _WithCode(RemoteRollout):
    """A game of one policy, the first player; code plays the others."""

    def __init__(self, env: TextArena, start: Start) -> None:
        self._env, self._game = env, env.fresh(start)
        self._receive()
        self.messages = env.first(self.messages[0]) if self.messages else ()

    def _receive(self) -> None:
        """Play for the others until it is the first player's turn."""
        self.done, self.messages = self._game.done, ()
        while not self.done:
            player, message = self._game.told()
            if player == 0:
                self.messages, self.choices = (message,), self._env.choices(self._game, player)
                return
            self._game.move(self._game.random_move(player))
            self.done = self._game.done

    @property
    def total(self) -> float:
        """See `RemoteRollout`."""
        reward, self.explanation = self._env.result(self._game, 0)
        return reward

    def reply(self, text: str) -> None:
        """See `RemoteRollout`."""
        self._game.move(text)
        self._receive()

    def random_reply(self, rng: random.Random) -> str:
        """See `RemoteRollout`. Random moves may beat other players, so words are said that are none."""
        return rng.choice((not self._env.seats and self.choices) or RANDOM_WORDS)

    def close(self) -> None:
        """See `RemoteRollout`."""


class _Match(SeatedEpisode):
    """A game with a seat for each player."""

    def __init__(self, env: TextArena, task: Task) -> None:
        self.seats = tuple(map(seat_name, range(env.players)))  # pyright: ignore[reportIncompatibleVariableOverride, reportAttributeAccessIssue] - a game's own
        self.max_turns = env.settings.max_turns
        self._env, self._task = env, task
        self._game = env.fresh(start_of(task))
        self._replies: dict[str, list[str]] = {seat: [] for seat in self.seats}
        self.choices = cast("Sequence[str]", task.payload["choices"])
        """The replies that the player whose turn it is can give; empty if any text is allowed."""

    async def take_turns(self, asks: Mapping[str, Ask]) -> None:
        """See `SeatedEpisode`.

        Raises:
            OutOfTurns: a player has no replies left.
            RolloutError: the game failed, or began otherwise than when the task was built.
        """
        game = self._game
        while not game.done:
            player, message = game.told()
            seat = self.seats[player]
            own = self._replies[seat]
            messages = (message,) if own else self._env.first(message)
            if not any(self._replies.values()) and messages != self._task.messages:
                raise RolloutError(
                    f"TextArena's {self._env.game} began otherwise than before with the same seed; its tasks "
                    "must begin alike whenever they are attempted"
                )
            if len(own) >= self.max_turns:
                raise OutOfTurns
            self.choices = self._env.choices(game, player)
            own.append(await asks[seat](messages))
            game.move(own[-1])

    def coded(self, seat: str, messages: Sequence[Message]) -> str:
        """See `SeatedEpisode`: a random legal move."""
        return self._game.random_move(self.seats.index(seat))

    def verdicts(self) -> Mapping[str, Verdict]:
        """See `SeatedEpisode`."""
        found = {
            seat: self._env.graded(*self._env.result(self._game, player), ended=self._game.done)
            for player, seat in enumerate(self.seats)
        }
        self._env.keep_verdict(self._task, self._replies[self.seats[0]], found[self.seats[0]])
        return found
