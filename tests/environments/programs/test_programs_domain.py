"""Programs: what they come to, what is refused, and that held-out texts are apart."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from genenv.environments.programs.environment import (
    CHANGES,
    OPERATIONS,
    OTHER_LETTERS,
    PICKS,
    Programs,
    ProgramsConfig,
    ProgramSpec,
    holds,
    is_held_out,
    of,
    steps,
)
from genenv.gate.gate import base_tasks, examined
from genenv.types import Lineage, Message, Origin, Profile, Rejection, RejectReason, Task

ENVIRONMENT = Programs()
EVERYTHING = Programs(ProgramsConfig(operations=tuple(one.name for one in OPERATIONS.values())))
GENERATED = Lineage(origin=Origin.GENERATED)
TEXTS = st.text("0123456789", min_size=2, max_size=5)
CHANGED = st.text(st.sampled_from(list(CHANGES)), max_size=2)
PICKED = st.sampled_from(list(PICKS))


def built(spec: ProgramSpec, origin: Origin = Origin.GENERATED) -> Task | Rejection:
    return ENVIRONMENT.build(spec, task_id="t", lineage=Lineage(origin=origin), rng=random.Random(0))


def task_of(ops: str, text: str) -> Task:
    task = built(of(ops, text))
    assert isinstance(task, Task), task
    return task


@pytest.mark.parametrize(
    ("ops", "text", "found"),
    [
        ("f", "4306", ["4306", "4"]),
        ("rl", "4306", ["4306", "6034", "4"]),
        ("sf", "4306", ["4306", "0346", "0"]),
        ("uul", "4309", ["4309", "5410", "6521", "1"]),
        ("ruf", "4306", ["4306", "6034", "7145", "7"]),
        ("dtl", "4306", ["4306", "3295", "2953", "3"]),
        ("cm", "4306", ["4306", "5693", "9"]),
        ("rui", "4306", ["4306", "6034", "7145", "7145"]),
    ],
)
def test_a_program_applies_its_operations_from_left_to_right(ops: str, text: str, found: list[str]) -> None:
    assert steps(ops, text) == found
    task = EVERYTHING.build(of(ops, text), task_id="t", lineage=GENERATED, rng=random.Random(0))
    assert isinstance(task, Task)
    assert task.oracle == (found[-1],)


@given(text=TEXTS, ops=CHANGED, last=PICKED)
def test_the_second_check_knows_each_step_and_no_other_result(text: str, ops: str, last: str) -> None:
    found = steps(ops + last, text)
    for letter, (old, new) in zip(ops + last, pairwise(found), strict=True):
        assert OPERATIONS[letter].holds(old, new)
        wrong = new[:-1] + str((int(new[-1]) + 1) % 10)
        assert not OPERATIONS[letter].holds(old, wrong)
        assert not OPERATIONS[letter].holds(old, new + new)
    assert holds(ops + last, text, found[-1])
    assert not any(holds(ops + last, text, digit) for digit in "0123456789" if digit != found[-1])


def test_a_task_says_text_and_program_and_wants_one_digit() -> None:
    task = task_of("ruf", "4306")
    assert [message.content for message in task.messages] == ["4306>ruf="]
    assert task.skills == ("reverse", "up", "first", "depth:3", "length:4")
    assert (ENVIRONMENT.steps(task), ENVIRONMENT.surface(task)) == (3, "4306>ruf")


@pytest.mark.parametrize(
    ("replies", "right"),
    [
        (["7"], True),
        ([" 7\n"], True),
        (["7", "5"], True),
        (["71"], False),
        (["5"], False),
        ([""], False),
        ([], False),
    ],
)
def test_right_is_the_value_and_nothing_else(replies: list[str], right: bool) -> None:
    verdict = ENVIRONMENT.check(task_of("ruf", "4306"), replies)
    assert (verdict.success, verdict.reward) == (right, float(right))


def test_an_attempt_is_one_question() -> None:
    heard: list[Sequence[Message]] = []

    async def ask(messages: Sequence[Message]) -> str:
        heard.append(messages)
        return "6"

    task = task_of("ruf", "4306")
    asyncio.run(ENVIRONMENT.episode(task).run(ask))
    assert heard == [task.messages]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"d": 2, "n": 4, "p": "4306>ruf"}, RejectReason.INCONSISTENT),
        ({"d": 3, "n": 3, "p": "4306>ruf"}, RejectReason.INCONSISTENT),
        ({"d": 1, "n": 2, "p": "14>f"}, RejectReason.HELD_OUT),
        ({"d": 1, "n": 6, "p": "430643>f"}, RejectReason.SCHEMA),
        ({"d": 4, "n": 4, "p": "4306>rrrf"}, RejectReason.SCHEMA),
    ],
)
def test_what_is_refused(spec: dict[str, Any], reason: RejectReason) -> None:
    outcome = built(ProgramSpec(**spec))
    assert isinstance(outcome, Rejection)
    assert outcome.reason is reason


@pytest.mark.parametrize(
    "p", ["4306>r", "4306>fr", "4306", "4>f", 33 * "4" + ">f", "4306>" + 16 * "r" + "f", "4306>xf", "4a>f"]
)
def test_what_is_no_program(p: str) -> None:
    with pytest.raises(ValidationError):
        ProgramSpec(d=1, n=4, p=p)


@pytest.mark.long
def test_base_data_holds_every_difficulty_and_none_of_the_held_out_texts() -> None:
    seeds, held_out = ENVIRONMENT.seeds(), ENVIRONMENT.held_out()
    assert (len(seeds), len(held_out)) == (4000, 500)
    for specs in ([seed.spec for seed in seeds], [task.spec for task in held_out]):
        counts = Counter((spec["d"], spec["n"]) for spec in specs)
        assert len(counts) == 3 * 4
        assert max(counts.values()) < 3 * min(counts.values())
        assert len({spec["p"] for spec in specs}) == len(specs)
    texts = {str(seed.spec["p"]).partition(">")[0] for seed in seeds}
    assert not texts & {str(task.spec["p"]).partition(">")[0] for task in held_out}
    assert Programs().seeds() == seeds
    assert Programs().held_out() == held_out


def test_every_seed_and_every_held_out_task_passes_the_gate() -> None:
    tasks = [*base_tasks(ENVIRONMENT, ENVIRONMENT.seeds(), seed=0).values(), *ENVIRONMENT.held_out()]
    assert len(tasks) == 4500
    assert all(examined(ENVIRONMENT, task, random.Random(0)) is None for task in tasks)


def test_variations_are_near_their_seed_can_be_written_and_are_tasks(
    written_under: Callable[[Any, Any], bool],
) -> None:
    rng = random.Random(1)
    for seed in ENVIRONMENT.seeds()[:40]:
        spec = ENVIRONMENT.variation(seed, rng)
        assert abs(int(str(spec["d"])) - int(str(seed.spec["d"]))) <= 1
        assert abs(int(str(spec["n"])) - int(str(seed.spec["n"]))) <= 2
        assert isinstance(built(ProgramSpec.model_validate(spec)), Task)
        assert written_under(ENVIRONMENT.spec_schema(seed), spec)


def test_what_the_grammar_lets_through_is_a_task_or_has_a_text_for_measuring(
    draw: Callable[[Any, random.Random], Any],
) -> None:
    rng, seed = random.Random(2), ENVIRONMENT.seeds()[0]
    specs = [ProgramSpec.model_validate(draw(ENVIRONMENT.spec_schema(seed), rng)) for _ in range(300)]
    assert len({(spec.d, spec.n) for spec in specs}) == 3 * 4
    for spec in specs:
        assert isinstance(built(spec), Rejection) is is_held_out(spec.text)


def test_no_spec_made_wrong_passes(mutants: Callable[..., Iterator[tuple[str, Any]]]) -> None:
    rng = random.Random(3)
    for seed in ENVIRONMENT.seeds()[:30]:
        for kind, spec in mutants(seed.spec, rng):
            try:
                wrong = ProgramSpec.model_validate(spec)
            except ValidationError:
                continue
            assert isinstance(built(wrong), Rejection), (kind, spec)


def test_the_simulator_reads_a_code_of_how_the_agent_does() -> None:
    seed = next(seed for seed in ENVIRONMENT.seeds() if seed.spec["d"] == 3)
    (blank,) = ENVIRONMENT.simulator_messages(seed, Profile(), 0.5)
    assert blank.content == f"50 - --- r-s-u-f-l- {seed.spec['p']}"
    known = Profile(overall=0.61, success={"depth:1": 1.0, "depth:2": 0.5, "reverse": 0.29, "last": 0.0})
    (told,) = ENVIRONMENT.simulator_messages(seed, known, 0.5)
    assert told.content == f"50 6 95- r2s-u-f-l0 {seed.spec['p']}"


def test_specs_and_prompts_are_short() -> None:
    assert max(len(json.dumps(seed.spec, separators=(",", ":"))) for seed in ENVIRONMENT.seeds()) <= 29
    assert max(len(task.messages[0].content) for task in ENVIRONMENT.held_out()) <= 10


def test_renamed_programs_are_the_same_in_another_writing() -> None:
    renamed = Programs(ProgramsConfig(renamed=True))
    written = str.maketrans(dict(OTHER_LETTERS))
    for one, other in zip(ENVIRONMENT.held_out(), renamed.held_out(), strict=True):
        assert other.messages[0].content == one.messages[0].content.translate(written)
        assert (other.oracle, other.skills) == (one.oracle, one.skills)
        assert isinstance(
            renamed.build(
                ProgramSpec.model_validate(one.spec), task_id="t", lineage=GENERATED, rng=random.Random(0)
            ),
            Rejection,
        )


def test_a_world_has_its_own_operations_only(
    written_under: Callable[[Any, Any], bool], draw: Callable[[Any, random.Random], Any]
) -> None:
    world = Programs(ProgramsConfig(operations=("turn", "complement", "largest")))
    rng, old = random.Random(4), ENVIRONMENT.seeds()[0]
    tasks = [*base_tasks(world, world.seeds()[:200], seed=0).values(), *world.held_out()]
    assert len(tasks) == 700
    assert all(examined(world, task, random.Random(0)) is None for task in tasks)
    assert {skill for task in tasks for skill in task.skills if ":" not in skill} == {
        "turn",
        "complement",
        "largest",
    }
    for seed in (*world.seeds()[:20], old):
        for spec in (world.variation(seed, rng), draw(world.spec_schema(seed), rng)):
            assert set(str(spec["p"]).partition(">")[2]) <= set("tcm")
            assert written_under(world.spec_schema(seed), spec)
    (told,) = world.simulator_messages(world.seeds()[0], Profile(), 0.5)
    assert told.content.startswith("50 - --- t-c-m- ")
    refused = world.build(
        ProgramSpec.model_validate(old.spec), task_id="t", lineage=GENERATED, rng=random.Random(0)
    )
    assert isinstance(refused, Rejection)
    assert refused.reason is RejectReason.SCHEMA


def test_base_tasks_may_be_some_of_what_can_be_written(
    written_under: Callable[[Any, Any], bool], draw: Callable[[Any, random.Random], Any]
) -> None:
    world = Programs(
        ProgramsConfig(
            operations=("reverse", "sort", "whole"),
            depths=(1, 4),
            lengths=(2, 6),
            base_depths=(3, 4),
            base_lengths=(4, 6),
        )
    )
    rng, tasks = random.Random(5), [*base_tasks(world, world.seeds(), seed=0).values(), *world.held_out()]
    assert {(task.spec["d"], task.spec["n"]) for task in tasks} == {(d, n) for d in (3, 4) for n in (4, 5, 6)}
    assert all(len(task.oracle[0]) == task.spec["n"] for task in tasks)
    assert all(examined(world, task, random.Random(0)) is None for task in tasks[:200])
    seeds = world.seeds()
    written = [draw(world.spec_schema(seeds[0]), rng) for _ in range(300)]
    assert {spec["d"] for spec in written} == {1, 2, 3, 4}
    varied = [world.variation(seed, rng) for seed in seeds[:300]]
    assert {spec["d"] for spec in varied} == {2, 3, 4}
    assert all(written_under(world.spec_schema(seeds[0]), spec) for spec in (*written, *varied))
    (told,) = world.simulator_messages(seeds[0], Profile(), 0.5)
    assert told.content.startswith("50 - ---- r-s-i- ")


def test_a_simulator_may_be_shown_no_base_program_and_taught_the_whole_range(
    written_under: Callable[[Any, Any], bool],
) -> None:
    sizes: dict[str, Any] = {
        "depths": (1, 4),
        "lengths": (2, 6),
        "base_depths": (1, 2),
        "base_lengths": (2, 3),
    }
    world, varying = (Programs(ProgramsConfig(**sizes, vary_base=vary)) for vary in (False, True))
    seeds, rng = world.seeds(), random.Random(6)
    assert list(seeds) == list(varying.seeds()), "only what the simulator sees and what is drawn differ"
    known = Profile(overall=0.6, success={"depth:1": 0.9})
    assert world.simulator_messages(seeds[0], known, 0.5) == world.simulator_messages(seeds[1], known, 0.5)
    (told,) = world.simulator_messages(seeds[0], known, 0.5)
    assert told.content.startswith("50 6 9--- r-")
    assert str(seeds[0].spec["p"]) not in told.content
    drawn = [world.variation(seeds[0], rng) for _ in range(2000)]
    counts = Counter((spec["d"], spec["n"]) for spec in drawn)
    assert len(counts) == 4 * 5
    assert max(counts.values()) < 2 * min(counts.values()), "uniform over depths and lengths"
    assert all(written_under(world.spec_schema(seeds[0]), spec) for spec in drawn[:100])


def test_a_small_world_has_as_many_programs_as_there_are() -> None:
    world = Programs(ProgramsConfig(operations=("up", "first"), depths=(1, 1), lengths=(2, 2)))
    assert len({str(seed.spec["p"]) for seed in world.seeds()}) == len(world.seeds()) == 85
    assert len(world.held_out()) == 15


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"depths": (2, 1)}, "a least and a most within"),
        ({"lengths": (1, 3)}, "greater than or equal to 2"),
        ({"depths": (1, 17)}, "less than or equal to 16"),
        ({"base_depths": (2, 4)}, "a least and a most within"),
    ],
)
def test_ranges_are_a_least_and_a_most_of_what_there_is(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ProgramsConfig(**settings)
