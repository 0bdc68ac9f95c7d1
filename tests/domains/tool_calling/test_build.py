import json
import random
from datetime import date, timedelta
from typing import Any

import pytest

from genenv.domains.tool_calling.build import twins_of
from genenv.domains.tool_calling.check import expected_calls, shown_tools
from genenv.domains.tool_calling.domain import ToolCalling
from genenv.domains.tool_calling.settings import ToolCallingConfig
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS, difference
from genenv.domains.tool_calling.truth import start_world
from genenv.domains.tool_calling.worlds import today_of, world_seed
from genenv.types import Lineage, Origin, Rejection, RejectReason, Task

LINEAGE = Lineage(origin=Origin.GENERATED, seed_id="seed-1")
DENTIST = {"title": "Dentist", "date": "2025-03-17", "start": "09:30"}
DENTIST_WORDS = 'Put "Dentist" in my calendar on 2025-03-17 at 09:30'
LOOK_UP_AND_WRITE = [
    ("find_contact", {"name": "Anna Berg"}),
    ("send_email", {"to": "$1.email", "subject": "Lake", "body": "See you there"}),
]


def make(
    calls: list[tuple[str, dict[str, Any]]], instruction: str = DENTIST_WORDS, **fields: Any
) -> ToolSpec:
    defaults = {
        "n_calls": len(calls),
        "dependent": False,
        "n_tools": 3,
        "phrasing": "explicit",
        "gap": "none",
    }
    written = [{"tool": tool, "args": args} for tool, args in calls]
    return ToolSpec.model_validate(defaults | {"calls": written, "instruction": instruction} | fields)


def build_it(spec: ToolSpec, seed: int = 0, **settings: Any) -> Task | Rejection:
    domain = ToolCalling(ToolCallingConfig(**settings))
    return domain.build(spec, task_id="t-1", lineage=LINEAGE, rng=random.Random(seed))


def task_of(spec: ToolSpec, seed: int = 0, **settings: Any) -> Task:
    task = build_it(spec, seed, **settings)
    assert isinstance(task, Task), task
    return task


def refused(spec: ToolSpec, reason: RejectReason, words: str, **settings: Any) -> None:
    rejection = build_it(spec, **settings)
    assert isinstance(rejection, Rejection)
    assert (rejection.reason, words in rejection.explanation) == (reason, True), rejection


def test_a_task_says_the_date_the_tools_and_how_to_answer() -> None:
    task = task_of(make([("create_event", DENTIST)], n_tools=2))
    system, user = task.messages
    today = today_of("seed-1")
    lines = system.content.split("\n")
    assert "say so instead" in lines[0]  # first what all tasks have in common
    assert lines[1] == f"Today is {today:%A}, {today.isoformat()}. Tools:"
    assert sorted(lines[2:]) == sorted(TOOLS[name].signature for name in shown_tools(task.payload))
    assert user.content == DENTIST_WORDS


def test_the_oracle_leaves_out_defaults_and_the_payload_fills_them_in() -> None:
    task = task_of(make([("create_event", {**DENTIST, "minutes": 60})]))
    assert task.oracle == ('create_event(title="Dentist", date="2025-03-17", start="09:30")',)
    (call,) = expected_calls(task.payload)
    assert call.args == {**DENTIST, "minutes": 60}


def test_a_task_is_the_same_for_the_same_random_state_and_survives_json() -> None:
    spec = make([("create_event", DENTIST)], n_tools=6)
    task = task_of(spec, seed=3)
    assert task == task_of(spec, seed=3)
    assert json.loads(json.dumps(task.payload)) == task.payload
    assert {tuple(shown_tools(task_of(spec, seed=seed).payload)) for seed in range(5)} != {
        tuple(shown_tools(task.payload))
    }


def test_skills_name_the_apps_the_size_the_phrasing_and_what_is_special() -> None:
    spec = make(LOOK_UP_AND_WRITE, "Write to Anna Berg", dependent=True)
    assert task_of(spec).skills == ("contacts", "email", "calls:2", "explicit", "dependent")


def test_references_are_resolved_and_the_world_is_arranged_for_them() -> None:
    task = task_of(make(LOOK_UP_AND_WRITE, "Write to Anna Berg", dependent=True))
    find, send = expected_calls(task.payload)
    contacts = json.dumps(start_world(task.payload)["contacts"])
    assert find.args == {"name": "Anna Berg"}
    assert "@" in str(send.args["to"])
    assert json.dumps(send.args["to"]) in contacts
    assert task.payload["mode"] == "multi"
    assert [reply.split("(")[0] for reply in task.oracle] == ["find_contact", "send_email", "Done."]


