"""Prompts are short: long lists of values are cut, and no task of a bundle is over its context window."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from bundles import made
from genenv.tools.environment import Tools
from genenv.tools.generate.drawing import TOO_LONG, Drawn
from genenv.tools.generate.training_config import CONTEXT_TOKENS, TRAINING, is_too_long, window
from genenv.tools.worlds.base import Tool
from genenv.types import Json

ZONES = [f"zone-{number}" for number in range(420)]


def tool(**schemas: Json) -> Tool:
    return Tool(name="move", parameters={"type": "object", "properties": schemas, "required": []})


def test_a_long_list_of_values_is_cut_and_a_short_one_is_not() -> None:
    assert tool(zone={"enum": ZONES}).heading == (
        'move(zone: one of 420, such as "zone-0"|"zone-1"|"zone-2"=...)'
    )
    assert tool(zone={"enum": ZONES[:20]}).heading.count("zone-") == 20
    assert tool(a={"enum": ZONES}, b={"enum": ZONES}).heading.endswith(", b: as a=...)")
    assert len(tool(a={"type": "string", "default": "x" * 500}).heading) < 100


@pytest.mark.parametrize(
    ("schema", "shown", "takes_null"),
    [
        ({"type": "string"}, "zone=...", False),
        ({"type": "string", "default": None}, "zone=...", False),
        ({"type": ["string", "null"]}, "zone: string|null=...", True),
        ({"type": ["integer", "null"], "default": 3}, "zone: integer|null=3", True),
        ({"type": "string", "enum": ["a", "b"], "nullable": True}, 'zone: "a"|"b"|null=...', True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, "zone=null", True),
        ({"default": None}, "zone=null", True),
    ],
)
def test_prompts_show_null_where_it_may_be_given(schema: Json, shown: str, takes_null: bool) -> None:
    assert tool(zone=schema).heading == f"move({shown})"
    assert (tool(zone=schema).problem({"zone": None}) is None) is takes_null
    function = cast("dict[str, dict[str, dict[str, dict[str, Json]]]]", tool(zone=schema).schema)["function"]
    assert takes_null or "default" not in function["parameters"]["properties"]["zone"]


def test_chat_templates_get_the_cut_list_too_at_any_depth() -> None:
    described: Json = {"type": "string", "enum": ZONES, "description": "Where to."}
    inner: Json = {"type": "object", "properties": {"enum": described, "way": {"enum": ["in", "out"]}}}
    moved = tool(zone=described, steps={"type": "array", "items": inner}, any={"examples": ZONES})
    function = cast("dict[str, dict[str, dict[str, dict[str, Json]]]]", moved.schema)["function"]
    shown = function["parameters"]["properties"]
    cut = {"type": "string", "description": 'Where to. one of 420, such as "zone-0"|"zone-1"|"zone-2"'}
    assert shown["zone"] == cut
    assert cast("dict[str, dict[str, dict[str, Json]]]", shown["steps"])["items"]["properties"] == {
        "enum": cut,
        "way": {"enum": ["in", "out"]},
    }
    assert shown["any"] == {"examples": ZONES[:3]}


def test_arguments_are_validated_by_the_whole_list() -> None:
    moved = tool(zone={"enum": ZONES})
    assert moved.problem({"zone": "zone-419"}) is None
    assert moved.problem({"zone": "zone-420"}) is not None


MOVES = '''
from typing import Literal

Zone = Literal[tuple(f"Region/Zone {number}" for number in range(500))]
boxes = {f"B-{number}": {"zone": "Region/Zone 1"} for number in range(6)}


def move_box(box_id: str, zone: Zone) -> dict:
    """Move a box to a zone."""
    boxes[box_id]["zone"] = zone
    return {"box_id": box_id, "zone": zone}


def get_box(box_id: str) -> dict:
    """Show a box."""
    return {"box_id": box_id, **boxes[box_id]}
'''


@pytest.mark.long
def test_a_file_with_a_list_of_500_values_has_short_prompts(tmp_path: Path) -> None:
    (tmp_path / "moves.py").write_text(MOVES)
    found = made(tmp_path / "moves", tmp_path / "moves.py", base=24, held_out=8)
    assert (found.base, found.held_out) == (24, 8)
    assert f"context_tokens = {CONTEXT_TOKENS}" in (tmp_path / "moves" / TRAINING).read_text()
    env = Tools(folder=tmp_path / "moves")
    zones = {
        str(one.args["zone"])
        for program in env.bundle.base.values()
        for one in program.calls
        if "zone" in one.args
    }
    assert len(zones) > 5
    for task in env.held_out():
        assert len(task.messages[0].content) < 500
        assert not is_too_long(task, env.world.tools, CONTEXT_TOKENS)
        shown = tuple(cast("list[str]", task.payload["tools"]))
        assert is_too_long(task, env.world.tools, 730) is ("move_box" in shown)
        wide = tool(**{f"option_{number}": {"type": "integer"} for number in range(300)})
        assert is_too_long(task, dict.fromkeys(shown, wide), CONTEXT_TOKENS)
        letters = replace(task.messages[-1], content="é" * 1000)
        assert is_too_long(replace(task, messages=(letters,)), env.world.tools, CONTEXT_TOKENS)
    env.world.close()


def test_the_context_window_is_the_one_of_the_bundle(tmp_path: Path) -> None:
    assert window(tmp_path) == CONTEXT_TOKENS
    (tmp_path / TRAINING).write_text("[policy]\ncontext_tokens = 4096\n")
    assert window(tmp_path) == 4096


def test_prompts_that_are_too_long_are_a_reason_with_advice() -> None:
    lacking = Drawn(base=0, held_out=0, asked=(5, 5)).refused
    lacking[TOO_LONG] += 3
    assert "policy.context_tokens of train.toml" in (Drawn(asked=(5, 5), refused=lacking).lacking or "")
