"""BFCL v4's data: categories and their weights, the package bfcl-eval, and its files as items.

Weights are those of `eval_runner_helper.generate_leaderboard_csv` of bfcl-eval 2026.3.23. Overall = 10%
non-live, 10% live, 10% irrelevance, 30% multi-turn, 40% agentic. Non-live is the mean of simple (the mean of
three languages), multiple, parallel and parallel_multiple. Live is the mean over its items. Irrelevance and
multi-turn are means of categories. Agentic is the mean of web search (two categories) and memory (three).
Relevance and format sensitivity have no weight.

This module reads only data, prompts and constants of the package; `official.py` runs its code.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from genenv.errors import UsageError, first_line
from genenv.evaluation.base import Item
from genenv.evaluation.data import DataFolder, a_list

SIMPLE = ("simple_python", "simple_java", "simple_javascript")
PARALLEL = ("multiple", "parallel", "parallel_multiple")
LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
IRRELEVANCE = ("irrelevance", "live_irrelevance")
MULTI_TURN = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
LONG_CONTEXT = "multi_turn_long_context"
MEMORY = ("memory_kv", "memory_rec_sum")
FORMAT_SENSITIVITY = "format_sensitivity"
"""Single-turn items, each under 26 prompt formats; this category has no weight in the overall score."""
MISSING: Mapping[str, str] = {
    "memory_vector": "it needs faiss, sentence-transformers and the weights of all-MiniLM-L6-v2",
    "web_search_base": "it needs the internet and a key of a search service",
    "web_search_no_snippet": "it needs the internet and a key of a search service",
}
"""The categories that are not included, with the reason."""

NON_LIVE_FILES = (*SIMPLE, *PARALLEL, "irrelevance")
LIVE_FILES = (*LIVE, "live_irrelevance", "live_relevance")
SINGLE_TURN = (*NON_LIVE_FILES, *LIVE_FILES)
ALL = (*SINGLE_TURN, *MULTI_TURN, *MEMORY)

GROUPS: Mapping[str, tuple[str, ...]] = {
    "non_live": (*SIMPLE, *PARALLEL),
    "live": LIVE,
    "irrelevance": IRRELEVANCE,
    "multi_turn": MULTI_TURN,
    "memory_kv_and_rec_sum": MEMORY,
}
"""The parts of the overall score that can be measured here; memory is a part of agentic."""
WEIGHTS: Mapping[str, float] = {
    "non_live": 10,
    "live": 10,
    "irrelevance": 10,
    "multi_turn": 30,
    "agentic": 40,
    "memory_kv_and_rec_sum": 40 / 2 * 2 / 3,
    "missing": 40 / 2 + 40 / 2 / 3,
}
"""Percent of the overall score. Agentic consists of two memories, the missing memory and web search."""

COLLECTIONS: Mapping[str, tuple[str, ...]] = {
    "all": ALL,
    "single_turn": SINGLE_TURN,
    "multi_turn": MULTI_TURN,
    "non_live": NON_LIVE_FILES,
    "live": LIVE_FILES,
    "memory": MEMORY,
}
SPLITS: Mapping[str, str] = {
    "all": "every category but format_sensitivity; there are no memory_vector and no web search",
    "single_turn": "the 13 categories of one reply: calls compared by structure, and (ir)relevance",
    "multi_turn": "the four multi-turn categories, 200 conversations each",
    "non_live": "single-turn, written by the authors, irrelevance included",
    "live": "single-turn, contributed by users, (ir)relevance included",
    "memory": "questions on what the model noted in earlier conversations, which are held first",
    "format_sensitivity": "200 single-turn items under 26 formats of the prompt; for models asked in text",
    **{name: f"the category {name} alone" for name in ALL},
}


def checks_calls(category: str) -> bool:
    """Return whether calls are compared; (ir)relevance only tests whether there are any."""
    return "relevance" not in category


def language_of(category: str) -> str:
    """Return the programming language of a category's calls."""
    return category.removeprefix("simple_") if category.startswith("simple_java") else "python"


VERSION = "2026.3.23"
INSTALL = (
    f"pip install --no-deps bfcl-eval=={VERSION} and pip install mpmath==1.3.0 rank-bm25==0.2.2 "
    "tree_sitter==0.21.3 tree-sitter-java==0.21.0 tree-sitter-javascript==0.21.4"
)


@cache
def data_folder() -> Path:
    """Return the package's data folder.

    Raises:
        UsageError: the package is not installed.
    """
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or spec.origin is None:
        raise UsageError(f"BFCL's data and checker are in the package bfcl-eval: {INSTALL}")
    return Path(spec.origin).parent / "data"


def version() -> str:
    """Return the installed version of bfcl-eval; "" if it is not installed."""
    try:
        return metadata.version("bfcl-eval")
    except metadata.PackageNotFoundError:
        return ""


@cache
def prompts() -> ModuleType:
    """Return the package's module of official prompts: templates and constants."""
    return _module("bfcl_eval.constants.default_prompts")


