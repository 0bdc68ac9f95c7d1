"""What the model is told: the official system prompt, the functions as shown, tools in OpenAI's form.

Source: `convert_to_tool` of bfcl-eval's `model_handler/utils.py`, and
`add_language_specific_hint_to_function_doc` of its `utils.py`. The system prompt is made by the package's
own `formulate_system_prompt`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from genenv.benchmarks.bfcl.package import openapi_types
from genenv.benchmarks.bfcl.worker import worker
from genenv.types import JsonObject

Function = dict[str, Any]
"""A function's description in the data: `name`, `description`, `parameters`, perhaps `response`."""

_HINTS = {"java": "Java 8 SDK", "javascript": "JavaScript", "python": "Python 3"}
_LISTS = {"java": ("ArrayList", "Array"), "javascript": ("array",)}


def language_of(category: str) -> str:
    """The language of a category's calls."""
    return category.removeprefix("simple_") if category.startswith("simple_java") else "python"


def shown(functions: Sequence[Function], category: str) -> list[Function]:
    """The functions as a model sees them: with a hint of the language, and Java's types as words."""
    language = language_of(category)
    described = copy.deepcopy(list(functions))
    for function in described:
        function["description"] += f" Note that the provided function is in {_HINTS[language]} syntax."
        if language != "python":
            for details in function["parameters"]["properties"].values():
                _in_words(details, language)
    return described


def _in_words(details: dict[str, Any], language: str) -> None:
    """A parameter of Java or JavaScript: a string, its real type said in its description."""
    kind, name = details["type"], "Java" if language == "java" else "JavaScript"
    if kind == "any":
        said = f" This parameter can be of any type of {name} object in string representation."
    else:
        said = f" This is {name} {kind} type parameter in string representation."
    if kind in _LISTS[language]:
        inner = details.pop("items")["type"]
        said += f" The list elements are of type {inner}; they are not in string representation."
    if language == "javascript" and kind == "dict" and "properties" in details:
        schema = json.dumps(details.pop("properties"))
        said += (
            " The dictionary entries have the following schema; they are not in string representation. "
            f"{schema}"
        )
    details["description"] += said
    details["type"] = "string"


def with_system_prompt(
    messages: Sequence[Mapping[str, Any]], functions: Sequence[Function], prompt_format: str = ""
) -> list[dict[str, Any]]:
    """A conversation's beginning in text mode: the official prompt goes before its own system message.

    Args:
        messages: the beginning.
        functions: as a model is shown them.
        prompt_format: which of the official configurations the prompt has; empty: the default.
    """
    prompt = worker().ask("system_prompt", functions=list(functions), prompt_format=prompt_format)
    rest = [dict(message) for message in messages]
    if rest and rest[0]["role"] == "system":
        rest[0]["content"] = f"{prompt}\n\n{rest[0]['content']}"
        return rest
    return [{"role": "system", "content": prompt}, *rest]


def tools(functions: Sequence[Function]) -> list[JsonObject]:
    """Functions as tools in OpenAI's format: no dots in names, OpenAPI's types."""
    return list(_tools(copy.deepcopy(list(functions))))


def _tools(functions: Sequence[Function]) -> Iterator[JsonObject]:
    for function in functions:
        function["name"] = function["name"].replace(".", "_")
        function["parameters"]["type"] = "object"
        _cast(function["parameters"]["properties"])
        yield {"type": "function", "function": function}


def _cast(properties: Mapping[str, dict[str, Any]]) -> None:
    types = openapi_types()
    for details in properties.values():
        kind = details.get("type", "string")
        if kind == "float":
            details["format"] = "float"
            details["description"] = details.get("description", "") + " This is a float type value."
        details["type"] = types.get(kind, "string")
        if details["type"] not in ("array", "object"):
            continue
        if "properties" in details:
            _cast(details["properties"])
        elif "items" in details:
            _cast_items(details["items"])


def _cast_items(items: dict[str, Any]) -> None:
    types = openapi_types()
    items["type"] = types[items["type"]]
    if items["type"] == "array" and "items" in items:
        items["items"]["type"] = types[items["items"]["type"]]
    elif items["type"] == "object" and "properties" in items:
        _cast(items["properties"])
