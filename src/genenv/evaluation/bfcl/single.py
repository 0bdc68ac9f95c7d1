# pyright: standard
"""Single-turn items: one reply, its calls compared with the possible answers, or only whether there are any.

Source: `_evaluate_single_ast_entry` and `_evaluate_single_relevance_entry` of bfcl-eval's `eval_runner.py`.
The comparison itself is the official `ast_checker`, called as it is; where it raises, the answer is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from genenv.assistants.base import Reply, Talk
from genenv.errors import first_line
from genenv.evaluation.base import Grade
from genenv.evaluation.bfcl.categories import checks_calls
from genenv.evaluation.bfcl.decode import (
    NotRead,
    Undecodable,
    Unevaluated,
    calls_in_text,
    check_foreign_values,
    is_empty,
    readable,
    well_formed,
)
from genenv.evaluation.bfcl.load import Question
from genenv.evaluation.bfcl.package import NATIVE, TEXT, ast_checker, language
from genenv.evaluation.bfcl.prompts import shown, tools, with_system_prompt
from genenv.types import Json

_MAX_NODES = 20_000
_MAX_DEPTH = 60
_MAX_LETTERS = 200_000
_MAX_SAID = 300
_CALL = re.compile(r"\W*[A-Za-z_][\w.]*\(")
"""How a list of calls begins."""
_CHECKER_ERRORS = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    NameError,
)
"""What the official checker raises on calls that it was not written for."""


async def ask(question: Question, talk: Talk, *, native: bool) -> Json:
    """Put a question; answers `{"text": ...}`, or in native mode `{"calls": [{"name", "arguments"}]}`."""
    functions = shown(question.functions, question.category)
    if native:
        return native_answer(await talk(question.messages, tools=tools(functions)))
    reply = await talk(with_system_prompt(question.messages, functions))
    return {"text": spoken(reply)}


def native_answer(reply: Reply) -> Json:
    """The calls of a reply, as JSON."""
    return {"calls": [{"name": call.name, "arguments": call.arguments} for call in reply.calls]}


def spoken(reply: Reply) -> str:
    """What a reply says once its thinking is over, as the official handlers of thinking models take it."""
    return reply.text.rpartition("</think>")[2].lstrip("\n")


def grade(question: Question, answer: Json) -> Grade:
    """Grade an answer in either form."""
    try:
        calls, model = _calls(question, answer)
    except NotRead as error:
        return _unread(question, error, called=_CALL.match(_text_of(answer)) is not None)
    except Unevaluated as error:
        return _unread(question, error, called=error.likely_read)
    except Undecodable as error:
        return _without_calls(question, error)
    if not checks_calls(question.category):
        return _presence(question, called=not is_empty(calls))
    if not well_formed(calls):
        return _wrong("The reply is not a list of calls, each with its arguments by name.")
    return _compared(question, calls, model)


def _calls(question: Question, answer: Json) -> tuple[Any, str]:
    """The calls of an answer, and which kind of model wrote them."""
    content: Mapping[str, Json] = answer if isinstance(answer, Mapping) else {}
    text, calls = content.get("text"), content.get("calls")
    if isinstance(text, str):
        return calls_in_text(text, question.language), TEXT
    if not isinstance(calls, list) or not _is_bounded(calls):
        raise Undecodable("the answer is neither text nor a list of calls of bounded size")
    found = [_native_call(call) for call in calls]
    if question.language != "python":
        check_foreign_values(found)
    return found, NATIVE


def _native_call(call: Any) -> dict[str, Any]:  # noqa: ANN401
    name = call.get("name") if isinstance(call, Mapping) else None
    arguments = call.get("arguments") if isinstance(call, Mapping) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise Undecodable("a call has no name or no arguments")
    return {name: readable(arguments)}


def _is_bounded(value: Json) -> bool:
    """Whether JSON is small and flat enough to be compared; never recurses."""
    nodes, letters, left = 0, 0, [(value, 0)]
    while left:
        part, depth = left.pop()
        nodes += 1
        if isinstance(part, str):
            letters += len(part)
        elif isinstance(part, Mapping):
            letters += sum(len(str(key)) for key in part)
            left.extend((inner, depth + 1) for inner in part.values())
        elif isinstance(part, list):
            left.extend((inner, depth + 1) for inner in part)
        if nodes + len(left) > _MAX_NODES or depth > _MAX_DEPTH or letters > _MAX_LETTERS:
            return False
    return True


def _without_calls(question: Question, error: Undecodable) -> Grade:
    if checks_calls(question.category):
        return _wrong(f"No calls can be read in the reply: {error}.")
    return _presence(question, called=False)


def _unread(question: Question, error: Undecodable, *, called: bool) -> Grade:
    """The grade of calls that are read officially and not here: wrong, or made by all appearances."""
    if checks_calls(question.category):
        return _without_calls(question, error)
    grade = _presence(question, called=called)
    return replace(grade, explanation=f"{grade.explanation} It was not read: {error}.")


def _text_of(answer: Json) -> str:
    text = answer.get("text") if isinstance(answer, Mapping) else None
    return text if isinstance(text, str) else ""


def _presence(question: Question, *, called: bool) -> Grade:
    wanted = "irrelevance" not in question.category
    made, should = "A call was made" if called else "No call was made", "should" if wanted else "should not"
    linked = "as it" if called == wanted else "but it"
    return Grade(score=float(called == wanted), explanation=f"{made}, {linked} {should} have been.")


def _compared(question: Question, calls: Any, model: str) -> Grade:  # noqa: ANN401
    kind = language(question.language)
    try:
        result = ast_checker()(question.functions, calls, question.possible, kind, question.category, model)
    except _CHECKER_ERRORS as error:
        return _wrong(
            f"The official checker cannot compare these calls ({type(error).__name__}: {first_line(error)})."
        )
    if result["valid"]:
        return Grade(score=1.0, explanation="The calls are among the possible answers.")
    return _wrong(_sentence(result))


def _sentence(result: Mapping[str, Any]) -> str:
    """The checker's findings in one line."""
    found = "; ".join(_finding(error) for error in result["error"]) or str(result.get("error_type", ""))
    found = " ".join(found.split())
    return found if len(found) <= _MAX_SAID else found[:_MAX_SAID] + "…"


def _finding(error: Any) -> str:  # noqa: ANN401
    if not isinstance(error, dict):
        return str(error)
    return "; ".join(f"{where}: {' '.join(map(str, said['sub_error']))}" for where, said in error.items())


def _wrong(explanation: str) -> Grade:
    return Grade(score=0.0, explanation=explanation)
