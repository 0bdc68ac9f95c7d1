from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from genenv.evaluation.data import DataFolder

SYSTEM = """Use tools.
1. Name: OrderTea
Description: Orders tea.
Parameters: {'kind': {'type': 'str', 'description': 'The kind. Cases are ignored.'}, 'cups': {'type': 'int', \
'description': 'How many.'}, 'day': {'type': 'str', 'description': 'The day. Format: %Y-%m-%d'}, 'guests': \
{'type': 'list(str)', 'description': "The guests' names."}}
2. Name: Now
Description: The time.
Parameters: {}
"""
THIRD = "1. Lookup: Looks up.\nParameters: {'word': {'type': 'str', 'description': 'The word.'}}\n"
TEA = {"kind": "Assam", "cups": "2", "day": "2023-03-05", "guests": "['Ann', 'Bo']"}
SCHEMA = (
    '{"name": "OrderTea", "description": "Orders tea.", "input_parameters": {"kind": {"type": "str", '
    '"description": "The kind. Cases are ignored."}, "cups": {"type": "int", "description": "How many."}, '
    '"day": {"type": "str", "description": "The day. Format: %Y-%m-%d"}, "guests": {"type": "list(str)", '
    '"description": "The guests\' names."}}, "output_parameters": {"x": {"type": "str", "description": ""}}}'
)
ORDER = "API-Request: [OrderTea(kind='Assam', cups='2', day='2023-03-05', guests='['Ann', 'Bo']')]"


def _files() -> dict[str, Any]:
    """Questions of our own in the layouts of the real ones."""
    request = {
        "instruction": f"Write a request.\n{SCHEMA}",
        "input": "User: Tea!\n",
        "expected_output": ORDER,
    }
    searched = {
        "instruction": "Search.\n",
        "input": "User: Tea!\n",
        "output": "API-Request: [ToolSearcher(keywords='OrderTea')]",
        "sample_id": 0,
        "api_id": 0,
    }
    ordered = {**searched, "input": f"found {SCHEMA}\n", "output": ORDER, "api_id": 1}
    other = {**ordered, "sample_id": 1, "api_id": 0}
    said = {"instruction": "Answer.", "input": "Done.\n", "expected_output": "Your tea comes. Enjoy it."}
    return {
        "toolrl/level-1-api_processed": [
            {"system": SYSTEM, "user": "Tea!", "answer": [{"name": "OrderTea", "parameters": TEA}]},
            {"system": SYSTEM, "user": "Time?", "answer": [{"name": "Now", "parameters": {}}]},
        ],
        "toolrl/level-2-api_processed": [
            {"system": SYSTEM, "user": "Tea!", "answer": {"name": "OrderTea", "parameters": {"kind": ""}}}
        ],
        "toolrl/level-3-api_processed": [
            {"system": THIRD, "user": "x?", "answer": [{"name": "Lookup", "parameters": {"word": "x"}}]}
        ],
        "test-data/level-1-api": [request],
        "test-data/level-2-api": [request],
        "test-data/level-3-batch-inf": [searched, ordered, other],
        "test-data/level-3-batch-inf-icl": [searched],
        "test-data/level-1-response": [said],
        "test-data/level-2-response": [said],
        "test-data/level-3-batch-inf-response": [
            {key: value for key, value in {**said, "output": "Fine."}.items() if key != "expected_output"}
        ],
    }


@pytest.fixture
def samples(whose: str, request: pytest.FixtureRequest) -> DataFolder:
    """The real files, or questions of our own in their layouts."""
    return request.getfixturevalue("data_folder" if whose == "official" else "folder")


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    for name, entries in _files().items():
        path = tmp_path / f"api-bank/{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(entries, indent=1), encoding="utf-8")
    return DataFolder(tmp_path, known={})