@cache
def openapi_types() -> dict[str, str]:
    """Return the map from types in the data to those of OpenAI's tools."""
    return _module("bfcl_eval.constants.type_mappings").GORILLA_TO_OPENAPI


@cache
def memory_scenarios() -> tuple[str, ...]:
    """Return the scenarios of the memory categories, in the official order."""
    return tuple(_module("bfcl_eval.constants.category_mapping").MEMORY_SCENARIO_NAME)


def prompt_formats() -> list[str]:
    """Return the prompt formats of format sensitivity, in the official order.

    Source: `get_all_format_sensitivity_configs` of bfcl-eval's `utils.py`: every combination of a format of
    calls, a tag around them and a format of the functions, and two more.
    """
    form = "ret_fmt={}&tool_call_tag={}&func_doc_fmt={}&prompt_fmt={}&style={}"
    calls = ("python", "json", "verbose_xml", "concise_xml")
    combined = itertools.product(calls, ("True", "False"), ("python", "xml", "json"))
    return [
        *(form.format(*each, "plaintext", "classic") for each in combined),
        form.format("python", "False", "json", "markdown", "classic"),
        form.format("python", "False", "json", "plaintext", "experimental"),
    ]


@cache
def world_apis() -> dict[str, str]:
    """Return the simulated APIs of the multi-turn categories, with their files in `multi_turn_func_doc`."""
    files = _module("bfcl_eval.constants.executable_backend_config").MULTI_TURN_FUNC_DOC_FILE_MAPPING
    return {name: file for name, file in files.items() if not name.startswith(("Memory", "WebSearch"))}


def _module(name: str) -> ModuleType:
    data_folder()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"the package bfcl-eval cannot be used ({first_line(error)}): {INSTALL}") from error


Function = dict[str, Any]
"""A function's description in the data: `name`, `description`, `parameters`, perhaps `response`."""
Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A single-turn item: messages, functions and possible answers."""

    category: str
    language: str
    """The language of the calls: `python`, `java` or `javascript`."""
    messages: Messages
    functions: list[Function]
    possible: list[Any]
    """One `{name: {parameter: [values, ...]}}` per call; empty if only the presence of calls counts."""
    prompt_format: str = ""
    """The official prompt format, for format sensitivity; empty: the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A multi-turn item, or one turn of it."""

    id: str
    """The entry's id in the data."""
    category: str
    turns: list[Messages]
    """The messages of each turn; a turn without messages adds functions."""
    truth: list[list[str]]
    """The right calls of each turn, as text."""
    functions: list[Function]
    added: Mapping[int, list[Function]]
    """Functions that are withheld at first, by the turn that adds them."""
    classes: list[str]
    """The names of the simulated APIs."""
    config: Mapping[str, Any]
    """The initial states of the APIs."""
    only: int | None = None
    """The one turn to roll out, after the right calls of the turns before it; None: all turns."""

    @property
    def long_context(self) -> bool:
        """Return whether the APIs' states are padded with irrelevant entries."""
        return "long_context" in self.category


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTask:
    """A conversation with a memory: one that fills the memory, or a question about its contents."""

    id: str
    """The official id, with the kind of memory."""
    category: str
    scenario: str
    """The person in the conversation; each person has a separate memory."""
    turns: list[Messages]
    functions: list[Function]
    possible: list[str]
    """The right answers; empty for a conversation that fills the memory, which is not graded."""
    first: bool = False
    """Whether this is the first conversation that fills the memory, and starts from an empty one."""
    before: tuple[Item, ...] = ()
    """For a question: the conversations that fill its memory, in order."""

    @property
    def api(self) -> str:
        """Return the name of the memory's official class."""
        return f"MemoryAPI_{self.category.removeprefix('memory_')}"

    @property
    def memory(self) -> tuple[str, str]:
        """Return the key of the memory: its category and scenario."""
        return self.category, self.scenario


def items_of(data: DataFolder, category: str) -> Iterator[Item]:
    """Return the items of a category, in the order of its file.

    Raises:
        DataError: a file is missing, changed or damaged.
    """
    if category == FORMAT_SENSITIVITY:
        return _under_all_formats(data)
    if category in MEMORY:
        return _memory_questions(data, category)
    return _items_of_file(data, category)


def _under_all_formats(data: DataFolder) -> Iterator[Item]:
    """Yield the items of format sensitivity: chosen items under each official prompt format."""
    name = f"BFCL_v4_{FORMAT_SENSITIVITY}.json"
    chosen = data.reading(name, "at its top", lambda: _id_lists(data.json(name)))
    formats, number = prompt_formats(), 0
    for category, ids in chosen.items():
        for item in items_of(data, category):
            if item.id not in ids:
                continue
            for prompt_format in formats:
                yield Item(
                    id=f"{FORMAT_SENSITIVITY}_{number}:{prompt_format}:{item.id}",
                    groups={"category": FORMAT_SENSITIVITY, "format": prompt_format},
                    data=replace(item.data, prompt_format=prompt_format),
                    cluster=item.id,
                )
                number += 1


