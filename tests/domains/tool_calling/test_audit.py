import dataclasses
import random
from datetime import timedelta
from typing import Any

import pytest

from genenv.domains.tool_calling.domain import ToolCalling
from genenv.domains.tool_calling.settings import ToolCallingConfig
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.domains.tool_calling.worlds import today_of
from genenv.gate.gate import examined
from genenv.types import Lineage, Origin, Rejection, RejectReason, Task

CONFIG = ToolCallingConfig()
TODAY = today_of("seed-1")
TOMORROW = (TODAY + timedelta(days=1)).isoformat()
DENTIST = {"title": "Dentist", "date": "2025-03-17", "start": "09:30"}
DENTIST_WORDS = 'Put "Dentist" in my calendar on 2025-03-17 at 09:30'
Calls = list[tuple[str, dict[str, Any]]]


def task_of(calls: Calls, instruction: str, config: ToolCallingConfig = CONFIG, **fields: Any) -> Task:
    defaults = {
        "n_calls": len(calls),
        "dependent": False,
        "n_tools": 3,
        "phrasing": "explicit",
        "gap": "none",
    }
    written = [{"tool": tool, "args": args} for tool, args in calls]
    spec = ToolSpec.model_validate(defaults | {"calls": written, "instruction": instruction} | fields)
    lineage = Lineage(origin=Origin.GENERATED, seed_id="seed-1")
    task = ToolCalling(config).build(spec, task_id="t", lineage=lineage, rng=random.Random(0))
    assert isinstance(task, Task), task
    return task


def audited(task: Task, config: ToolCallingConfig = CONFIG) -> Rejection | None:
    return examined(ToolCalling(config), task, random.Random(1))


CHAIN: Calls = [
    ("find_contact", {"name": "Anna Berg"}),
    ("send_email", {"to": "$1.email", "subject": "Lake", "body": "See you there."}),
]
GOOD: list[tuple[Calls, str, dict[str, Any]]] = [
    ([("create_event", DENTIST)], DENTIST_WORDS, {}),
    ([("create_event", {**DENTIST, "minutes": 60})], DENTIST_WORDS, {}),
    ([("create_event", {**DENTIST, "minutes": 90})], DENTIST_WORDS + " for 90 minutes", {}),
    (
        [("create_event", {**DENTIST, "date": TOMORROW})],
        "Dentist tomorrow at 09:30, please",
        {"phrasing": "relative"},
    ),
    (
        [("create_event", {**DENTIST, "minutes": 30})],
        DENTIST_WORDS + ", half an hour",
        {"phrasing": "relative"},
    ),
    (
        [("create_event", {**DENTIST, "title": "Top 10 review 2"})],
        'Add "Top 10 review 2", 2025-03-17, 9:30',
        {},
    ),
    (CHAIN, 'Look up Anna Berg, then email her "Lake": "See you there!"', {"dependent": True}),
    ([("switch_light", {"room": "office", "on": False})], "Nobody is in the office; lights out.", {}),
    (
        [("transfer", {"source": "savings", "target": "checking", "amount": 1250.5})],
        "Move 1,250.50 from savings to checking",
        {},
    ),
    ([("get_balance", {"account": "savings"})], "How much is in my savings account?", {"n_tools": 2}),
    ([("create_event", DENTIST)], DENTIST_WORDS, {"gap": "no_tool"}),
    (
        [("create_event", {"title": "Dentist", "date": "2025-03-17"})],
        'Put "Dentist" in my calendar on 2025-03-17',
        {"gap": "missing_info"},
    ),
    ([("set_volume", {})], "Change the volume for me", {"gap": "missing_info"}),
    ([("switch_light", {"room": "office"})], "Do something about the office light", {"gap": "missing_info"}),
    ([("flag_email", {"email_id": 42})], "Put a flag on email 42", {"gap": "missing_info"}),
    ([("cancel_event", {})], "Cancel an event for me", {"gap": "missing_info"}),
]


@pytest.mark.parametrize(("calls", "words", "fields"), GOOD)
def test_good_tasks_pass(calls: Calls, words: str, fields: dict[str, Any]) -> None:
    assert audited(task_of(calls, words, **fields)) is None


@pytest.mark.parametrize(
    "config",
    [ToolCallingConfig(style="json"), ToolCallingConfig(mode="multi"), ToolCallingConfig(reward="soft")],
)
@pytest.mark.parametrize(("calls", "words", "fields"), GOOD)
def test_good_tasks_pass_under_every_setting(
    calls: Calls, words: str, fields: dict[str, Any], config: ToolCallingConfig
) -> None:
    assert audited(task_of(calls, words, config, **fields), config) is None


