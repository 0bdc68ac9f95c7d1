"""Games of TextArena as environments: seats, legal moves, equal games, and what cannot be."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from equal_runs import groups_of
from genenv.environments import environment_seats, load_environment
from genenv.environments.base import OutOfTurns, SeatedEpisode
from genenv.environments.common import at_random
from genenv.errors import RolloutError, UsageError
from genenv.interop.imported import textarena
from genenv.interop.imported.settings import TextArenaConfig
from genenv.interop.imported.textarena import TextArena, players_of
from genenv.types import Lineage, Message, Origin, Rejection, Task, Verdict
from typed import refused, run, succeeds

pytest.importorskip("textarena", reason="needs textarena: pip install 'genenv[textarena]'")


def opened(game: str, **settings: Any) -> TextArena:
    return TextArena(TextArenaConfig(**settings), game)


def played(env: TextArena, task: Task, moves: Mapping[str, Sequence[str]]) -> Mapping[str, Verdict]:
    """Play these moves at their seats; code plays the other seats."""
    episode = cast(SeatedEpisode, env.episode(task))

    def of(own: Sequence[str]) -> Any:
        left = list(own)

        async def ask(messages: Sequence[Message]) -> str:
            return left.pop(0)

        return ask

    with contextlib.suppress(OutOfTurns):
        asyncio.run(episode.play_seats({seat: of(own) for seat, own in moves.items()}))
    return episode.verdicts()


_GENERATED = Lineage(origin=Origin.GENERATED, seed_id="seed0")
WON = {"player-0": ["[4]", "[0]", "[8]"], "player-1": ["[1]", "[2]"]}


def test_each_player_is_a_seat_with_a_reward_of_its_own() -> None:
    env = cast(TextArena, load_environment("textarena:TicTacToe-v0"))
    assert env.seats == environment_seats("textarena:TicTacToe-v0") == ("player-0", "player-1")
    task = env.held_out()[0]
    assert [message.role for message in task.messages] == ["user"]
    assert "Player 0" in task.messages[0].content
    found = played(env, task, WON)
    assert [(one.reward, one.success) for one in found.values()] == [(1.0, True), (0.0, False)]
    assert found["player-0"].explanation == "TextArena gives 1. Player 0 has won!"
    assert env.check(task, WON["player-0"]) == found["player-0"]  # as it was played, not against code


@pytest.mark.long
def test_code_plays_random_legal_moves_and_grades_alike_again() -> None:
    env = opened("TicTacToe-v0", held_out=30)
    rewards = [tuple(v.reward for v in played(env, task, {}).values()) for task in env.held_out()]
    assert rewards == [tuple(v.reward for v in played(env, task, {}).values()) for task in env.held_out()]
    assert {(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)} == set(rewards)
    other = opened("TicTacToe-v0", held_out=30)
    task, moves = env.held_out()[0], ["[0]", "[1]", "[2]", "[3]", "[4]", "[5]", "[6]", "[7]", "[8]"]
    assert env.check(task, moves) == other.check(task, moves)


def test_replies_that_are_no_moves_fail_and_words_of_an_uninformed_policy_too() -> None:
    env = opened("TicTacToe-v0", legal_moves=True)
    task = env.held_out()[0]
    assert not env.check(task, [""]).success
    assert env.check(task, ["yes", "no"]).explanation.startswith("TextArena gives -1.")
    rng = random.Random(0)
    assert not any(env.check(task, env.random_replies(task, rng)).success for _ in range(20))


def test_only_legal_moves_can_be_chosen() -> None:
    env = opened("TicTacToe-v0", legal_moves=True, system="Reply with a move.")
    task = env.held_out()[0]
    assert task.payload["choices"] == [f"[{cell}]" for cell in range(9)]
    assert [message.role for message in task.messages] == ["system", "user"]
    episode = cast(Any, env.episode(task))
    offered: list[Sequence[str]] = []

    async def ask(messages: Sequence[Message]) -> str:
        offered.append(episode.choices)
        return offered[-1][0]

    asyncio.run(episode.play_seats(dict.fromkeys(env.seats, ask)))
    assert [len(one) for one in offered[:5]] == [9, 8, 7, 6, 5]
    assert "[0]" not in offered[1]


def test_games_at_the_same_time_are_the_games_alone_and_leave_the_generators_as_they_were() -> None:
    env = opened("Poker-v0", held_out=4)
    alone = [dict(played(env, task, {})) for task in env.held_out()]
    random.seed(5)
    expected = random.Random(5).random()

    async def together() -> list[Any]:
        episodes = [cast(SeatedEpisode, env.episode(task)) for task in env.held_out()]

        def of(episode: SeatedEpisode, seat: str) -> Any:
            async def ask(messages: Sequence[Message]) -> str:
                await asyncio.sleep(0)
                return episode.coded(seat, messages)

            return ask

        await asyncio.gather(
            *(one.play_seats({seat: of(one, seat) for seat in env.seats}) for one in episodes)
        )
        return [dict(one.verdicts()) for one in episodes]

    assert asyncio.run(together()) == alone
    assert random.random() == expected


def test_the_first_seat_is_the_player_who_begins() -> None:
    env = opened("KuhnPoker-v0")
    task = env.held_out()[0]
    assert "You are Player 1" in task.messages[0].content  # TextArena has another order
    assert sorted(one.reward for one in played(env, task, {}).values()) == [0.0, 1.0]
    folded = played(env, task, {"player-0": ["no move", "no move"]})
    assert next(iter(folded.values())).reward == 0.0


def test_games_that_begin_alike_begin_with_random_moves_if_asked() -> None:
    alike = opened("TicTacToe-v0", held_out=20)
    assert len({task.messages for task in alike.held_out()}) == 1
    env = opened("TicTacToe-v0", held_out=20, opening_moves=2, legal_moves=True)
    tasks = env.held_out()
    assert len({task.messages for task in tasks}) > 10
    board = tasks[0].messages[0].content
    assert ("O" in board, "X" in board) == (True, True)
    assert all(len(cast("Sequence[str]", task.payload["choices"])) == 7 for task in tasks)
    assert played(env, tasks[0], {}) == played(env, tasks[0], {})
    odd = opened("TicTacToe-v0", opening_moves=3)
    assert "You are Player 1" in odd.held_out()[0].messages[0].content


def test_base_tasks_leave_other_seeds_to_new_ones() -> None:
    env = opened("TicTacToe-v0", seeds=5000)
    seed, rng = env.seeds()[0], random.Random(0)
    drawn = {str(at_random(env.parameter_options(seed), rng)["seed"]) for _ in range(200)}
    assert len(drawn) > 150  # of the first 1,000


def test_a_game_of_one_player_has_no_seats() -> None:
    env = opened("GuessTheNumber-v0", max_turns=20)
    assert (env.seats, environment_seats("textarena:GuessTheNumber-v0")) == ((), ())
    task = env.held_out()[0]
    guesses = [f"[{number}]" for number in range(1, 21)]
    assert env.check(task, guesses[:1]).explanation == "The game has not ended."
    verdicts = {env.check(task, [f"[{n}]"]).success for n in range(1, 21)}
    assert verdicts == {True, False}


def test_the_simulator_sets_arguments_of_the_game_lists_among_them() -> None:
    env = opened("Nim-v0", vary={"piles": [[1, 2], [3], [1, 1]]}, seeds=5)
    seed, rng = env.seeds()[0], random.Random(0)
    drawn = [at_random(env.parameter_options(seed), rng)["piles"] for _ in range(30)]
    assert [piles for piles in ([1, 2], [3], [1, 1]) if piles in drawn] == [[1, 2], [3], [1, 1]]
    task = env.build(
        env.spec.model_validate({"piles": [3], "seed": 0}), task_id="t", lineage=_GENERATED, rng=rng
    )
    assert isinstance(task, Task)
    assert "pile 0: 3" in task.messages[0].content
    assert env.check(task, ["[0 3]"]).success
    wrong = env.build(
        env.spec.model_validate({"piles": [9], "seed": 0}), task_id="t", lineage=_GENERATED, rng=rng
    )
    assert isinstance(wrong, Rejection)


def test_a_game_that_does_not_end_has_the_lowest_reward() -> None:
    env = opened("TicTacToe-v0", max_turns=2, reward_low=-1.0)
    verdict = played(env, env.held_out()[0], {})["player-0"]
    assert (verdict.reward, verdict.success) == (0.0, False)
    draw = opened("TicTacToe-v0", reward_low=-1.0)
    assert 0.5 in {played(draw, task, {})["player-0"].reward for task in draw.held_out()}


def test_what_cannot_be_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UsageError, match=r"unknown game of TextArena 'TicTacTo-v0'; did you mean 'TicTacToe-v0'\?"
    ):
        players_of("TicTacTo-v0")
    with pytest.raises(
        UsageError, match="TextArena's Debate-v0 cannot begin: ValueError: OpenRouter API key"
    ):
        players_of("Debate-v0")
    with pytest.raises(UsageError, match="Nim-v0 takes no argument 'size'; it takes: piles"):
        opened("Nim-v0", given={"size": 4})
    with pytest.raises(UsageError, match="held-out task 0"):
        opened("TicTacToe-v0", opening_moves=9).held_out()
    blotto = opened("ColonelBlotto-v0")
    with pytest.raises(
        RolloutError, match="no legal move of TextArena's ColonelBlotto-v0 was found, so code cannot play"
    ):
        played(blotto, blotto.held_out()[0], {})
    with pytest.raises(UsageError, match="say which one, a game, after the colon"):
        load_environment("textarena:")
    monkeypatch.setitem(sys.modules, "textarena", None)
    textarena._textarena.cache_clear()
    try:
        with pytest.raises(UsageError, match="games of TextArena need its package: pip install"):
            textarena._textarena()
    finally:
        textarena._textarena.cache_clear()


RUN = """
run.rounds = 2
run.eval_every = 1
run.eval_tasks = 4