def _id_lists(chosen: Any) -> dict[str, set[str]]:  # noqa: ANN401
    return {str(category): {str(one) for one in a_list(ids)} for category, ids in chosen.items() if ids}


def _memory_questions(data: DataFolder, category: str) -> Iterator[Item]:
    """Return the questions for a kind of memory, each with the conversations that fill it."""
    file = f"multi_turn_func_doc/{category}.json"
    functions = list(data.each_line(file, _checked))

    def task(entry: dict[str, Any], possible: list[str]) -> MemoryTask:
        return MemoryTask(
            id=str(entry["id"]).replace("memory", category),
            category=category,
            scenario=str(entry["scenario"]),
            turns=[_messages(turn) for turn in a_list(entry["question"])],
            functions=functions,
            possible=possible,
        )

    def filling(scenario: str) -> tuple[Item, ...]:
        name = f"memory_prereq_conversation/memory_{scenario}.json"
        tasks = list(data.each_line(name, lambda entry: task(entry, [])))
        tasks = [replace(one, first=one is tasks[0]) for one in tasks]
        return tuple(Item(id=one.id, groups={"category": f"{category}_prereq"}, data=one) for one in tasks)

    before = {scenario: filling(scenario) for scenario in memory_scenarios()}
    answers = _answers(data, "memory")

    def item(entry: dict[str, Any]) -> Item:
        content = task(entry, [str(answer) for answer in answers[entry["id"]]])
        if len(content.turns) != 1 or not content.possible:
            raise ValueError("a question about a memory has one turn, and an answer")
        content = replace(content, before=before[content.scenario])
        cluster = f"{category}:{content.scenario}"
        return Item(id=content.id, groups={"category": category}, data=content, cluster=cluster)

    return data.each_line("BFCL_v4_memory.json", item)


def _items_of_file(data: DataFolder, category: str) -> Iterator[Item]:
    name = f"BFCL_v4_{category}.json"
    answers = _answers(data, category) if checks_calls(category) else {}
    documented = _documents(data) if category in MULTI_TURN else {}

    def item(entry: dict[str, Any]) -> Item:
        truth = answers[entry["id"]] if checks_calls(category) else []
        if category in MULTI_TURN:
            content = _conversation(entry, category, truth, documented)
        else:
            content = _question(entry, category, truth)
        return Item(id=str(entry["id"]), groups={"category": category}, data=content)

    return data.each_line(name, item)


def _answers(data: DataFolder, category: str) -> dict[str, list[Any]]:
    name = f"possible_answer/BFCL_v4_{category}.json"
    return dict(data.each_line(name, lambda entry: (entry["id"], a_list(entry["ground_truth"]))))


def _documents(data: DataFolder) -> dict[str, list[Function]]:
    """Return the descriptions of the simulated APIs' functions, by class."""
    return {
        api: list(data.each_line(f"multi_turn_func_doc/{file}", _checked))
        for api, file in world_apis().items()
    }


def _question(entry: dict[str, Any], category: str, possible: list[Any]) -> Question:
    for function in a_list(entry["function"]):
        _checked(function)
    if len(entry["question"]) != 1:
        raise ValueError("a single-turn question has one turn")
    return Question(
        category=category,
        language=language_of(category),
        messages=_messages(entry["question"][0]),
        functions=entry["function"],
        possible=possible,
    )


def _conversation(
    entry: dict[str, Any], category: str, truth: list[Any], documented: Mapping[str, list[Function]]
) -> Conversation:
    functions = [copy.copy(function) for api in entry["involved_classes"] for function in documented[api]]
    added: dict[int, list[Function]] = {}
    for turn, names in entry.get("missed_function", {}).items():
        by_name = {function["name"]: function for function in reversed(functions)}
        held = [by_name[name] for name in names]
        functions = [function for function in functions if all(function is not one for one in held)]
        added[int(turn)] = held
    turns = [_messages(turn) for turn in a_list(entry["question"])]
    if len(turns) != len(truth) or not all(isinstance(call, str) for turn in truth for call in turn):
        raise ValueError("every turn has calls that are right, as text")
    return Conversation(
        id=str(entry["id"]),
        category=category,
        turns=turns,
        truth=truth,
        functions=functions,
        added=added,
        classes=a_list(entry["involved_classes"]),
        config=dict(entry["initial_config"]),
    )


def _messages(messages: Any) -> Messages:  # noqa: ANN401
    return [{"role": str(one["role"]), "content": str(one["content"])} for one in a_list(messages)]


def _checked(function: Function) -> Function:
    """Return a description unchanged. Raises if fields are missing that prompts and the checker use."""
    for details in function["parameters"]["properties"].values():
        details.get("type")
    _ = function["name"] + function["description"], a_list(function["parameters"]["required"])
    return function
