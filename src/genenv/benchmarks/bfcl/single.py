# pyright: standard
"""Single-turn items: one reply, its calls compared with the possible answers, or only whether there are any.

Decoding and comparison are the official ones, in a process of their own; where these raise, or take too much,
the answer is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from genenv.benchmarks.bfcl.categories import checks_calls
from genenv.benchmarks.bfcl.load import Question
from genenv.benchmarks.bfcl.prompts import shown, tools, with_system_prompt
from genenv.benchmarks.bfcl.worker import Stopped, worker
from genenv.chat.assistant import Reply, Talk
from genenv.chat.tool_calls import UNREADABLE
from genenv.evaluation.base import Grade
from genenv.types import Json

_MAX_SAID = 300
_CALL = re.compile(r"\W*[A-Za-z_][\w.]*\(")
"""How a list of calls begins."""


async def ask(question: Question, talk: Talk, *, native: bool) -> Json:
    """Put a question; answers `{"text": ...}`, or in native mode `{"calls": [{"name", "arguments"}]}`."""
    functions = shown(question.functions, question.category)
    if native:
        return native_answer(await talk(question.messages, tools=tools(functions)))
    if question.prompt_format:
        functions = shown(functions, question.category)  # a hint of the language twice, as officially
    reply = await talk(with_system_prompt(question.messages, functions, question.prompt_format))
    return {"text": spoken(reply)}


def native_answer(reply: Reply) -> Json:
    """The calls of a reply, as JSON."""
    return {"calls": [{"name": call.name, "arguments": call.arguments} for call in reply.calls]}


def spoken(reply: Reply) -> str:
    """What a reply says once its thinking is over, as the official handlers of thinking models take it."""
    return reply.text.rpartition("</think>")[2].lstrip("\n")


def grade(question: Question, answer: Json) -> Grade:
    """Grade an answer in either form."""
    found = _found(question, answer)
    if not checks_calls(question.category):
        grade = _presence(question, called=found["called"])
        unread = f" It was not read: {line(found['unread'])}." if found["unread"] else ""
        return replace(grade, explanation=grade.explanation + unread)
    if found["valid"]:
        return Grade(score=1.0, explanation="The calls are among the possible answers.")
    return Grade(score=0.0, explanation=line(found["why"]))


def _found(question: Question, answer: Json) -> Mapping[str, Any]:
    """What `official.grade_calls` finds of an answer, or what stands for it."""
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
    """Calls in the model's own format are none that can be read."""


def _native_calls(calls: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    if not isinstance(calls, list):
        raise Unreadable("the answer is neither text nor a list of calls")
    return [_native_call(call) for call in calls]


def _native_call(call: Any) -> dict[str, Any]:  # noqa: ANN401
    name = call.get("name") if isinstance(call, Mapping) else None
    arguments = call.get("arguments") if isinstance(call, Mapping) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise Unreadable("a call has no name or no arguments")
    return {name: readable(arguments)}


def readable(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a call in the model's own format.

    Raises:
        Unreadable: they are what stands for arguments that are no JSON.
    """
    if arguments == UNREADABLE:
        raise Unreadable("the arguments of a call are no JSON")
    return arguments


def as_sent(arguments: Mapping[str, Any]) -> str:
    """The arguments of a call as an endpoint sends them: as JSON, or as what is none."""
    return "{" if arguments == UNREADABLE else json.dumps(arguments)


def _presence(question: Question, *, called: bool) -> Grade:
    wanted = "irrelevance" not in question.category
    made, should = "A call was made" if called else "No call was made", "should" if wanted else "should not"
    linked = "as it" if called == wanted else "but it"
    return Grade(score=float(called == wanted), explanation=f"{made}, {linked} {should} have been.")


def line(text: str) -> str:
    """Text in one line that is not too long."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_SAID else line[:_MAX_SAID] + "…"
