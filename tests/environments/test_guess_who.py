"""Guess who: what the code of both seats does, what each earns, and which games are refused."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from genenv.environments.base import SeatView
from genenv.environments.guess_who import (
    GuessWho,
    GuessWhoConfig,
    GuessWhoSpec,
    is_held_out,
    questions,
)
from genenv.errors import UsageError
from genenv.gate.gate import examined
from genenv.types import JsonObject, Lineage, Origin, Profile, Rejection, Task

BRIEF = GuessWho(GuessWhoConfig(brief=True))
WORDS = GuessWho()
LINEAGE = Lineage(origin=Origin.GENERATED, seed_id="seed-0000", context_id="c", generation_id="g")


def built(env: GuessWho, **spec: Any) -> Task | Rejection:
    return env.build(GuessWhoSpec(**spec), task_id="t", lineage=LINEAGE, rng=random.Random(0))


def game(env: GuessWho = BRIEF, **changes: Any) -> Task:
    found = built(env, **{"n": 4, "k": 3, "t": 4, "s": 2, "p": "110,100,011,001", **changes})
    assert isinstance(found, Task), found
    return found


def test_the_prompts_of_both_seats_in_code_and_in_words() -> None:
    assert game().messages[0].content == "4 a1y2y3n b1y2n3n c1n2y3y d1n2n3y"
    assert game().oracle == ("1", "2", "c")
    answerer = asyncio.run(SeatView(BRIEF, "answerer").seen(game()))  # pyright: ignore[reportArgumentType]
    assert ([one.content for one in answerer.messages], answerer.oracle) == (["1n2y3y 1"], ("n", "y"))
    words = game(WORDS)
    persons = [str(one) for one in words.payload["persons"]]  # type: ignore[union-attr]
    assert f"- {persons[0]}: glasses, hat\n- {persons[1]}: glasses\n" in words.messages[0].content
    assert words.oracle == ("glasses", "hat", persons[2])
    seen = asyncio.run(SeatView(WORDS, "answerer").seen(words))  # pyright: ignore[reportArgumentType]
    assert f"You are {persons[2]}. Of glasses, hat, beard you have: hat, beard." in seen.messages[0].content
    assert seen.oracle == ("no", "yes")


@pytest.mark.parametrize(
    ("replies", "reward", "success", "readable"),
    [
        (("1", "2", "c"), 1 - 2 / 8, True, True),
        (("c",), 1.0, True, True),
        (("1", " C. "), 1 - 1 / 8, True, True),
        (("x", "1", "2", "c"), 1 - 3 / 8, True, True),
        (("1", "2", "3", "c"), 1 - 3 / 8, True, True),
        (("1", "2", "3", "1", "c"), 0.0, False, True),
        (("1", "2", "a"), 0.0, False, True),
        (("1", "2"), 0.0, False, True),
        (("?", "who"), 0.0, False, False),
        ((), 0.0, False, False),
    ],
)
def test_the_asker_earns_more_with_fewer_questions(
    replies: tuple[str, ...], reward: float, success: bool, readable: bool
) -> None:
    verdict = BRIEF.check(game(), replies)
    assert (verdict.reward, verdict.success, verdict.readable) == (pytest.approx(reward), success, readable)


@pytest.mark.parametrize(
    ("replies", "reward", "success"),
    [
        (("n", "y"), 1.0, True),
        (("y", "y"), 0.25, False),
        (("n", "n"), 0.25, False),
        (("maybe", "y"), 0.25, False),
    ],
)
def test_the_answerer_earns_by_truth_and_by_what_the_asker_finds(
    replies: tuple[str, ...], reward: float, success: bool
) -> None:
    """After an unclear answer code is left with two persons, and names the first."""
    verdict = SeatView(BRIEF, "answerer").check(game(t=3), replies)  # pyright: ignore[reportArgumentType]
    assert (verdict.reward, verdict.success) == (reward, success)


def test_questions_tell_all_persons_apart() -> None:
    rows = ["".join(row) for row in product("01", repeat=3)]
    for secret in range(8):
        asked = questions(rows, secret)
        assert sorted(asked) == [0, 1, 2]
        assert len({tuple(row[one] for one in asked) for row in rows}) == 8
    assert questions(["10", "01"], 0) == [0]


@pytest.mark.parametrize("env", [BRIEF, WORDS], ids=["brief", "words"])
def test_base_games_differ_pass_the_gate_and_none_is_held_out(env: GuessWho) -> None:
    seeds, held_out = env.seeds(), env.held_out()
    assert len(seeds) == 2000
    assert len(held_out) == 300
    assert len({json.dumps(seed.spec) for seed in seeds}) == 2000
    assert not any(is_held_out(GuessWhoSpec.model_validate(seed.spec).rows) for seed in seeds)
    assert all(is_held_out(GuessWhoSpec.model_validate(task.spec).rows) for task in held_out)
    sizes = {(seed.spec["n"], seed.spec["k"], seed.spec["t"]) for seed in seeds}
    assert sizes == set(env.settings.sizes())
    for number in range(40):
        spec = env.variation(seeds[number], random.Random(number))
        task = built(env, **spec)
        assert isinstance(task, Task)
        assert examined(env, task, random.Random(0)) is None  # pyright: ignore[reportArgumentType]
        assert env.steps(task) == len(task.oracle)


def test_a_spec_that_a_simulator_can_write_is_a_game_or_is_refused_with_a_reason(
    written_under: Callable[[JsonObject, JsonObject], bool], draw: Callable[[JsonObject, random.Random], Any]
) -> None:
    schema, rng = BRIEF.spec_schema(BRIEF.seeds()[0]), random.Random(1)
    assert all(written_under(schema, seed.spec) for seed in BRIEF.seeds()[:20])
    found = [built(BRIEF, **draw(schema, rng)) for _ in range(60)]
    assert any(isinstance(one, Task) for one in found)
    assert all(one.explanation.endswith(".") for one in found if isinstance(one, Rejection))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"n": 5}, "inconsistent"),
        ({"s": 4}, "inconsistent"),
        ({"p": "110,110,011,001"}, "inconsistent"),
        ({"p": "11,10,01,00", "k": 2}, "schema"),
        ({"t": 6}, "schema"),
        ({"p": "000,001,010,100", "t": 3, "s": 0}, "execution"),
        (dict(BRIEF.held_out()[0].spec), "held_out"),
    ],
)
def test_what_is_no_game_is_refused(changes: dict[str, Any], reason: str) -> None:
    spec = {"n": 4, "k": 3, "t": 4, "s": 2, "p": "110,100,011,001", **changes}
    found = built(BRIEF, **spec)
    assert isinstance(found, Rejection)
    assert found.reason == reason


def test_a_small_simulator_is_told_in_a_code() -> None:
    seed = BRIEF.seeds()[0]
    profile = Profile(overall=0.42, success={"persons:5": 0.9})
    (told,) = BRIEF.simulator_messages(seed, profile, 0.5)
    assert told.content == f"50 4-9--- {seed.spec['s']} {seed.spec['p']}"
    (told,) = BRIEF.parameter_messages(seed, profile, 0.5)
    assert told.content == "50 4-9---"


def test_choices_are_those_of_the_seat_whose_turn_it_is() -> None:
    env = GuessWho(GuessWhoConfig(brief=True, choices=True))
    episode: Any = env.episode(game(env))
    assert tuple(episode.choices) == ("1", "2", "3", "a", "b", "c", "d")
    assert not BRIEF.episode(game()).choices  # type: ignore[attr-defined]


@pytest.mark.long
def test_so_few_games_that_none_is_held_out_are_one_sentence() -> None:
    with pytest.raises(UsageError, match="none is held out; set environment"):
        GuessWho(GuessWhoConfig(persons=(2, 2), features=(1, 1), turns=(2, 2))).held_out()
