"""Numbers that are drawn for an argument are ones that its schema allows, whatever bounds it has."""

from __future__ import annotations

import random
from typing import Any

import pytest

from genenv.tools.generate.fresh_values import fresh
from genenv.tools.worlds.base import Tool

BOUNDS: list[dict[str, Any]] = [
    {"type": "integer", "multipleOf": 10},
    {"type": "integer", "minimum": 1, "multipleOf": 5},
    {"type": "number", "minimum": 0, "exclusiveMinimum": 5, "maximum": 9},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "minimum": 0.1, "maximum": 0.3},
    {"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 5},
    {"type": "number", "minimum": 0, "multipleOf": 0.25, "maximum": 2},
    {"type": "integer", "maximum": -3},
]


@pytest.mark.parametrize("schema", BOUNDS, ids=str)
def test_a_number_is_within_its_bounds_and_varies(schema: dict[str, Any]) -> None:
    tool = Tool(name="set", parameters={"type": "object", "properties": {"n": schema}, "required": ["n"]})
    rng = random.Random(0)
    drawn = [fresh(tool, "n", rng) for _ in range(40)]
    assert [tool.problem({"n": value}) for value in drawn] == [None] * len(drawn)
    assert len(set(map(str, drawn))) > 1


def test_a_quantity_without_a_type_is_a_number() -> None:
    properties: dict[str, Any] = {"new_quantity": {}, "phone_number": {}, "price": {"type": "string"}}
    tool = Tool(name="update", parameters={"type": "object", "properties": properties})
    rng = random.Random(0)
    assert isinstance(fresh(tool, "new_quantity", rng), int)
    assert isinstance(fresh(tool, "phone_number", rng), str)
    assert isinstance(fresh(tool, "price", rng), str)
