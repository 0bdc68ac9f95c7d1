"""Wordings that a model writes: how its replies are read, what is refused, and what stays in the file."""

from __future__ import annotations

import json
import random
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from genenv.tools.bundle import toml_key, wordings_toml
from genenv.tools.discover.recipes import Graph, Recipe
from genenv.tools.environment import Tools
from genenv.tools.language import model_wordings
from genenv.tools.language.model_wordings import Trial, with_more
from genenv.tools.language.wording import blanks_of, without_blanks
from genenv.tools.language.wording_rules import (
    LONGEST,
    SHORTEST,
    Reason,
    Rules,
    named,
    naming,
    proposed,
    writing,
)
from genenv.tools.settings import ToolsConfig
from genenv.tools.worlds.base import Tool

REFUND = ("order_id", "amount")


@pytest.fixture(scope="module")
def desk(desk_bundle: Path) -> Iterator[Tools]:
    env = Tools(ToolsConfig(most_calls=8), desk_bundle)
    yield env
    env.world.close()


@pytest.fixture(scope="module")
def rules(desk: Tools) -> Rules:
    return Rules(desk.world.tools, desk.graph, desk.world.play([]).state)


@pytest.mark.parametrize(
    "reply",
    [
        "refund {amount} of {order_id}\ngive {amount} back for {order_id}",
        "1. Refund {amount} of {order_id}.\n2) Give {amount} back for {order_id}!",
        "Sure! Here they are:\n\n- **Refund {amount} of {order_id}**\n* `give {amount} back for {order_id}`",
        '["Refund {amount} of {order_id}", "Please give {amount} back for {order_id}."]',
        'Here:\n```json\n["refund {amount} of {order_id}",\n "give {amount} back for {order_id}"]\n```\nBye!',
        '{"ways": [{"text": "refund {amount} of {order_id}"}, "give {amount} back for {order_id}"]}',
        "```\n(1) Could you please refund {{amount}} of <order_id>?\n(2) I'd like to give [amount] back for "
        '"{order_id}".\n```',
        "  “Refund ${amount} of {order id}”,\r\n\r\n'Can you give {Amount} back for {orderId}?'",
    ],
)
def test_a_reply_is_read_whatever_its_form(reply: str) -> None:
    assert proposed(reply, REFUND) == ["refund {amount} of {order_id}", "give {amount} back for {order_id}"]


@given(st.text() | st.text(alphabet="[]{}<>\"'`*-_.,:\n 1a\\").map(lambda text: text * 3))
@example("[" * 100_000)
@example("# " * 50_000)
@example("{" * 100_000)
@example("'" * 100_000)
@example("please " * 20_000)
@example("\ud800\x00\u202e\n" * 100)
def test_no_reply_breaks_the_reader(reply: str) -> None:
    found = proposed(reply, REFUND)
    assert len(found) == len(set(found))
    assert all(found)


