"""BFCL's single-turn items: the prompt or the tools, one reply, and the official grade of its calls.

The system prompt is the package's `formulate_system_prompt`. Functions are described as in `convert_to_tool`
of bfcl-eval's `model_handler/utils.py` and `add_language_specific_hint_to_function_doc` of its `utils.py`.
The official code decodes and compares calls in a separate process (`worker.py`). If that code raises or
exceeds its limits, the answer is wrong.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from genenv.benchmarks.bfcl.data import Function, Question, checks_calls, language_of, openapi_types
from genenv.benchmarks.bfcl.worker import Stopped, worker
from genenv.chat.assistant import Reply, Talk
from genenv.chat.tool_calls import UNREADABLE
from genenv.evaluation.base import Grade
from genenv.types import Json, JsonObject

_HINTS = {"java": "Java 8 SDK", "javascript": "JavaScript", "python": "Python 3"}
_LISTS = {"java": ("ArrayList", "Array"), "javascript": ("array",)}


def shown(functions: Sequence[Function], category: str) -> list[Function]:
    """Return the functions as in the prompt: with a hint of the language, and Java's types in words."""
    language = language_of(category)
    described = copy.deepcopy(list(functions))
    for function in described:
        function["description"] += f" Note that the provided function is in {_HINTS[language]} syntax."
        if language != "python":
            for details in function["parameters"]["properties"].values():
                _in_words(details, language)
    return described


def _in_words(details: dict[str, Any], language: str) -> None:
    """Change a Java or JavaScript parameter to a string, with its real type in the description."""
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
    """Return the first messages in text mode: the official prompt joined with their system message.

    Args:
        messages: the first messages of the item.
        functions: the functions as shown to the model.
        prompt_format: an official prompt format; empty: the default.
    """
    prompt = worker().ask("system_prompt", functions=list(functions), prompt_format=prompt_format)
    rest = [dict(message) for message in messages]
    if rest and rest[0]["role"] == "system":
        rest[0]["content"] = f"{prompt}\n\n{rest[0]['content']}"
        return rest
    return [{"role": "system", "content": prompt}, *rest]


def tools(functions: Sequence[Function]) -> list[JsonObject]:
    """Return functions as tools in OpenAI's format: no dots in names, OpenAPI's types."""
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


_MAX_SAID = 300
_CALL = re.compile(r"\W*[A-Za-z_][\w.]*\(")
"""The beginning of a list of calls."""


async def ask_question(question: Question, talk: Talk, *, native: bool) -> Json:
    """Ask once; return `{"text": ...}`, or `{"calls": [{"name", "arguments"}]}` in native mode."""
    functions = shown(question.functions, question.category)
    if native:
        reply = await talk(question.messages, tools=tools(functions))
        return {"calls": [{"name": call.name, "arguments": call.arguments} for call in reply.calls]}
    if question.prompt_format:
        functions = shown(functions, question.category)  # the hint twice, as officially
    reply = await talk(with_system_prompt(question.messages, functions, question.prompt_format))
    return {"text": without_thinking(reply)}


def without_thinking(reply: Reply) -> str:
    """Return a reply without its thoughts, as the official handlers of reasoning models parse it."""
    return reply.text.rpartition("</think>")[2].lstrip("\n")


def grade_question(question: Question, answer: Json) -> Grade:
    """Grade an answer in text or native form."""
    found = _found(question, answer)
    if not checks_calls(question.category):
        grade = _presence(question, called=found["called"])
        unread = f" It was not read: {one_line(found['unread'])}." if found["unread"] else ""
        return replace(grade, explanation=grade.explanation + unread)
    if found["valid"]:
        return Grade(score=1.0, explanation="The calls are among the possible answers.")
    return Grade(score=0.0, explanation=one_line(found["why"]))


def _found(question: Question, answer: Json) -> Mapping[str, Any]:
    """Return the result of `official.grade_calls`, or a substitute if the process fails."""
    content: Mapping[str, Any] = answer if isinstance(answer, Mapping) else {}
    text = content.get("text")
    try:
        return worker().ask(
            "grade_calls",
            answer={"text": text}
            if isinstance(text, str)
            else {"calls": _native_calls(content.get("calls"))},
            functions=question.functions,
            possible=question.possible,
            language=question.language,
            category=question.category,
            compared=checks_calls(question.category),
            prompt_format=question.prompt_format,
        )
    except Unreadable as error:
        called, why, unread = False, error, ""
    except Stopped as error:
        called, why, unread = isinstance(text, str) and _CALL.match(text) is not None, error, str(error)
    why = f"No calls can be read in the reply: {why}."
    return {"called": called, "valid": False, "unread": unread, "why": why}


class Unreadable(ValueError):
    """Raised if native calls cannot be parsed."""


def _native_calls(calls: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    if not isinstance(calls, list):
        raise Unreadable("the answer is neither text nor a list of calls")
    return [_native_call(call) for call in cast("list[object]", calls)]


def _native_call(call: object) -> dict[str, Any]:
    match call:
        case {"name": str(name), "arguments": dict()}:
            return {name: readable(cast("dict[str, Any]", call)["arguments"])}
        case _:
            raise Unreadable("a call has no name or no arguments")


def readable(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a native call.

    Raises:
        Unreadable: the arguments are not JSON.
    """
    if arguments == UNREADABLE:
        raise Unreadable("the arguments of a call are no JSON")
    return arguments


def as_sent(arguments: Mapping[str, Any]) -> str:
    """Return the arguments as an endpoint sends them: JSON, or text that is not JSON."""
    return "{" if arguments == UNREADABLE else json.dumps(arguments)


def _presence(question: Question, *, called: bool) -> Grade:
    wanted = "irrelevance" not in question.category
    made, should = "A call was made" if called else "No call was made", "should" if wanted else "should not"
    linked = "as it" if called == wanted else "but it"
    return Grade(score=float(called == wanted), explanation=f"{made}, {linked} {should} have been.")


def one_line(text: str) -> str:
    """Return text as one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_SAID else line[:_MAX_SAID] + "…"
