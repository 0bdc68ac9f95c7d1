"""The toolbox as a whole: schemas, argument checks, execution, comparison, and what holds for every tool."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from datetime import date as Day

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.domains.tool_calling.apps.kit import Name, Result, State
from genenv.domains.tool_calling.toolbox import (
    APPS,
    TOOLS,
    Parameter,
    Tool,
    ToolError,
    World,
    arrange,
    difference,
    execute,
    initial_world,
    same_state,
    tool,
    tools_of,
    validate,
)
from genenv.errors import UsageError

WORLD = initial_world(7)

WORDS = ("Lisbon", "Maya Lopez", "budget", "docs/a.txt", "docs", "Zürich", "555-0199", "F1234", "x/../y", "/")
FEW = settings(max_examples=settings.default.max_examples // 8)

every_tool = pytest.mark.parametrize("name", sorted(TOOLS))


def values_of(parameter: Parameter) -> st.SearchStrategy[object]:
    """Values that the parameter's schema allows, likely ones among them."""
    match parameter.kind:
        case "choice":
            return st.sampled_from(parameter.choices)
        case "flag":
            return st.booleans()
        case "date":
            near = st.dates(Day(2025, 1, 1), Day(2025, 12, 31))
            return (near | st.dates(Day(1900, 1, 1), Day(2100, 12, 31))).map(Day.isoformat)
        case "time":
            return st.times().map(lambda time: f"{time:%H:%M}")
        case "number" if parameter.schema["type"] == "integer":
            return st.integers(1, 60) | st.integers(-(10**9), 10**9)
        case "number":
            return st.integers(1, 3000).map(lambda n: n / 2) | st.floats(-1e9, 1e9) | st.integers(-5, 40)
        case _ if parameter.name == "phone":
            return st.sampled_from(("555-0199", "+1 (555) 0100", "home"))
        case _:
            return st.sampled_from(WORDS) | st.text(min_size=1, max_size=20)


@st.composite
def calls_of(draw: st.DrawFn, known: Tool) -> dict[str, object]:
    given_args = [p for p in known.parameters if p.required or draw(st.booleans())]
    return {parameter.name: draw(values_of(parameter)) for parameter in given_args}


def fork(world: World, app: str) -> World:
    """A world whose app can change without changing the original."""
    return {**world, app: copy.deepcopy(world[app])}


def arranged(name: str, args: dict[str, object]) -> World:
    """The world arranged for a call, or as it is where the call cannot be arranged."""
    world = fork(WORLD, TOOLS[name].app)
    with contextlib.suppress(ToolError):
        arrange(world, name, args, random.Random(3))
    return world


def outcome(world: World, name: str, args: dict[str, object]) -> Result | str:
    """What a call returns, or the sentence that refuses it."""
    try:
        return execute(world, name, args)
    except ToolError as err:
        return str(err)


# --- for every tool ---


def test_the_toolbox_has_eleven_apps_and_56_tools_in_order() -> None:
    assert len(APPS) == 11
    assert len(TOOLS) == 56 == sum(len(tools_of(app)) for app in APPS), "no two tools share a name"
    assert list(APPS) == sorted(APPS)
    assert [known.app for known in TOOLS.values()] == sorted(known.app for known in TOOLS.values())
    assert list(TOOLS)[:3] == ["get_balance", "transfer", "pay_bill"]


@every_tool
def test_the_schema_of_a_tool_is_a_json_schema_with_descriptions(name: str) -> None:
    schema = json.loads(json.dumps(TOOLS[name].schema))
    assert schema["type"] == "function"
    function = schema["function"]
    assert function["name"] == name
    assert function["description"].endswith(".")
    parameters = function["parameters"]
    assert parameters["type"] == "object"
    assert set(parameters["required"]) <= set(parameters["properties"])
    for parameter in parameters["properties"].values():
        assert set(parameter) <= {"type", "description", "enum", "format", "pattern", "minLength", "default",
            "minimum", "maximum"}  # fmt: skip
        assert parameter["type"] in {"string", "integer", "number", "boolean"}
        assert len(parameter["description"]) > 5


def test_a_number_outside_the_limits_of_the_schema_is_refused_and_the_limits_are_not() -> None:
    limited = [(t, p) for t in TOOLS.values() for p in t.parameters if "minimum" in p.schema]
    assert len(limited) > 8
    for known, parameter in limited:
        lowest, highest = (int(str(parameter.schema[key])) for key in ("minimum", "maximum"))
        args: dict[str, object] = {
            "product": "desk lamp", "address": "6 Rose Lane", "city": "Oslo", "checkin": "2025-04-02",
            "title": "Lunch", "date": "2025-04-02", "start": "08:00", "room": "kitchen", "account": "savings",
            "flight_id": "OSL-1",
        }  # fmt: skip
        own = {p.name: args[p.name] for p in known.parameters if p.name in args}
        for value, right in ((lowest - 1, False), (lowest, True), (highest, True), (highest + 1, False)):
            call = {**own, parameter.name: value}
            found = outcome(arranged(known.name, call), known.name, call)
            refused = isinstance(found, str) and any(word in found for word in ("between", " to "))
            assert refused is not right, (known.name, value, found)


