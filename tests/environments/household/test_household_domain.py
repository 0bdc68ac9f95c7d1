"""The household environment: what can be written, what is refused, how attempts are played and graded."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("alfworld", reason="alfworld is not installed: pip install --no-deps alfworld")

from genenv.backends.scripted import ScriptedSampler
from genenv.curriculum.settings import CurriculumConfig
from genenv.environments.base import OutOfTurns
from genenv.environments.household.engine import read_command
from genenv.environments.household.environment import Household, check_by_facts, game_of, nearer
from genenv.environments.household.layout import LAMPS
from genenv.environments.household.planning import askable_steps
from genenv.environments.household.spec import (
    HouseholdConfig,
    HouseholdSpec,
    held_out_specs,
    lines,
    offered_for,
    read_place,
    wording_pattern,
    write_place,
)
from genenv.gate.gate import Gate, base_tasks
from genenv.rollout.driver import Sampling, roll_out
from genenv.types import Lineage, Message, Origin, Profile, Rejection, RejectReason, Task
from quickly import within

ENVIRONMENT = Household()
STEPS = Household(HouseholdConfig(mode="single"))
SEEDS = ENVIRONMENT.seeds()
MUG = HouseholdSpec(
    task="heat",
    size="small",
    hidden=True,
    target="Mug",
    start="Cabinet closed: Mug, Bowl",
    goal="CounterTop: Apple",
    others=("Microwave closed", "Shelf"),
    wording="please heat a <object> and put it on the <place>",
)


def task_of(spec: HouseholdSpec, env: Household = ENVIRONMENT, name: str = "t") -> Task:
    built = env.build(spec, task_id=name, lineage=Lineage(origin=Origin.GENERATED), rng=random.Random(name))
    assert isinstance(built, Task), built
    return built


def outcome(spec: HouseholdSpec, env: Household = ENVIRONMENT) -> Task | Rejection:
    """What building and the environment's own gate make of a spec."""
    rng = random.Random(0)
    built = env.build(spec, task_id="t", lineage=Lineage(origin=Origin.GENERATED), rng=rng)
    return built if isinstance(built, Rejection) else env.audit(built, rng) or built


def play(env: Household, task: Task, replies: Sequence[str]) -> list[str]:
    """What an episode asks for; it ends where the replies do, or at its own end."""
    heard: list[str] = []
    left = iter(replies)

    async def ask(messages: Sequence[Message]) -> str:
        heard.append(messages[-1].content)
        return next(left)

    asyncio.run(env.episode(task).run(ask))
    return heard


def pair_of(spec: HouseholdSpec) -> tuple[str, str]:
    """The object, and where it must come to."""
    kind, _, held = read_place(spec.goal)
    return spec.target, next((thing for thing in held if thing.endswith("Lamp")), kind)


def test_a_spec_becomes_a_game_with_its_shortest_plan():
    task = task_of(MUG)
    assert task.oracle == (
        "go to cabinet 1",
        "open cabinet 1",
        "take mug 1 from cabinet 1",
        "go to microwave 1",
        "heat mug 1 with microwave 1",
        "go to countertop 1",
        "move mug 1 to countertop 1",
    )
    assert task.skills == ("heat", "size:small", "hidden", "plan:middle")
    assert "Your task is to: please heat a mug and put it on the countertop." in task.messages[-1].content


def test_the_oracle_plays_to_the_end_of_the_episode():
    task = task_of(MUG)
    heard = play(ENVIRONMENT, task, task.oracle)
    assert heard[2].startswith(
        "You open the cabinet 1. The cabinet 1 is open. In it, you see a bowl 1, and a mug 1."
    )
    assert ENVIRONMENT.check(task, task.oracle).success


@pytest.mark.long
def test_there_are_enough_base_and_held_out_tasks_and_all_pass_the_gate():
    held_out = ENVIRONMENT.held_out()
    assert len(SEEDS) >= 300
    assert len(held_out) >= 100
    tasks = [*base_tasks(ENVIRONMENT, SEEDS, seed=0).values(), *held_out]
    assert len(tasks) == len(SEEDS) + len(held_out)
    audited = [ENVIRONMENT.audit(task, random.Random(task.id)) for task in tasks[::2]]
    assert audited == [None] * len(audited)


