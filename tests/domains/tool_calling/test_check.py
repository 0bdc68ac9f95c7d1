import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.domains.tool_calling.domain import ToolCalling
from genenv.domains.tool_calling.settings import ToolCallingConfig
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.types import Lineage, Origin, Task, Verdict

EXACT = ToolCallingConfig()
SOFT = ToolCallingConfig(reward="soft")
DENTIST = {"title": "Dentist", "date": "2025-03-17", "start": "09:30"}
RIGHT = 'create_event(title="Dentist", date="2025-03-17", start="09:30")'
MAIL = {"to": "a@b.org", "subject": "Lake", "body": "See you there."}


def task_of(
    calls: list[tuple[str, dict[str, Any]]], config: ToolCallingConfig = EXACT, **fields: Any
) -> Task:
    defaults = {
        "n_calls": len(calls),
        "dependent": False,
        "n_tools": 4,
        "phrasing": "explicit",
        "gap": "none",
    }
    written = [{"tool": tool, "args": args} for tool, args in calls]
    spec = ToolSpec.model_validate(defaults | {"calls": written, "instruction": "Please do it"} | fields)
    lineage = Lineage(origin=Origin.GENERATED, seed_id="seed-1")
    task = ToolCalling(config).build(spec, task_id="t", lineage=lineage, rng=random.Random(0))
    assert isinstance(task, Task), task
    return task


def check(task: Task, replies: Sequence[str], config: ToolCallingConfig) -> Verdict:
    return ToolCalling(config).check(task, replies)


def verdict(task: Task, *replies: str, config: ToolCallingConfig = EXACT) -> Verdict:
    return check(task, replies, config)


ONE = task_of([("create_event", DENTIST)])
TWO = task_of([("create_event", DENTIST), ("send_email", MAIL)])
NO_TOOL = task_of([("create_event", DENTIST)], gap="no_tool")
MISSING = task_of([("create_event", {"title": "Dentist", "date": "2025-03-17"})], gap="missing_info")
CHAIN = task_of(
    [
        ("find_contact", {"name": "Anna Berg"}),
        ("send_email", {"to": "$1.email", "subject": "Lake", "body": "See you there."}),
    ],
    dependent=True,
)
TASKS = [ONE, TWO, NO_TOOL, MISSING, CHAIN]
FIND, SEND, DONE = CHAIN.oracle


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("config", [EXACT, SOFT])
def test_the_oracle_is_right(task: Task, config: ToolCallingConfig) -> None:
    result = check(task, task.oracle, config)
    assert result.success
    assert result.reward == 1.0


@settings(max_examples=60)
@given(st.sampled_from(TASKS), st.lists(st.text(max_size=80), max_size=3), st.sampled_from([EXACT, SOFT]))
def test_no_text_raises_and_every_verdict_is_a_sentence(
    task: Task, replies: list[str], config: ToolCallingConfig
) -> None:
    result = check(task, replies, config)
    assert 0.0 <= result.reward <= 1.0
    assert result.explanation[0].isupper()
    assert result.explanation.endswith(".")
    assert result == check(task, replies, config)


@pytest.mark.parametrize(
    "reply",
    [
        RIGHT,
        'create_event(title=" Dentist ", date="2025-03-17", start="09:30", minutes=60)',
        "create_event('Dentist', '2025-03-17', '09:30')",
        "Here you are:\n" + RIGHT,
    ],
)
def test_the_same_call_may_be_written_in_several_ways(reply: str) -> None:
    assert verdict(ONE, reply).success


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (RIGHT.replace("17", "18"), "Argument `date` of create_event is 2025-03-18, expected 2025-03-17."),
        (
            RIGHT.replace("Dentist", "dentist"),
            "Argument `title` of create_event is dentist, expected Dentist.",
        ),
        (RIGHT.replace(")", ", minutes=30)"), "Argument `minutes` of create_event is 30, expected 60."),
        (RIGHT.replace("09:30", "9:30"), "Create_event: start must be a time"),
        (RIGHT.replace(', start="09:30"', ""), "needs a value for 'start'"),
        (RIGHT + "\n" + RIGHT, "Calls create_event once too often."),
        ("launch_rocket()", "Called launch_rocket, which is not among the tools shown."),
        ("", "The reply calls nothing."),
        ("I did it.", "The reply calls nothing."),
        ("create_event(title=", "malformed"),
    ],
)
def test_a_wrong_reply_is_told_what_differed(reply: str, words: str) -> None:
    result = verdict(ONE, reply)
    assert (result.success, result.reward) == (False, 0.0)
    assert words in result.explanation


def test_only_the_first_reply_counts_in_a_single_turn() -> None:
    assert not verdict(ONE, "Let me think.", RIGHT).success
    assert not verdict(ONE).success


def test_independent_calls_may_come_in_any_order() -> None:
    first, second = TWO.oracle[0].split("\n")
    assert verdict(TWO, f"{second}\n{first}").success
    assert "send_email is not called" in verdict(TWO, first).explanation.replace("Send", "send")


def test_free_text_may_differ_in_case_and_last_punctuation_but_names_may_not() -> None:
    assert verdict(TWO, TWO.oracle[0].replace("See you there.", "see you THERE")).success
    assert not verdict(TWO, TWO.oracle[0].replace("See you there.", "See you here.")).success
    assert not verdict(TWO, TWO.oracle[0].replace("a@b.org", "A@b.org")).success