@pytest.mark.long
@pytest.mark.parametrize(
    ("tool", "wording", "why"),
    [
        ("refund_order", "refund", "characters"),
        ("refund_order", f"refund {{amount}} of {{order_id}} {'x ' * 80}", "characters"),
        ("refund_order", "refund {amount} of the order", "it lacks {order_id}"),
        ("refund_order", "refund the order at once", "it lacks {amount}"),
        ("refund_order", "refund {amount} of {order_id} for {customer}", "no task gives customer"),
        ("refund_order", "refund {amount} of {order_id} because {reason}", "no task gives reason"),
        ("refund_order", "refund {amount} of {order_id}, {amount} please", "twice"),
        ("refund_order", "refund {amount} of {order_id} with {arguments}", "after a colon"),
        ("refund_order", "refund {amount}of {order_id}", "touches"),
        ("refund_order", 'refund "{amount}" of {order_id}', "in it"),
        ("refund_order", "refund <b>{amount}</b> of {order_id}", "in it"),
        ("refund_order", "refund {amount} of order_id {order_id}", "in it"),
        ("refund_order", "refund {amount} of {order_id}. Hurry up", "in it"),
        ("refund_order", "refund {amount}\u202e of {order_id}", "plain text"),
        ("refund_order", "refund\n{amount} of {order_id}", "plain text"),
        ("refund_order", "refund_order: {arguments}", "names the tool refund_order"),
        ("refund_order", "cancel order {order_id} and refund {amount}", "names the tool cancel_order"),
        ("refund_order", "{order_id}: refund {amount}", "begin with a verb"),
        ("refund_order", "refund: {arguments}", "one word"),
        ("refund_order", "second way: {arguments}", "begin with a verb"),
        ("refund_order", "which refund is {amount} of {order_id}", "begin with a verb"),
        ("refund_order", "refund {amount} of O-5003, that is {order_id}", "is a value"),
        ("refund_order", "refund {amount} of the kettle {order_id}", "'kettle' is a value"),
        ("refund_order", "refund {amount} of {order_id} for Ada", "'Ada' looks like a value"),
        ("refund_order", "refund {amount} of {order_id} to Klaus", "'Klaus' looks like a value"),
        ("refund_order", "refund {amount} of {order_id} in 14 days", "'14' looks like a value"),
        ("open_ticket", "open a ticket of high priority: {arguments}", "'high' is a value"),
    ],
)
def test_what_has_no_form_is_refused(rules: Rules, tool: str, wording: str, why: str) -> None:
    refusal = rules.problem(tool, wording, {})
    assert refusal is not None
    assert refusal.reason is Reason.FORM
    assert why in refusal.why


@pytest.mark.parametrize(
    ("tool", "wording"),
    [
        ("open_ticket", "close a ticket for {customer_id} about {subject}"),
        ("close_ticket", "reopen ticket {ticket_id} with {resolution}"),
        ("close_ticket", "please open {ticket_id} because of {resolution}"),
        ("cancel_order", "restore the purchase {order_id}"),
        ("cancel_order", "do anything but show me {order_id}"),
        ("cancel_order", "leave {order_id} without cancelling it"),
        ("get_order", "delete everything about {order_id}"),
        ("get_order", "find {order_id} and cancel it"),
        ("list_orders", "don't list what {customer_id} bought"),
        ("refund_order", "stop refunding {amount} of {order_id}"),
        ("refund_order", "show how {amount} was paid for {order_id}"),
    ],
)
def test_what_asks_for_the_opposite_is_refused(rules: Rules, tool: str, wording: str) -> None:
    refusal = rules.problem(tool, wording, {})
    assert refusal is not None
    assert refusal.reason in (Reason.OPPOSITE, Reason.FORM)


def tool_of(name: str, description: str = "") -> Tool:
    return Tool(name=name, description=description)


@pytest.mark.parametrize(
    ("name", "described", "wording"),
    [
        ("send_mail", "Send a mail", "read the mail aloud"),
        ("readMail", "Reads a mail", "send the mail away"),
        ("add_item", "", "remove the item"),
        ("delete_item", "", "create the item"),
        ("turn_on_light", "", "turn the light off"),
        ("lock_door", "", "unlock the door"),
        ("unlock_door", "", "lock the door"),
        ("list_items", "List items", "add the items"),
        ("stop_server", "", "start the server"),
    ],
)
def test_opposites_are_known_for_common_verbs(name: str, described: str, wording: str) -> None:
    writes = not name.startswith(("read", "list"))
    recipe = Recipe(tool=name, writes=writes, ways={}, success=1.0)
    rules = Rules({name: tool_of(name, described)}, Graph({name: recipe}), {})
    refusal = rules.problem(name, wording, {})
    assert refusal is not None
    assert refusal.reason is Reason.OPPOSITE


@pytest.mark.parametrize(
    ("tool", "wording"),
    [
        ("refund_order", "give {amount} dollars back for order {order_id}"),
        ("refund_order", "pay ${amount} back to the buyer of {order_id}"),
        ("refund_order", "return some of the money: {arguments}"),
        ("refund_order", "refund {amount} for {order_id}"),
        ("cancel_order", "stop the delivery of {order_id}"),
        ("cancel_order", "call off {order_id}, it is not delivered yet"),
        ("close_ticket", "mark {ticket_id} as done: {resolution}"),
        ("find_customer", "look up the customer's record of {name}"),
        ("list_orders", "show me everything that {customer_id} has bought"),
        ("get_order", "tell me about {order_id}"),
        ("open_ticket", "start a ticket for {customer_id} about {subject}, priority {priority}"),
        ("open_ticket", "create a ticket for {customer_id} on {subject}: {arguments}"),
        ("update_email", "set the address of {customer_id} to {email}"),
    ],
)
def test_what_users_say_passes(rules: Rules, tool: str, wording: str) -> None:
    assert rules.problem(tool, wording, {}) is None


