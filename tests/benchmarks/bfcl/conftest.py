"""A small BFCL of our own in the layout of the package's data, and a model that says what it is told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from genenv.benchmarks.bfcl.data import Conversation, Question, items_of, memory_scenarios
from genenv.benchmarks.bfcl.worker import Worker
from genenv.evaluation.data import DataFolder

BOOK = {
    "name": "hotel.book",
    "description": "Book a room.",
    "parameters": {
        "type": "dict",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "nights": {"type": "integer", "description": "How many nights."},
            "price": {"type": "float", "description": "At most, in euros."},
            "extras": {"type": "array", "items": {"type": "string"}, "description": "What else."},
        },
        "required": ["city", "nights"],
    },
}
ANSWER = {
    "hotel.book": {"city": ["Bad Ems", "Ems"], "nights": [3], "price": [90.0, ""], "extras": [["tea"], ""]}
}
JAVA = {
    "name": "Room.open",
    "description": "Open a room.",
    "parameters": {
        "type": "dict",
        "properties": {
            "number": {"type": "long", "description": "Its number."},
            "tags": {"type": "Array", "items": {"type": "String"}, "description": "Words."},
        },
        "required": ["number"],
    },
}
FILES = {
    "GorillaFileSystem": {
        "root": {
            "home": {
                "type": "directory",
                "contents": {
                    "a.txt": {"type": "file", "content": "one\ntwo"},
                    "docs": {"type": "directory", "contents": {}},
                },
            }
        }
    }
}


def question_of(text: str) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": text}]]


SINGLE: dict[str, tuple[dict[str, Any], Any]] = {
    "simple_python": ({"function": [BOOK]}, [ANSWER]),
    "parallel": ({"function": [BOOK]}, [ANSWER, {"hotel.book": {"city": ["Ulm"], "nights": [1]}}]),
    "simple_java": ({"function": [JAVA]}, [{"Room.open": {"number": [7], "tags": [["x", "y"], ""]}}]),
    "irrelevance": ({"function": [BOOK]}, None),
    "live_relevance": ({"function": [BOOK]}, None),
}
TURNS = [question_of("Make a folder new, and go into it.")[0], question_of("Who is there?")[0]]
MULTI: dict[str, tuple[dict[str, Any], list[list[str]]]] = {
    "multi_turn_base": ({"question": TURNS}, [["mkdir(dir_name='new')", "cd('new')"], ["pwd()"]]),
    "multi_turn_miss_func": (
        {"question": [TURNS[0], TURNS[1], []], "missed_function": {"2": ["pwd"]}},
        [["mkdir(dir_name='new')", "cd('new')"], [], ["pwd()"]],
    ),
    "multi_turn_long_context": ({"question": TURNS}, [["mkdir(dir_name='new')", "cd('new')"], ["pwd()"]]),
}
DOCUMENTS = {
    "gorilla_file_system": ["mkdir", "cd", "pwd", "ls"],
    **{name: ["other"] for name in ("math_api", "message_api", "posting_api", "ticket_api")},
    **{name: ["other"] for name in ("trading_bot", "travel_booking", "vehicle_control")},
}


FACTS = {"customer": ["My name is Ann.", "My name is Bea now."]}
ASKED = [
    ("customer", "What is my name?", ["Bea", "Beatrice"]),
    ("customer", "And what was it once?", ["Ann"]),
    ("student", "What do I like?", ["rain"]),
]
"""Questions about memories: who asks, what, and what is right."""
MEMORY_FUNCTIONS = {
    "memory_kv": ["core_memory_add", "core_memory_replace", "core_memory_clear"],
    "memory_rec_sum": ["memory_append", "memory_clear"],
}


class SmallData:
    """Writes the files of one category at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = DataFolder(root, known={})

    def write(self, name: str, lines: Sequence[Any]) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    def fill(self, category: str) -> None:
        """Write a category's one entry."""
        entry: dict[str, Any] = {"id": f"{category}_0", "question": question_of("A room in Bad Ems, please.")}
        if category in MULTI:
            content, truth = MULTI[category]
            entry |= {"initial_config": FILES, "involved_classes": ["GorillaFileSystem"], "path": []}
            for api, names in DOCUMENTS.items():
                self.write(f"multi_turn_func_doc/{api}.json", [{**BOOK, "name": name} for name in names])
        else:
            content, truth = SINGLE[category]
        self.write(f"BFCL_v4_{category}.json", [entry | content])
        if truth is not None:
            self.write(
                f"possible_answer/BFCL_v4_{category}.json", [{"id": entry["id"], "ground_truth": truth}]
            )

    def fill_memory(self) -> None:
        """Write conversations that fill memories, two of one scenario, one of each other; and questions."""
        for scenario in memory_scenarios():
            facts = FACTS.get(scenario, ["I like the rain."])
            prerequisites = [
                {
                    "id": f"memory_prereq_{at}-{scenario}-{at}",
                    "scenario": scenario,
                    "question": question_of(fact),
                }
                for at, fact in enumerate(facts)
            ]
            self.write(f"memory_prereq_conversation/memory_{scenario}.json", prerequisites)
        ids = [f"memory_{at}-{scenario}-{at}" for at, (scenario, _, _) in enumerate(ASKED)]
        lines = zip(ids, ASKED, strict=True)
        self.write(
            "BFCL_v4_memory.json",
            [{"id": i, "scenario": who, "question": question_of(text)} for i, (who, text, _) in lines],
        )
        truth = [{"id": i, "ground_truth": found} for i, (_, _, found) in zip(ids, ASKED, strict=True)]
        self.write("possible_answer/BFCL_v4_memory.json", truth)
        for kind, names in MEMORY_FUNCTIONS.items():
            self.write(f"multi_turn_func_doc/{kind}.json", [{**BOOK, "name": name} for name in names])

    def formats(self) -> list[Any]:
        """The two items of the category simple_python and parallel under all formats of the prompt."""
        chosen = ("simple_python", "parallel")
        for category in chosen:
            self.fill(category)
        ids = {category: [f"{category}_0"] for category in chosen}
        (self.root / "BFCL_v4_format_sensitivity.json").write_text(json.dumps(ids), encoding="utf-8")
        return list(items_of(self.folder, "format_sensitivity"))

    def item(self, category: str) -> Any:
        self.fill(category)
        (item,) = items_of(self.folder, category)
        return item

    def question(self, category: str) -> Question:
        return self.item(category).data

    def conversation(self, category: str) -> Conversation:
        return self.item(category).data


@pytest.fixture
def small(tmp_path: Path) -> SmallData:
    return SmallData(tmp_path)


@pytest.fixture(scope="session")
def short() -> Iterator[Worker]:
    """A worker whose requests may take half a second of processor time."""
    worker = Worker(cpu_s=0.5)
    yield worker
    worker.end()


@pytest.fixture(scope="session", autouse=True)
def _package() -> None:
    pytest.importorskip("bfcl_eval", reason="set up BFCL: pip install --no-deps bfcl-eval==2026.3.23")
