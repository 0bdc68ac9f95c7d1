"""What a bundle may say beside its tools: states, values, words for them, tasks that nothing solves."""

from __future__ import annotations

import random
from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundles import asked, by_hand, call, fewer, made, recipe
from genenv.environments import load_environment
from genenv.errors import UsageError
from genenv.gate.gate import base_tasks, examined
from genenv.simulator.source import read_specs
from genenv.tools.bundle import About, Bundle, Starts, StateRules, ToolCircles, companions, program_line
from genenv.tools.calls import Reply, format_calls
from genenv.tools.check import credit
from genenv.tools.discover.recipes import succeeded
from genenv.tools.environment import Tools
from genenv.tools.language.declining import unsolvable_verdict
from genenv.tools.language.wording import Manner, Said, clause, instruction, only_fitting
from genenv.tools.language.words import SpokenValues, day_names, day_phrases, time_phrases, with_words_of
from genenv.tools.spec import Program, Step
from genenv.tools.worlds.base import Call, Outcome, Tool, World
from genenv.tools.worlds.folder import content_of
from genenv.tools.worlds.in_process import InProcessWorld
from genenv.tools.worlds.sources import PythonSource
from genenv.types import Rejection, Task

LIGHT = Tool(
    name="switch_light",
    description="Switch a light.",
    parameters={
        "type": "object",
        "properties": {"room": {"type": "string"}, "on": {"type": "boolean"}, "minutes": {"type": "integer"}},
        "required": ["room", "on"],
    },
)
PLAIN = Manner(quoted=False)


def worded(wording: str, **args: object) -> str | None:
    said = Said(
        tool=LIGHT,
        args=args,
        manner=PLAIN,
        in_words=lambda name, form: ("half an hour",) if (name, form) == ("minutes", "words") else (),
    )
    found = only_fitting(said, [wording], random.Random(0))
    return None if found is None else f"{found.text} {sorted(found.implied)}"


@pytest.mark.parametrize(
    ("wording", "said"),
    [
        ("light the {room}: {arguments}", "light the hall: on yes and minutes 30 []"),
        ("{on=true}light the {room} for {minutes} minutes", "light the hall for 30 minutes ['on']"),
        ("{on=true}light the {room} for {minutes:words}", "light the hall for half an hour ['on']"),
        ("{on=false}leave the {room} dark for {minutes}", None),
        ("{on=true}light the {room:words} for {minutes}", None),
        ("{on=true}light the {room}", None),
        ("{on=true}light the {room} for {minutes} in {color}", None),
        ("{on=1}light the {room} for {minutes}", None),
    ],
)
def test_a_wording_is_used_where_its_blanks_fit(wording: str, said: str | None) -> None:
    assert worded(wording, room="hall", on=True, minutes=30) == said


def test_texts_stand_in_quotation_marks_where_the_bundle_does_not_say_otherwise() -> None:
    args = {"room": "hall"}
    for manner, text in ((Manner(), 'find "hall"'), (PLAIN, "find hall")):
        said = Said(tool=LIGHT, args=args, manner=manner)
        assert clause(said, ["find {room}"], random.Random(0)).text == text


def test_orders_and_whole_utterances_are_joined_to_one_request() -> None:
    manner = Manner(openings=("",), next=("; then ",), also=("Also, ",))

    def asked(*parts: str) -> str:
        return instruction(parts, [], random.Random(0), manner)

    assert asked("lock the door") == "Lock the door."
    assert asked("lock the door", "find Ann") == "Lock the door; then find Ann."
    assert asked("lock the door", "Is it late?") == "Lock the door. Is it late?"
    assert asked("Is it late?", "lock the door") == "Is it late? Also, lock the door."
    assert asked("docs/a.txt is old.", "Is it late?") == "docs/a.txt is old. Is it late?"


SAYINGS = SpokenValues.model_validate(
    {
        "values": {"person": ["Ann", "Ben"], "mail": [["a", "b"], ["c", "d"]], "due": {"days": [1, [2, 3]]}},
        "words": {"minutes": {"30": "half an hour", "2.5": "two and a half"}},
    }
)
TODAY = date(2025, 3, 14)  # a Friday


