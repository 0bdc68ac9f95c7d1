"""What a service answers, as an agent is told of it: JSON, or a sentence about what is none."""

from __future__ import annotations

import json
from collections.abc import Mapping

from genenv.tools.worlds.base import Outcome
from genenv.tools.worlds.jsonable import NotPlain, result_of
from genenv.tools.worlds.openapi.asking import Reply, status_said
from genenv.tools.worlds.openapi.headers import Headers
from genenv.tools.worlds.python_child import MOST_CHARS
from genenv.types import Json

TOO_LONG = f"The result is longer than {MOST_CHARS} characters."
_MOST_TOLD = 300
"""Characters of what a service says of an error."""
_TELLING = ("detail", "message", "error_description", "error", "errors", "title", "reason", "msg")
"""Fields of an error that say what is wrong, the likeliest first."""


def outcome_of(reply: Reply, headers: Headers) -> Outcome:
    """What the agent is told of an answer.

    Args:
        reply: it.
        headers: whose secrets it is rid of.
    """
    answer: Json = None
    try:
        answer = headers.without(result_of(json.loads(reply.body or b"null")))
        problem = ""
    except NotPlain as error:
        problem = f"The service answers {error}."
    except (ValueError, RecursionError):
        problem = f"The service answers {headers.safe(reply.kind)[:80] or 'something'} that is no JSON."
    if not 200 <= reply.status < 300:
        told = _told(answer)
        return Outcome(error=f"The service answers {status_said(reply.status)}{f': {told}' if told else '.'}")
    if problem:
        return Outcome(error=problem)
    if len(json.dumps(answer, ensure_ascii=False)) > MOST_CHARS:
        return Outcome(error=TOO_LONG)
    return Outcome(result=answer)


def _told(answer: Json, depth: int = 0) -> str:
    """What a service says of an error."""
    if isinstance(answer, str):
        return " ".join(answer.split())[:_MOST_TOLD]
    if depth > 4:
        return ""
    if isinstance(answer, list):
        return next((told for one in answer[:4] if (told := _told(one, depth + 1))), "")
    if isinstance(answer, Mapping):
        held = (answer[name] for name in _TELLING if name in answer)
        return next((told for one in held if (told := _told(one, depth + 1))), "")
    return ""