@every_tool
def test_a_signature_is_one_short_line_that_names_every_parameter(name: str) -> None:
    known = TOOLS[name]
    assert "\n" not in known.signature
    assert len(known.signature) < 200
    head, _, description = known.signature.partition("  # ")
    assert description == known.description
    assert head.startswith(f"{name}(")
    assert all(parameter.name in head for parameter in known.parameters)


@pytest.mark.hypothesis
@every_tool
def test_any_call_succeeds_or_leaves_the_world_unchanged_and_does_the_same_each_time(name: str) -> None:
    known = TOOLS[name]

    @FEW
    @given(args=calls_of(known))
    def check(args: dict[str, object]) -> None:
        start = arranged(name, args)
        first, second = fork(start, known.app), fork(start, known.app)
        result = outcome(first, name, args)
        assert outcome(second, name, args) == result
        assert first == second
        if isinstance(result, str):
            assert result.endswith(".")
            assert first == start
        else:
            assert set(known.returns) <= set(result)
            assert json.loads(json.dumps([first[known.app], result])) == [first[known.app], result]
            assert same_state(start, first) is not known.writes, "an arranged write makes a difference"

    check()


@pytest.mark.hypothesis
@every_tool
def test_arranging_twice_is_arranging_once_and_touches_one_app(name: str) -> None:
    @FEW
    @given(args=calls_of(TOOLS[name]))
    def check(args: dict[str, object]) -> None:
        once = arranged(name, args)
        twice = fork(once, TOOLS[name].app)
        with contextlib.suppress(ToolError):
            arrange(twice, name, args, random.Random(4))
        assert twice == once
        assert {app for app in once if once[app] != WORLD[app]} <= {TOOLS[name].app}

    check()


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", sorted(known.name for known in TOOLS.values() if not known.writes))
def test_a_read_does_not_even_touch_the_copy_it_is_given(name: str) -> None:
    known = TOOLS[name]

    @FEW
    @given(args=calls_of(known))
    def check(args: dict[str, object]) -> None:
        state = arranged(name, args)[known.app]
        before = copy.deepcopy(state)
        with contextlib.suppress(ToolError):
            known.function(state, **validate(known, args))
        assert state == before

    check()


# --- worlds ---


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_a_seed_gives_one_world_of_plain_json(seed: int) -> None:
    world = initial_world(seed)
    assert world == initial_world(seed)
    assert json.loads(json.dumps(world)) == world
    assert set(world) == {*APPS, "clock"}
    assert Day.fromisoformat(world["clock"]["today"]).year == 2025


def test_two_seeds_give_two_worlds() -> None:
    assert not same_state(initial_world(1), initial_world(2))


def test_independent_calls_leave_the_same_world_in_either_order() -> None:
    calls = [
        ("create_event", {"title": "Lunch", "date": "2025-05-01", "start": "12:00"}),
        ("create_event", {"title": "Gym", "date": "2025-05-01", "start": "18:00"}),
        ("place_order", {"product": "yoga mat", "quantity": 1, "address": "1 Elm Road"}),
        ("place_order", {"product": "desk lamp", "quantity": 2, "address": "1 Elm Road"}),
        ("pay_bill", {"payee": "City Power", "amount": 20}),
        ("transfer", {"source": "savings", "target": "checking", "amount": 5.5}),
    ]
    forward, backward = initial_world(7), initial_world(7)
    for name, args in calls:
        execute(forward, name, args)
    for name, args in reversed(calls):
        execute(backward, name, args)
    assert difference(forward, backward) == ""


@pytest.mark.parametrize(
    ("expected", "actual", "sentence"),
    [
        ({"a": {"n": 1}}, {"a": {"n": 2}}, "a.n is 2 instead of 1."),
        ({"a": {"n": 1}}, {"a": {}}, "a.n is missing; it should be 1."),
        ({"a": {}}, {"a": {"n": "x"}}, 'a.n should not be there; it is "x".'),
        ({"a": {"l": [1, 2]}}, {"a": {"l": [2]}}, "a.l lacks 1."),
        ({"a": {"l": [2]}}, {"a": {"l": [2, 2]}}, "a.l has an unexpected 2."),
        ({"a": {"l": [{"x": 1, "y": 2}, 3]}}, {"a": {"l": [3, {"y": 2, "x": 1.0}]}}, ""),
        ({"a": {"on": True}}, {"a": {"on": 1}}, "a.on is 1 instead of true."),
        ({"a": {"l": [1]}}, {"a": {"l": None}}, "a.l is null instead of [1]."),
    ],
)
def test_a_difference_is_a_sentence_about_the_first_place(
    expected: World, actual: World, sentence: str
) -> None:
    assert difference(expected, actual) == sentence
    assert same_state(expected, actual) is (sentence == "")


# --- arguments ---