def test_what_people_say_is_of_kinds_and_dates_come_after_today() -> None:
    spoken_values = SpokenValues.model_validate(
        {"values": {"due": {"days": [1, 17]}, "span": {"days": [[1, 3], [2, 9]]}}}
    )
    assert spoken_values.kinds(TODAY) == {
        "said.due": ["2025-03-15", "2025-03-31"],
        "said.span[0]": ["2025-03-15", "2025-03-16"],
        "said.span[1]": ["2025-03-17", "2025-03-23"],
    }
    assert SAYINGS.kinds(None)["said.mail[1]"] == ["b", "d"]


@pytest.mark.parametrize(
    ("kind", "value", "form", "words"),
    [
        ("said.minutes", 30, "words", ("half an hour",)),
        ("said.minutes", 2.5, "words", ("two and a half",)),
        ("said.minutes", 31, "words", ()),
        ("said.minutes", 30, "day", ()),
        ("any", "2025-03-15", "day", ("tomorrow",)),
        (
            "any",
            "2025-03-17",
            "words",
            ("this coming Monday", "next Monday", "on Monday", "in 3 days", "in three days"),
        ),
        ("any", "2025-07-17", "words", ()),
        ("any", "09:30", "words", ("half past nine in the morning",)),
        ("any", "12:00", "words", ("noon",)),
        ("any", "09:31", "words", ()),
        ("any", "10:60", "words", ()),
        ("any", "2025-02-31", "words", ()),
    ],
)
def test_values_are_said_in_words(kind: str, value: object, form: str, words: tuple[str, ...]) -> None:
    assert SAYINGS.in_words(kind, value, form, TODAY) == words


def test_words_of_both_sides_are_known_and_values_of_one() -> None:
    other = SpokenValues.model_validate(
        {"values": {"city": ["Oslo"]}, "words": {"minutes": {"45": "45 words"}}}
    )
    both = with_words_of(SAYINGS, other)
    assert both.values == SAYINGS.values
    assert both.words["minutes"] == {**SAYINGS.words["minutes"], "45": "45 words"}


@given(st.dates(date(2024, 1, 1), date(2027, 1, 1)), st.integers(0, 40))
def test_no_two_days_are_called_alike(today: date, days: int) -> None:
    for other in range(41):
        if other != days:
            assert not set(day_phrases(today, days)) & set(day_phrases(today, other))
    assert set(day_names(today, days)) <= set(day_phrases(today, days)) | {"today"}


def test_no_two_times_are_called_alike() -> None:
    times = [f"{hour:02d}:{minute:02d}" for hour in range(24) for minute in range(0, 60, 5)]
    said = [one for time in times for one in time_phrases(time)]
    assert len(set(said)) == len(said) == 4 * 17


STARTS = Starts(tool="begin", training=3, measuring=2)


def test_lines_of_json_end_at_line_feeds_alone(tmp_path: Path) -> None:
    step = Step(tool="note", args={"text": "a\u2028b\u2029c\x85d\ne\x0cf"})
    program = Program(n_calls=1, chained=False, answer=False, n_tools=1, calls=(step,))
    (tmp_path / "tasks").mkdir()
    file = tmp_path / "tasks" / "base.jsonl"
    file.write_text(f"{program_line(program)}\n" * 2, encoding="utf-8")
    bundle = Bundle(tmp_path, About(name="notes", source=PythonSource(file="notes.py")))
    assert [*bundle.base.values()] == [program, program]
    assert [one["calls"] for one in content_of(file)] == [[step.model_dump(exclude_defaults=True)]] * 2
    file.write_text(f'{{"spec": {program_line(program)}}}\n', encoding="utf-8")
    assert [Program.model_validate(one) for one, _ in read_specs(file)] == [program]


def test_a_result_that_differs_in_its_last_digits_is_found(tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, About(name="bank", source=PythonSource(file="bank.py")))
    one, other = ({"balance": (1000.0 + a) + b} for a, b in ((47.27, 10.87), (10.87, 47.27)))
    assert bundle.found("get", one) == bundle.found("get", other) != bundle.found("get", {"balance": 1058.15})


def test_the_volatile_name_of_a_text_file_may_lack_its_ending(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "audit.log").write_text("Mon: begun")
    (tmp_path / "files" / "orders.json").write_text("{}")
    about = '[state]\nvolatile = ["audit", "orders"]\n[source]\nkind = "python"\nfile = "tools.py"\n'
    (tmp_path / "bundle.toml").write_text(f'name = "shop"\n{about}')
    bundle = Bundle.open(tmp_path)
    states = [{"files": {"audit.log": text, "orders.json": None}, "orders": text} for text in ("a", "b")]
    assert bundle.comparable(states[0]) == bundle.comparable(states[1]) == {"files": {"orders.json": None}}