def test_the_first_120_of_500_held_out_tasks_are_those_there_were():
    specs = held_out_specs()
    assert [name for name, _ in specs] == [f"household-held-{n:03d}" for n in range(500)]
    text = json.dumps([(name, spec.model_dump(mode="json")) for name, spec in specs[:120]])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "30f86e3a652d84a7"
    assert ENVIRONMENT.main_held_out == 120
    assert len({ENVIRONMENT.surface(task) for task in ENVIRONMENT.held_out()}) == 500


@pytest.mark.long
@pytest.mark.parametrize("mode", ["single", "episode"])
def test_replies_are_held_to_the_commands_that_are_possible_turn_after_turn(mode):
    env = Household(HouseholdConfig(mode=mode, held_to_commands=True, max_turns=12))
    free = Household(HouseholdConfig(mode=mode, max_turns=12))
    for task, same in zip(env.held_out()[:12], free.held_out(), strict=False):
        assert task == same
        assert choices_along(env, task) == (list(task.oracle), [True] * len(task.oracle))
        assert not getattr(free.episode(task), "choices", ())


def choices_along(env: Household, task: Task) -> tuple[list[str], list[bool]]:
    """The oracle's commands as they are played, and whether the possible ones were offered each time."""
    episode, state = env.episode(task), game_of(task).start()
    state.play(task.payload.get("played", []))
    played: list[str] = []
    right: list[bool] = []

    async def ask(messages: Sequence[Message]) -> str:
        right.append(sorted(episode.choices) == sorted(state.admissible))
        played.append(task.oracle[len(played)])
        state.step(played[-1])
        return played[-1]

    asyncio.run(episode.run(ask))
    return played, right


def test_a_scripted_agent_gives_possible_commands_only():
    env = Household(HouseholdConfig(mode="single", held_to_commands=True))
    tasks = list(env.held_out()[:20])
    sampling = Sampling(temperature=1.0, max_new_tokens=60, timeout_s=60.0, seed=0)
    groups = asyncio.run(
        roll_out(env, ScriptedSampler(lambda p, rng: "fly"), tasks, rollouts=4, sampling=sampling)
    )
    for group in groups:
        possible = env.episode(group.task).choices
        assert {trace.replies[0] for trace in group.traces} <= set(possible)


def test_held_out_tasks_share_no_pair_of_object_and_goal_and_no_phrasing_with_the_seeds():
    seeds = [HouseholdSpec.model_validate(seed.spec) for seed in SEEDS]
    held_out = [HouseholdSpec.model_validate(task.spec) for task in ENVIRONMENT.held_out()]
    assert not {pair_of(spec) for spec in seeds} & {pair_of(spec) for spec in held_out}
    assert not {spec.wording for spec in seeds} & {spec.wording for _, spec in held_out_specs()}
    for _, spec in held_out_specs():  # nor can a simulator write them
        assert re.fullmatch(wording_pattern(spec.task), spec.wording) is None


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(SEEDS) - 1), st.integers(0, 10**6))
def test_a_variation_passes_the_gate_and_keeps_away_from_held_out_pairs(index, chance):
    seed = SEEDS[index]
    spec = HouseholdSpec.model_validate(ENVIRONMENT.variation(seed, random.Random(chance)))
    held_out = {pair_of(HouseholdSpec.model_validate(task.spec)) for task in ENVIRONMENT.held_out()}
    assert pair_of(spec) not in held_out
    assert isinstance(outcome(spec), Task)


@pytest.mark.long
def test_every_seed_is_of_the_room_that_its_simulator_is_told_of(written_under):
    for seed in SEEDS:
        spec = HouseholdSpec.model_validate(seed.spec)
        offered = offered_for(seed)
        kinds = {read_place(line)[0] for line in lines(spec)}
        assert kinds <= set(offered.places), seed.id
        assert {thing for line in lines(spec) for thing in read_place(line)[2]} - LAMPS <= set(
            offered.objects
        )
    seed = next(seed for seed in SEEDS if "FloorLamp" in str(seed.spec["goal"]))
    assert written_under(ENVIRONMENT.spec_schema(seed), seed.spec)


