"""Two arguments of one call that are ids of records: of which one holds the id of the other."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import pytest
from pydantic import TypeAdapter

from bundles import made
from genenv.tools.bundle import graph_json
from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.recipes import CallStats, Graph, Held, Link, Recipe, draw_arguments
from genenv.tools.discover.state_values import Records
from genenv.tools.worlds.base import Call, Outcome, Played, Tool, World
from genenv.tools.worlds.in_process import InProcessWorld
from genenv.tools.worlds.openapi.mock_world import MockWorld
from genenv.types import Json, JsonObject


class Shop:
    """No tool checks whose order it is; orders hold the ids of customers, customers those of vouchers."""

    def __init__(self) -> None:
        self.customers = [
            {"customer_id": f"C-{n}", "name": name, "voucher_ids": [f"V-{n}", f"V-{n}x"][: n % 3]}
            for n, name in enumerate(("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn"))
        ]
        self.vouchers = {f"V-{n}{x}": {"left": 5 + n} for n in range(6) for x in ("", "x")}
        self.orders = {f"O-{n}": {"customer_id": f"C-{n % 6}", "status": "open"} for n in range(18)}

    def find_customer(self, name: str) -> object:
        """Find a customer by name."""
        return next(one for one in self.customers if one["name"] == name)

    def place_order(self, customer_id: str) -> object:
        """Place an order for a customer."""
        order_id = f"O-{len(self.orders)}"
        self.orders[order_id] = {"customer_id": self._known(customer_id), "status": "open"}
        return {"order_id": order_id}

    def cancel_order(self, customer_id: str, order_id: str) -> object:
        """Cancel an order of a customer."""
        self._known(customer_id)
        self.orders[order_id]["status"] = "cancelled"
        return "cancelled"

    def give_order(self, order_id: str, customer_id: str) -> object:
        """Give an order to another customer."""
        self.orders[order_id]["customer_id"] = self._known(customer_id)
        return "given"

    def use_voucher(self, customer_id: str, voucher_id: str) -> object:
        """Use a voucher of a customer."""
        self._known(customer_id)
        self.vouchers[voucher_id]["left"] -= 1
        return self.vouchers[voucher_id]["left"]

    def _known(self, customer_id: str) -> str:
        return next(
            cast(str, one["customer_id"]) for one in self.customers if one["customer_id"] == customer_id
        )


def explored(world: World) -> tuple[Explorer, Graph]:
    explorer = Explorer(world, random.Random(0))
    return explorer, explorer.explore()


@cache
def of_shop() -> tuple[Explorer, Graph]:
    return explored(InProcessWorld(f"{__name__}:Shop"))


def test_ids_of_related_records_are_drawn_together() -> None:
    explorer, graph = of_shop()
    assert graph.recipes["cancel_order"].related == (("customer_id", "order_id"),)
    assert graph.recipes["use_voucher"].related == (("customer_id", "voucher_id"),)
    shop = Shop()
    vouchers = {one["customer_id"]: one["voucher_ids"] for one in shop.customers}
    for seed in range(30):
        rng = random.Random(seed)
        cancel = explorer.attempt(graph.recipes["cancel_order"], (), rng)
        assert cancel is not None
        assert shop.orders[cast(str, cancel.args["order_id"])]["customer_id"] == cancel.args["customer_id"]
        use = explorer.attempt(graph.recipes["use_voucher"], (), rng)
        assert use is not None
        assert use.args["voucher_id"] in cast("list[Json]", vouchers[cast(str, use.args["customer_id"])])


def test_a_tool_that_relates_records_takes_others_too() -> None:
    _, graph = of_shop()
    assert graph.recipes["give_order"].related == ()


def test_what_an_earlier_call_finds_is_related_to_what_is_stated() -> None:
    explorer, _ = of_shop()
    orders = Shop().orders
    found = Link(reader="find_customer", user="cancel_order", parameter="customer_id", kind="customer_id")
    for seed in range(20):
        linked = explorer.linked(found, (), random.Random(seed))
        assert linked is not None
        args = linked[2].args
        assert orders[cast(str, args["order_id"])]["customer_id"] == args["customer_id"]


def test_what_an_earlier_call_makes_is_related_to_what_is_stated() -> None:
    explorer, _ = of_shop()
    placed = Link(reader="place_order", user="cancel_order", parameter="order_id", kind="order_id")
    for seed in range(20):
        linked = explorer.linked(placed, (), random.Random(seed))
        assert linked is not None
        assert linked[0].args["customer_id"] == linked[2].args["customer_id"]


def test_graphs_of_before_name_no_relations() -> None:
    _, graph = of_shop()
    told = json.loads(graph_json(graph))
    for recipe in told["recipes"].values():
        del recipe["related"]
    read = TypeAdapter(Graph).validate_json(json.dumps(told))
    assert all(one.related == () for one in read.recipes.values())


def of(properties: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "required": [*properties], "properties": properties}
    return {"content": {"application/json": {"schema": schema}}}


def usual(word: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """The operations on records that tell all fields and take all but the id."""
    whole = of({"id": {"type": "integer"}, **properties})
    listed = {"type": "array", "items": whole["content"]["application/json"]["schema"]}
    return {
        f"/{word}": {
            "get": {"responses": {"200": {"content": {"application/json": {"schema": listed}}}}},
            "post": {"requestBody": of(properties), "responses": {"201": whole}},
        },
        f"/{word}/{{id}}": {"get": {"responses": {"200": whole}}, "put": {"requestBody": of(properties)}},
    }


@pytest.mark.long
def test_records_of_mock_tables_belong_to_the_same_parent() -> None:
    """A card is on a list of its board; the ids of all tables are equal numbers."""
    number, text = {"type": "integer"}, {"type": "string"}
    paths = {
        **usual("boards", {"name": text}),
        **usual("lists", {"name": text, "board_id": number}),
        **usual("cards", {"title": text, "board_id": number, "list_id": number}),
    }
    world = MockWorld(json.dumps({"openapi": "3.0.3", "paths": paths}), "it.json")
    explorer, graph = explored(world)
    recipe = graph.recipes["post_cards"]
    assert recipe.related == (("board_id", "list_id"),)
    lists = cast("dict[str, dict[str, Json]]", cast("dict[str, Json]", world.play([]).state)["lists"])
    for seed in range(20):
        drawn = explorer.attempt(recipe, (), random.Random(seed))
        assert drawn is not None
        assert lists[str(drawn.args["list_id"])]["board_id"] == drawn.args["board_id"]


@pytest.mark.long
def test_tasks_name_related_records(tmp_path: Path) -> None:
    source = tmp_path / "source" / "desk.py"
    source.parent.mkdir()
    source.write_text(DESK, encoding="utf-8")
    bundle = made(tmp_path / "desk", source, base=8, held_out=2).bundle
    owners = {f"T-{n}": f"A-{n % 4}" for n in range(12)}
    calls = [
        step.args
        for program in (*bundle.base.values(), *bundle.held_out.values())
        for step in program.calls
        if step.tool == "close_ticket" and not step.uses
    ]
    assert calls
    assert all(owners[cast(str, args["ticket_id"])] == args["agent_id"] for args in calls)


DESK = '''
AGENTS = {f"A-{n}": {"name": f"Agent {n}"} for n in range(4)}
TICKETS = [{"ticket_id": f"T-{n}", "agent_id": f"A-{n % 4}", "open": True} for n in range(12)]


def close_ticket(agent_id: str, ticket_id: str) -> str:
    """Close a ticket of an agent."""
    AGENTS[agent_id]
    next(one for one in TICKETS if one["ticket_id"] == ticket_id)["open"] = False
    return "closed"


def agent(agent_id: str) -> dict:
    """Look up an agent."""
    return AGENTS[agent_id]
'''


class Mail:
    """A list of ids that its description alone calls so."""

    tools: ClassVar[dict[str, Tool]] = {
        "invite": Tool(
            name="invite",
            description="Invite somebody to groups.",
            parameters={
                "type": "object",
                "properties": {
                    "groups": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "Array of group IDs.",
                    }
                },
                "required": ["groups"],
            },
        )
    }

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        del watch
        state: Json = {
            "groups": {"G-1": {"size": 1}, "G-2": {"size": 2}},
            "sent": [one.json for one in calls],
        }
        return Played(outcomes=tuple(Outcome(result="sent", changed=True) for _ in calls), state=state)


def test_ids_that_a_description_calls_so_are_those_of_records() -> None:
    probe = Explorer(cast(World, Mail()), random.Random(0))
    assert probe.explore().recipes["invite"].ways == {"groups": "groups.#"}


def test_a_record_that_holds_two_ids_of_others_does_not_relate_them() -> None:
    state: Json = {
        "users": {"ada": {"age": 3}, "ben": {"age": 4}},
        "rooms": {"1": {"size": 2}, "2": {"size": 2}},
        "visits": [{"user_id": "ada", "room_id": 1}, {"user_id": "ben", "room_id": 2}],
    }
    values: dict[str, list[Json]] = {"users.#": ["ada", "ben"], "rooms.#": ["1", "2"]}
    assert Records(state).related(("user_id", "users.#"), ("room_id", "rooms.#"), values) == []


def test_numbers_are_ids_of_the_records_that_their_names_say() -> None:
    state: Json = {
        "users": {"1": {"level": 2, "team_id": 7}, "2": {"level": 1, "team_id": 8}},
        "teams": {"7": {"size": 1}, "8": {"size": 2}},
    }
    values: dict[str, list[Json]] = {"users.#": ["1", "2"], "teams.#": ["7", "8"]}
    found = Records(state).related(("user", "users.#"), ("team", "teams.#"), values)
    assert found == [("1", 7), ("2", 8)]
    assert Records(state).related(("user", "users.#"), ("other", "users.#"), values) == []


def test_two_arguments_from_one_table_differ() -> None:
    parameters: JsonObject = {"properties": {"task": {"type": "string"}, "parent": {"type": "string"}}}
    tool = Tool(
        name="set_parent", parameters={**parameters, "type": "object", "required": ["task", "parent"]}
    )
    recipe = Recipe(tool="set_parent", writes=True, ways={"task": "tasks.#", "parent": "tasks.#"}, success=1)
    for seed in range(30):
        args = draw_arguments(tool, recipe, Held({"tasks.#": ["T-1", "T-2"]}), random.Random(seed))
        assert args is not None
        assert args["task"] != args["parent"]


class Kennel:
    """Dogs of which few have meals: the meals refer to dogs, and tools take any."""

    def __init__(self) -> None:
        self.dogs = [{"code": f"D{n}", "age": 3, "coat": "long"} for n in range(1, 8)]
        self.meals = [{"dog": f"D{n}", "grams": 200} for n in (1, 1, 2)]
        self.walks = [{"dog": f"D{n}", "metres": 900} for n in (1, 2, 3, 4, 5, 6)]

    def birthday(self, dog: str, age: int) -> dict[str, object]:
        """Set the age of a dog."""
        found = next(one for one in self.dogs if one["code"] == dog)
        if found["age"] == age or age > 12:
            raise ValueError("it is not")
        found["age"] = age
        return found

    def trim(self, dog: str, coat: Literal["long", "short"]) -> str:
        """Trim a dog."""
        found = next(one for one in self.dogs if one["code"] == dog)
        if found["coat"] == coat:
            raise ValueError("it is")
        found["coat"] = coat
        return "trimmed"

    def eat(self, dog: str) -> dict[str, object]:
        """Clear the meal of a dog."""
        found = next(one for one in self.meals if one["dog"] == dog)
        self.meals.remove(found)
        return found


@pytest.mark.parametrize("seed", range(5))
def test_keys_of_records_come_before_fields_that_refer_to_them(seed: int) -> None:
    recipes = Explorer(InProcessWorld(f"{__name__}:Kennel"), random.Random(seed)).explore().recipes
    assert recipes["birthday"].ways["dog"] == "dogs.*.code"
    assert recipes["trim"].ways["dog"] == "dogs.*.code"
    assert recipes["eat"].ways["dog"] == "meals.*.dog"


def test_a_record_that_other_tools_refuse_is_still_drawn_where_it_succeeds() -> None:
    stats = CallStats()
    ways = {"dog": "dogs.#"}
    for _ in range(4):
        stats.note(Call(tool="trim", args={"dog": "D1"}), ways, good=False)
        stats.note(Call(tool="trim", args={"dog": "D2"}), ways, good=True)
        stats.note(Call(tool="show", args={"dog": "D2"}), ways, good=True)
    assert stats.fails("trim", ways) == {"dog": ("D1",)}
    assert stats.fails("show", ways) == {}


class Garage:
    """Cars, of which three are out for hire: some tools take any car, and one takes only those."""

    def __init__(self) -> None:
        self.hires = [{"id": 70 + car, "car_id": car} for car in (1, 2, 5)]
        self.guards = [{"name": "Ada", "places": [101, 102]}, {"name": "Ben", "places": [105]}]
        self.cars = [{"id": car, "place": 100 + car, "rate": 40, "wash": ""} for car in range(1, 9)]

    def set_rate(self, car_id: int, rate: int) -> dict[str, object]:
        """Set the rate of a car."""
        car = next(one for one in self.cars if one["id"] == car_id)
        car["rate"] = rate
        return car

    def bring_back(self, car_id: int) -> dict[str, object]:
        """Bring a car back."""
        hire = next(one for one in self.hires if one["car_id"] == car_id)
        self.hires.remove(hire)
        return hire

    def order_wash(self, place: int, wash: Literal["", "foam", "wax", "steam"]) -> dict[str, object]:
        """Order a wash for the car at a place."""
        car = next(one for one in self.cars if one["place"] == place)
        if car["wash"] == wash:
            raise ValueError("that is ordered already")
        car["wash"] = wash
        return car


@pytest.mark.parametrize("seed", range(3))
def test_ids_come_from_the_table_unless_calls_need_those_of_a_foreign_key(seed: int) -> None:
    recipes = Explorer(InProcessWorld(f"{__name__}:Garage"), random.Random(seed)).explore().recipes
    assert recipes["set_rate"].ways["car_id"] == "cars.*.id"
    assert recipes["bring_back"].ways["car_id"] == "hires.*.car_id"
    assert recipes["order_wash"].ways["place"] == "cars.*.place"