def test_the_start_world_is_fresh_each_time() -> None:
    task = task_of(make([("cancel_event", {"title": "Dentist"})], "Cancel Dentist"))
    world = start_world(task.payload)
    world["calendar"].clear()
    assert difference(start_world(task.payload), world) != ""
    assert "Dentist" in json.dumps(start_world(task.payload))


def test_an_earlier_call_can_provide_what_a_later_one_needs() -> None:
    spec = make(
        [("create_playlist", {"name": "Road"}), ("add_to_playlist", {"playlist": "Road", "song": "Hello"})],
        "words words",
    )
    assert task_of(spec).payload["arrange"] == []


@pytest.mark.parametrize("amounts", [(326, 1_000_000), (5_000_000, 1_000_000), (0.1, 90_000.2)])
def test_what_earlier_calls_spend_is_there_as_well(amounts: tuple[float, float]) -> None:
    moved, paid = amounts
    spec = make(
        [
            ("transfer", {"source": "checking", "target": "savings", "amount": moved}),
            ("pay_bill", {"payee": "Oak School", "amount": paid}),
        ],
        "words words",
    )
    task = task_of(spec)
    assert start_world(task.payload)["bank"]["balances"]["checking"] >= 100 * (moved + paid)
    for step in task.payload["arrange"]:
        assert step["tool"] in ("transfer", "pay_bill")


def test_more_than_the_bank_can_hold_is_still_refused() -> None:
    calls = [("pay_bill", {"payee": payee, "amount": 10**9}) for payee in ("Oak School", "Elm School")]
    refused(make(calls, "words words"), RejectReason.EXECUTION, "must be a number between")


@pytest.mark.parametrize("n_tools", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("gap", ["none", "no_tool"])
def test_the_agent_sees_as_many_different_tools_as_claimed(n_tools: int, gap: str) -> None:
    shown = shown_tools(task_of(make([("create_event", DENTIST)], n_tools=n_tools, gap=gap)).payload)
    assert len(set(shown)) == n_tools
    assert ("create_event" in shown) is (gap == "none")
    if gap == "no_tool":
        assert not twins_of(["create_event"]) & set(shown)


def test_most_distractors_come_from_the_same_app() -> None:
    shown = shown_tools(task_of(make([("create_event", DENTIST)], n_tools=4)).payload)
    assert sum(TOOLS[name].app == "calendar" for name in shown) == 3


def test_twins_are_tools_that_exist() -> None:
    assert twins_of(["send_email"]) == {"send_message"}
    assert {twin for name in TOOLS for twin in twins_of([name])} <= set(TOOLS)


def test_the_oracle_of_a_gap_is_one_plain_sentence() -> None:
    without_start = {"title": "Dentist", "date": "2025-03-17"}
    missing = task_of(make([("create_event", without_start)], gap="missing_info"))
    assert missing.oracle == ("I cannot do that yet: what is the start?",)
    assert task_of(make([("create_event", DENTIST)], gap="no_tool")).oracle == (
        "I cannot do that: none of my tools fits.",
    )


def test_modes_decide_how_a_task_is_played() -> None:
    spec = make([("create_event", DENTIST)])
    assert task_of(spec).payload["mode"] == "single"
    multi = task_of(spec, mode="multi")
    assert multi.payload["mode"] == "multi"
    assert len(multi.oracle) == 2
    dependent = make(LOOK_UP_AND_WRITE, "Write to Anna Berg", dependent=True)
    refused(dependent, RejectReason.INCONSISTENT, "several turns", mode="single")


def test_the_json_style_shows_and_writes_tagged_calls() -> None:
    task = task_of(make([("create_event", DENTIST)]), style="json")
    assert "<tool_call>" in task.messages[0].content
    assert task.oracle[0].startswith('<tool_call>\n{"name": "create_event"')


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (make([("create_event", DENTIST)], n_calls=2), "n_calls is 2"),
        (make([("create_event", DENTIST)], dependent=True), "no call uses a result"),
        (make(LOOK_UP_AND_WRITE), "dependent is false"),
        (
            make([("send_email", {"to": "$1.email", "subject": "a", "body": "b"})], dependent=True),
            "not an earlier one",
        ),
        (make(LOOK_UP_AND_WRITE[::-1], dependent=True), "not an earlier one"),
        (make([("create_event", DENTIST)], gap="missing_info"), "0 required arguments"),
        (make([("create_event", {"title": "Dentist"})], gap="missing_info"), "2 required arguments"),
        (
            make([("create_event", {"title": "D"}), ("create_event", DENTIST)], gap="missing_info"),
            "not one of the last",
        ),
        (make([("create_event", DENTIST)] * 2), "the same"),
        (
            make(
                [
                    ("create_event", DENTIST),
                    ("cancel_event", {"title": "X"}),
                    ("create_playlist", {"name": "Y"}),
                ],
                n_tools=2,
            ),
            "n_tools is 2",
        ),
        (
            make([*LOOK_UP_AND_WRITE[:1], ("send_email", {"to": "x$1.email", "subject": "a", "body": "b"})]),
            "mixes a reference",
        ),
    ],
)
def test_difficulty_fields_that_lie_are_inconsistent(spec: ToolSpec, words: str) -> None:
    refused(spec, RejectReason.INCONSISTENT, words)


