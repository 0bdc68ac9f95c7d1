"""ALFWorld: the recorded games are played as TextWorld plays them, and graded as the authors grade them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.benchmarks.alfworld import (
    TYPES,
    AlfWorld,
    AlfWorldConfig,
    command_of,
    load_trials,
    numbered,
    read_world,
)
from genenv.environments.household.engine import NOTHING, Game
from genenv.environments.household.planning import plan_from
from genenv.errors import ContextOverflow, DataError
from genenv.evaluation.base import Benchmark
from genenv.evaluation.data import DataFolder
from quickly import within

STEPS = AlfWorldConfig(form="step")


def one_item(houses, content, config=None, split="valid_seen"):
    """The benchmark and its items of one game."""
    houses.add(split, "pick-1", content)
    benchmark = AlfWorld(config)
    return benchmark, benchmark.load(houses.data(), split)


def played(benchmark, item, talk):
    return asyncio.run(benchmark.attempt(item, talk))


def test_it_is_a_benchmark():
    benchmark: Benchmark = AlfWorld()
    assert list(benchmark.splits) == ["valid_unseen", "valid_seen", "all", "valid_train", "train"]
    assert benchmark.config is AlfWorldConfig


# --- the games -------------------------------------------------------------------------------------------


def test_names_count_down_as_ids_go_up_and_basins_are_told_from_sinks():
    ids = ["mug_bar__plus_1", "mug_bar__plus_2", "sink_bar_1_bar_sinkbasin", "sink_bar_1", "mug_bar__minus_1"]
    assert numbered(ids) == {
        "mug_bar__minus_1": "mug 3",
        "mug_bar__plus_1": "mug 2",
        "mug_bar__plus_2": "mug 1",
        "sink_bar_1": "sink 1",
        "sink_bar_1_bar_sinkbasin": "sinkbasin 1",
    }


def test_a_game_opens_as_its_file_says(game):
    assert Game(read_world(game())).intro == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, "
        "you see a fridge 1, a microwave 1, a shelf 2, a shelf 1, and a sinkbasin 1.\n\n"
        "Your task is to: do the thing."
    )


def test_a_solution_wins_with_its_last_command_and_not_before(game, kind, solution):
    world = read_world(game(kind))
    play = Game(world).start()
    assert TYPES[world.task] == kind
    for command in solution(kind):
        assert not play.won
        assert play.goal_conditions[0] < play.goal_conditions[1]
        assert command in play.admissible
        assert play.step(command) != NOTHING
    assert play.won
    conditions = {"pick": 1, "two": 2, "light": 2}.get(kind, 3)
    assert play.goal_conditions == (conditions, conditions)


def test_an_object_in_two_places_is_seen_in_both_and_leaves_one_at_a_time(game):
    play = Game(read_world(game())).start()
    assert play.play(["go to shelf 2", "take mug 1 from shelf 2", "look", "go to shelf 1", "inventory"]) == [
        "You arrive at shelf 2. On the shelf 2, you see a mug 1, and a pen 1.",
        "You pick up the mug 1 from the shelf 2.",
        # It is taken from where it was stated to be, so it is nowhere else on the floor.
        "You are facing the shelf 2. Next to it, you see nothing.",
        "You arrive at shelf 1. On the shelf 1, you see a desklamp 1, and a mug 1.",
        "You are carrying: a mug 1.",
    ]
    assert "take mug 1 from shelf 1" not in play.admissible
    assert play.play(["go to sinkbasin 1", "move mug 1 to sinkbasin 1", "go to shelf 1"]) == [
        "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.",
        "You move the mug 1 to the sinkbasin 1.",
        "You arrive at shelf 1. On the shelf 1, you see a desklamp 1, and a mug 1.",
    ]
    assert play.step("take mug 1 from shelf 1") == "You pick up the mug 1 from the shelf 1."


def test_what_a_file_says_of_things_is_what_they_are(game):
    play = Game(read_world(game())).start()
    assert play.step("help") == "Ask nobody.\n"
    play.play(["go to fridge 1", "open fridge 1", "take mug 2 from fridge 1"])
    assert play.step("examine mug 2") == "This is a cold mug 2."
    play.play(["move mug 2 to fridge 1", "go to shelf 1", "take mug 1 from shelf 1"])
    assert play.step("examine mug 1") == "This is a normal mug 1. In it, you see a pen 1."
    assert play.step("use chair 1") == NOTHING


def test_items_are_the_games_of_a_split_or_their_steps(houses, game):
    houses.add("valid_seen", "pick-1", game("pick"))
    houses.add("valid_unseen", "light-1", game("light"))
    games = AlfWorld().load(houses.data(), "all")
    assert [(item.id, item.groups) for item in games] == [
        ("valid_seen/pick-1/trial_1", {"split": "valid_seen", "type": "pick"}),
        ("valid_unseen/light-1/trial_1", {"split": "valid_unseen", "type": "light"}),
    ]
    assert [item.id for item in AlfWorld().load(houses.data(), "valid_unseen")] == [games[1].id]
    steps = AlfWorld(STEPS).load(houses.data(), "valid_seen")
    assert [item.id for item in steps] == [f"valid_seen/pick-1/trial_1#{number}" for number in (1, 2, 3, 4)]


@pytest.mark.parametrize("split", ["train", "valid_train"])
def test_the_training_splits_are_those_games_that_alfworlds_own_loader_takes(houses, game, split):
    houses.add(split, "pick_and_place_simple-Mug-None-Microwave-1", game())
    houses.add(split, "pick_and_place_with_movable_recep-Pen-Mug-Shelf-2", game())
    houses.add(split, "pick_and_place_simple-AppleSliced-None-Microwave-3", "these are not even games")
    houses.add(split, "pick_and_place_simple-Mug-None-Shelf-4", game(solvable=False, walkthrough=[]))
    houses.add("valid_seen", "pick-1", game())
    houses.add("valid_unseen", "pick-2", game())
    (only,) = AlfWorld().load(houses.data(), split)
    assert only.id == f"{split}/pick_and_place_simple-Mug-None-Microwave-1/trial_1"
    assert only.groups["split"] == split
    assert len(AlfWorld().load(houses.data(), "all")) == 2, "all is what is reported, without training games"


def test_the_steps_of_a_game_hang_together_and_whole_games_do_not(houses, game):
    houses.add("valid_seen", "pick-1", game("pick"))
    houses.add("valid_seen", "light-1", game("light"))
    steps = AlfWorld(STEPS).load(houses.data(), "valid_seen")
    assert {step.cluster for step in steps} == {step.id.partition("#")[0] for step in steps}
    assert {one.cluster for one in AlfWorld().load(houses.data(), "valid_seen")} == {""}


DAMAGES = {
    "cut off": lambda game: '{"grammar": "a',
    "no object": lambda game: "[1]",
    "empty": lambda game: {},
    "no walkthrough": lambda game: {k: v for k, v in game().items() if k != "walkthrough"},
    "walkthrough of numbers": lambda game: game(walkthrough=[1, 2]),
    "walkthrough is text": lambda game: game(walkthrough="go to shelf 1"),
    "walkthrough loses": lambda game: game(walkthrough=["look"]),
    "walkthrough goes on": lambda game: game(walkthrough=[*game()["walkthrough"], "look"]),
    "other release": lambda game: game(grammar=game()["grammar"].replace("move {o} to", "put {o} in/on")),
    "no task": lambda game: game(grammar=game()["grammar"].replace("Your task is to", "Do")),
    "no goal": lambda game: game(pddl_problem=game()["pddl_problem"].replace("(:goal", "(:gaol")),
    "other goal": lambda game: game(pddl_problem=game()["pddl_problem"].replace("(inRec", "(notInRec")),
    "open bracket": lambda game: game(pddl_problem=game()["pddl_problem"] + "("),
    "half a fact": lambda game: game(pddl_problem=game()["pddl_problem"].replace("Mug_bar_1 MugType", "Mug")),
    "no place": lambda game: game(
        pddl_problem=game()["pddl_problem"].replace("(receptacleType Fridge_bar_1 FridgeType)", "")
    ),
    "no location": lambda game: game(
        pddl_problem=game()["pddl_problem"].replace("(receptacleAtLocation Shelf_bar_1 loc_bar_2)", "")
    ),
    "no start": lambda game: game(
        pddl_problem=game()["pddl_problem"].replace("(atLocation agent1 loc_bar_9)", "")
    ),
    "deep": lambda game: game(pddl_problem="(" * 100_000 + ")" * 100_000),
    "nothing": lambda game: game(pddl_problem=None),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_game_is_one_sentence_that_names_it(houses, game, damage):
    path = houses.add("valid_seen", "pick-1", DAMAGES[damage](game))
    with pytest.raises(DataError) as error:
        AlfWorld().load(houses.data(), "valid_seen")
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_a_folder_that_lacks_games_is_refused(houses, game):
    houses.add("valid_seen", "pick-1", game())
    names = [f"alfworld/json_2.1.1/valid_seen/pick-{number}/trial_1/game.tw-pddl" for number in (1, 2)]
    known = dict.fromkeys(names, "")
    with pytest.raises(DataError, match="lacks 1 of 2 files, pick-2/trial_1/game"):
        AlfWorld().load(DataFolder(houses.root, known=known), "valid_seen")
    changed = DataFolder(houses.root, known=known, allow_changed=True)
    assert len(AlfWorld().load(changed, "valid_seen")) == 1
    with pytest.raises(DataError, match="holds no"):
        AlfWorld().load(houses.data(), "valid_unseen")


# --- reading replies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("go to shelf 1", "go to shelf 1"),
        ("<think>Where? <b></think>\n<action>Go to  shelf 1.</action>", "go to shelf 1"),
        ("<action>look</action> no: <action> `open fridge 1` </action>", "open fridge 1"),
        ("<think>cut off in mid-thought, <action>look</action>", "look"),
        ("<action>go to shelf 1", "go to shelf 1"),
        ("<action>[go to shelf 1]</action>", "go to shelf 1"),
        ("<action></action>", ""),
        ("I need a mug.\nAction: take mug 1 from shelf 1\n", "take mug 1 from shelf 1"),
        ("> look\nAnd then\n> open fridge 1", "open fridge 1"),
        ("**Action:** look", "look"),
        ("Thought: a mug.\n>", "thought: a mug"),
        ("<think>look\n> look</think>\n\nopen fridge 1\nbecause", "open fridge 1"),
        ("<think>look", ""),
        ("```\nlook\n```", "look"),
        ("", ""),
        (" \n...\n", ""),
        ("\ud800\0", ""),
    ],
)
def test_a_command_is_read_from_its_tag_or_its_label_or_the_first_line(reply, command):
    assert command_of(reply) == command


@settings(deadline=None)
@given(st.text())
def test_reading_never_raises_and_is_bounded(text):
    for reply in (text, f"<action>{text}", f"<think>{text}</think>{text * 1000}"):
        assert len(command_of(reply)) <= 200


def test_a_long_reply_is_read_at_once():
    with within(1):
        for reply in ("<action>" * 200_000, "> " * 500_000, "\n" * 10**6, "action  :" * 100_000, "x" * 10**6):
            command_of(reply)


# --- whole games -----------------------------------------------------------------------------------------


def test_a_game_is_played_until_it_is_won_and_the_newest_turn_alone_lists_commands(
    houses, game, solution, speaker
):
    benchmark, (item,) = one_item(houses, game())
    talk = speaker([f"<action>{command}</action>" for command in [*solution("pick"), "look"]])
    answer = played(benchmark, item, talk)
    assert answer == solution("pick")
    grade = benchmark.grade(item, answer)
    assert (grade.score, grade.explanation) == (
        1.0,
        "The goal is reached after 4 commands, of which none did nothing.",
    )
    for before, after in zip(talk.heard, talk.heard[1:], strict=False):
        *old, newest = before
        told = newest["content"].partition("\n\nPossible commands: ")[0]
        assert after[: len(before)] == [*old, {"role": "user", "content": told}]
        assert [message["role"] for message in after[len(before) :]] == ["assistant", "user"]
    system, opening = talk.heard[0]
    assert "You have 50 commands" in system["content"]
    assert opening["content"].startswith(item.data.game.intro)
    assert opening["content"].endswith(
        "\n\nPossible commands: go to fridge 1, go to microwave 1, go to shelf 1, go to shelf 2, "
        "go to sinkbasin 1, inventory, look."
    )


def test_what_is_not_possible_uses_a_command_and_so_does_a_reply_without_one(houses, game, solution, speaker):
    config = AlfWorldConfig(max_steps=5, show_commands=False)
    benchmark, (item,) = one_item(houses, game(), config)
    right = solution("pick")
    talk = speaker(["<think>", "Go to shelf 7!", *right])
    answer = played(benchmark, item, talk)
    assert answer == ["", "go to shelf 7", *right[:3]]
    assert talk.heard[2][-1]["content"] == "Nothing happens."
    grade = benchmark.grade(item, answer)
    assert grade.score == 0
    assert grade.explanation == "The goal is not reached after 5 commands, of which 2 did nothing."
    assert benchmark.grade(item, ["", *right]).score == 1
    assert benchmark.grade(item, ["", "", *right]).score == 0, "the sixth command counts no more"


def test_when_the_window_is_full_the_game_is_graded_as_it_stands(houses, game, solution, speaker):
    benchmark, (item,) = one_item(houses, game())
    assert played(benchmark, item, speaker(solution("pick")[:2])) == solution("pick")[:2]
    with pytest.raises(ContextOverflow):
        played(benchmark, item, speaker([]))
    assert benchmark.unanswered(item, "too small").score == 0


@pytest.mark.parametrize(("kind", "share"), [("pick", 0), ("clean", 1 / 3), ("two", 1 / 2), ("light", 1 / 2)])
def test_a_lost_game_has_the_largest_share_of_conditions_that_held_at_once(
    houses, game, solution, kind, share
):
    houses.add("valid_seen", "a", game(kind))
    (item,) = AlfWorld().load(houses.data(), "valid_seen")
    shares = []
    for length in range(len(solution(kind))):
        grade = AlfWorld().grade(item, solution(kind)[:length])
        assert grade.score == 0
        shares.append(grade.measures["goal_conditions"])
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(share)


def test_figures_are_shares_of_games_and_lengths_of_won_ones(houses, game, solution):
    for name, kind in (("a", "pick"), ("b", "pick"), ("c", "light")):
        houses.add("valid_seen", name, game(kind))
    benchmark = AlfWorld()
    items = benchmark.load(houses.data(), "valid_seen")
    answers = [["look", *solution("pick")], ["jump", "jump", "look"], solution("light")]
    graded = [(item, benchmark.grade(item, answer)) for item, answer in zip(items, answers, strict=True)]
    figures = {(figure.name, figure.group): figure for figure in benchmark.figures(graded)}
    assert next(iter(figures)) == ("success", "")
    assert figures["success", ""].value == pytest.approx(2 / 3)
    assert figures["success", "type=pick"].value == 0.5
    assert figures["success", "type=light"].value == 1
    assert figures["success", "split=valid_seen"].items == 3
    assert figures["goal_conditions", ""].value == pytest.approx(2 / 3)
    assert figures["commands_of_won_games", ""].value == 4.5
    assert not figures["commands_of_won_games", ""].percent
    assert figures["commands_that_did_nothing", ""].value == pytest.approx(2 / 12)
    lost = benchmark.figures([(items[0], benchmark.unanswered(items[0], "too long"))])
    assert lost[0].value == 0
    assert "commands_of_won_games" not in [figure.name for figure in lost]


# --- single steps ----------------------------------------------------------------------------------------


def test_a_step_is_asked_with_the_game_so_far_and_only_the_experts_command_is_right(houses, game, speaker):
    benchmark, items = one_item(houses, game(), STEPS)
    talk = speaker(["<think>hm</think><action>Go to microwave 1</action>"])
    answer = played(benchmark, items[2], talk)
    assert answer == "go to microwave 1"
    asked = talk.heard[0][1]["content"]
    assert (
        "Your task is to: do the thing.\n\n> go to shelf 1\nYou arrive at shelf 1. On the shelf 1, you see a "
        "desklamp 1, and a mug 1.\n> take mug 1 from shelf 1\nYou pick up the mug 1 from the shelf 1.\n\n"
        "Possible commands: examine mug 1, examine shelf 1, go to fridge 1," in asked
    )
    grade = benchmark.grade(items[2], answer)
    assert (grade.score, grade.measures) == (1.0, {"admissible": 1.0, "shortest": 1.0})
    assert grade.explanation == "'go to microwave 1' is the expert's command."
    other = benchmark.grade(items[2], " Go to  fridge 1")
    assert (other.score, other.measures) == (0.0, {"admissible": 1.0, "shortest": 0.0})
    assert other.explanation == (
        "'go to fridge 1' is not the expert's command, 'go to microwave 1'; it leads no nearer."
    )
    wrong = benchmark.grade(items[2], "open fridge 1")
    assert wrong.explanation == (
        "'open fridge 1' is not the expert's command, 'go to microwave 1'; it is not possible."
    )
    figures = {
        (f.name, f.group): f.value
        for f in benchmark.figures([(items[2], grade), (items[2], other), (items[2], wrong)])
    }
    assert figures["accuracy", ""] == pytest.approx(1 / 3)
    assert figures["admissible", ""] == pytest.approx(2 / 3)
    assert figures["shortest", ""] == pytest.approx(1 / 3)


def test_another_way_that_is_as_short_counts_as_such_but_not_as_the_experts(houses, game):
    benchmark, items = one_item(houses, game(), STEPS)
    # Mug 1 is on both shelves, and either one leads to the microwave in as many commands.
    grade = benchmark.grade(items[0], "go to shelf 2")
    assert (grade.score, grade.measures) == (0.0, {"admissible": 1.0, "shortest": 1.0})
    assert grade.explanation.endswith("; it begins as short a way.")


def test_only_the_last_commands_of_a_long_history_are_shown(houses, game, speaker):
    benchmark, items = one_item(houses, game(), AlfWorldConfig(form="step", history=1, show_commands=False))
    talk = speaker(["look"])
    played(benchmark, items[3], talk)
    assert talk.heard[0][1]["content"].endswith(
        "do the thing.\n\n(2 earlier commands are left out.)\n> go to microwave 1\n"
        "You arrive at microwave 1. The microwave 1 is open. In it, you see nothing."
    )
    assert not benchmark.many_turns(items[0])
    assert AlfWorld().many_turns(items[0])


# --- hostile answers -------------------------------------------------------------------------------------

deep: list[object] = []
for _ in range(100_000):
    deep = [deep]
HOSTILE = [
    *(None, True, 7, 1.5, float("nan"), "", "x" * 10**6, "\ud800\0", {}, {"commands": ["look"]}, deep),
    *([deep], ["look"] * 10**6, ["x" * 10**6] * 50, [None, 3, {}, []], ["take " * 1000, "go to ", " from "]),
    *(["__import__('os').system('x')", "9**9**9"], "open(1)", [" " * 10**6], ["\ud800", "\0"]),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
COMMANDS = st.lists(
    st.sampled_from(
        ["go to", "take mug 1 from", "open", "shelf 1", "fridge 1", "move mug 1 to", "use", "heat"]
    )
    | st.text(max_size=5)
).map(" ".join)


@pytest.mark.parametrize("form", ["episode", "step"])
def test_hostile_answers_are_graded_wrong_and_fast(houses, game, form):
    benchmark, items = one_item(houses, game(), AlfWorldConfig(form=form))
    with within(1):
        for answer in HOSTILE:
            grade = benchmark.grade(items[0], answer)
            assert grade.score == 0
            assert len(grade.explanation) < 400


@pytest.mark.long
@pytest.mark.hypothesis
@pytest.mark.parametrize("form", ["episode", "step"])
def test_grading_never_raises(houses, game, form):
    benchmark, items = one_item(houses, game(), AlfWorldConfig(form=form))

    @settings(max_examples=2 * settings.default.max_examples)
    @given(JSON | st.lists(COMMANDS) | COMMANDS)
    def graded(answer):
        grade = benchmark.grade(items[0], answer)
        assert grade.score in (0.0, 1.0)
        assert grade.explanation.endswith(".")

    graded()


# --- the real games --------------------------------------------------------------------------------------

TYPES_OF = {
    "valid_seen": {"pick": 35, "light": 13, "clean": 27, "heat": 16, "cool": 25, "two": 24},
    "valid_unseen": {"pick": 24, "light": 18, "clean": 31, "heat": 23, "cool": 21, "two": 17},
}
ONE_EACH = dict.fromkeys(TYPES_OF["valid_seen"], 1)


@pytest.mark.parametrize("split", TYPES_OF)
def test_every_recorded_game_is_won_by_its_walkthrough_and_by_no_part_of_it(recorded, whose, split):
    benchmark = AlfWorld()
    items = benchmark.load(recorded, split)
    assert Counter(item.groups["type"] for item in items) == (
        ONE_EACH if whose == "ours" else TYPES_OF[split]
    )
    for item in items:
        commands = list(item.data.walkthrough)
        assert item.groups["type"] == TYPES[item.id.split("/")[1].split("-")[0]]
        assert benchmark.grade(item, commands).score == 1
        assert not any(benchmark.grade(item, commands[:length]).score for length in range(len(commands)))


def test_the_experts_own_steps_are_right_and_there_is_no_shorter_way(recorded, whose):
    benchmark = AlfWorld(STEPS)
    items = benchmark.load(recorded, "all")
    assert len(items) == {"ours": 2 * (4 + 4 + 4 + 4 + 5 + 4), "official": 1600}[whose]
    for item in items:
        grade = benchmark.grade(item, item.data.trial.walkthrough[item.data.index])
        assert (grade.score, grade.measures["admissible"]) == (1, 1)
        rest = plan_from(item.data.play()[0])
        assert rest is not None
        assert len(rest) == len(item.data.trial.walkthrough) - item.data.index


def test_all_games_load_in_a_moment(recorded):
    with within(1.5):
        AlfWorld().load(recorded, "all")


@pytest.mark.long
def test_textworld_answers_a_recorded_game_the_same(recorded):
    # All 274 games are played side by side by bench/parity_alfworld.py.
    pddl = pytest.importorskip("textworld.envs.pddl", reason="TextWorld is not installed")
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

    trials = load_trials(recorded, "valid_unseen")
    trial = next(trial for trial in trials if any(len(item.at) > 1 for item in trial.game.world.items))
    rng = random.Random(0)
    env = AlfredDemangler(pddl.PddlEnv(), shuffle=False)
    env.load(recorded.json(f"alfworld/json_2.1.1/{trial.id}/game.tw-pddl"))
    state, play = env.reset(), trial.game.start()
    assert state.feedback == trial.game.intro
    for step in range(12):
        assert state["admissible_commands"] == play.admissible
        assert state["won"] == play.won
        verb = rng.choice(sorted({command.split()[0] for command in play.admissible}))
        possible = [command for command in play.admissible if command.startswith(verb)]
        command = rng.choice([*possible, "go to nowhere 1", "Look"]) if step % 5 else "help"
        state, _, _ = env.step(command)
        assert state.feedback == play.step(command), command
