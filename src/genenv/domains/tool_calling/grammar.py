"""The grammar that the simulator writes under: the schema of `ToolSpec` with the toolbox filled in.

The difficulty fields come first and then hold: `n_calls` calls follow; in a dependent spec one of the later
calls has a reference to a result, in others none has; every required argument is there unless `gap` is
`missing_info`, and then exactly one is absent. Gaps are for single calls: with several, a person would do
what can be done. What a schema cannot say (is a value stated? does it execute?) is for the gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from genenv.domains.tool_calling.apps.kit import TIME
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS, Parameter, Tool
from genenv.types import Json, JsonObject

_DATE = r"202[56]-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_REFERENCE = r"\${}(\.[0-9])?\.[a-z_]{{1,20}}"
_TEXT = r"[^<>{}$\\\"\n\r\t]{1,60}"
"""Names and texts: no blanks, no references, no code."""


def spec_schema() -> JsonObject:
    """One alternative for each number of calls, with and without dependence and a gap."""
    call, partial, first, later = (
        {"$ref": f"#/$defs/{name}"} for name in ("call", "partial_call", "linked_call", "later_linked_call")
    )
    open_call = {"$ref": "#/$defs/open_call"}
    plain: list[list[Json]] = [
        [call] * n for n in ToolSpec.model_json_schema()["properties"]["n_calls"]["enum"]
    ]
    chains: list[list[Json]] = [[call, first], [call, first, open_call], [call, call, later]]
    tools = TOOLS.values()
    return {
        "anyOf": [
            _alternative([call], ("none", "no_tool")),
            _alternative([partial], ("missing_info",)),
            *(_alternative(calls, ("none",)) for calls in plain[1:]),
            *(_alternative(calls, ("none",), dependent=True) for calls in chains),
        ],
        "$defs": {
            "date": _pattern(_DATE),
            "time": _pattern(TIME),
            "text": _pattern(_TEXT),
            "reference": _pattern(_REFERENCE.format("1")),
            "later_reference": _pattern(_REFERENCE.format("[12]")),
            "call": {"anyOf": [_call(tool) for tool in tools]},
            "partial_call": {
                "anyOf": [_call(tool, absent=p.name) for tool in tools for p in tool.parameters if p.required]
            },
            "open_call": {"anyOf": [_call(tool, reference="later_reference") for tool in tools]},
            "linked_call": {"anyOf": _linked_calls("reference")},
            "later_linked_call": {"anyOf": _linked_calls("later_reference")},
        },
    }


def _alternative(calls: Sequence[Json], gaps: Sequence[str], *, dependent: bool = False) -> JsonObject:
    base = ToolSpec.model_json_schema()["properties"]
    n = len(calls)
    held: dict[str, Json] = {
        "n_calls": {"const": n},
        "dependent": {"const": dependent},
        "n_tools": {"enum": [size for size in base["n_tools"]["enum"] if size >= n]},
        "gap": {"enum": list(gaps)},
        "calls": {"type": "array", "prefixItems": list(calls), "items": False, "minItems": n},
        # A bound on the length forbids \\" in xgrammar 0.2; the limit on tokens bounds it anyway.
        "instruction": {"type": "string"},
    }
    return _object({name: held.get(name, _bare(base[name])) for name in ToolSpec.model_fields})


def _linked_calls(reference: str) -> list[Json]:
    """Calls of any tool with one argument that is a reference; the others may be."""
    return [
        _call(tool, reference=reference, linked=p.name)
        for tool in TOOLS.values()
        for p in tool.parameters
        if p.kind not in ("choice", "flag")
    ]


def _call(tool: Tool, *, absent: str = "", linked: str = "", reference: str = "") -> JsonObject:
    """A tool's call; `absent` is left out, `linked` is a reference, others may be where one is named."""
    present = [p for p in tool.parameters if p.name != absent]
    values: dict[str, Json] = {
        p.name: {"$ref": f"#/$defs/{reference}"} if p.name == linked else _value(p, reference)
        for p in present
    }
    args = _object(values, required=[p.name for p in present if p.required or p.name == linked])
    return _object({"tool": {"const": tool.name}, "args": args})


def _value(parameter: Parameter, reference: str) -> JsonObject:
    if parameter.kind == "choice":
        return {"enum": list(parameter.choices)}
    if parameter.kind == "flag":
        return {"type": "boolean"}
    if parameter.kind == "number":
        value: JsonObject = _bare(parameter.schema)
    else:
        value = {"$ref": "#/$defs/" + ("text" if parameter.kind == "name" else parameter.kind)}
    return {"anyOf": [value, {"$ref": f"#/$defs/{reference}"}]} if reference else value


def _object(properties: Mapping[str, Json], *, required: Sequence[str] | None = None) -> JsonObject:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }


def _bare(schema: Mapping[str, Json]) -> dict[str, Json]:
    return {key: schema[key] for key in ("type", "enum", "minimum", "maximum") if key in schema}


def _pattern(pattern: str) -> dict[str, Json]:
    return {"type": "string", "pattern": f"^({pattern})$"}