[environment]
name = "textarena:TicTacToe-v0"
seats = { player-0 = "one", player-1 = "two" }
legal_moves = true

[curriculum]
band_filter = false

[simulator]
source = "variation"
writes = "parameters"
contexts = 3
variations = 1

[agent]
rollouts = 2
max_new_tokens = 8
warmup.steps = 0

[agents.one]
[agents.two]

[policy]
backend = "scripted"
context_tokens = 4096
"""


@pytest.mark.long
def test_two_agents_play_each_other_in_a_run(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    succeeds("train", tmp_path / "run.toml", "--out", tmp_path / "run")
    groups = groups_of(tmp_path / "run", 2)
    assert {group.agent for group in groups} == {"one", "two"}
    assert all(trace.explanation.startswith("TextArena gives") for one in groups for trace in one.traces)
    (tmp_path / "wrong.toml").write_text(RUN.replace("player-1", "player-2"))
    said = refused("train", tmp_path / "wrong.toml", "--out", tmp_path / "wrong")
    assert "player-2" in said


def test_moves_of_code_have_the_rewards_that_textarena_itself_gives(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    games = "TicTacToe-v0,KuhnPoker-v0,GuessTheNumber-v0"
    importlib.import_module("textarena_games").main(["--seeds", "2", "--games", games])
    sums = json.loads(capsys.readouterr().out.splitlines()[-1])["sums"]
    assert sums["listed"] == sums["opened"] == sums["by_code"] == 3
    assert sums["played"] == sums["alike_again"] == sums["ended"] == sums["equal"] == 6


@pytest.mark.long
def test_check_says_where_code_cannot_play_a_seat() -> None:
    found = run("check", "textarena:ColonelBlotto-v0", "--n", 2)
    assert "seats that code plays" in found.stdout
    assert "no legal move" in found.stdout.replace("\n", " ")
    assert "seats that code plays" in succeeds("check", "textarena:KuhnPoker-v0", "--n", 2).stdout
    assert "seats that code plays" in succeeds("check", "guess_who", "--n", 2).stdout
    short = ("--n", 2, "--set", "environment.max_turns=2")
    said = succeeds("check", "textarena:TicTacToe-v0", *short).stdout.replace("\n", " ")
    assert "episodes that end: raise environment.max_turns" in said
    assert "episodes that end" not in succeeds("check", "textarena:TicTacToe-v0", "--n", 2).stdout
    assert "seats that code plays" not in succeeds("check", "textarena:GuessTheNumber-v0", "--n", 2).stdout


def test_a_person_chooses_among_the_legal_moves() -> None:
    words = ("play", "textarena:TicTacToe-v0", "--set", "environment.legal_moves=true")
    said = run(*words, typed="[9]\n\n[4]\n\n").stdout
    assert "possible: [0] [1] [2]" in said
    assert "'[9]' is not possible here; choose one of the replies above" in said
    assert said.count("possible: ") == 2