@pytest.mark.long
@pytest.mark.parametrize("index", range(0, len(SEEDS), 40))
def test_the_grammar_lets_seeds_and_variations_through(written_under, index):
    seed = SEEDS[index]
    schema = ENVIRONMENT.spec_schema(seed)
    written = [seed.spec, *(ENVIRONMENT.variation(seed, random.Random(chance)) for chance in range(5))]
    assert [spec for spec in written if not written_under(schema, spec)] == []
    assert not written_under(schema, {**seed.spec, "target": "Spaceship"})


def test_the_simulator_is_told_what_its_grammar_knows():
    seed = next(seed for seed in SEEDS if seed.spec["task"] == "heat")
    profile = Profile(success={"heat": 0.25}, attempts={"heat": 8.0}, overall=0.5)
    system, user = ENVIRONMENT.simulator_messages(seed, profile, 0.5)
    assert "Room: kitchen." in system.content
    assert str(seed.spec["target"]) in system.content
    assert user.content.startswith("It solves 50% now, heat 25%.")


@pytest.mark.parametrize("env", [ENVIRONMENT, STEPS], ids=["episode", "single"])
def test_specs_made_wrong_are_refused(env, mutants):
    survivors = [
        (kind, spec)
        for number, seed in enumerate(SEEDS[::4])
        for kind, spec in mutants(HouseholdSpec.model_validate(seed.spec), random.Random(number))
        if isinstance(outcome(spec, env), Task)
    ]
    assert survivors == []


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"start": "Cabinet closed: Bowl"}, RejectReason.EXECUTION, "0 Mug"),
        ({"start": "CounterTop: Mug"}, RejectReason.INCONSISTENT, "hidden"),
        ({"others": ("Shelf", "Shelf")}, RejectReason.EXECUTION, "No sequence"),
        ({"others": ("Microwave closed", "Shelf closed")}, RejectReason.EXECUTION, "cannot be closed"),
        ({"goal": "Spaceship"}, RejectReason.EXECUTION, "no place Spaceship"),
        ({"size": "large"}, RejectReason.INCONSISTENT, "6 to 8"),
        ({"wording": "put a hot <object> on it"}, RejectReason.UNSTATED, "countertop"),
        ({"wording": "put a <object> on the <place>"}, RejectReason.INCONSISTENT, "none of those"),
        ({"wording": "clean and heat a <object>, <place>"}, RejectReason.INCONSISTENT, "none of those"),
        ({"wording": "never heat the <object>; keep it off the <place>"}, RejectReason.INCONSISTENT, "none"),
        # read by two readers as the one that is hot already
        ({"wording": "move the hot <object> on the <place>"}, RejectReason.INCONSISTENT, "none of those"),
        ({"wording": "heat the <object> of the cabinet, <place>"}, RejectReason.LEAK, "cabinet"),
        ({"wording": "heat <object> 1, then the <place>"}, RejectReason.LEAK, "mug 1"),
        ({"wording": "heat the <object> on <place> & co"}, RejectReason.INCONSISTENT, "none of those"),
        (
            {"wording": "put a hot <object> on <place>" + " <object>" * 60},
            RejectReason.INCONSISTENT,
            "characters",
        ),
        ({"target": "Mug", "wording": "<object>"}, RejectReason.INCONSISTENT, "3 characters"),
    ],
)
def test_a_refusal_says_why(changes, reason, words):
    refused = outcome(MUG.model_copy(update=changes))
    assert isinstance(refused, Rejection)
    assert refused.reason is reason
    assert words in refused.explanation


def test_held_out_pairs_are_refused_for_anybody_else():
    for task in ENVIRONMENT.held_out():
        spec = HouseholdSpec.model_validate(task.spec)
        refused = outcome(spec.model_copy(update={"wording": "put a <object> on the <place>"}))
        assert isinstance(refused, Rejection)
        assert refused.reason is RejectReason.HELD_OUT


