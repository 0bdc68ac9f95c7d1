"""Values of arguments that no name suggests: they are found by trying, and evidence decides."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from bundles import made
from genenv.tools.bundle import comparable
from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.nondeterminism import traces
from genenv.tools.discover.probing import Probe
from genenv.tools.discover.recipes import (
    FRESH,
    CallStats,
    Graph,
    Held,
    Patience,
    Recipe,
    draw_arguments,
    found_by,
    is_refused,
    succeeded,
)
from genenv.tools.discover.slots import arguments, taken
from genenv.tools.discover.state_values import indices, parts_of, records, untold
from genenv.tools.environment import Tools
from genenv.tools.generate.fresh_values import fresh
from genenv.tools.worlds.base import Call, Outcome, Played, Tool
from genenv.tools.worlds.in_process import InProcessWorld
from genenv.types import Json

TEXT: Json = {"type": "string"}


class Counted(InProcessWorld):
    """Counts the programs that it plays."""

    played = 0

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        self.played += 1
        return super().play(calls, watch=watch)


def explored(made_of: type, seed: int = 0) -> Graph:
    return Explorer(InProcessWorld(f"{__name__}:{made_of.__name__}"), random.Random(seed)).explore()


class Cellar:
    """A table whose name is in no parameter, and one whose keys are integers."""

    def __init__(self) -> None:
        self.bottles = {
            "RJ-4": {"from": "Rioja", "left": 40},
            "BX-9": {"from": "Bordeaux", "left": 25},
            "MO-2": {"from": "Mosel", "left": 31},
        }
        self.racks = {11: {"full": False}, 14: {"full": True}, 27: {"full": True}}

    def look(self, code_on_label: str) -> dict[str, object]:
        """Look at a bottle."""
        return {"label": code_on_label, **self.bottles[code_on_label]}

    def pour(self, code_on_label: str, glasses: int) -> int:
        """Pour glasses of a bottle."""
        if self.bottles[code_on_label]["left"] < glasses:  # type: ignore[operator]
            raise ValueError("it is empty")
        self.bottles[code_on_label]["left"] -= glasses  # type: ignore[operator]
        return glasses

    def rack(self, place: int) -> dict[str, object]:
        """Show a rack."""
        racks = {int(key): one for key, one in self.racks.items()}
        return {"place": place, "is_full": racks[place]["full"]}


def test_keys_of_tables_are_tried_where_no_name_suggests_them() -> None:
    recipes = explored(Cellar).recipes
    assert dict(recipes["look"].ways) == {"code_on_label": "bottles.#"}
    assert recipes["pour"].ways["code_on_label"] == "bottles.#"
    assert recipes["pour"].writes
    assert dict(recipes["rack"].ways) == {"place": "racks.#"}  # integers, though keys in JSON are texts


class Board:
    """Lists in a list: what names a place is an index."""

    def __init__(self) -> None:
        self.cells = [["" for _ in range(7)] for _ in range(5)]

    def put(self, line: int, column: int, stone: str) -> list[object]:
        """Put a stone on the board."""
        if self.cells[line][column]:
            raise ValueError("there is one already")
        self.cells[line][column] = stone
        return [line, column, stone]

    def lift(self, line: int, column: int) -> str:
        """Take the stone at a place off the board."""
        stone, self.cells[line][column] = self.cells[line][column], ""
        return stone


def test_indices_of_lists_are_tried() -> None:
    recipes = explored(Board).recipes
    assert recipes["put"].success > 0.5
    assert {recipes["put"].ways[name] for name in ("line", "column")} & {"cells.[]", "cells.*.[]"}


def test_what_earlier_calls_were_given_is_tried_where_the_state_does_not_show_it() -> None:
    """A board is empty at first, so that to lift a stone changes nothing until one is put there."""
    lift = explored(Board).recipes["lift"]
    assert lift.writes
    assert set(lift.ways.values()) <= {"put(line)", "put(column)", "cells.[]", "cells.*.[]", "new"}


class Band:
    """Two values must both be right, and no answer says which of them is not."""

    def __init__(self) -> None:
        self.tunes = {"a1": "Naima", "b2": "Nardis", "c3": "Solar", "d4": "Stella"}
        self.sets = {"early": ["a1"], "late": ["b2", "c3"]}

    def play_in(self, evening: str, pieces: list[str]) -> dict[str, object]:
        """Put pieces on the list of an evening."""
        if evening not in self.sets or not set(pieces) <= set(self.tunes):
            return {"ok": False}
        self.sets[evening] += pieces
        return {"ok": True, "length": len(self.sets[evening])}

    def find(self, words: str) -> list[str]:
        """Find tunes by a part of their name."""
        return [name for name in self.tunes.values() if words in name]


def test_pairs_of_values_are_tried_where_no_single_one_helps() -> None:
    recipe = explored(Band).recipes["play_in"]
    assert recipe.writes
    assert dict(recipe.ways) == {"evening": "sets.{}", "pieces": "tunes.{}"}


def test_an_empty_answer_is_no_success() -> None:
    recipe = explored(Band).recipes["find"]
    assert recipe.ways["words"].startswith("tunes.")  # a new text finds []


class Polite:
    """Answers that say nothing: an error as a value, and the same whatever is asked."""

    def __init__(self) -> None:
        self.members = {"m-7": {"name": "Ada"}, "m-9": {"name": "Ben"}}

    def member(self, card: str) -> dict[str, object]:
        """Show a member."""
        found = self.members.get(card)
        return dict(found) if found else {"error": f"there is no {card}"}

    def is_open(self, door: str) -> bool:
        """Say whether a door is open."""
        return door != ""

    def fail(self, door: str) -> NoReturn:
        """Fail."""
        raise ValueError(door)

    def guest(self, nickname: str) -> str:
        """Show a guest."""
        return f"No guest is called {nickname!r}."


def test_an_answer_that_says_nothing_is_no_evidence() -> None:
    graph = explored(Polite)
    assert dict(graph.recipes["member"].ways) == {"card": "members.#"}
    assert set(graph.failures) == {"is_open", "fail", "guest"}
    assert graph.failures["guest"].startswith('whatever it is given, it answers "No guest is called')
    assert graph.failures["is_open"] == "whatever it is given, it answers true"


@pytest.mark.parametrize("made_of", [Cellar, Board, Band, Polite])
def test_the_same_is_found_with_the_same_seed(made_of: type) -> None:
    assert explored(made_of, 3) == explored(made_of, 3)


def test_a_budget_of_calls_bounds_what_is_tried() -> None:
    class Alone(Counted):
        pass

    def spent(calls: int) -> int:
        world = Alone(f"{__name__}:Polite")
        state = world.play([]).state
        held = Held({"members.#": ["m-7", "m-9"], **{f"x{n}.#": [f"{n}a", f"{n}b"] for n in range(30)}})
        probe = Probe(world, world.tools["fail"], (), held, random.Random(0), CallStats())
        patience = Patience(calls, 60)
        probe.try_all(patience)
        assert state
        return calls - patience.calls

    assert 0 < spent(40) <= 40
    assert spent(40) < spent(160) <= 160


def test_a_budget_of_seconds_bounds_what_is_tried() -> None:
    times = iter(range(1000))
    world = Counted(f"{__name__}:Polite")
    held = Held({f"x{n}.#": [f"{n}a", f"{n}b"] for n in range(40)})
    probe = Probe(world, world.tools["fail"], (), held, random.Random(0), CallStats())
    probe.try_all(Patience(10_000, 5, clock=lambda: next(times)))
    assert world.played < 40


def test_kinds_that_can_stand_in_brackets() -> None:
    state: Json = {
        "stock": {"mug": 3, "jug": 2},
        "rows": [[1, 2, 3], [4]],
        "seats": {"shape": [40, 2], "dtype": "int64", "sha256": "0"},
        "orders": {"O-1": {"item": "mug"}, "O-2": {"item": "jug"}},
    }
    assert indices(state) == {
        "{}": ["stock", "rows", "seats", "orders"],
        "stock.{}": ["mug", "jug"],
        "rows.[]": [0, 1],
        "rows.*.[]": [0, 1, 2],
        "seats.[]": list(range(40)),
        "seats.*.[]": [0, 1],
        "orders.*.{}": ["item"],
    }


def test_kinds_are_tried_in_an_order() -> None:
    kinds = {"a.[]": [0], "a.*.size": [3], "a.*.code": ["x"], "b.#": ["y"], "c.*.name": ["y"], "d.{}": ["z"]}
    assert untold(kinds) == ["a.*.code", "b.#", "d.{}", "a.*.size", "a.[]"]


def test_a_record_knows_the_keys_of_the_records_that_it_is_in() -> None:
    state: Json = {"sites": {"S-1": {"apps": {"web": {"size": 1}, "job": {"size": 2}}, "age": 3}}}
    assert records(state)["sites.*.apps.*"] == [
        {"sites.#": ["S-1"], "sites.*.apps.#": [name], "sites.*.apps.*.size": [size]}
        for name, size in (("web", 1), ("job", 2))
    ]


class Sites:
    """A key in a table in a table: most pairs of keys do not belong together."""

    def __init__(self) -> None:
        self.sites = {
            f"S-{n}": {"apps": {f"app-{n}{m}": {"size": m} for m in "xyz"}, "size": 3} for n in range(8)
        }

    def stop(self, where: str, what: str) -> object:
        """Stop an app of a site."""
        return self.sites[where]["apps"].pop(what)  # type: ignore[attr-defined]


def test_keys_that_belong_together_are_drawn_together() -> None:
    recipe = explored(Sites).recipes["stop"]
    assert dict(recipe.ways) == {"where": "sites.#", "what": "sites.*.apps.#"}
    assert recipe.together


class Calls:
    """Two tools that keep nothing and repeat what they are given."""

    def send_link(self, phone_number: str) -> object:
        """Send a link to a phone."""
        return {"status": "success", "message": f"Link sent to {phone_number}"}

    def approve_discount(self, value: float) -> object:
        """Approve a discount."""
        return {"status": "ok" if value < 50 else "rejected", "message": f"{value}"}


def test_the_names_of_an_answers_fields_are_no_values_of_arguments() -> None:
    recipes = explored(Calls).recipes
    assert {name: dict(recipe.ways) for name, recipe in recipes.items()} == {
        "send_link": {"phone_number": "new"},
        "approve_discount": {"value": "new"},
    }


class Shelf:
    """Texts are compared, so that a search in a range answers to texts that are no dates, too."""

    def __init__(self) -> None:
        self.products = [{"id": str(n), "added": f"2024-0{n}-01"} for n in range(1, 9)]

    def added_between(self, start_date: str, end_date: str) -> object:
        """List the products that were added between two dates."""
        return [one for one in self.products if start_date <= one["added"] <= end_date]


def test_a_date_is_no_other_text_that_a_tool_takes() -> None:
    ways = explored(Shelf).recipes["added_between"].ways
    assert set(ways.values()) <= {"products.*.added", "new"}


def test_words_of_names_in_any_alphabet() -> None:
    assert parts_of("größeDerWare") == ["größe", "der", "ware"]
    assert parts_of("ÄndereWare2") == ["ändere", "ware", "2"]
    assert parts_of("订单_编号") == ["订单", "编号"]
    assert parts_of("getHTTPCode") == ["get", "http", "code"]


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"type": "integer"}, [7, 12]),
        ({"type": "array", "items": {"type": "integer"}}, [7, 12]),
        ({"type": ["integer", "null"]}, [7, 12]),
        ({"type": "string"}, ["7", "12"]),
        ({}, ["7", 12]),
    ],
)
def test_values_have_the_type_of_the_parameter(schema: Json, values: list[Json]) -> None:
    tool = Tool(name="f", parameters={"type": "object", "properties": {"n": schema}})
    assert taken(tool, "n", ["7", 12]) == values


def test_known_values_are_given_as_a_parameter_takes_them() -> None:
    number: Json = {"type": "integer"}
    schemas: dict[str, Json] = {
        "one": number,
        "some": {"type": "array", "items": number},
        "two": {"type": "array", "items": number, "minItems": 2},
        "maybe": {"anyOf": [{"type": "array", "items": number}, {"type": "null"}]},
        "few": {"type": "integer", "maximum": 2},
    }
    tool = Tool(name="t", parameters={"type": "object", "properties": schemas})
    found = {name: arguments(tool, name, ["1", "2", "3"]) for name in schemas}
    lists = [[1], [2], [3]]
    assert found == {"one": [1, 2, 3], "some": lists, "two": [[1, 2], [2, 3]], "maybe": lists, "few": [1, 2]}


def test_a_list_takes_several_values() -> None:
    schema: Json = {"type": "array", "items": TEXT}
    tool = Tool(name="f", parameters={"type": "object", "properties": {"n": schema}, "required": ["n"]})
    recipe = Recipe(tool="f", writes=True, ways={"n": "a.#"}, success=1.0)
    rng, held = random.Random(0), Held({"a.#": ["x", "y", "z", "w"]})
    drawn = [draw_arguments(tool, recipe, held, rng) for _ in range(60)]
    lists = [args["n"] for args in drawn if args]
    assert {len(one) for one in lists if isinstance(one, list)} == {1, 2, 3}
    assert all(len(set(map(str, one))) == len(one) for one in lists if isinstance(one, list))


def test_a_source_says_how_it_was_found() -> None:
    def of(schema: Json, way: str) -> str:
        parameters: dict[str, Json] = {"type": "object", "properties": {"order_id": schema}}
        return found_by(Tool(name="get", parameters=parameters), "order_id", way)

    assert of(TEXT, "orders.#") == "by name"
    assert of(TEXT, "shelves.#") == "by trying"
    assert of(TEXT, "new") == "made up"
    assert of(TEXT, "said.order") == "what users say"
    assert of({"type": "string", "enum": ["a"]}, "new") == "its list of values"
    assert of({"type": "string", "examples": ["a"]}, "new") == "its examples"
    assert of({"type": "string", "description": "'a' or 'b'"}, "new") == "its description"
    assert of({"type": "integer", "description": "from 500 to 1500."}, "new") == "its description"


def test_bounds_of_a_number_are_read_from_its_description() -> None:
    def drawn(description: str) -> list[int]:
        schema: Json = {"type": "integer", "description": description}
        tool = Tool(name="f", parameters={"type": "object", "properties": {"n": schema}})
        rng = random.Random(0)
        return [int(str(fresh(tool, "n", rng))) for _ in range(50)]

    assert min(drawn("its number, from 500 to 1500.")) >= 500
    assert max(drawn("between -5 and 5")) <= 5
    assert max(drawn("0..9")) <= 9
    assert max(drawn("of the year 2024-01")) <= 100  # no bounds: they would be in the wrong order


NOTES = '''
from typing import Optional, TypedDict


class Where(TypedDict, total=False):
    topic: str
    color: str


_notes = {
    301: {"topic": "garden", "color": "green", "text": "Prune the roses."},
    302: {"topic": "kitchen", "color": "red", "text": "Order a kettle."},
    303: {"topic": "garden", "color": "red", "text": "Fix the fence."},
}


def read(number: int) -> dict:
    """Read a note, e.g. 301."""
    return {"number": number, **_notes[number]}


def tear(numbers: list[int]) -> int:
    """Tear up some notes."""
    for one in numbers:
        del _notes[one]
    return len(_notes)


def count(where: Optional[Where] = None) -> int:
    """Count the notes, all or some."""
    wanted = (where or {}).items()
    return sum(all(one[key] == value for key, value in wanted) for one in _notes.values())
'''


@pytest.mark.long
def test_a_file_whose_names_say_nothing_becomes_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text(NOTES)
    found = made(tmp_path / "notes", tmp_path / "notes.py", base=20, held_out=6)
    recipes = found.graph.recipes
    assert dict(recipes["read"].ways) == {"number": "_notes.#"}
    assert dict(recipes["tear"].ways) == {"numbers": "_notes.#"}
    assert recipes["count"].ways["where.topic"] == "_notes.*.topic"
    told = (tmp_path / "notes" / "README.md").read_text()
    assert "| read | reads | number: _notes.# (by trying) | 100% |" in told
    assert "By trying: " in told
    env = Tools(folder=tmp_path / "notes")
    for task in (*env.held_out(),):
        assert env.check(task, task.oracle).success
    env.world.close()


@pytest.mark.parametrize(
    ("result", "good"),
    [
        ({"deleted": False, "task_id": "x"}, False),
        ({"task_id": "x", "slots": []}, False),
        ({"task_id": "x", "slots": ["9:00"]}, True),
        ({"task_id": "x", "done": False, "title": "call"}, True),
        ({"task_id": "x"}, True),
        ({"deleted": False}, True),
        ({"deleted": True, "task_id": "x"}, True),
    ],
)
def test_an_answer_that_repeats_arguments_and_says_no_is_no_success(result: Json, good: bool) -> None:
    assert succeeded(Outcome(result=result), writes=False, args={"task_id": "x"}) is good


def test_tools_for_which_no_time_is_left_are_named() -> None:
    explorer = Explorer(InProcessWorld(f"{__name__}:Cellar"), random.Random(0))
    explorer.seconds_left = lambda: 0.0
    graph = explorer.explore()
    assert not graph.recipes
    assert set(graph.failures.values()) == {"there was no time to try it"}


def test_what_another_graph_has_is_tried_again_and_not_searched_again() -> None:
    new, again = (Counted(f"{__name__}:Cellar") for _ in range(2))
    graph = Explorer(new, random.Random(0)).explore()
    other = Explorer(again, random.Random(0)).explore(other=graph)
    ways = [{name: one.ways for name, one in found.recipes.items()} for found in (graph, other)]
    assert ways[0] == ways[1]
    assert again.played < new.played / 2


class Pantry:
    """A shelf with a place in the room, beside its jars."""

    def __init__(self) -> None:
        self.place = "/room/shelf"
        self.jars: dict[str, dict[str, int]] = {"plums": {"grams": 300}}

    def fill(self, name: str, grams: int) -> None:
        """Fill a new jar."""
        if name in self.jars:
            raise ValueError("there is one")
        self.jars[name] = {"grams": grams}


def test_made_up_values_are_tried_where_another_graph_has_what_no_name_suggests() -> None:
    strange = Recipe(tool="fill", writes=True, ways={"name": "place", "grams": FRESH}, success=1.0)
    explorer = Explorer(InProcessWorld(f"{__name__}:Pantry"), random.Random(0))
    graph = explorer.explore(other=Graph({"fill": strange}))  # found when there was no shelf yet
    assert graph.recipes["fill"].ways == {"name": FRESH, "grams": FRESH}


def test_what_another_graph_has_is_kept_if_there_is_no_time_to_try_it_again() -> None:
    new, again = (Counted(f"{__name__}:Cellar") for _ in range(2))
    graph = Explorer(new, random.Random(0)).explore()
    explorer = Explorer(again, random.Random(0))
    explorer.seconds_left = lambda: 0.0
    other = explorer.explore(other=graph)
    assert (other.recipes, other.links) == (graph.recipes, graph.links)
    assert again.played < 3


@pytest.mark.parametrize(
    ("result", "refused"),
    [
        ({"error": "unknown cart"}, True),
        ({"error": None, "lines": [1]}, False),
        ({"error": False, "lines": [1]}, False),
        ({"error": [], "lines": [1]}, False),
        ({"ok": False}, True),
        ({"success": False, "message": "out of stock"}, True),
        ({"status": "failed"}, True),
        ({"status": "paid"}, False),
        ("Error: unknown cart", True),
        ("errors: none", False),
        ([{"error": "unknown cart"}], True),
        ({"id": "J-1", "status": "failed", "owner": "Ada"}, False),
        ({"id": "J-1", "error": "disk full"}, False),
        ("Error rate of the API: 0.2%", False),
    ],
)
def test_a_call_that_says_that_it_failed_is_no_success_though_it_leaves_a_trace(
    result: Json, refused: bool
) -> None:
    outcome = Outcome(result=result, changed=True)
    assert is_refused(outcome) is refused
    assert succeeded(outcome, writes=True) is not refused


def test_a_state_that_a_call_sets_is_no_refusal() -> None:
    outcome = Outcome(result={"id": "J-1", "status": "failed", "ok": False}, changed=True)
    args: dict[str, Json] = {"job_id": "J-1", "status": "failed"}
    assert succeeded(outcome, writes=True, args=args | {"ok": False})
    assert not succeeded(outcome, writes=True, args=args)


class Shop:
    """Every call is logged, also one that is refused."""

    def __init__(self) -> None:
        self.products = {"P-1": "kettle", "P-2": "lamp"}
        self.carts = {"c-1": {"P-1": 1}, "c-2": {"P-2": 3}}
        self.log: list[list[str]] = []
        self.looks = 0

    def view_cart(self, cart: str) -> dict[str, object]:
        """View a cart."""
        self.log.append(["view", cart])
        return {"cart": cart, "lines": self.carts[cart]} if cart in self.carts else {"error": "unknown cart"}

    def add_to_cart(self, cart: str, product: str) -> dict[str, object]:
        """Add a product to a cart."""
        self.log.append(["add", cart])
        if cart not in self.carts or product not in self.products:
            return {"success": False}
        self.carts[cart][product] = self.carts[cart].get(product, 0) + 1
        return {"success": True, "quantity": self.carts[cart][product]}

    def count_products(self) -> int:
        """Count the products."""
        self.looks += 1
        return len(self.products)


def test_calls_that_are_refused_teach_nothing_though_they_are_logged() -> None:
    explorer = Explorer(InProcessWorld(f"{__name__}:Shop"), random.Random(0))
    recipes = explorer.explore().recipes
    for tool in ("view_cart", "add_to_cart"):
        calls = [explorer.attempt(recipes[tool], (), random.Random(seed)) for seed in range(12)]
        assert {str(one.args["cart"]) for one in calls if one is not None} == {"c-1", "c-2"}


def test_what_lookups_change_is_named_and_they_only_read_once_it_does_not_count() -> None:
    explorer = Explorer(InProcessWorld(f"{__name__}:Shop"), random.Random(0))
    graph = explorer.explore()
    assert all(one.writes for one in graph.recipes.values())
    assert traces(explorer, graph, random.Random(0)) == {"view_cart": ("log",), "count_products": ("looks",)}

    def without(*volatile: str) -> dict[str, bool]:
        found = explorer.without_traces(graph, lambda state: comparable(state, frozenset(volatile)))
        return {name: one.writes for name, one in found.recipes.items()}

    assert without() == {"view_cart": True, "add_to_cart": True, "count_products": True}
    assert without("log") == {"view_cart": False, "add_to_cart": True, "count_products": True}
    assert without("log", "looks") == {"view_cart": False, "add_to_cart": True, "count_products": False}


@pytest.mark.parametrize(
    ("result", "args", "found"),
    [
        ({"total": 4, "page": 8, "rooms": []}, {"page": 8, "max_price": 3}, False),
        ({"count": 0, "items": [], "has_more": False}, {"keyword": "x"}, False),
        ({"total": 1, "page": 8, "rooms": ["101"]}, {"page": 8}, True),
        ({"total": 0, "page": 1, "items": []}, {"carrier_id": "C-1"}, False),
        ({"total": 0, "items": []}, {}, False),
        ({"order_id": "O-1", "total": 30, "notes": []}, {"order_id": "O-1"}, True),
        ({"title": "lunch", "attendees": []}, {"day": "2026-03-01"}, True),
        ({"balance": 120.5, "holds": []}, {"account": "A"}, True),
    ],
)
def test_an_empty_page_finds_nothing_and_a_record_with_an_empty_list_something(
    result: Json, args: dict[str, Json], found: bool
) -> None:
    assert succeeded(Outcome(result=result), writes=False, args=args) is found


def test_of_no_items_a_sum_says_nothing_and_a_balance_does() -> None:
    args: dict[str, Json] = {"patron_id": 7}
    for name, found in (("seats_total", False), ("balance", True)):
        result: Json = {"patron_id": 7, "orders": [], name: 0}
        assert succeeded(Outcome(result=result), writes=False, args=args) is found
