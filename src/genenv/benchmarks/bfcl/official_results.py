"""Answers as bfcl-eval's own result files, which `bfcl evaluate` reads.

Source: `BaseHandler.write`, `get_directory_structure_by_id`, and the handlers' `decode_ast` and
`decode_execute`. bfcl-eval reads a model's files by the handler of its name, and knows the names of its
leaderboard only. The files are written under names whose handlers read replies as they are: text after the
official prompt, or calls as JSON. No model of that name has answered. Halves of surrogate pairs, which
policies never give, are replaced: `bfcl evaluate` cannot write them and stops.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from genenv.benchmarks.bfcl.categories import FORMAT_SENSITIVITY, LIVE_FILES, MEMORY, MULTI_TURN
from genenv.benchmarks.bfcl.official import NATIVE, TEXT
from genenv.benchmarks.bfcl.single import as_sent
from genenv.evaluation.base import Answered, Item
from genenv.evaluation.records import Record
from genenv.texts import clean
from genenv.types import Json, JsonObject

NAMES: Mapping[str, str] = {TEXT: "gpt-4o-mini-2024-07-18", NATIVE: "gpt-4o-mini-2024-07-18-FC"}
"""Names in bfcl-eval's list whose handlers are plain."""
_SEVERAL_REPLIES = (*MULTI_TURN, *MEMORY)
"""Categories whose results are replies by turn and step."""


def result_files(answered: Sequence[Answered]) -> dict[str, str]:
    """The files by path, such as `result/MODEL/live/BFCL_v4_live_simple_result.json`; a line an item."""
    files: dict[str, str] = {}
    for item, record in answered:
        try:
            form, result = _result(item, record)
        except (LookupError, TypeError, AttributeError):  # a record that genenv did not write
            continue
        category = item.groups["category"]
        path = f"result/{NAMES[form]}/{_group(category)}/BFCL_v4_{category}_result.json"
        files[path] = files.get(path, "") + json.dumps(_line(item, record, result)) + "\n"
    return files


def _group(category: str) -> str:
    if category in MULTI_TURN:
        return "multi_turn"
    if category in MEMORY:
        return f"agentic/memory/{category.removeprefix('memory_')}"
    if category == FORMAT_SENSITIVITY:
        return FORMAT_SENSITIVITY
    return "live" if category in LIVE_FILES else "non_live"


def _line(item: Item, record: Record, result: Json) -> JsonObject:
    several = item.groups["category"] in _SEVERAL_REPLIES
    return {
        "id": item.id,
        "result": result,
        "input_token_count": record.tokens.get("prompt", 0),
        "output_token_count": record.tokens.get("sampled", 0),
        "latency": _latencies(record, result) if several else _latency(record),
    }


def _latency(record: Record) -> float:
    """How long the one reply took; 0, which officially counts for nothing, where there is none."""
    if record.latencies_s:
        return record.latencies_s[0]
    return record.seconds if record.tokens.get("replies") else 0.0


def _latencies(record: Record, result: Json) -> list[list[float]]:
    """How long each reply took, by turn and step."""
    taken = iter(record.latencies_s)
    turns = cast("list[list[Json]]", result) if isinstance(result, list) else []
    return [*([next(taken, 0.0) for _ in turn] for turn in turns), list(taken)]


def _result(item: Item, record: Record) -> tuple[str, Json]:
    """In which form it was asked, and what was said: what failed is told as the official run tells it."""
    answer = cast("Mapping[str, Any]", record.answer) if isinstance(record.answer, Mapping) else None
    form = NATIVE if record.tools or (answer is not None and "calls" in answer) else TEXT
    if answer is None:
        return form, clean(f"Error during inference: {record.explanation}")
    if item.groups["category"] in _SEVERAL_REPLIES:
        return form, _turns(record, answer.get("turns"), form)
    if form == NATIVE:
        return form, _calls(answer.get("calls"))
    return form, clean(str(answer.get("text", "")))


def _turns(record: Record, turns: Any, form: str) -> Json:  # noqa: ANN401
    """Replies by turn and step: those with calls, and the one without that ended the turn."""
    said = [message for message in record.conversation if message.get("role") == "assistant"]
    replies = iter([_reply(message, form) for message in said])
    counts = [len(steps) for steps in turns]
    if sum(counts) > len(said):
        raise LookupError("the conversation is not whole")
    return [[reply for _, reply in zip(range(count + 1), replies, strict=False)] for count in counts]


def _reply(message: Mapping[str, Any], form: str) -> Json:
    content = clean(str(message.get("content") or "")).rpartition("</think>")[2].lstrip("\n")
    if form == TEXT or not message.get("tool_calls"):
        return content
    return _calls([call["function"] for call in message["tool_calls"]])


def _calls(calls: Any) -> Json:  # noqa: ANN401
    return [{str(call["name"]): as_sent(call["arguments"])} for call in calls or ()]
