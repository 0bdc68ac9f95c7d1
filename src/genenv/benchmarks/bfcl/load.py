"""Reading BFCL's files: questions with functions and possible answers, conversations, memory tasks."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from genenv.benchmarks.bfcl.categories import FORMAT_SENSITIVITY, MEMORY, MULTI_TURN, checks_calls
from genenv.benchmarks.bfcl.package import memory_scenarios, prompt_formats, world_apis
from genenv.benchmarks.bfcl.prompts import Function, language_of
from genenv.evaluation.base import Item
from genenv.evaluation.data import DataFolder, a_list

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A single-turn item."""

    category: str
    language: str
    """Of the calls: `python`, `java` or `javascript`."""
    messages: Messages
    functions: list[Function]
    possible: list[Any]
    """One `{name: {parameter: [values, ...]}}` per call; empty where only the presence of calls counts."""
    prompt_format: str = ""
    """Which of the official configurations the prompt has, of format sensitivity only; empty: the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A multi-turn item, or one turn of it."""

    id: str
    """The entry's, as in the data."""
    category: str
    turns: list[Messages]
    """A turn without messages is one in which functions are added."""
    truth: list[list[str]]
    """The calls of each turn that are right, as text."""
    functions: list[Function]
    added: Mapping[int, list[Function]]
    """Functions held back at first, by the turn in which they come."""
    classes: list[str]
    """The simulated APIs that it is about."""
    config: Mapping[str, Any]
    """Their initial states."""
    only: int | None = None
    """The one turn that is asked, those before carried out as they should be; None: all turns."""

    @property
    def long_context(self) -> bool:
        """Whether the APIs are filled with much that does not matter."""
        return "long_context" in self.category


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTask:
    """A conversation about a memory: one that fills it, or a question about what is in it."""

    id: str
    """As the official run calls it: with the kind of memory."""
    category: str
    scenario: str
    """Whom the conversation is with; each has a memory of its own."""
    turns: list[Messages]
    functions: list[Function]
    possible: list[str]
    """Answers that are right; empty for a conversation that fills the memory, which is not graded."""
    first: bool = False
    """Whether it is the first of those that fill the memory, and starts from an empty one."""
    before: tuple[Item, ...] = ()
    """For a question: the conversations that fill its memory, in their order."""

    @property
    def api(self) -> str:
        """The official class of the memory."""
        return f"MemoryAPI_{self.category.removeprefix('memory_')}"

    @property
    def memory(self) -> tuple[str, str]:
        """Which memory it is about."""
        return self.category, self.scenario


def items_of(data: DataFolder, category: str) -> Iterator[Item]:
    """The items of a category, in the order of its file.

    Raises:
        DataError: a file is missing, changed or damaged.
    """
    if category == FORMAT_SENSITIVITY:
        return _under_all_formats(data)
    if category in MEMORY:
        return _memory_questions(data, category)
    return _items_of_file(data, category)


def _under_all_formats(data: DataFolder) -> Iterator[Item]:
    """Some items of other categories under each of the official formats of the prompt."""
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
    """Questions about a kind of memory, each with the conversations before it."""
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
    """The descriptions of the simulated APIs' functions, by class."""
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
    """A description. Raises where it lacks what prompts and the checker look up."""
    for details in function["parameters"]["properties"].values():
        details.get("type")
    _ = function["name"] + function["description"], a_list(function["parameters"]["required"])
    return function
