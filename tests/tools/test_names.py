"""Tools and parameters with any name: calls are written and read, in the prompt and in the reply."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundles import EXAMPLES
from genenv.gate.gate import examined
from genenv.progress import Silent
from genenv.tools.build import how_to_call
from genenv.tools.calls import format_calls, read_reply
from genenv.tools.environment import Tools
from genenv.tools.generate.make_bundle import Wanted, make
from genenv.tools.settings import Style, ToolsConfig
from genenv.tools.spec import Program
from genenv.tools.worlds.base import Call, Tool, is_plain, usable
from genenv.tools.worlds.origins import McpOrigin
from genenv.types import Json, Profile

TEXT: Json = {"type": "string"}


def tool(name: str, *parameters: str) -> Tool:
    properties: Json = dict.fromkeys(parameters, TEXT)
    return Tool(
        name=name, parameters={"type": "object", "properties": properties, "required": list(parameters)}
    )


@pytest.mark.parametrize("name", ["get-order", "orders.get", "from", "get order", "2fa", "", "ﬁnd", "None"])
def test_names_that_python_cannot_write(name: str) -> None:
    assert not is_plain(name)
    assert not is_plain("find", name)


@pytest.mark.parametrize("name", ["find", "lösche_auftrag", "预订", "match", "_x1"])
def test_names_that_python_can_write(name: str) -> None:
    assert is_plain(name)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12) | st.sampled_from(
    ["get-order", "orders.get", "from", "预订", "a(b", 'say "x"', "</tool_call", "None", "x\ny"]
)
CALLS = st.builds(
    lambda name, args: Call(tool=name, args=args),
    NAMES,
    st.dictionaries(NAMES, st.text("ab\n(\"'<>{}", max_size=8) | st.integers(-9, 9), max_size=3),
)


@given(st.lists(CALLS, min_size=1, max_size=3))
def test_calls_with_any_name_are_read_back_in_their_order(calls: list[Call]) -> None:
    known = {call.tool: list(call.args) for call in calls}
    for style in ("python", "json"):
        reply = read_reply(format_calls(calls, cast(Style, style)), cast(Style, style), known)
        assert list(reply.calls) == calls or any("</tool_call>" in json.dumps(one.json) for one in calls)


def test_one_reply_may_have_calls_of_both_forms() -> None:
    calls = [
        Call(tool="find", args={"name": "x"}),
        Call(tool="get-it", args={"from": 1}),
        Call(tool="go", args={}),
    ]
    text = format_calls(calls, "python")
    assert text.splitlines() == [
        'find(name="x")',
        "<tool_call>",
        '{"name": "get-it", "arguments": {"from": 1}}',
        "</tool_call>",
        "go()",
    ]
    known = {"find": ["name"], "get-it": ["from"], "go": []}
    assert list(read_reply(text, "python", known).calls) == calls
    assert read_reply(text, "python", {"find": ["name"], "go": []}).malformed  # no name of theirs needs it
    assert read_reply("I call get-it(1) now", "python", known).malformed
    assert read_reply("That is from (Oslo).", "python", {"from": []}).words


def test_a_prompt_says_how_to_call_what_python_cannot_write() -> None:
    plain, odd = tool("find", "name"), tool("get-order", "order_id", "from")
    assert odd.heading == '"get-order"(order_id, "from")'
    both = how_to_call([plain, odd], "python", multi=False)
    assert (
        'like tool(name=value). Write a call with a name in quotation marks as <tool_call>\n{"name"' in both
    )
    alone = how_to_call([odd], "python", multi=False)
    assert alone.startswith('Answer with tool calls only, all in one reply, each as <tool_call>\n{"name"')
    assert "quotation" not in how_to_call([plain], "python", multi=False)
    assert "all in one reply" in alone
    assert "Answer: VALUE" in how_to_call([plain], "python", answers=True)
    assert "Answer:" not in how_to_call([plain], "python"), "where nothing is asked for"


def test_a_tool_whose_name_stands_between_others_is_left_out() -> None:
    tools, left_out = usable({"a+b": lambda: tool("a+b"), "c-d": lambda: tool("c-d")})
    assert list(tools) == ["c-d"]
    assert left_out == {"a+b": "its name has a + or a >, which stand between tools in the plan of a task"}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    folder = tmp_path_factory.mktemp("odd")
    (folder / "files").mkdir()
    bookings = {
        f"B-{n}": {"from": city, "class": "first"} for n, city in enumerate(["Oslo", "Kyoto", "Lima"])
    }
    (folder / "files" / "bookings.json").write_text(json.dumps(bookings))
    command = (sys.executable, "-S", str(EXAMPLES / "odd_server.py"))
    wanted = Wanted(origin=McpOrigin(command, folder=folder / "files"), base=24, held_out=8)
    make(folder / "bundle", wanted, examined, Silent())
    env = Tools(folder=folder / "bundle")
    yield env
    env.world.close()


@pytest.mark.long
def test_a_server_with_such_names_becomes_a_bundle(odd: Tools) -> None:
    assert set(odd.graph.recipes) == {"get-booking", "bookings.cancel", "from", "预订", "count"}
    called = {step.tool for program in odd.bundle.base.values() for step in program.calls}
    assert called == set(odd.graph.recipes)
    for task in odd.held_out():
        assert odd.check(task, task.oracle).success
        assert not odd.check(task, ("Done.",)).success
    assert odd.wordings["get-booking"] == ["show a booking: {arguments}"]


@pytest.mark.long
def test_all_styles_solve_the_tasks_of_such_a_bundle(odd: Tools) -> None:
    for style in ("json", "native"):
        env = Tools(ToolsConfig(style=cast(Style, style)), odd.bundle.path)
        for task in env.held_out():
            assert env.check(task, task.oracle).success
        env.world.close()


@pytest.mark.long
def test_a_simulator_may_write_programs_with_such_names(odd: Tools) -> None:
    seed = odd.seeds()[0]
    messages = odd.simulator_messages(seed, Profile(), 0.5)
    assert '"get-booking"("booking-id")' in messages[0].content
    schema = json.dumps(odd.spec_schema(seed), ensure_ascii=False)
    assert '"预订"' in schema
    assert Program.model_validate(odd.variation(seed, random.Random(0))).calls
