"""The grammar that the simulator writes under: the schema of `ToolSpec` with the tools it is told of.

The difficulty fields come first and then hold: `n_calls` calls of different tools follow; in a dependent spec
the second one has a reference to the first one's result, of a kind that the base data have; every required
argument is there unless `gap` is `missing_info`, and then exactly one is absent. Gaps are for single calls:
with several, a person would do what can be done. The instruction has a blank for each argument, those of the
first call first. Tools that meet in held-out tasks alone do not meet here. What a schema cannot say (does it
make sense? does it execute?) is for the gate.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from genenv.domains.tool_calling.apps.kit import TIME
from genenv.domains.tool_calling.phrasings.combinations import TRAINING_COMBINATIONS
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS, Parameter, Tool
from genenv.types import Json, JsonObject

_DATE = r"202[56]-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_LARGEST = 99_999
"""Of numbers whose tool sets no bounds: a model that starts a long one does not find its end."""
_PLAIN = r"[^<>{}\\\"\n\r\t0-9]"
"""A character of words: not of blanks, code or numbers. A pattern of xgrammar 0.2 cannot have a \"."""
_IN_SENTENCE = _PLAIN.replace("0-9", "0-9.?!")
_TEXT = r"[^<>{}$\\\"\n\r\t]{1,60}"
"""Names and texts, without references."""


class _Written(NamedTuple):
    """One way to write a call."""

    tool: Tool
    present: tuple[Parameter, ...]
    linked: str = ""
    """The argument that is a reference to the first call's result."""


def spec_schema(tools: Sequence[str], *, chains: bool = True) -> JsonObject:
    """One alternative for each sequence of calls of these tools, with each choice of optional arguments.

    Args:
        tools: names; calls of others cannot be written.
        chains: whether there are dependent specs.
    """
    alternatives: list[Json] = []
    for name in tools:
        tool = TOOLS[name]
        alternatives += [_alternative([way], ("none", "no_tool")) for way in _ways(tool)]
        for absent in (p for p in tool.parameters if p.required):
            present = tuple(p for p in tool.parameters if p.required and p != absent)
            alternatives.append(_alternative([_Written(tool, present)], ("missing_info",)))
    groups = [group for n in (2, 3) for group in itertools.permutations(tools, n)]
    for group in filter(TRAINING_COMBINATIONS.allows, groups):
        for dependent in (False, True) if chains else (False,):
            calls = [_ways(TOOLS[name], linked=dependent and i == 1) for i, name in enumerate(group)]
            alternatives += [_alternative(ways, ("none",)) for ways in itertools.product(*calls)]
    return {
        "anyOf": alternatives,
        "$defs": {"date": _pattern(_DATE), "time": _pattern(TIME), "text": _pattern(_TEXT)},
    }


def _ways(tool: Tool, *, linked: bool = False) -> list[_Written]:
    """Each choice of optional arguments; `linked`: and of the argument that is a reference."""
    optional = [p for p in tool.parameters if not p.required]
    chosen = [c for n in range(len(optional) + 1) for c in itertools.combinations(optional, n)]
    presents = [tuple(p for p in tool.parameters if p.required or p in choice) for choice in chosen]
    if not linked:
        return [_Written(tool, present) for present in presents]
    return [_Written(tool, present, p.name) for present in presents for p in present if p.name in _links()]


@functools.cache
def _links() -> dict[str, set[str]]:
    """Parameter -> the references that it has somewhere in the base data."""
    links: dict[str, set[str]] = {}
    for chain in TRAINING_COMBINATIONS.chains:
        for name, reference in chain.links.items():
            links.setdefault(name, set()).add(reference)
    return links


def _alternative(calls: Sequence[_Written], gaps: Sequence[str]) -> JsonObject:
    base = _fields()
    n = len(calls)
    held: dict[str, Json] = {
        "n_calls": {"const": n},
        "dependent": {"const": any(call.linked for call in calls)},
        "n_tools": {"enum": [size for size in base["n_tools"]["enum"] if size >= n]},
        "gap": {"enum": list(gaps)},
        "calls": {
            "type": "array",
            "prefixItems": [_call(call) for call in calls],
            "items": False,
            "minItems": n,
        },
        "instruction": _words(calls),
    }
    return _object({name: held.get(name, _bare(base[name])) for name in ToolSpec.model_fields})


@functools.cache
def _fields() -> Mapping[str, Any]:
    """The schema of each field of a spec."""
    return ToolSpec.model_json_schema()["properties"]


def _call(call: _Written) -> JsonObject:
    references: JsonObject = {"enum": sorted(_links().get(call.linked, ()))}
    values = {p.name: references if p.name == call.linked else _value(p) for p in call.present}
    # xgrammar 0.2 takes objects for equal that differ in a property called "title" alone: its cache leaves
    # out annotations, and mistakes the property for one.
    args = {**_object(values), "x-distinct": [call.linked, *values]}
    return _object({"tool": {"const": call.tool.name}, "args": args})


def _words(calls: Sequence[_Written]) -> JsonObject:
    """Words with all blanks, call by call, or for both calls of a chain together.

    What both calls of a chain take, such as a date, is the same thing: it need not be said twice, but may be.
    At most one sentence ends before each blank of a call: a small model that forgot one would ramble on.
    """
    known: set[str] = set()
    shared: set[str] = set()
    parts: list[list[str]] = []
    for number, call in enumerate(calls, 1):
        said = [p.name for p in call.present if p.kind != "flag" and p.name != call.linked]
        if call.linked:
            shared = known & set(said)
            parts[-1] += [f"<{name}>" for name in said if name not in known]
        else:
            parts.append([f"<{number}.{name}>" if name in known else f"<{name}>" for name in said])
        known |= {p.name for p in call.present}
    # n blanks have n! orders, and with several calls there are many grammars of them
    most = 4 if len(calls) == 1 else 3
    free = [part[i : i + most] for part in parts for i in range(0, len(part), most)]
    again = [f"<{name}>" for name in sorted(shared)]
    inside, between = (f"({'|'.join([plain, *again])})*" for plain in (_IN_SENTENCE, _PLAIN))
    inside += f"([.?!]{inside})?"
    orders = ["|".join(inside.join(order) for order in itertools.permutations(blanks)) for blanks in free]
    said = [f"({order})" for order in orders]
    return _pattern((inside if said else between) + between.join([*said, ""]))


def _value(parameter: Parameter) -> JsonObject:
    if parameter.kind == "choice":
        return {"enum": list(parameter.choices)}
    if parameter.kind == "flag":
        return {"type": "boolean"}
    if parameter.kind == "number":
        return {"minimum": 0, "maximum": _LARGEST} | _bare(parameter.schema)
    return {"$ref": "#/$defs/" + ("text" if parameter.kind == "name" else parameter.kind)}


def _object(properties: Mapping[str, Json]) -> JsonObject:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _bare(schema: Mapping[str, Json]) -> dict[str, Json]:
    return {key: schema[key] for key in ("type", "enum", "minimum", "maximum") if key in schema}


def _pattern(pattern: str) -> dict[str, Json]:
    return {"type": "string", "pattern": f"^({pattern})$"}