def test_states_of_both_sides_are_apart() -> None:
    assert (list(STARTS.states()), list(STARTS.states(measuring=True))) == ([0, 1, 2], [3, 4])
    assert STARTS.call(3).args == {"state": 3}

    def begun(*before: dict[str, object]) -> Program:
        return Program.model_validate(
            {
                "n_calls": 1, "chained": False, "answer": False, "n_tools": 1,
                "calls": [{"tool": "f", "args": {}}], "before": before,
            }
        )  # fmt: skip

    assert STARTS.state_of(begun({"tool": "begin", "args": {"state": 4}})) == 4
    for wrong in ([], [{"tool": "begin", "args": {"state": 5}}], [{"tool": "f", "args": {"state": 1}}]):
        assert STARTS.state_of(begun(*wrong)) is None


TOGETHER = ToolCircles(training=("a b c", "d e"), measuring=("a c",))


def test_tools_of_a_circle_for_measuring_never_meet_in_training() -> None:
    assert TOGETHER.allows({"a", "b"})
    assert not TOGETHER.allows({"a", "b", "c"})
    assert TOGETHER.allows({"a", "c"}, measuring=True)
    assert not TOGETHER.allows({"a", "b"}, measuring=True)
    rng = random.Random(0)
    assert {frozenset(one) for one in TOGETHER.groups("b", 2, rng, most=9)} == {
        frozenset("ab"),
        frozenset("bc"),
    }
    assert TOGETHER.groups("a", 3, rng, most=9) == []
    assert companions(TOGETHER, ("d", "e")) == []
    assert companions(ToolCircles(training=("a b c",)), ("a", "b")) == ["c"]


@pytest.mark.parametrize(
    ("gap", "words", "calls", "right"),
    [
        ("no_tool", "I cannot do that.", (), True),
        ("no_tool", "There isn't a function for that.", (), True),
        ("no_tool", "That is beyond what I am able to do.", (), True),
        ("no_tool", "I'm afraid this isn't among my functions.", (), True),
        ("no_tool", "No problem, there isn't any trouble: the lamp is on now.", (), False),
        ("no_tool", "Sorry for the wait! The lamp is on now.", (), False),
        ("no_tool", "Done. You don't have to do anything else.", (), False),
        ("no_tool", "None of my tools fits.", (), True),
        ("no_tool", "Which room?", (), False),
        ("missing_info", "Which room?", (), True),
        ("missing_info", "What is the order id, e.g. O-12?", (), True),
        ("missing_info", "How many units, 2.5 or 3?", (), True),
        ("missing_info", "Done.", (), False),
        ("missing_info", "", (), False),
        ("missing_info", "I cannot do that.", ("switch_light",), False),
        ("missing_info", "I cannot do that.", ("look",), False),
    ],
)
def test_what_nothing_solves_wants_to_be_said(
    gap: str, words: str, calls: tuple[str, ...], right: bool
) -> None:
    reply = Reply(calls=tuple(call(name) for name in calls), words=words)
    found = unsolvable_verdict(gap, [reply], {"switch_light": True, "look": False}, single=True)
    assert found.success is right
    assert found.readable is bool(words)


def test_over_several_turns_looking_is_no_harm() -> None:
    looked, said = Reply(calls=(call("look"),)), Reply(words="I cannot do that.")
    writes = {"switch_light": True, "look": False}
    assert unsolvable_verdict("no_tool", [looked, said], writes, single=False).success
    changed = Reply(calls=(call("switch_light"),))
    assert not unsolvable_verdict("no_tool", [changed, said], writes, single=False).success


def test_credit_is_for_the_tool_and_its_arguments_less_extra_calls() -> None:
    right, tools = call("switch_light", room="hall", on=True), {"switch_light": LIGHT}
    wrong = call("switch_light", room="attic", on=True)

    def earned(*calls: object) -> float:
        return credit([right], calls, tools)

    assert earned() == 0
    assert earned(right) == pytest.approx(0.95)  # the check has said already that it is not right
    assert earned(wrong) == pytest.approx(0.2 + 0.8 / 2)
    assert earned(wrong, wrong) == pytest.approx(0.2 + 0.8 / 2 - 0.2)
    assert credit([right, right], [right], tools) == pytest.approx(0.5)
    assert earned(call("switch_light", room=" HALL", on=True, minutes=5)) == pytest.approx(0.2 + 0.8 * 2 / 3)


