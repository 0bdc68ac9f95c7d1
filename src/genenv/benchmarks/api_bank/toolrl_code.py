"""ToolRL's own code for API-Bank, which is neither stricter nor laxer than the rule of its paper, but other.

Source: `benchmarks/API-Bank/generate.py` and `evaluate.py` of github.com/qiancheng0/ToolRL (8cee13e). A reply
is read from its last `<tool_call>` on, thoughts or not, or as a whole where there is none; a call is one
line. An object without `name` or `parameters` counts as the parameters of the right tool. A value that is
neither object, list nor text ends the reading.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

from genenv.benchmarks.api_bank.calls import MAX_REPLY_CHARS, Call


def right_by_code(reply: str, native: Sequence[Call], gold: Call) -> bool:
    """Whether ToolRL's code finds the recorded call.

    Args:
        reply: the text; of a longer one than is read here, only the end.
        native: calls that an endpoint took out of the reply, as if they stood after it.
        gold: the recorded call.
    """
    values = [
        *_lines(reply[-MAX_REPLY_CHARS:]),
        *({"name": c.name, "parameters": c.parameters} for c in native),
    ]
    try:
        return any(_is_gold(value, gold) for value in values)
    except (TypeError, ValueError, LookupError, RecursionError):
        return False


def _lines(reply: str) -> Iterator[Any]:
    block = reply.strip().split("<tool_call>")[-1].split("</tool_call>")[0]
    for line in block.strip().split("\n"):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def _is_gold(value: Any, gold: Call) -> bool:  # noqa: ANN401
    call = cast("dict[str, Any]", json.loads(value) if isinstance(value, str) else value)
    if "name" not in call or "parameters" not in call:
        return call == gold.parameters
    return bool(call["name"] == gold.name and call["parameters"] == gold.parameters)
