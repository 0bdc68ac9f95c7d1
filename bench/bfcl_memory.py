"""BFCL's memory categories here beside the official ones, for `parity_bfcl.py`."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bfcl_mutations import python_text
from bfcl_official import OFFICIAL, ScriptedHandler, as_in_a_new_process
from bfcl_single import Tally, summary_of

from genenv.benchmarks.bfcl.benchmark import Bfcl
from genenv.benchmarks.bfcl.data import MemoryTask
from genenv.chat.tool_calls import arguments_of
from genenv.evaluation.base import Item

Words = dict[str, Any]
_WORDS = (
    "the name of my sister Ann is on page 42 of a blue book in Seattle (spare key) and it's due May 3, 2024"
)


def memories(
    benchmark: Bfcl, items: Sequence[Item], rng: random.Random, script: Callable[..., Any]
) -> dict[str, Any]:
    """Whole scenarios, conversations and questions, with the same replies on both sides; and messages graded.

    Args:
        benchmark: a fresh one.
        items: the questions of a kind of memory.
        rng: draws the replies.
        script: makes a conversation of replies, as `parity_bfcl.py` has it.
    """
    tally: Tally = defaultdict(Counter)
    differing: list[list[str]] = []
    entries = {entry["id"]: entry for entry in OFFICIAL.utils.load_dataset_entry(items[0].groups["category"])}
    for native in (False, True):
        form = "native" if native else "text"
        with tempfile.TemporaryDirectory() as name:
            for chain in benchmark.prerequisites(items):
                mine = [item for item in items if item.data.before[-1].id == chain[-1].id]
                for item in [*chain, *mine]:
                    other = _other(benchmark, item, entries[item.id], Path(name), rng, script, native=native)
                    kind = f"{form}_{'questions' if item.data.possible else 'conversations'}"
                    tally[kind]["different" if other else "equal"] += 1
                    differing += [[item.id, kind, other]] if other else []
    for item in items:
        for kind, said in _messages(item, items, rng):
            theirs = OFFICIAL.agentic_checker(said, item.data.possible)["valid"] if said else False
            ours = benchmark.grade(item, {"turns": [[]], "said": said}).score == 1.0
            tally["messages"]["officially_valid"] += theirs
            tally["messages"]["equal" if ours == theirs else "different"] += 1
            differing += [[item.id, kind, str(ours)]] if ours != theirs else []
    return summary_of(tally, differing)


def _other(  # noqa: PLR0913
    benchmark: Bfcl,
    item: Item,
    entry: dict[str, Any],
    folder: Path,
    rng: random.Random,
    script: Callable[..., Any],
    *,
    native: bool,
) -> str:
    """The first difference between a conversation here and the official one, with the same replies."""
    task: MemoryTask = item.data
    replies = list(replies_to(task, rng, native=native))
    ours, theirs = script(replies, native_tools=native), ScriptedHandler(replies, native=native)
    answer: Any = asyncio.run(benchmark.attempt(item, ours))
    if not task.possible:
        benchmark.held(item, answer)
    as_in_a_new_process()
    (entry,) = OFFICIAL.utils.populate_initial_settings_for_memory_test_cases([copy.deepcopy(entry)], folder)
    said = theirs.hold(entry)
    if [plain(heard) for heard in ours.heard] != [plain(heard) for heard in theirs.heard]:
        return "other messages"
    if ours.offered != theirs.offered:
        return "other tools"
    if not task.possible:
        return "" if answer["memory"] == _snapshot(folder, task) else "another memory"
    verdict = OFFICIAL.runner._evaluate_single_agentic_entry(
        *(theirs, item.id, said, task.possible, copy.deepcopy(entry), "compared", task.category)
    )["valid"]
    return (
        "" if verdict == (benchmark.grade(item, answer).score == 1.0) else f"another verdict than {verdict}"
    )


def _snapshot(folder: Path, task: MemoryTask) -> Any:  # noqa: ANN401
    """What the official run has kept of a memory."""
    place = folder / OFFICIAL.utils.get_directory_structure_by_id(task.id) / "memory_snapshot"
    return json.loads((place / f"{task.scenario}_final.json").read_text("utf-8"))


def plain(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Messages in one form: the official ones hold objects, and arguments as text."""
    made: list[dict[str, Any]] = []
    for message in messages:
        calls = [
            (call["function"]["name"], call["function"]["arguments"], call["id"])
            if isinstance(call, dict)
            else (call.function.name, arguments_of(call.function.arguments), call.id)
            for call in message.get("tool_calls") or []
        ]
        made.append({**message, "tool_calls": calls})
    return made