@pytest.mark.long
def test_a_class_that_comes_with_the_package_is_called_in_this_process() -> None:
    world: World = InProcessWorld("genenv.tools.tool_calling.apps.whole:Apps")
    begin = call("begin", state=0)
    first = world.play([begin, call("set_volume", level=50), call("set_volume", level=200)], watch=True)
    assert [one.changed for one in first.outcomes] == [True, True, False]
    assert "less than or equal to 100" in str(first.outcomes[2].error)
    assert first.state["music"]["volume"] == 50
    assert world.play([begin]).state["music"]["volume"] != 50
    with pytest.raises(UsageError, match="is not installed"):
        InProcessWorld("genenv.nowhere:Apps")


@pytest.fixture(scope="module")
def folder(desk_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The desk, of which two tools can pass for each other and one is asked for without a value."""
    path = tmp_path_factory.mktemp("bundles") / "desk"
    fewer(desk_bundle, path, base=24, held_out=12)
    about = (path / "bundle.toml").read_text()
    alike = 'alike = [["close_ticket", "cancel_order"]]\n'
    (path / "bundle.toml").write_text(about.replace("[source]", f"{alike}\n[source]", 1))
    with (path / "wordings.toml").open("a") as file:
        file.write('"cancel_order without order_id" = ["cancel my order"]\n')
        file.write('"find_customer>open_ticket" = ["for {name} open a {priority} ticket on {subject}"]\n')
    (path / "wordings-measuring.toml").write_text('get_order = ["have a look at {order_id}"]\n')
    return path


def test_any_bundle_can_have_tasks_that_nothing_solves(folder: Path) -> None:
    env = Tools(folder=folder)
    rng, found = random.Random(0), set[str]()
    try:
        assert env.has_gaps
        (option,) = [
            one for one in env.options("cancel_order") if one["n_calls"] == (1,) and one["answer"] == (False,)
        ]
        assert option["gap"] == ("none", "no_tool", "missing_info")
        seed = env.seeds()[0]
        for gap in ("no_tool", "missing_info"):
            spec = {**seed.spec, "n_calls": 1, "chained": False, "answer": False, "gap": gap, "n_tools": 4}
            parameters = env.parameters.model_validate(
                {
                    **{k: spec[k] for k in ("n_calls", "chained", "answer", "gap", "n_tools")},
                    "tools": "cancel_order",
                }
            )
            drawn = env.drawn(parameters, seed, rng)
            assert isinstance(drawn, Program)
            tasks = base_tasks(
                env, [type(seed)(id="s", environment="t", spec=drawn.model_dump(), skills=())], seed=0
            )
            for task in tasks.values():
                found.add(gap)
                assert examined(env, task, rng) is None
                assert not {"close_ticket"} & set(task.payload["tools"]) or gap == "missing_info"
        assert found == {"no_tool", "missing_info"}
    finally:
        env.world.close()


def test_tasks_for_measuring_are_said_in_wordings_of_their_own(folder: Path) -> None:
    env = Tools(folder=folder)
    try:
        looked = [
            task.messages[-1].content
            for task in env.held_out()
            if task.spec["calls"][0]["tool"] == "get_order" and task.spec["n_calls"] == 1
        ]
        assert all("have a look at" in text.lower() for text in looked)
        assert Bundle.open(folder).measuring_wordings is not None
    finally:
        env.world.close()


_TWO_WAYS = '''
class Lamps:
    def __init__(self) -> None:
        self.lamps = {f"L-{n}": {"room": f"room {n}", "hours": 7 * (n // 2)} for n in range(1, 9)}

    def lamp_hours(self, lamp_id: str) -> dict[str, int]:
        """Show how long a lamp was on."""
        return {"hours": self.lamps[lamp_id]["hours"]}

    def inspect_lamp(self, lamp_id: str) -> dict[str, int]:
        """Inspect a lamp."""
        return {"hours": self.lamps[lamp_id]["hours"]}

    def rename_room(self, lamp_id: str, room: str) -> str:
        """Write down another room of a lamp."""
        self.lamps[lamp_id]["room"] = room
        return "done"
'''


@pytest.mark.long
def test_another_tools_equal_result_about_another_record_is_not_what_was_asked(
    tmp_path: Path,
) -> None:
    (tmp_path / "lamps.py").write_text(_TWO_WAYS)
    made(tmp_path / "lamps", tmp_path / "lamps.py", "Lamps", base=60)
    env = load_environment(str(tmp_path / "lamps"))
    judged = 0
    for task in base_tasks(env, env.seeds(), seed=0).values():
        calls = cast("list[dict[str, Any]]", task.payload["calls"])
        if [one["tool"] for one in calls] != ["lamp_hours"] or "inspect_lamp" not in task.payload["tools"]:
            continue
        number = int(calls[0]["args"]["lamp_id"].removeprefix("L-"))
        other = number + 1 if number % 2 == 0 else number - 1  # lamps 2 and 3 have the same hours
        if not 1 < other < 8:
            continue
        style = cast(Tools, env).settings.style
        for lamp, right in ((number, True), (other, False)):
            asked = format_calls([call("inspect_lamp", lamp_id=f"L-{lamp}")], style)
            said = f"It was on for long.\nAnswer: {7 * (number // 2)} hours"
            assert env.check(task, (asked, said)).success is right
        judged += 1
    assert judged


@pytest.mark.parametrize(("result", "useful"), [([{"error": "no such lamp"}], False), ([{"on": True}], True)])
def test_a_list_of_nothing_but_errors_is_no_success(result: Any, useful: bool) -> None:
    assert succeeded(Outcome(result=result), writes=False) is useful


SOWING = '''
"""A nursery's book."""

import datetime

seasons = {"S-1": {"begins": "2024-02-04"}, "S-2": {"begins": "2024-08-01"}}
beds = []


def sow(plant: str, day: str | None = None) -> dict:
    """Sow a plant."""
    beds.append({"plant": plant, "day": day or datetime.date.today().isoformat()})
    return {"plant": plant}
'''


def test_a_stated_value_of_the_state_that_no_check_sees_makes_no_task(tmp_path: Path) -> None:
    way = recipe("sow", writes=True, plant="new", day="seasons.*.begins")
    sowing = Call(tool="sow", args={"plant": "fern", "day": "2024-02-04"})
    found = list[Rejection | None]()
    for name, volatile in (("seen", ()), ("unseen", ("beds.*.day",))):
        env = Tools(folder=by_hand(tmp_path / name, SOWING, way, state=StateRules(volatile=volatile)))
        task = asked(env, sowing)
        assert isinstance(task, Task)
        found.append(env.audit(task, random.Random(0)))
        env.world.close()
    assert found[0] is None
    assert isinstance(found[1], Rejection)
    assert found[1].explanation == "With another day of sow the end is the same."


TAKING_BACK = '''
from typing import Literal

items = {f"I-{n}": {"state": "lent", "note": ""} for n in range(6)}


def take_back(
    item: str, condition: Literal["good", "worn", "broken"], shelf: Literal["A", "B", "C"] = "A"
) -> dict:
    """Take an item back."""
    if items[item]["state"] != "lent":
        return {"error": "it is not lent out"}
    items[item]["state"] = "workshop" if condition == "broken" else f"shelf {shelf}"
    return items[item]
'''


@pytest.mark.long
def test_a_listed_value_that_the_state_does_not_tell_from_another_is_compared_as_it_stands(
    tmp_path: Path,
) -> None:
    """Of "good" and "worn" the state shows the same; a task may ask for either, the other is wrong."""
    (tmp_path / "back.py").write_text(TAKING_BACK)
    bundle = made(tmp_path / "back", tmp_path / "back.py", base=12, held_out=4)
    assert "condition" in bundle.graph.recipes["take_back"].unseen
    env = Tools(folder=tmp_path / "back")
    for condition, other in (("good", "worn"), ("worn", "good"), ("broken", "good")):
        task = asked(env, Call(tool="take_back", args={"item": "I-1", "condition": condition}))
        assert isinstance(task, Task)
        assert env.audit(task, random.Random(0)) is None
        assert env.check(task, task.oracle).success
        assert not env.check(task, (task.oracle[0].replace(condition, other), *task.oracle[1:])).success
    env.world.close()
