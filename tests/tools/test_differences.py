"""Differences between states: they make the new state of the old one, and name only what changed."""

from __future__ import annotations

import functools
import json
import textwrap
import time
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundles import call
from genenv.errors import UsageError
from genenv.tools.worlds import jsonable
from genenv.tools.worlds.differences import changed, difference, patched
from genenv.tools.worlds.jsonable import States, result_of, state_of
from genenv.tools.worlds.python import PythonWorld

KEYS = st.sampled_from("abc")
STATES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@given(STATES, STATES)
def test_a_difference_makes_the_new_state_of_the_old_one(old: object, new: object) -> None:
    before = json.dumps(old, sort_keys=True)
    change = difference(old, new)
    assert (change is None) == (not [*changed(old, new)]) == (before == json.dumps(new, sort_keys=True))
    assert json.dumps(patched(old, json.loads(json.dumps(change))), sort_keys=True) == json.dumps(
        new, sort_keys=True
    )
    assert json.dumps(old, sort_keys=True) == before


def test_states_share_what_did_not_change() -> None:
    old: dict[str, Any] = {"orders": {"a": {"n": 1}, "b": {"n": 2}}, "stock": [1, 2]}
    new = {"orders": {"a": {"n": 1}, "b": {"n": 3}}, "stock": [1, 2]}
    change = difference(old, new)
    assert change == {
        "in": {"orders": {"in": {"b": {"in": {"n": {"is": 3}}, "gone": []}}, "gone": []}},
        "gone": [],
    }
    made = patched(old, change)
    assert made["stock"] is old["stock"]
    assert made["orders"]["a"] is old["orders"]["a"]


def test_a_large_state_is_read_and_sent_where_it_changed(tmp_path: Path) -> None:
    text = """
        orders = {f"O-{n}": {"items": [f"item {n}", "x" * 50], "status": "open", "n": n} for n in range(2000)}
        rows = [[n, "x" * 20] for n in range(1000)]

        def cancel(order_id: str) -> str:
            orders[order_id]["status"] = "cancelled"
            rows.append([order_id, "cancelled"])
            return "done"

        def drop(order_id: str) -> str:
            del orders[order_id]
            rows[0][1] = order_id
            return "done"
        """
    (tmp_path / "tools.py").write_text(textwrap.dedent(text))
    with closing(PythonWorld(tmp_path, "tools.py")) as world:
        program = [
            call("cancel", order_id="O-7"),
            call("drop", order_id="O-8"),
            call("cancel", order_id="O-7"),
        ]
        played = world.play(program)
        assert [one.changed for one in played.outcomes] == [True, True, True]
        wanted = json.loads(json.dumps(world.play([]).state))
        wanted["orders"]["O-7"]["status"] = "cancelled"
        del wanted["orders"]["O-8"]
        wanted["rows"] += [["O-7", "cancelled"]] * 2
        wanted["rows"][0][1] = "O-8"
        assert played.state == wanted
        one, first = cast(Any, world.play(program[:1]).state), cast(Any, world.play([]).state)
        assert one["orders"]["O-9"] is first["orders"]["O-9"]
        assert "O-8" in first["orders"]


@pytest.mark.parametrize("padding", ["x", "x" * 8000])
def test_a_state_that_is_too_deep_is_refused_however_large_it_is(tmp_path: Path, padding: str) -> None:
    text = f"""
        rows = [{padding!r}]
        for _ in range(120):
            rows = [rows]

        def count() -> int:
            return len(rows)
        """
    (tmp_path / "tools.py").write_text(textwrap.dedent(text))
    with pytest.raises(
        UsageError, match="the tools' state cannot be read: it holds something that is too deep"
    ):
        PythonWorld(tmp_path, "tools.py")


def test_the_places_that_changed_are_named_with_their_values() -> None:
    old = {"a": 1, "b": {"c": [1, 2, 3]}, "gone": "x", "same": [{"k": 1}]}
    new = {"a": 2, "b": {"c": [1, 9, 2, 3]}, "same": [{"k": 1}], "new": None}
    assert list(changed(old, new)) == [
        ("a", "1", "2"),
        ("b.c[1]", "", "9"),
        ("gone", '"x"', ""),
        ("new", "", "null"),
    ]
    assert list(changed([1, {"k": 1}, 3], [1, {"k": 2}, 3])) == [("[1].k", "1", "2")]
    assert list(changed([1, 2, 3], [1, 3])) == [("[1]", "2", "")]
    assert list(changed([1, 1], [1])) == [("[1]", "1", "")]
    assert list(changed(True, "x", "here")) == [("here", "true", '"x"')]
    assert list(changed([[True]], [[1]])) == [("[0][0]", "true", "1")]
    deep, other = (functools.reduce(lambda inner, _: [inner], range(100), end) for end in ([1], [2]))
    assert [(one, two) for _, one, two in changed(deep, other)] == [("1", "2")]  # and at once
    assert not list(changed({"a": [1]}, {"a": [1]}))