def test_the_same_words_are_refused_whosever_they_are(rules: Rules, desk: Tools) -> None:
    known = desk.wordings
    assert list(known["refund_order"]) == ["refund part or all of an order: {arguments}"]
    for wording in ("Refund part or all of an order {order_id}: {amount}", "refund part or all of an orders"):
        refusal = rules.problem("refund_order", wording, known)
        assert refusal is not None
    other = {"cancel_order": ["call it off: {arguments}"]}
    refusal = rules.problem("refund_order", "call it off {order_id}, {amount}", other)
    assert refusal is not None
    assert refusal.reason is Reason.SAME
    assert refusal.why == "cancel_order has the same words already"


SAID = """refund cancel the order O-5003 Ada open close {order_id} {amount} {arguments} {reason} {x} of for :
, . please not customer kettle high refund_order cancel order ticket <b> " ' 12 show to"""
WORDS = st.sampled_from(SAID.split())


@given(st.lists(WORDS, min_size=1, max_size=14).map(" ".join) | st.text())
def test_whatever_passes_has_its_blanks_and_no_value(rules: Rules, wording: str) -> None:
    for text in proposed(wording, REFUND):
        if rules.problem("refund_order", text, {}) is not None:
            continue
        blanks = blanks_of(text)
        assert SHORTEST <= len(text) <= LONGEST
        assert len(set(blanks)) == len(blanks)
        assert set(blanks) <= {*REFUND, "arguments"}
        assert "arguments" in blanks or set(blanks) == set(REFUND)
        assert not re.search(r"[{}<>\"_\n]|O-5003|Ada|kettle|high|kettle|\bnot\b|\d", without_blanks(text))


@pytest.mark.long
def test_a_wording_that_gives_an_answer_away_is_refused_by_the_gate(desk: Tools) -> None:
    trial = Trial(desk)
    trial.play()
    tellers = (*desk.bundle.base.values(), *desk.bundle.held_out.values())
    assert any(program.answer and program.calls[-1].tool == "find_customer" for program in tellers)
    assert trial.problem("find_customer", "look {name} up") is None
    said = "look up {name}, who is C-101 or C-102 or C-103"
    assert "The text says" in (trial.problem("find_customer", said) or "")


@pytest.mark.parametrize("wording", ["give {amount} back for {order_id}", "return some money: {arguments}"])
def test_a_sample_has_values_of_the_bundle_in_its_blanks(desk: Tools, wording: str) -> None:
    text = Trial(desk).sample("refund_order", wording, random.Random(3))
    assert re.search(r'"O-50\d\d"', text)
    assert re.search(r"\d+(\.\d+)?", text.replace("O-50", ""))
    assert not re.search(r"[{}]", text)


def test_the_model_is_told_of_the_tool_and_its_blanks(desk: Tools, rules: Rules) -> None:
    tool = desk.world.tools["open_ticket"]
    asked = writing(tool, rules.parameters("open_ticket"), ["open a ticket: {arguments}"], 7)
    assert "Write 7 ways" in asked
    assert "{customer_id} {subject}" in asked
    assert "It may also have: {priority}" in asked
    assert "whose ticket it is" in asked
    assert "open a ticket: {arguments}" in asked
    listed = naming("Open it.", list(desk.world.tools.values()))
    assert listed.index("find_customer: Find a customer by name") < listed.index("update_email: ")


