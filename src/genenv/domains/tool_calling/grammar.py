"""The grammar that the simulator writes under: the schema of `ToolSpec` with the toolbox filled in.

The difficulty fields come first and then hold: `n_calls` calls follow; in a dependent spec the second one has
a reference to the first one's result, of a kind that the base data have; every required argument is there
unless `gap` is `missing_info`, and then exactly one is absent. Gaps are for single calls: with several, a
person would do what can be done. The instruction of a single call has a blank for each argument; with several
calls it may have any blanks. What a schema cannot say (is it a task that makes sense? does it execute?) is
for the gate.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from genenv.domains.tool_calling.apps.kit import TIME
from genenv.domains.tool_calling.blanks import PARAMETERS
from genenv.domains.tool_calling.phrasings.combinations import TRAINING_COMBINATIONS
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS, Parameter, Tool
from genenv.types import Json, JsonObject

_DATE = r"202[56]-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_LARGEST = 99_999
"""Of numbers whose tool sets no bounds: a model that starts a long one does not find its end."""
_PLAIN = r"[^<>{}\\\"\n\r\t]"
"""A character of words: not of blanks or code. A pattern of xgrammar 0.2 cannot have a \"."""
_TEXT = r"[^<>{}$\\\"\n\r\t]{1,60}"
"""Names and texts, without references."""


def spec_schema() -> JsonObject:
    """One alternative for each single call and gap, and one for several calls with and without dependence."""
    call, linked = {"$ref": "#/$defs/call"}, {"$ref": "#/$defs/linked_call"}
    any_words: JsonObject = {"$ref": "#/$defs/words"}
    links = _links()
    return {
        "anyOf": [
            *(single for tool in TOOLS.values() for single in _single_calls(tool)),
            *(_alternative([call] * n, any_words) for n in (2, 3)),
            *(_alternative([call, linked, *[call] * more], any_words, dependent=True) for more in (0, 1)),
        ],
        "$defs": {
            "date": _pattern(_DATE),
            "time": _pattern(TIME),
            "text": _pattern(_TEXT),
            "words": _pattern(rf"({_PLAIN}|<([1-9]\.)?({'|'.join(PARAMETERS)})>)*"),
            "call": {"anyOf": [_call(tool, tool.parameters) for tool in TOOLS.values()]},
            "linked_call": {
                "anyOf": [
                    _call(tool, tool.parameters, linked=p.name, references=sorted(links[p.name]))
                    for tool in TOOLS.values()
                    for p in tool.parameters
                    if p.name in links
                ]
            },
        },
    }


def _single_calls(tool: Tool) -> Iterator[JsonObject]:
    """A spec of one call, with each choice of optional arguments; and with each required argument absent."""
    required = [p for p in tool.parameters if p.required]
    optional = [p for p in tool.parameters if not p.required]
    for n in range(len(optional) + 1):
        for chosen in itertools.combinations(optional, n):
            present = [p for p in tool.parameters if p.required or p in chosen]
            yield _single_call(tool, present, ("none", "no_tool"))
    for absent in required:
        yield _single_call(tool, [p for p in required if p != absent], ("missing_info",))


def _single_call(tool: Tool, present: Sequence[Parameter], gaps: Sequence[str]) -> JsonObject:
    """All arguments are there, and each has its blank in the instruction, in any order."""
    said = [f"<{p.name}>" for p in present if p.kind != "flag"]
    orders = (f"{_PLAIN}*".join(order) for order in itertools.permutations(said))
    words = _pattern(f"{_PLAIN}*({'|'.join(orders)}){_PLAIN}*")
    return _alternative([_call(tool, present, all_of_them=True)], words, gaps=gaps)


def _links() -> dict[str, set[str]]:
    """Parameter -> the references that it has somewhere in the base data."""
    links: dict[str, set[str]] = {}
    for chain in TRAINING_COMBINATIONS.chains:
        for name, reference in chain.links.items():
            links.setdefault(name, set()).add(reference)
    return links


def _alternative(
    calls: Sequence[Json], words: JsonObject, *, gaps: Sequence[str] = ("none",), dependent: bool = False
) -> JsonObject:
    base = ToolSpec.model_json_schema()["properties"]
    n = len(calls)
    held: dict[str, Json] = {
        "n_calls": {"const": n},
        "dependent": {"const": dependent},
        "n_tools": {"enum": [size for size in base["n_tools"]["enum"] if size >= n]},
        "gap": {"enum": list(gaps)},
        "calls": {"type": "array", "prefixItems": list(calls), "items": False, "minItems": n},
        "instruction": words,
    }
    return _object({name: held.get(name, _bare(base[name])) for name in ToolSpec.model_fields})


def _call(
    tool: Tool,
    present: Sequence[Parameter],
    *,
    all_of_them: bool = False,
    linked: str = "",
    references: Sequence[str] = (),
) -> JsonObject:
    """A tool's call with some of its arguments; `linked` is one of some references."""
    values = {p.name: {"enum": list(references)} if p.name == linked else _value(p) for p in present}
    must = [p.name for p in present if all_of_them or p.required or p.name == linked]
    args = _object(values, required=must)
    # xgrammar 0.2 takes objects for equal that differ in a property called "title" alone: its cache leaves
    # out annotations, and mistakes the property for one.
    args["x-distinct"] = [linked, *values]
    return _object({"tool": {"const": tool.name}, "args": args})


def _value(parameter: Parameter) -> JsonObject:
    if parameter.kind == "choice":
        return {"enum": list(parameter.choices)}
    if parameter.kind == "flag":
        return {"type": "boolean"}
    if parameter.kind == "number":
        return {"minimum": 0, "maximum": _LARGEST} | _bare(parameter.schema)
    return {"$ref": "#/$defs/" + ("text" if parameter.kind == "name" else parameter.kind)}


def _object(properties: Mapping[str, Json], *, required: Sequence[str] | None = None) -> dict[str, Json]:
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