class _Person:
    def __init__(self, name: str) -> None:
        self.name = name
        self.friends: list[_Person] = []


@dataclass
class _Order:
    number: int
    buyer: _Person
    tags: tuple[str, ...] = ()


def test_in_a_large_state_it_counts_which_object_is_referred_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonable, "OWN_MODULES", {*jsonable.OWN_MODULES, __name__})
    buyers = [_Person("Ann"), _Person("Bob")]
    orders = [_Order(number, buyers[number % 2]) for number in range(5_201)]
    before = States().read("orders", orders)
    assert States().read("orders", orders) == before
    orders[-1].buyer = buyers[1]
    after = States().read("orders", orders)
    assert [place for place, *_ in changed(before, after)] == ["[5200].buyer"]
    assert after[-1]["tags"] == []
    plain = States()
    shared = {"a": {"x": 1}}
    assert plain.json([shared] * 6_000)[-1] == shared  # plain data, which `read` is not asked for


@pytest.mark.long
def test_objects_that_all_refer_to_each_other_are_read_in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonable, "OWN_MODULES", {*jsonable.OWN_MODULES, __name__})
    people = [_Person(f"person {number}") for number in range(25)]
    for one in people:
        one.friends = [other for other in people if other is not one]
    begin = time.process_time()
    before = States().read("people", people)
    people[17].name = "somebody else"
    after = States().read("people", people)
    people[17].name = "person 17"
    again = States().read("people", people)
    assert time.process_time() - begin < 5
    assert before == again
    assert before != after


def test_the_last_digits_of_a_sum_are_no_difference_and_whole_numbers_are_exact() -> None:
    one, other = (1000.0 + 47.27) + 10.87, (1000.0 + 10.87) + 47.27
    assert one != other
    assert States().read("balance", one) == States().read("balance", other) == 1058.14
    assert States().read("id", 1234567890123457.0) == 1234567890123457.0
    assert States().read("at", 1767603600.00001) != States().read("at", 1767603600.00003), "times differ"
    assert States().read("rate", 0.1 + 0.2) != States().read("rate", 0.3000001)


def test_decimal_numbers_that_are_equal_are_equal_in_a_state_and_results_have_them_as_they_are() -> None:
    alike = [Decimal("980"), Decimal("980.0"), Decimal("980.00"), Decimal("9.8E+2")]
    assert {state_of(one) for one in alike} == {"980"}
    assert state_of([Decimal("-0.00"), Decimal("0.10"), Decimal("1E-3")]) == ["0", "0.1", "0.001"]
    assert state_of(Decimal("1234567890123456789012345678901.50")) == "1234567890123456789012345678901.5"
    assert state_of({Decimal("1.50"): Decimal("NaN")}) == {"1.5": "NaN"}
    assert result_of(Decimal("980.00")) == "980.00"


def test_labels_of_tables_are_read_and_positions_are_not() -> None:
    pandas = pytest.importorskip("pandas")
    stock = pandas.DataFrame({"qty": [1, 2]}, index=["apple", "pear"])
    assert result_of(stock) == [{"index": "apple", "qty": 1}, {"index": "pear", "qty": 2}]
    assert result_of(stock["qty"]) == {"apple": 1, "pear": 2}
    assert States().read("s", stock.rename(index={"pear": "plum"})) != States().read("s", stock)
    sales = pandas.DataFrame({"city": ["Rome", "Oslo", "Rome"], "amount": [1, 2, 3]})
    assert result_of(sales.groupby("city")["amount"].sum()) == {"Oslo": 2, "Rome": 4}
    assert result_of(sales.loc[0]) == {"city": "Rome", "amount": 1}
    assert result_of(sales["amount"]) == [1, 2, 3]
    assert result_of(sales)[0] == {"city": "Rome", "amount": 1}
    assert result_of(sales.groupby(["city", "amount"]).size())[0] == {"city": "Oslo", "amount": 2, "value": 1}
    assert result_of(pandas.cut(sales["amount"], 2).value_counts()) == {"(0.998, 2.0]": 2, "(2.0, 3.0]": 1}
    sales.loc[len(sales)] = ["Bern", 4]
    assert result_of(sales)[-1] == {"city": "Bern", "amount": 4}


def test_integers_that_are_left_of_positions_are_no_labels_of_rows() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    more = pandas.DataFrame([{"id": 3, "name": "c"}])
    added_last = pandas.concat([table[table.id != 1], more], ignore_index=True)
    both = pandas.concat([table, more], ignore_index=True)
    removed_last = both[both.id != 1]
    assert state_of(added_last) == state_of(removed_last) == [{"id": 2, "name": "b"}, {"id": 3, "name": "c"}]
    assert result_of(removed_last["name"]) == ["b", "c"]
    assert result_of(pandas.Series({101: 5, 102: 7})) == {"101": 5, "102": 7}, "of a column alone they tell"
    assert result_of(table.set_index("id")) == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