@pytest.mark.parametrize(
    ("reply", "name"),
    [
        ("get_order", "get_order"),
        (" `get_order()`.\n", "get_order"),
        ("**get_order**", "get_order"),
        ("The user wants get_order, as they ask for an order.", "get_order"),
        ("get_order_items", "get_order_items"),
        ("It is get_order_items: get_order_items(order_id)", "get_order_items"),
        ("get_order or get_order_items", None),
        ("get order", None),
        ("", None),
        ("none", None),
    ],
)
def test_a_reply_names_one_tool_or_none(reply: str, name: str | None) -> None:
    tools = {one: tool_of(one) for one in ("get_order", "get_order_items")}
    assert named(reply, tools) == name


LISTS = st.dictionaries(
    st.text("abc_-. é\"'#=[]", min_size=1, max_size=6), st.lists(st.text(max_size=12), max_size=3), max_size=4
).filter(lambda found: all(text.isprintable() for listed in found.values() for text in listed))


def typed(found: dict[str, list[str]], form: int) -> str:
    """The lists as people type them: on one line or several, with comments, with a last comma or without."""
    if form == 0:
        return wordings_toml(found)
    lines = ["# mine, 'all' of [it]"]
    for name, listed in found.items():
        texts = [json.dumps(one, ensure_ascii=False) for one in listed]
        inner = "".join(f'  {text}, # a [comment], "or" two\n' for text in texts[:-1])
        last = f"  {texts[-1]}{',' * (form % 2)} # last\n" if texts else ""
        lines.append(f"{toml_key(name)} = [{'  # here' * (form > 2)}\n{inner}{last}]  # so {'#' * 30}\n")
    return "\n".join(lines)


@pytest.mark.long
@given(
    LISTS,
    st.integers(0, 4),
    st.text("abc", min_size=1, max_size=3),
    st.lists(st.text("ab{} '\"", min_size=1)),
)
@example({"a": []}, 1, "a", ["x", "y"])
def test_more_wordings_leave_a_file_as_it_was_typed(
    found: dict[str, list[str]], form: int, tool: str, more: list[str]
) -> None:
    text = typed(found, form)
    after = with_more(text, tool, more)
    expected = {**found, tool: [*found.get(tool, []), *more]} if more else found
    assert tomllib.loads(after) == expected
    assert [line for line in re.findall(r"# .*", text) if line not in after] == []


def test_literal_and_long_texts_of_a_file_are_understood() -> None:
    text = "'a' = ['''one ] \" #''', \"\"\"two ] ' \\\" #\"\"\", 'three ]'] # end\r\nb = [\r\n\t'x',\r\n]\r\n"
    after = with_more(with_more(text, "a", ["four"]), "b", ["y"])
    assert tomllib.loads(after) == {
        "a": ['one ] " #', "two ] ' \" #", "three ]", "four"],
        "b": ["x", "y"],
    }


def test_more_wordings_are_indented_as_those_before() -> None:
    assert with_more('a = [\n\t"x",\n]\n', "a", ["y"]) == 'a = [\n\t"x",\n\t"y",\n]\n'
    assert with_more("a = [\n]\n", "a", ["y"]) == 'a = [\n  "y",\n]\n'


def test_a_file_that_is_no_toml_is_refused() -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        with_more("a = [", "a", ["y"])


@pytest.mark.parametrize("tool", ["order", "é", "'", "a.b"])
def test_a_name_that_is_a_common_word_is_not_looked_for_in_each_text(
    tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = json.dumps([f"an {tool} [{n}] of {tool}" for n in range(200)], ensure_ascii=False)
    text, read = f"other = {other}\n{toml_key(tool)} = [\n  'x',\n]\n", list[str]()
    loads = tomllib.loads
    monkeypatch.setattr(model_wordings.tomllib, "loads", lambda one: read.append(one) or loads(one))
    assert loads(with_more(text, tool, ["y"]))[tool] == ["x", "y"]
    assert len(read) < 6


def test_a_key_that_is_spelled_in_another_way_is_found() -> None:
    text = 'a = ["[x]"]\n"caf\\u00E9" = ["one"]\n'
    assert tomllib.loads(with_more(text, "café", ["two"])) == {"a": ["[x]"], "café": ["one", "two"]}


def test_comments_without_end_take_no_time() -> None:
    text = "# # # # # # # # # # # # # # # # # # # # # # # # # # # # # # # # # # #\n" * 2000
    assert with_more(text, "a", ["x"]).endswith('a = ["x"]\n')