def test_of_two_places_that_both_would_do_for_two_objects_there_is_only_one():
    two = {"task": "two", "target": "Pen", "hidden": False, "start": "Shelf: Pen", "goal": "Desk"}
    words = "put two <object> on any <place>"
    spec = MUG.model_copy(update={**two, "others": ("Shelf: Pen", "Desk"), "wording": words})
    refused = outcome(spec)
    assert isinstance(refused, Rejection)
    assert "several places of the goal's type" in refused.explanation
    assert isinstance(outcome(spec.model_copy(update={"others": ("Shelf: Pen", "Bed")})), Task)


def test_a_look_needs_an_open_place_with_a_lamp():
    look = {"task": "look", "target": "Pen", "hidden": False, "start": "Shelf: Pen"}
    spec = MUG.model_copy(update={**look, "wording": "look at the <object> under the <lamp>"})
    assert isinstance(outcome(spec.model_copy(update={"goal": "Desk: DeskLamp"})), Task)
    for goal in ("Desk", "Drawer closed: DeskLamp"):
        refused = outcome(spec.model_copy(update={"goal": goal}))
        assert isinstance(refused, Rejection)
        assert "not an open one with a lamp" in refused.explanation


def test_a_goal_that_holds_already_is_no_task():
    spec = MUG.model_copy(
        update={"task": "pick", "goal": "Cabinet", "wording": "put a <object> into a <place>"}
    )
    refused = outcome(spec)
    assert isinstance(refused, Rejection)
    assert refused.reason is RejectReason.TRIVIAL


def test_commands_that_do_nothing_use_a_turn_and_the_episode_ends_at_the_limit():
    task = task_of(MUG)
    replies = ["fly to the moon"] * 50
    with pytest.raises(OutOfTurns):
        play(ENVIRONMENT, task, replies)
    verdict = ENVIRONMENT.check(task, replies)
    assert (verdict.reward, verdict.success) == (0.0, False)
    assert "after 50 commands, of which 50 did nothing" in verdict.explanation
    late = [*["look"] * 44, *task.oracle]
    assert not ENVIRONMENT.check(task, late).success  # the 51st command would win


@pytest.mark.parametrize("env", [ENVIRONMENT, STEPS], ids=["episode", "single"])
@pytest.mark.parametrize("reply", ["", "\n\n", "x" * 10_000_000, "[" * 100_000, "\0\ud800", "take from to"])
def test_garbage_is_a_failed_attempt(env, reply):
    task = task_of(MUG, env)
    with within(1):
        verdict = env.check(task, [reply] * 60)
        assert (verdict.reward, verdict.success) == (0.0, False)
    assert len(verdict.explanation) < 300


@given(st.lists(st.text(), max_size=8))
@settings(max_examples=50, deadline=None)
def test_any_replies_get_the_same_verdict_twice_from_both_checks(replies):
    task = task_of(MUG)
    first = ENVIRONMENT.check(task, replies)
    assert first == ENVIRONMENT.check(task, replies)
    assert first.success == check_by_facts(task, replies, ENVIRONMENT.settings)


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("go to desk 1", "go to desk 1"),
        ("> Go to desk 1.\nThen I take it.", "go to desk 1"),
        ("\nAction: look", "look"),
        ("Next command: open drawer 2", "open drawer 2"),
        ("```\ngo to desk 1\n```", "go to desk 1"),
        ("**go to desk 1**", "go to desk 1"),
        ("1. Go to desk 1!", "go to desk 1"),
        ('> Action: "go to desk 1"', "go to desk 1"),
        ("---\n`go to desk 1`", "go to desk 1"),
    ],
)
def test_a_command_is_the_first_line(reply, command):
    assert read_command(reply) == command


def test_progress_pays_for_the_way_that_is_behind():
    env = Household(HouseholdConfig(reward="progress"))
    task = task_of(MUG, env)
    rewards = [env.check(task, task.oracle[:n]).reward for n in range(8)]
    assert rewards == sorted(rewards)
    assert rewards[0] == 0.0
    assert rewards[3] == pytest.approx(3 / 7)
    assert rewards[-1] == 1.0
    back = [*task.oracle[:3], "move mug 1 to cabinet 1"]
    assert env.check(task, back).reward < rewards[3]