def test_arguments_come_in_order_with_defaults_stripped_and_as_floats() -> None:
    args = {"start": "09:00", "title": "  Lunch ", "date": "2025-05-01"}
    valid = validate(TOOLS["create_event"], args)
    assert list(valid.items()) == [
        ("title", "Lunch"),
        ("date", "2025-05-01"),
        ("start", "09:00"),
        ("minutes", 60),
    ]
    amount = validate(TOOLS["pay_bill"], {"payee": "City Power", "amount": 20})["amount"]
    assert isinstance(amount, float)


@pytest.mark.parametrize(
    ("name", "args", "sentence"),
    [
        ("cancel_event", {}, "cancel_event needs a value for 'title'."),
        ("cancel_event", {"title": "x", "day": 1}, "cancel_event has no parameter 'day'."),
        ("cancel_event", {"title": 5}, "title must be a string, not 5."),
        ("cancel_event", {"title": " "}, "title must not be empty."),
        ("cancel_event", {"title": "\ud800"}, "title holds half a character."),
        ("set_volume", {"level": True}, "level must be a whole number, not true."),
        ("set_volume", {"level": 5.0}, "level must be a whole number, not 5.0."),
        ("set_volume", {"level": "5"}, 'level must be a whole number, not "5".'),
        ("set_volume", {"level": None}, "level must be a whole number, not null."),
        ("set_volume", {"level": 10**400}, "level must be a number between -1000000000 and 1000000000."),
        (
            "pay_bill",
            {"payee": "x", "amount": float("nan")},
            "amount must be a number between -1000000000 and 1000000000.",
        ),
        ("pay_bill", {"payee": "x", "amount": False}, "amount must be a number, not false."),
        ("switch_light", {"room": "kitchen", "on": 1}, "on must be true or false, not 1."),
        ("get_balance", {"account": "Savings"}, 'account must be one of checking, savings, not "Savings".'),
        (
            "get_balance",
            {"account": ["savings"]},
            'account must be one of checking, savings, not ["savings"].',
        ),
    ],
)
def test_a_wrong_argument_is_answered_with_a_sentence(
    name: str, args: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ToolError) as err:
        validate(TOOLS[name], args)
    assert str(err.value) == sentence


@pytest.mark.parametrize(
    "date", ["2025-02-29", "2025-13-01", "20250301", "2025-W10-1", "1899-12-31", "٢٠٢٥-01-01"]
)
def test_a_date_must_be_a_real_one_in_iso_form(date: str) -> None:
    with pytest.raises(ToolError, match="must be a real date in the form YYYY-MM-DD"):
        validate(TOOLS["list_events"], {"date": date})


@pytest.mark.parametrize("time", ["24:00", "9:30", "09:60", "09:30:00", "0930", "noon"])
def test_a_time_must_have_two_digits_for_hours_and_minutes(time: str) -> None:
    with pytest.raises(ToolError, match="must be a time in the form HH:MM"):
        validate(TOOLS["set_alarm"], {"time": time, "label": "tea"})


def test_names_that_do_not_exist_are_answered_and_not_guessed() -> None:
    with pytest.raises(ToolError, match="There is no tool 'fly'"):
        execute(initial_world(1), "fly", {})
    with pytest.raises(UsageError, match="did you mean 'bank'"):
        tools_of("bnak")


# --- the decorator ---


def test_a_tool_is_read_off_its_function() -> None:
    @tool("demo", returns=("n",))
    def shout(state: State, word: Name, times: int = 2) -> Result:
        """Say it loudly.

        Longer words.

        Args:
            state: the app's state.
            word: what to say.
            times: how often.

        Returns:
            n: not a parameter.
        """
        return {"n": len(word) * times}

    assert (shout.name, shout.app, shout.description) == ("shout", "demo", "Say it loudly.")
    assert (shout.writes, shout.returns) == (False, ("n",))
    assert shout.signature == "shout(word, times=2)  # Say it loudly."
    assert [(p.name, p.kind, p.required, p.default) for p in shout.parameters] == [
        ("word", "name", True, None),
        ("times", "number", False, 2),
    ]
    assert shout.parameters[1].schema == {"type": "integer", "description": "how often.", "default": 2}


def test_signatures_hint_only_where_the_name_is_not_enough() -> None:
    assert TOOLS["create_event"].signature == (
        "create_event(title, date, start: time, minutes=60)  # Create an event."
    )
    assert TOOLS["switch_light"].signature == (
        "switch_light(room: 'kitchen'|'bedroom'|'bathroom'|'living room'|'office', on: bool)"
        "  # Switch a light on or off."
    )
    assert "source: 'USD'|'EUR'" in TOOLS["convert_currency"].signature
    assert "target: as source)" in TOOLS["convert_currency"].signature


def test_a_tool_without_documentation_or_kinds_is_refused_when_it_is_defined() -> None:
    def silent(state: State) -> Result:
        return {}

    def undescribed(state: State, word: Name) -> Result:
        """Say it."""
        return {}

    def untyped(state: State, word: bytes) -> Result:
        """Say it.

        Args:
            word: what to say.
        """
        return {}

    for function, sentence in ((silent, "no docstring"), (undescribed, "no line"), (untyped, "no kind")):
        with pytest.raises(TypeError, match=sentence):
            tool("demo")(function)
