"""BFCL's verdicts here beside the official ones: every item, right answers and many that are not.

    python bench/parity_bfcl.py
    python bench/parity_bfcl.py --only multi_turn_base memory_kv --seed 1

Single-turn: right answers and more than 20 mutations of each, as native calls and as text, and odd
expressions at odd places of them; the official side is `default_decode_ast_prompting`, `ast_checker` and the
rules of `eval_runner.py`. What the official decoding evaluates, and is not evaluated here, is counted apart.
Multi-turn: the right calls, and calls dropped, doubled, reordered or spoilt; the official side is
`multi_turn_checker`. Memories: whole scenarios with the same replies to the official handler, whose memories
are files, and messages to its checker. Format sensitivity: replies in the format of each item, in others, and
damaged. Prompts and tools are compared too. All answers are exported: the official evaluation has to find the
same wrong, and its leaderboard the same row; `--v3 FOLDER`, the unpacked folder `bfcl_eval` of bfcl-eval
2025.8.5, has the overall of version 3. The official code evaluates text: only text that is
made here is given to it. The official files are those of the installed package, run as they are; with
`--checkout FOLDER`, a clone of the repository, it is counted how many of them equal its newest commit.
One JSON object is printed. Needs filelock beside the package; tenacity is not needed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import io
import json
import random
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bfcl_formats import formats
from bfcl_memory import memories, plain, replies_to
from bfcl_mutations import odd_texts, python_text, right_calls
from bfcl_official import (
    OFFICIAL,
    ScriptedHandler,
    as_in_a_new_process,
    official_row,
    wrong_officially,
)
from bfcl_single import Tally, answers_to, decoded_alike, questions, summary_of
from official import equal_to_commit, package

from genenv.benchmarks.bfcl.benchmark import Bfcl
from genenv.benchmarks.bfcl.data import ALL, FORMAT_SENSITIVITY, MEMORY, MULTI_TURN, MemoryTask, data_folder
from genenv.benchmarks.bfcl.multi_turn import World, ask_turns, named_arguments
from genenv.benchmarks.bfcl.official import commands
from genenv.benchmarks.bfcl.scoring import NOT_MEASURED
from genenv.benchmarks.bfcl.single_turn import shown, tools, with_system_prompt
from genenv.chat.assistant import Reply, ToolCall
from genenv.chat.tool_calls import arguments_of
from genenv.evaluation.base import Item, Prices
from genenv.evaluation.data import DataFolder
from genenv.evaluation.evaluate import Export
from genenv.evaluation.results import Record
from genenv.evaluation.runner import Runner

_FOLDER = "berkeley-function-call-leaderboard/bfcl_eval"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=["all", FORMAT_SENSITIVITY], help="categories")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--expressions", type=int, default=20, help="odd expressions tried with each item")
    parser.add_argument("--v3", type=Path, help="the folder bfcl_eval of an unpacked bfcl-eval 2025.8.5")
    parser.add_argument("--checkout", type=Path, help="a clone of github.com/ShishirPatil/gorilla")
    options = parser.parse_args()
    benchmark, started = Bfcl(), time.perf_counter()
    data = DataFolder(data_folder())
    items = [item for split in options.only for item in benchmark.load(data, split)]
    found: dict[str, Any] = {"official": package("bfcl-eval", "bfcl_eval")}
    if options.checkout:
        found["repository"] = equal_to_commit("bfcl_eval", options.checkout, _FOLDER)
    found |= {"load_s": round(time.perf_counter() - started, 2), "items": len(items)}
    for category in (*ALL, FORMAT_SENSITIVITY):
        mine = [item for item in items if item.groups["category"] == category]
        if not mine:
            continue
        begun, rng = time.perf_counter(), random.Random(f"{options.seed}/{category}")
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():  # a converter prints
            warnings.simplefilter("ignore")  # of what is evaluated
            if category in MULTI_TURN:
                found[category] = _conversations(benchmark, mine, rng)
            elif category in MEMORY:
                found[category] = memories(benchmark, mine, rng, Script)
            elif category == FORMAT_SENSITIVITY:
                found[category] = formats(benchmark, mine, rng)
            else:
                found[category] = questions(benchmark, mine, rng, options.expressions)
            found[category]["prompts"] = _prompts(mine, category)
        found[category]["seconds"] = round(time.perf_counter() - begun, 1)
    with contextlib.redirect_stdout(io.StringIO()):
        found["export"] = _exported(benchmark, items, random.Random(options.seed), options.v3)
    found["grade_items_per_s"] = _speed(benchmark, items)
    parts = [found[category] for category in (*ALL, FORMAT_SENSITIVITY) if category in found]
    found["differences"] = sum(part["differences"] for part in [*parts, found["export"]])
    print(json.dumps(found, indent=1))


# Multi-turn.


def _conversations(benchmark: Bfcl, items: Sequence[Item], rng: random.Random) -> dict[str, Any]:
    tally: Tally = defaultdict(Counter)
    differing: list[list[str]] = []
    entries = {entry["id"]: entry for entry in OFFICIAL.utils.load_dataset_entry(items[0].groups["category"])}
    for item in items:
        for kind, turns in _plans(item.data.truth, rng):
            ours = benchmark.grade(item, {"turns": turns}).score == 1.0
            theirs = _official_conversation(item, turns)
            tally[kind]["officially_valid"] += theirs == "valid"
            tally[kind]["official_raises"] += theirs == "raises"
            tally[kind]["equal" if ours == (theirs == "valid") else "different"] += 1
            if ours != (theirs == "valid"):
                differing.append([item.id, kind, theirs, str(ours)])
        checks = {
            "result_texts": _other_result(item),
            "decoded_replies": _other_decoding(item.data.truth),
            "text_conversations": _other_conversation(item, entries[item.id], rng, native=False),
            "native_conversations": _other_conversation(item, entries[item.id], rng, native=True),
        }
        for kind, other in checks.items():
            tally[kind]["different" if other else "equal"] += 1
            differing += [[item.id, kind, other]] if other else []
    return summary_of(tally, differing)


def _plans(truth: list[list[str]], rng: random.Random) -> Iterator[tuple[str, list[list[list[str]]]]]:
    """Calls by turn and step: the right ones, and other ones. An empty step is dropped, as officially."""
    right = [[list(turn)] if turn else [] for turn in truth]
    yield "right", right
    yield "a_call_a_step", [[[call] for call in turn] for turn in truth]
    asked = [index for index, turn in enumerate(truth) if turn]
    for index in asked:
        yield "turn_dropped", [*right[:index], [], *right[index + 1 :]]
        for at in range(len(truth[index])):
            rest = truth[index][:at] + truth[index][at + 1 :]
            yield "call_dropped", [*right[:index], [rest] if rest else [], *right[index + 1 :]]
    index = rng.choice(asked)
    turn = truth[index]
    others: list[tuple[str, list[str]]] = [
        ("reversed", turn[::-1]),
        ("doubled", turn * 2),
        ("number_changed", [_spoilt(turn[0]), *turn[1:]]),
        ("unknown_call", [*turn, "no_such_function(a=1)"]),
        ("bad_syntax", [*turn, "ls(", "cd(folder=)"]),
        ("harmless_extra", [*turn, "ls()", "get_watchlist()", "pwd()"]),
        ("missing_argument", [turn[0].split("(")[0] + "()", *turn[1:]]),
        ("extra_argument", [turn[0][:-1] + ", surprise=1)", *turn[1:]]),
        ("bracket_in_text", [*turn, "post_tweet(content='Done (all of it), sort (x)')"]),
    ]
    for kind, calls in others:
        yield kind, [*right[:index], [calls], *right[index + 1 :]]
    yield (
        "all_in_first_turn",
        [[[c for t in truth for c in t]], *[[["ls()"]] if t else [] for t in truth[1:]]],
    )
    yield "turn_missing", right[:-1]


def _spoilt(call: str) -> str:
    return call.replace("='", "='x", 1) if "='" in call else call.replace("=", "=1", 1)


_USED = iter(range(10**9))


def _official_conversation(item: Item, turns: list[list[list[str]]]) -> str:
    truth = item.data.truth
    if len(turns) != len(truth):
        return "invalid"
    entry = {"initial_config": item.data.config, "involved_classes": item.data.classes, "id": item.id}
    as_in_a_new_process()
    try:
        result = OFFICIAL.multi_turn_checker.multi_turn_checker(
            copy.deepcopy(turns), truth, copy.deepcopy(entry), item.data.category, f"run{next(_USED)}"
        )
    except Exception:  # noqa: BLE001 - whatever it raises is counted
        return "raises"
    return "valid" if result["valid"] else "invalid"


def _other_result(item: Item) -> str:
    """The first turn whose right calls answer another text here than officially; empty: none."""
    conversation, world = item.data, World(item.data)
    as_in_a_new_process()
    for turn in conversation.truth:
        theirs, _ = OFFICIAL.multi_turn_utils.execute_multi_turn_func_call(
            turn,
            conversation.config,
            conversation.classes,
            "compared",
            item.id,
            long_context=conversation.long_context,
        )
        if world.run(turn) != theirs:
            return str(turn)
    return ""


def _other_decoding(truth: list[list[str]]) -> str:
    """The first reply in text that becomes other calls here than officially; empty: none."""
    for turn in truth:
        for kind, text in [("right", f"[{', '.join(turn)}]"), *odd_texts(f"[{', '.join(turn)}]")]:
            try:
                theirs = OFFICIAL.handler.default_decode_execute_prompting(text)
            except Exception:  # noqa: BLE001 - as officially
                theirs = []
            if commands(text) != theirs:
                return f"{kind}: {text[:200]!r}"
    return ""


class Script:
    """Says what it is told to say, and remembers what it was asked."""

    def __init__(self, replies: list[Any], *, native_tools: bool) -> None:
        self.replies, self.native_tools = list(replies), native_tools
        self.heard: list[Any] = []
        self.offered: list[Any] = []

    async def __call__(  # noqa: D102
        self,
        messages: Sequence[Any],
        *,
        tools: Sequence[Any] = (),
        choices: Sequence[str] = (),
        max_tokens: int | None = None,
    ) -> Reply:
        self.heard.append(copy.deepcopy(messages))
        self.offered.append(copy.deepcopy(list(tools)))
        said = self.replies.pop(0)
        text, pairs = (said, []) if isinstance(said, str) else ("", said)
        calls = tuple(ToolCall(name=name, arguments=arguments_of(words)) for name, words in pairs)
        return Reply(text=text, calls=calls, prompt_tokens=7_000 * len(messages), tokens=1_100)


def _other_conversation(item: Item, entry: dict[str, Any], rng: random.Random, *, native: bool) -> str:
    """The first difference between the conversation here and the official one, with the same replies."""
    replies = list(_replies(item, rng, native=native))
    ours, theirs = Script(replies, native_tools=native), ScriptedHandler(replies, native=native)
    answer: Any = asyncio.run(ask_turns(item.data, ours, native=native, max_steps=20))
    as_in_a_new_process()
    said = theirs.hold(entry)
    if [plain(heard) for heard in ours.heard] != [plain(heard) for heard in theirs.heard]:
        return "other messages"
    if ours.offered != theirs.offered:
        return "other tools"
    decoded = [[calls for step in turn if (calls := _official_calls(theirs, step))] for turn in said]
    return "" if answer["turns"] == decoded else "other calls"


def _replies(item: Item, rng: random.Random, *, native: bool) -> Iterator[Any]:
    """Right calls in one step or in many, with mistakes among them; one conversation of twenty never ends."""
    if rng.random() < 0.05:
        yield from [[("ls", '{"a": true}')] if native else "[ls(a=True)]"] * 22
    for turn in item.data.truth:
        named = [named_arguments(call, item.data) for call in turn] + [("no_such", {"x": [1, {"y": "(z )"}]})]
        for calls in [named] if rng.random() < 0.5 else [[call] for call in named]:
            if native:
                if rng.random() < 0.1:
                    yield [(name, json.dumps(words)[:-1]) for name, words in calls]  # ends the turn
                yield [(name, json.dumps(words)) for name, words in calls]
            else:
                yield python_text([{name: words} for name, words in calls])
        yield rng.choice(["Done.", "[]", "What is the name (of it)?"] if not native else ["Done.", ""])
    yield from ["Done."] * 200


# The export.


def _exported(benchmark: Bfcl, items: Sequence[Item], rng: random.Random, v3: Path | None) -> dict[str, Any]:
    """Answers to all items, right or not, written as official result files: is the same wrong by these?"""
    found: dict[str, Any] = {"items": 0, "wrong": 0, "needs_evaluation": 0}
    found |= {"differences": 0, "first_differences": [], "leaderboard": {}}
    for native in (False, True):
        asked = [item for item in items if not (native and item.groups["category"] == FORMAT_SENSITIVITY)]
        for chain in benchmark.prerequisites(asked):
            for item in chain:
                benchmark.held(item, _recorded(benchmark, item, rng, native=native).answer)
        answered = [(item, _recorded(benchmark, item, rng, native=native)) for item in asked]
        with tempfile.TemporaryDirectory() as name:
            Export(Path(name), "scripted").write(benchmark, answered, "scripted")
            theirs = wrong_officially(Path(name))
        ours = {item.id for item, record in answered if record.score != 1.0}
        unread = {item.id for item, record in answered if _needs_evaluation(item, record)}
        differing = sorted((ours ^ {id_ for of_one in theirs.values() for id_ in of_one}) - unread)
        row, differing_cells = _leaderboard(benchmark, [p for p in answered if p[0].id not in unread], v3)
        found["leaderboard"]["native" if native else "text"] = row
        found["needs_evaluation"] += len(unread)
        found["items"] += len(answered)
        found["wrong"] += len(ours)
        found["differences"] += len(differing) + len(differing_cells)
        found["first_differences"] += differing[:8] + differing_cells[:8]
    return found


def _leaderboard(
    benchmark: Bfcl, answered: Sequence[tuple[Item, Record]], v3: Path | None
) -> tuple[dict[str, Any], list[str]]:
    """The official row of the leaderboard, and the cells in which ours is another."""
    prices = Prices(prompt=0.15, sampled=0.6)
    ours, _ = benchmark.leaderboard(answered, prices)
    with tempfile.TemporaryDirectory() as name:
        Export(Path(name), "scripted").write(benchmark, answered, "scripted")
        theirs = official_row(Path(name), (prices.prompt, prices.sampled), v3)
    cells: dict[str, Any] = dict(ours["columns"])  # type: ignore[arg-type]
    compared = {column: cell for column, cell in cells.items() if cell != NOT_MEASURED}
    if ours["overall_missing_as_zero"] is not None:
        compared["Overall Acc"] = f"{ours['overall_missing_as_zero']:.2%}"
    if ours["overall_v3"] is not None and v3 is not None:
        compared["v3"] = f"{ours['overall_v3']:.2%}"
    other = [
        f"{column}: {cell}, {theirs[column]}" for column, cell in compared.items() if cell != theirs[column]
    ]
    return {"cells": len(compared), "official": theirs}, other


def _needs_evaluation(item: Item, record: Record) -> bool:
    """Whether a single-turn reply is one that officially only evaluation decodes."""
    text = record.answer.get("text") if isinstance(record.answer, dict) else None
    return isinstance(text, str) and decoded_alike(item, text).startswith("needs_evaluation")


def _written_officially(item: Item, answer: Any) -> bool:  # noqa: ANN401
    """Whether the official evaluation, which ends with an error else, can write what it has decoded."""
    with contextlib.suppress(Exception):  # what cannot be decoded is written as it is
        decoded = OFFICIAL.handler.default_decode_ast_prompting(
            answer.get("text"), OFFICIAL.ReturnFormat(item.data.language), False
        )
        try:
            json.dumps(OFFICIAL.utils.make_json_serializable(decoded))
        except TypeError:
            return False
    return True


def _recorded(benchmark: Bfcl, item: Item, rng: random.Random, *, native: bool) -> Record:
    """What `genenv eval` keeps of an item that a scripted model answered."""
    kept: list[Record] = []
    if item.groups["category"] in MULTI_TURN:
        replies = list(_replies(item, rng, native=native))
    elif isinstance(item.data, MemoryTask):
        replies = list(replies_to(item.data, rng, native=native))
    else:
        answers = [
            (form, kind, answer)
            for form, kind, answer in answers_to(item, rng, 3)
            if ("calls" in answer) == native
            and kind != "surrogate"  # which no policy gives
            and _written_officially(item, answer)
        ]
        _, _, answer = rng.choice(answers if rng.random() < 0.6 else answers[:1])
        replies = [
            [(call["name"], json.dumps(call["arguments"])) for call in answer["calls"]]
            if native
            else answer["text"]
        ]
    run = Runner(benchmark, _ScriptedAssistant(replies, native_tools=native), seed=0, keep=kept.append)
    asyncio.run(run.items([item]))
    latencies = [round(rng.expovariate(1), 3) for _ in kept[0].latencies_s]
    return replace(kept[0], latencies_s=latencies)


class _ScriptedAssistant:
    """An assistant that follows a script in its one conversation."""

    name = "scripted"

    def __init__(self, replies: list[Any], *, native_tools: bool) -> None:
        self.native_tools = native_tools
        self.progress: Callable[[int], None] | None = None
        self._talk = Script(replies, native_tools=native_tools)

    def concurrency(self, *, many_turns: bool) -> int:
        return 1

    def talk(self, seed: int, *, many_turns: bool = False) -> Script:
        return self._talk

    def describe(self) -> dict[str, Any]:
        return {}

    def spending(self) -> dict[str, Any]:
        return {}


def _official_calls(handler: Any, said: Any) -> list[str]:  # noqa: ANN401
    try:
        return handler.decode_execute(said, has_tool_call_tag=False)
    except Exception:  # noqa: BLE001 - as officially
        return []


# Prompts, speed, summary.


def _prompts(items: Sequence[Item], category: str) -> dict[str, int]:
    """How many first messages and tools equal the official ones."""
    entries = {entry["id"]: entry for entry in OFFICIAL.utils.load_dataset_entry(category)}
    same = Counter[str]()
    for item in items:
        entry, functions = entries[item.id], shown(item.data.functions, category)
        if (
            category in MEMORY
        ):  # whose first messages have the memory in them: compared with the conversations
            continue
        first = item.data.turns[0] if category in MULTI_TURN else item.data.messages
        if category == FORMAT_SENSITIVITY:
            functions = shown(functions, category)
        theirs = OFFICIAL.handler.convert_to_tool(
            entry["function"], OFFICIAL.GORILLA_TO_OPENAPI, OFFICIAL.ModelStyle.OPENAI_COMPLETIONS
        )
        same["tools"] += tools(functions) == theirs
        same["messages"] += with_system_prompt(
            first, functions, getattr(item.data, "prompt_format", "")
        ) == OFFICIAL.handler.system_prompt_pre_processing_chat_model(
            entry["question"][0], entry["function"], item.id
        )
    return dict(same)


def _speed(benchmark: Bfcl, items: Sequence[Item]) -> dict[str, float]:
    """Grades per second, of right answers: one turn, and whole conversations."""
    kinds: dict[str, Callable[[Item], Any]] = {
        "single_turn": lambda item: {
            "text": python_text(right_calls(item.data.possible, item.data.functions))
        },
        "multi_turn": lambda item: {"turns": [[turn] for turn in item.data.truth]},
    }
    speeds = {}
    for kind, answer in kinds.items():
        scored = [i for i in items if i.groups["category"] not in (*MEMORY, FORMAT_SENSITIVITY)]
        mine = [i for i in scored if (i.groups["category"] in MULTI_TURN) == (kind == "multi_turn")]
        answers = [answer(item) for item in mine]
        begun = time.perf_counter()
        for item, given in zip(mine, answers, strict=True):
            benchmark.grade(item, given)
        speeds[kind] = round(len(mine) / (time.perf_counter() - begun)) if mine else 0
    return speeds


if __name__ == "__main__":
    main()