def test_a_whole_number_counts_for_a_float_but_not_true_for_one() -> None:
    task = task_of([("set_temperature", {"room": "office", "celsius": 21.0})])
    assert verdict(task, 'set_temperature(room="office", celsius=21)').success
    assert not verdict(task, 'set_temperature(room="office", celsius=True)').success


@pytest.mark.parametrize(
    ("reply", "credit"),
    [
        (RIGHT.replace("17", "18"), 0.2 + 0.8 * 2 / 3),
        (RIGHT.replace("17", "18").replace("30", "45"), 0.2 + 0.8 / 3),
        (RIGHT.replace(")", ", minutes=30)"), 0.2 + 0.8 * 3 / 4),
        (RIGHT + "\n" + RIGHT, 0.8),
        (RIGHT + "\n" + "\n".join([RIGHT] * 9), 0.0),
        ("launch_rocket()", 0.0),
        ('create_event(title="Dentist")', 0.0),
        ("", 0.0),
        ("Done.", 0.0),
        (RIGHT + "\ncreate_event(", 0.0),
    ],
)
def test_soft_credit_is_for_names_and_arguments_less_extra_calls(reply: str, credit: float) -> None:
    result = verdict(ONE, reply, config=SOFT)
    assert result.reward == pytest.approx(credit)
    assert not result.success


def test_soft_credit_of_one_of_two_calls_is_a_half() -> None:
    assert verdict(TWO, TWO.oracle[0].split("\n")[0], config=SOFT).reward == pytest.approx(0.5)


def test_a_soft_reward_at_the_threshold_is_a_success() -> None:
    config = ToolCallingConfig(reward="soft", success_threshold=0.7)
    assert verdict(ONE, RIGHT.replace("17", "18"), config=config).success
    assert not verdict(ONE, RIGHT.replace("17", "18").replace("30", "45"), config=config).success


@pytest.mark.parametrize("task", [NO_TOOL, MISSING])
@pytest.mark.parametrize(
    ("replies", "right"),
    [
        (("I cannot do that.",), True),
        (("I can’t do that.",), True),
        (("Sorry, none of my tools can book a table.",), True),
        (("I don't have a tool for that.",), True),
        (("There is no suitable function.",), True),
        (("I'm unable to help with this.",), True),
        (("Done.",), False),
        (("Hello there.",), False),
        (("Sure, I booked it for you.",), False),
        (("Canton is not far.",), False),
        (("",), False),
        ((), False),
        (("...",), False),
        ((RIGHT,), False),
        (("I cannot do that.\n" + RIGHT,), False),
        (("create_event(title=",), False),
        (('I would call create_event(title="Dentist").',), False),
        (('find_contact(name="x")', "I cannot do that."), False),
    ],
)
@pytest.mark.parametrize("config", [EXACT, SOFT])
def test_a_gap_wants_words_and_no_call(
    task: Task, replies: tuple[str, ...], right: bool, config: ToolCallingConfig
) -> None:
    result = check(task, replies, config)
    assert (result.success, result.reward) == (right, float(right))


@pytest.mark.parametrize("words", ["At what time?", "Please tell me the start.", "I need to know when."])
def test_asking_is_right_where_a_value_is_missing_alone(words: str) -> None:
    assert check(MISSING, (words,), EXACT).success
    assert not check(NO_TOOL, (words,), EXACT).success


@pytest.mark.parametrize(
    "replies",
    [
        (FIND, SEND, DONE),
        (FIND, SEND),
        (f"{FIND}\n{SEND}", DONE),
        (FIND, 'find_contact(name="Anna Berg")', SEND, DONE),
        ('find_contact(name="Nobody At All")', FIND, SEND, DONE),
        ("launch_rocket()", FIND, SEND, DONE),
    ],
)
def test_over_several_turns_further_reads_and_failed_calls_do_no_harm(replies: tuple[str, ...]) -> None:
    assert verdict(CHAIN, *replies).success, verdict(CHAIN, *replies)


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        ((SEND, DONE), "The result of find_contact(name=Anna Berg) was never obtained."),
        ((FIND, DONE), "The final state differs"),
        ((FIND, SEND, SEND, DONE), "differs"),
        ((FIND, DONE, SEND), "differs"),
        ((FIND, SEND.replace("Lake", "Sea"), DONE), "differs"),
        ((FIND, "send_email(", SEND), "malformed"),
        ((DONE,), "Nothing is called."),
        ((), "Nothing is called."),
        (('find_contact(name="x")',) * 6 + (FIND, SEND), "never obtained"),
    ],
)
def test_over_several_turns_the_effects_decide(replies: tuple[str, ...], words: str) -> None:
    result = verdict(CHAIN, *replies)
    assert not result.success
    assert words in result.explanation


def test_an_extra_write_fails_even_when_the_state_ends_up_right() -> None:
    config = ToolCallingConfig(mode="multi")
    task = task_of([("set_volume", {"level": 40})], config)
    replies = ("set_volume(level=35)", *task.oracle)
    assert "write" in check(task, replies, config).explanation


def test_soft_credit_over_several_turns_counts_calls_that_were_right() -> None:
    assert verdict(CHAIN, FIND, DONE, config=SOFT).reward == pytest.approx(0.5)
    assert verdict(CHAIN, FIND, SEND, SEND, DONE, config=SOFT).reward == pytest.approx(0.8)
    assert verdict(CHAIN, FIND, "send_email(", config=SOFT).reward == 0.0
