"""The grammar that the simulator writes under: the schema of `ToolSpec` with the toolbox filled in.

The difficulty fields come first and then hold: `n_calls` calls follow, references to results stand only in
the later calls of a dependent spec, every required argument is there unless `gap` is `missing_info`, and then
exactly one is absent from the last call. What a schema cannot say (is a value stated? does it execute?) is
for the gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from genenv.domains.tool_calling.apps.kit import TIME
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS, Parameter, Tool
from genenv.types import Json, JsonObject

_DATE = r"202[56]-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_REFERENCE = r"\$[12](\.[0-9])?\.[a-z_]{1,20}"
_ARG_CHARS = 60


def spec_schema() -> JsonObject:
    """One alternative for each number of calls, with and without dependence and a missing argument."""
    calls: dict[str, Json] = {
        _call(linked=linked, partial=partial): _calls_schema(linked=linked, partial=partial)
        for linked in (False, True)
        for partial in (False, True)
    }
    numbers = ToolSpec.model_json_schema()["properties"]["n_calls"]["enum"]
    shapes = [(n, dependent) for n in numbers for dependent in (False, True)[: 1 + (n > 1)]]
    return {
        "anyOf": [
            _alternative(n, gaps, dependent=dependent)
            for n, dependent in shapes
            for gaps in (("none", "no_tool"), ("missing_info",))
        ],
        "$defs": {
            "date": _pattern(_DATE),
            "time": _pattern(TIME),
            "text": {"type": "string", "minLength": 1, "maxLength": _ARG_CHARS},
            "reference": _pattern(_REFERENCE),
            **calls,
        },
    }


def _alternative(n: int, gaps: Sequence[str], *, dependent: bool) -> JsonObject:
    names = [
        _call(linked=dependent and i > 0, partial=gaps == ("missing_info",) and i == n - 1) for i in range(n)
    ]
    base = ToolSpec.model_json_schema()["properties"]
    held: dict[str, Json] = {
        "n_calls": {"const": n},
        "dependent": {"const": dependent},
        "n_tools": {"enum": [size for size in base["n_tools"]["enum"] if size >= n]},
        "gap": {"enum": list(gaps)},
        "calls": {
            "type": "array",
            "prefixItems": [{"$ref": f"#/$defs/{name}"} for name in names],
            "items": False,
            "minItems": n,
        },
        # A bound on the length forbids \\" in xgrammar 0.2; the limit on tokens bounds it anyway.
        "instruction": {"type": "string"},
    }
    properties: dict[str, Json] = {name: held.get(name, _bare(base[name])) for name in ToolSpec.model_fields}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _call(*, linked: bool, partial: bool) -> str:
    return ("partial_" if partial else "") + ("linked_call" if linked else "call")


def _calls_schema(*, linked: bool, partial: bool) -> JsonObject:
    """Any tool's call; `linked`: values may be references; `partial`: one required argument is absent."""
    variants: list[Json] = []
    for tool in TOOLS.values():
        required = [p.name for p in tool.parameters if p.required]
        variants += [
            _call_schema(tool, absent=absent, linked=linked) for absent in (required if partial else [None])
        ]
    return {"anyOf": variants}


def _call_schema(tool: Tool, *, absent: str | None, linked: bool) -> JsonObject:
    present = [p for p in tool.parameters if p.name != absent]
    args: dict[str, Json] = {
        "type": "object",
        "properties": {p.name: _parameter_schema(p, linked=linked) for p in present},
        "required": [p.name for p in present if p.required],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"tool": {"const": tool.name}, "args": args},
        "required": ["tool", "args"],
        "additionalProperties": False,
    }


def _parameter_schema(parameter: Parameter, *, linked: bool) -> JsonObject:
    if parameter.kind == "choice":
        return {"enum": list(parameter.choices)}
    if parameter.kind == "flag":
        return {"type": "boolean"}
    if parameter.kind == "number":
        value: JsonObject = _bare(parameter.schema)
    else:
        value = {"$ref": "#/$defs/" + ("text" if parameter.kind == "name" else parameter.kind)}
    if not linked or parameter.kind in ("name", "text"):  # a text may hold a reference anyway
        return value
    return {"anyOf": [value, {"$ref": "#/$defs/reference"}]}


def _bare(schema: Mapping[str, Json]) -> dict[str, Json]:
    return {key: schema[key] for key in ("type", "enum", "minimum", "maximum") if key in schema}


def _pattern(pattern: str) -> dict[str, Json]:
    return {"type": "string", "pattern": f"^({pattern})$"}