@pytest.mark.parametrize(
    ("calls", "words", "fields", "reason", "why"),
    [
        (
            [("create_event", DENTIST)],
            "Put the appointment in on 2025-03-17 at 09:30",
            {},
            "unstated",
            "title",
        ),
        ([("create_event", DENTIST)], 'Add "Dentist" at 09:30 on 2025-03-18', {}, "unstated", "date"),
        ([("create_event", DENTIST)], 'Add "Dentist" on 2025-03-17', {}, "unstated", "start"),
        ([("create_event", {**DENTIST, "minutes": 45})], DENTIST_WORDS, {}, "unstated", "minutes"),
        (
            [("create_event", {**DENTIST, "title": "See Bob 2025-03-17"})],
            "Add see Bob 2025-03-17 at 09:30",
            {},
            "unstated",
            "date",
        ),
        (
            [("switch_light", {"room": "office", "on": False})],
            "Switch on the light in the office",
            {},
            "unstated",
            "on",
        ),
        ([("create_event", DENTIST)], DENTIST_WORDS + " for 45 minutes", {}, "inconsistent", "45"),
        (
            [("create_event", {**DENTIST, "date": TOMORROW})],
            "Dentist tomorrow at 09:30",
            {},
            "inconsistent",
            "explicit",
        ),
        ([("create_event", DENTIST)], DENTIST_WORDS, {"phrasing": "relative"}, "inconsistent", "relative"),
        (
            [("create_event", {"title": "Dentist", "date": "2025-03-17"})],
            DENTIST_WORDS,
            {"gap": "missing_info"},
            "inconsistent",
            "09:30",
        ),
        (
            [("create_event", {"title": "Dentist", "start": "09:30"})],
            "Dentist at 09:30 next Friday",
            {"gap": "missing_info"},
            "inconsistent",
            "Friday",
        ),
        ([("set_volume", {})], "Set the volume to forty", {"gap": "missing_info"}, "inconsistent", "forty"),
        (
            [("find_free_slot", {"date": "2025-03-17"})],
            "I need half an hour on 2025-03-17",
            {"gap": "missing_info"},
            "inconsistent",
            "half an hour",
        ),
        (
            [("switch_light", {"room": "office"})],
            "Turn off the office light",
            {"gap": "missing_info"},
            "inconsistent",
            "False",
        ),
        (
            [("flag_email", {"email_id": 42})],
            "Put a red flag on email 42",
            {"gap": "missing_info"},
            "inconsistent",
            "red",
        ),
        (
            [("cancel_event", {})],
            'Cancel "Dentist" for me',
            {"gap": "missing_info"},
            "inconsistent",
            "Dentist",
        ),
        (
            [("send_email", {"subject": "Hi", "body": "Yes"})],
            'Send "Hi", "Yes" to a@b.org',
            {"gap": "missing_info"},
            "inconsistent",
            "a@b.org",
        ),
        (
            [("cancel_event", {"title": "Dentist"})],
            'Whatever you do, do not cancel "Dentist"',
            {},
            "inconsistent",
            "do not cancel",
        ),
        (
            [("create_playlist", {"name": "Breath"})],
            'The playlist "Breath" should be removed.',
            {},
            "inconsistent",
            "not what create_playlist would do",
        ),
        (
            [("create_playlist", {"name": "Breath"})],
            'Create a playlist "Breath" and add "Ocean" to it.',
            {},
            "inconsistent",
            "Ocean",
        ),
        (
            [("lock_door", {"door": "front", "locked": True})],
            "Lock the front door and also the back door.",
            {},
            "inconsistent",
            "'back'",
        ),
        (
            [("archive_email", {"email_id": 42})],
            "Archive email 42, and let Jonas Weber know.",
            {},
            "inconsistent",
            "Jonas Weber",
        ),
        (
            [("cancel_event", {"title": "Dentist"})],
            'Cancel "Dentist" and keep 2025-03-17 free.',
            {},
            "inconsistent",
            "2025",
        ),
        (
            [("read_file", {"path": "docs/a.txt"}), ("delete_file", {"path": "docs/a.txt"})],
            "Read docs/a.txt to me.",
            {},
            "inconsistent",
            "no word of the instruction asks for delete_file",
        ),
        (
            [("send_email", {"to": "a@b.org", "subject": "Rent", "body": "Paid"})],
            'Email a@b.org: subject "Paid", body "Rent".',
            {},
            "inconsistent",
            "stands as the",
        ),
        (
            [("play_song", {"title": "Breath", "artist": "Nora Lane"})],
            'Play "Nora Lane" by Breath.',
            {},
            "inconsistent",
            "stands as the artist",
        ),
        (
            [("percent_of", {"percent": 5, "value": 20})],
            "What is 20 percent of 5?",
            {},
            "inconsistent",
            "20 percent",
        ),
        (
            [("get_balance", {"account": "checking"})],
            "Check the balance of savings, not of checking.",
            {},
            "unstated",
            "checking",
        ),
        ([("create_event", DENTIST)], "create_event: " + DENTIST_WORDS, {}, "leak", "create_event"),
        ([("create_event", DENTIST)], DENTIST_WORDS + ' {"a": 1}', {}, "leak", "code"),
        ([("create_event", DENTIST)], DENTIST_WORDS + " book(title=Dentist)", {}, "leak", "code"),
        ([("archive_email", {"email_id": 42})], "Archive the one with email_id 42", {}, "leak", "email_id"),
        (
            CHAIN,
            'Look up Anna Berg and email $1.email "Lake": "See you there."',
            {"dependent": True},
            "leak",
            "reference",
        ),
        (
            [("transfer", {"source": "savings", "target": "checking", "amount": 50})],
            "Move 50 from checking to savings",
            {},
            "unstated",
            "source",
        ),
        (
            [("convert_currency", {"source": "USD", "target": "USD", "amount": 50})],
            "Convert 50 dollars to dollars",
            {},
            "inconsistent",
            "the same",
        ),
        (
            [("block_contact", {})],
            "Please block Anna Berg",
            {"gap": "missing_info"},
            "inconsistent",
            "Anna Berg",
        ),
        (
            [("book_flight", {"passengers": 2})],
            "Book flight KL1024 for 2",
            {"gap": "missing_info"},
            "inconsistent",
            "KL1024",
        ),
        (
            [("add_contact", {"name": "Bob"})],
            "Add Bob, 555-0142, to my contacts",
            {"gap": "missing_info"},
            "inconsistent",
            "555-0142",
        ),
        (
            [("add_to_cart", {"quantity": 3})],
            "Put 3 coffee grinders, I mean 3 of the coffee grinder, in my cart",
            {"gap": "missing_info"},
            "inconsistent",
            "coffee grinder",
        ),
    ],
)
def test_bad_tasks_are_rejected_with_the_reason(
    calls: Calls, words: str, fields: dict[str, Any], reason: str, why: str
) -> None:
    rejection = audited(task_of(calls, words, **fields))
    assert rejection is not None
    assert (rejection.reason.value, why in rejection.explanation) == (reason, True), rejection