@pytest.mark.parametrize(
    ("calls", "reason", "words"),
    [
        ([("launch_rocket", {})], RejectReason.SCHEMA, "no tool"),
        ([("create_event", {**DENTIST, "where": "x"})], RejectReason.SCHEMA, "no parameter"),
        ([("create_event", {**DENTIST, "start": "9:30"})], RejectReason.SCHEMA, "HH:MM"),
        ([("create_event", {"title": "Dentist"})], RejectReason.SCHEMA, "needs a value"),
        (
            [("transfer", {"source": "savings", "target": "savings", "amount": 5})],
            RejectReason.EXECUTION,
            "transfer",
        ),
    ],
)
def test_calls_that_cannot_be_carried_out_are_rejected(
    calls: list[tuple[str, dict[str, Any]]], reason: RejectReason, words: str
) -> None:
    refused(make(calls), reason, words)


def test_a_reference_to_a_field_that_is_not_there_has_no_ground_truth() -> None:
    spec = make(
        [LOOK_UP_AND_WRITE[0], ("send_email", {"to": "$1.fax", "subject": "a", "body": "b"})], dependent=True
    )
    refused(spec, RejectReason.EXECUTION, "finds no 'fax'")


def test_a_missing_argument_of_a_call_with_wrong_ones_is_still_validated() -> None:
    spec = make([("create_event", {"title": "Dentist", "date": "soon"})], gap="missing_info")
    refused(spec, RejectReason.SCHEMA, "YYYY-MM-DD")


PLAIN = {
    "date": "2025-08-01",
    "time": "10:15",
    "name": "Zed",
    "text": "Some words",
    "number": 3,
    "flag": True,
}
SPECIAL: dict[str, dict[str, Any]] = {
    "set_temperature": {"celsius": 24.5},
    "transfer": {"source": "checking"},
    "convert_units": {"from_unit": "m", "to_unit": "km"},
    "convert_currency": {"source": "USD"},
    "days_between": {"end": "2025-08-09"},
    "search_flights": {"destination": "Rome"},
    "move_file": {"destination": "/docs/zed.txt"},
    "send_email": {"to": "zed@example.com"},
    "add_contact": {"phone": "555-0100"},
}


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_can_be_the_answer(name: str) -> None:
    """With plain arguments, the runtime finds a ground truth for each tool of the toolbox."""
    required = [p for p in TOOLS[name].parameters if p.required]
    args = {p.name: p.choices[-1] if p.choices else PLAIN[p.kind] for p in required}
    task_of(make([(name, args | SPECIAL.get(name, {}))], "Please do it for me"))


def test_the_world_is_that_of_the_seed() -> None:
    task = task_of(make([("create_event", DENTIST)]))
    assert task.payload["world_seed"] == world_seed("seed-1")
    assert date(2025, 1, 1) <= today_of("seed-1") <= date(2025, 1, 1) + timedelta(days=364)


@pytest.mark.parametrize(
    "wrong", [{"mode": "both"}, {"success_threshold": 0}, {"max_turns": 2}, {"colour": 1}]
)
def test_settings_have_ranges_and_unknown_ones_fail(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ToolCallingConfig(**wrong)