# Replies.


def replies_to(task: MemoryTask, rng: random.Random, *, native: bool) -> Iterator[Any]:
    """Some calls to the memory in each turn, some of them wrong, and a last message, right or not."""
    for _ in task.turns:
        if rng.random() < 0.02:
            yield from [_said([_call(task, rng)], native=native) for _ in range(22)]
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            calls = [_call(task, rng) for _ in range(rng.choice((1, 1, 2, 3)))]
            yield _said(calls, native=native)
        if native and rng.random() < 0.1:
            yield [("core_memory_clear", '{"a": ')]  # ends the turn
        else:
            yield _last(task, rng)
    yield from ["Done."] * 200


def _said(calls: list[tuple[str, Words]], *, native: bool) -> Any:  # noqa: ANN401
    if native:
        return [(name, json.dumps(words)) for name, words in calls]
    return python_text([{name: words} for name, words in calls])


def _last(task: MemoryTask, rng: random.Random) -> str:
    answer = rng.choice(task.possible) if task.possible else "noted"
    return rng.choice(
        [
            f"{{'answer': '{answer}', 'context': 'It was said.'}}",
            f"It is {answer.upper()}!",
            f"x{answer}x",
            "I do not know",
            "",
            "[]",
            answer,
        ]
    )


def _call(task: MemoryTask, rng: random.Random) -> tuple[str, Words]:
    """A call of one of the functions, most with fit arguments."""
    function = rng.choice(task.functions)
    words: Words = {}
    for name, details in function["parameters"]["properties"].items():
        if name in function["parameters"]["required"] or rng.random() < 0.5:
            words[name] = _value(name, str(details["type"]), rng)
    if rng.random() < 0.05:
        words["surprise"] = 1
    if rng.random() < 0.05:
        return "no_such_function", words
    return function["name"], words


def _value(name: str, kind: str, rng: random.Random) -> Any:  # noqa: ANN401
    if kind == "integer":
        return rng.choice((0, 1, 3, 5))
    words = _WORDS.split()
    if "key" in name:
        return rng.choice(
            [f"{rng.choice(('a', 'b', 'pet', 'home'))}_{rng.randrange(8)}", "pet", "Bad Key", "x__"]
        )
    if "old" in name:
        return rng.choice(["Ann", "nothing of it", "a"])
    text = " ".join(rng.sample(words, rng.randrange(1, 9)))
    return rng.choice([text, text, text, "é\n'\"{x}", text * 40, text * 300, 7])


def _messages(item: Item, items: Sequence[Item], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Messages with and without an answer."""
    other = rng.choice(items).data.possible[0]
    for answer in item.data.possible:
        forms: Mapping[str, str] = {
            "bare": answer,
            "official_form": str({"answer": answer, "context": "It was said."}),
            "upper": answer.upper(),
            "marked": f"It is **{answer}**.",
            "dotted": ".".join(answer),
            "dashed": answer.replace(" ", "-"),
            "commas": answer.replace(" ", ", "),
            "spaced": " ".join(answer),
            "doubled_spaces": answer.replace(" ", "  "),
            "lines": answer.replace(" ", "\n"),
            "quotes": answer.replace("'", '"'),
            "joined": answer.replace(" ", ""),
            "within_a_word": f"pre{answer}post",
            "after_a_digit": f"1{answer}",
            "cut": answer[: len(answer) // 2],
            "without_first": answer[1:],
            "reversed": answer[::-1],
            "bracketed": f"({answer})^{{2}}",
            "long": f"{'word ' * 500}{answer}{' word' * 500}",
            "number": f"{answer}.0",
        }
        yield from forms.items()
    yield "other", other
    yield "nothing", ""
    yield "blank", " "
    yield "unknown", str({"answer": "I do not know", "context": "I do not know"})
    yield "surrogate", "\ud800"