def with_payload(task: Task, **changes: Any) -> Task:
    return dataclasses.replace(task, payload={**task.payload, **changes})


def test_an_oracle_that_is_wrong_is_found() -> None:
    task = task_of([("create_event", DENTIST)], DENTIST_WORDS)
    broken = dataclasses.replace(task, oracle=(task.oracle[0].replace("09:30", "10:30"),))
    rejection = audited(broken)
    assert rejection is not None
    assert rejection.reason is RejectReason.ORACLE_FAILS


def test_a_withheld_tool_that_is_shown_after_all_is_found() -> None:
    task = task_of([("create_event", DENTIST)], DENTIST_WORDS, gap="no_tool")
    for name in ("create_event", "add_todo"):
        rejection = audited(with_payload(task, tools=[name, "set_volume", "read_file"]))
        assert rejection is not None
        assert rejection.explanation == f"{name} is shown and fits"


def test_a_wrong_number_of_tools_is_found() -> None:
    task = task_of([("create_event", DENTIST)], DENTIST_WORDS)
    rejection = audited(with_payload(task, tools=["create_event"]))
    assert rejection is not None
    assert rejection.explanation == "1 tools are shown, n_tools is 3"


def test_a_checker_that_passes_anything_would_be_trivial(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of([("create_event", DENTIST)], DENTIST_WORDS)
    right = ToolCalling().check(task, task.oracle)
    monkeypatch.setattr(ToolCalling, "check", lambda *_: right)
    for rejection in (audited(task), ToolCalling().audit(task, random.Random(1))):
        assert rejection is not None
        assert rejection.reason is RejectReason.TRIVIAL
    assert "'Done.'" in rejection.explanation


def test_two_checks_that_disagree_are_found() -> None:
    """The start world of this payload lacks the event that the call cancels, so the state check fails."""
    task = task_of([("cancel_event", {"title": "Zebra review"})], 'Cancel "Zebra review"')
    assert audited(task) is None
    rejection = audited(with_payload(task, arrange=[]))
    assert rejection is not None
    assert rejection.reason is RejectReason.CHECKS_DISAGREE


@pytest.mark.parametrize(("calls", "words", "fields"), GOOD)
def test_random_attempts_are_well_formed_reproducible_and_fail(
    calls: Calls, words: str, fields: dict[str, Any]
) -> None:
    task = task_of(calls, words, **fields)
    domain = ToolCalling()
    for seed in range(20):
        replies = domain.random_replies(task, random.Random(seed))
        assert replies == domain.random_replies(task, random.Random(seed))
        verdict = domain.check(task, replies)
        assert not verdict.success
        assert "malformed" not in verdict.explanation