def test_a_single_step_asks_for_what_comes_next_in_the_experts_game():
    tasks = [task_of(MUG, STEPS, name=str(n)) for n in range(30)]
    assert {task.payload["step"] for task in tasks} == {
        2,
        3,
        4,
        5,
        6,
    }  # before, where is it?
    task = next(task for task in tasks if task.payload["step"] == 3)
    assert task.oracle == ("go to microwave 1",)
    assert (
        "> take mug 1 from cabinet 1\nYou pick up the mug 1 from the cabinet 1." in task.messages[-1].content
    )
    assert STEPS.check(task, task.oracle).success
    refused = STEPS.check(task, ["go to shelf 1"])
    assert not refused.success
    assert "'go to microwave 1' would" in refused.explanation
    heard = play(STEPS, task, task.oracle)
    assert len(heard) == 1


def test_a_step_that_could_only_be_guessed_is_not_asked_for():
    fridges = MUG.model_copy(update={"goal": "Fridge closed", "others": ("Microwave closed", "Fridge")})
    task = task_of(fridges)
    game = game_of(task)
    go = next(i for i, command in enumerate(task.oracle) if command.startswith("go to fridge"))
    assert go not in askable_steps(game, task.oracle)  # only one of the two is open, and nobody has looked
    look = next(HouseholdSpec.model_validate(seed.spec) for seed in SEEDS if seed.spec["task"] == "look")
    asked = {task_of(look, STEPS, name=str(n)).oracle[0].split()[0] for n in range(20)}
    assert asked <= {"take", "use"}


def test_the_right_next_commands_are_those_after_which_the_way_is_shorter():
    for seed in SEEDS[::8]:
        task = task_of(HouseholdSpec.model_validate(seed.spec), STEPS, name=seed.id)
        game = game_of(task)
        now = game.start()
        for command in task.payload["played"]:
            now.step(command)
        shorter = [command for command in now.admissible if nearer(task, command)]
        assert shorter == list(task.payload["right"])
        assert task.oracle[0] in shorter


def test_possible_commands_are_listed_where_the_settings_say_so():
    env = Household(HouseholdConfig(show_commands=True))
    task = task_of(MUG, env)
    heard = play(env, task, task.oracle)
    assert "Possible: close" not in heard[0]
    assert "go to microwave 1" in heard[0].splitlines()[-1]
    assert heard[1].splitlines()[-1].startswith("Possible: examine cabinet 1, ")


def test_uninformed_attempts_fail():
    tasks = list(base_tasks(ENVIRONMENT, SEEDS, seed=0).values())
    wins = sum(
        ENVIRONMENT.check(task, ENVIRONMENT.random_replies(task, random.Random(f"{task.id}/{i}"))).success
        for task in tasks
        for i in range(3)
    )
    assert wins / (3 * len(tasks)) < 0.05


def test_building_and_planning_is_fast():
    rng = random.Random(0)
    specs = [HouseholdSpec.model_validate(seed.spec) for seed in SEEDS]
    with within(0.05 * len(specs)):
        for spec in specs:
            ENVIRONMENT.build(spec, task_id="t", lineage=Lineage(origin=Origin.SEED), rng=rng)


def test_a_generation_goes_through_the_whole_gate(toy):
    gate = Gate(ENVIRONMENT, CurriculumConfig(), seed=0)
    gate.protect(ENVIRONMENT.held_out())
    context = toy.context()
    text = MUG.model_dump_json()
    first, again = gate.admit([context] * 2, [toy.generation(text, name=name) for name in ("a", "b")])
    assert isinstance(first.outcome, Task)
    assert isinstance(again.outcome, Rejection)
    assert again.outcome.reason is RejectReason.DUPLICATE


def test_a_place_reads_as_it_is_written():
    assert read_place("Fridge closed: Apple, Mug") == ("Fridge", True, ("Apple", "Mug"))
    assert read_place("Shelf") == ("Shelf", False, ())
    assert write_place("Fridge", closed=True, holds=("Apple", "Mug")) == "Fridge closed: Apple, Mug"
