from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from genenv.errors import UsageError
from genenv.simulator.schema_sampling import sample_json

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"anyOf": [{"const": "a"}, {"$ref": "#/$defs/b"}]},
        "size": {"enum": [1, 2, 3]},
        "count": {"type": "integer", "minimum": 3, "maximum": 5},
        "price": {"type": "number", "minimum": 0.5, "maximum": 0.75},
        "words": {"type": "array", "items": {"type": "string", "pattern": "^(ab|c)d?$"}, "minItems": 1},
        "pair": {"type": "array", "prefixItems": [{"const": 1}, {"type": "boolean"}], "items": False},
        "note": {"type": "string", "minLength": 2, "maxLength": 3},
        "rest": {"type": "null"},
    },
    "required": ["kind", "size", "count", "price", "words", "pair", "note", "rest"],
    "$defs": {"b": {"const": "b"}},
}


@given(st.integers(0, 10_000))
def test_what_is_drawn_is_what_the_schema_allows(seed: int) -> None:
    found = sample_json(SCHEMA, random.Random(seed))
    assert list(found) == SCHEMA["required"]
    assert found["kind"] in ("a", "b")
    assert found["size"] in (1, 2, 3)
    assert found["count"] in (3, 4, 5)
    assert 0.5 <= found["price"] <= 0.75
    assert 1 <= len(found["words"]) <= 4
    assert all(re.fullmatch("(ab|c)d?", word) for word in found["words"])
    assert found["pair"][:1] in ([], [1])
    assert 2 <= len(found["note"]) <= 3
    assert found["rest"] is None
    assert found == sample_json(SCHEMA, random.Random(seed))


@pytest.mark.long
def test_choices_are_equally_likely() -> None:
    rng = random.Random(0)
    counts = Counter(sample_json(SCHEMA, rng)["kind"] for _ in range(2000))
    assert counts["a"] == pytest.approx(1000, abs=100)


def test_a_part_that_is_not_understood_is_named() -> None:
    with pytest.raises(UsageError, match=r"cannot draw from this part of an environment's schema: \{'not': "):
        sample_json({"not": {"const": 1}}, random.Random(0))


class Bounded(BaseModel):
    between: float = Field(gt=0, lt=0.004)
    step: float = Field(ge=-1, le=1, multiple_of=0.25)
    tens: int = Field(gt=0, lt=100, multiple_of=10)
    above: int = Field(gt=3, le=5)


@given(st.integers(0, 10_000))
def test_what_pydantic_writes_of_bounds_and_steps_holds(seed: int) -> None:
    Bounded.model_validate(sample_json(Bounded.model_json_schema(), random.Random(seed)))


def test_every_number_between_excluded_bounds_may_come() -> None:
    rng = random.Random(0)
    schema = {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 7}
    assert {sample_json(schema, rng) for _ in range(100)} == {4, 5, 6}
    schema = {"type": "integer", "minimum": -20, "maximum": 25, "multipleOf": 10}
    assert {sample_json(schema, rng) for _ in range(100)} == {-20, -10, 0, 10, 20}
    with pytest.raises(UsageError, match="allows nothing"):
        sample_json({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}, rng)
    with pytest.raises(UsageError, match="allows nothing"):
        sample_json({"type": "number", "exclusiveMinimum": 3, "maximum": 3}, rng)
