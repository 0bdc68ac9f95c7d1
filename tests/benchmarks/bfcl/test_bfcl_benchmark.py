"""Loading, settings and figures; and the package's own data."""

from __future__ import annotations

import sys
from collections import Counter
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import pytest

from genenv.benchmarks.bfcl.benchmark import Bfcl, BfclSettings
from genenv.benchmarks.bfcl.data import ALL, SPLITS, data_folder, items_of
from genenv.benchmarks.bfcl.official import checker
from genenv.errors import DataError, UsageError
from genenv.evaluation.base import Grade, Item
from genenv.evaluation.data import DataFolder
from quickly import within


def graded(scores: dict[str, list[float]]) -> list[tuple[Item, Grade]]:
    return [
        (Item(id=f"{name}_{i}", groups={"category": name}, data=None), Grade(score=score, explanation="."))
        for name, found in scores.items()
        for i, score in enumerate(found)
    ]


def test_overall_is_weighted_as_officially() -> None:
    scores = {name: [0.0, 0.0] for name in ALL}
    scores |= {
        "simple_python": [1.0, 0.0],
        "parallel": [1.0, 1.0],
        "live_simple": [1.0] * 6,
        "irrelevance": [1.0],
    }
    scores |= {"multi_turn_base": [1.0, 0.0], "memory_kv": [1.0, 0.0, 0.0, 0.0], "memory_rec_sum": [1.0]}
    figures = {figure.name: figure.value for figure in Bfcl().figures(graded(scores)) if not figure.group}
    non_live = (0.5 / 3 + 0 + 1 + 0) / 4
    live, irrelevance, multi_turn = 6 / 12, 1 / 2, 0.5 / 4
    assert figures["non_live"] == pytest.approx(non_live)
    assert figures["live"] == pytest.approx(live)
    assert figures["irrelevance"] == pytest.approx(irrelevance)
    assert figures["multi_turn"] == pytest.approx(multi_turn)
    whole = 0.1 * (non_live + live + irrelevance) + 0.3 * multi_turn
    memory = (1 / 4 + 1) / 2
    assert figures["memory_kv_and_rec_sum"] == pytest.approx(memory)
    official = whole + 0.4 * (0 + (1 / 4 + 0 + 1) / 3) / 2
    assert figures["overall_missing_as_zero"] == pytest.approx(official)
    assert figures["overall_without_web_search_and_memory_vector"] == pytest.approx(official / (11 / 15))
    assert figures["overall_without_agentic"] == pytest.approx(whole / 0.6)
    assert next(iter(figures)) == "overall_without_web_search_and_memory_vector"
    non_live_v3 = (0.5 / 3 + 0 + 1 + 0 + 1) / 5
    live_v3 = 6 / 16
    assert figures["overall_v3"] == pytest.approx((non_live_v3 + live_v3 + multi_turn) / 3)


def test_without_memories_the_overall_has_the_name_that_it_always_had() -> None:
    figures = Bfcl().figures(graded({name: [1.0] for name in ALL if not name.startswith("memory")}))
    named = {figure.name: figure.value for figure in figures}
    assert [figure.name for figure in figures[:3]] == [
        *("overall_without_agentic", "overall_agentic_as_zero", "overall_v3"),
    ]
    assert (named["overall_without_agentic"], named["overall_v3"]) == (1.0, pytest.approx(1.0))
    assert named["overall_agentic_as_zero"] == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("names", "headline"),
    [
        (ALL[:13], "overall_of_non_live_and_live_and_irrelevance"),
        (ALL[:7], "non_live"),
        (ALL[13:17], "multi_turn"),
        (ALL[17:], "memory_kv_and_rec_sum"),
        (("live_simple",), "accuracy_over_items"),
        ((), "accuracy_over_items"),
    ],
)
def test_a_part_of_the_benchmark_has_a_headline_of_its_own(names: tuple[str, ...], headline: str) -> None:
    figures = Bfcl().figures(graded({name: [1.0] for name in names}))
    assert figures[0].name == headline
    assert [figure.group for figure in figures if figure.group] == [f"category={name}" for name in names]


def test_the_papers_protocol_has_the_share_of_right_turns() -> None:
    figures = Bfcl(BfclSettings(protocol="genenv")).figures(graded({"multi_turn_long_context": [1.0, 0.0]}))
    assert (figures[0].name, figures[0].value) == ("turns_right", 0.5)


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("", {"id": "simple_python_0", "question": [[]]}),
        ("", {"id": "simple_python_0", "question": [], "function": []}),
        ("", {"id": "other", "question": [[]], "function": []}),
        ("", {"id": "simple_python_0", "question": [[{"role": "user"}]], "function": []}),
        ("", {"id": "simple_python_0", "question": [[]], "function": [{"name": "f"}]}),
        ("possible_answer/", {"id": "simple_python_0"}),
        ("possible_answer/", {"id": "simple_python_0", "ground_truth": "x"}),
    ],
)
def test_damaged_files_are_named_with_the_line(small: Any, folder: str, line: dict[str, Any]) -> None:
    small.fill("simple_python")
    small.write(f"{folder}BFCL_v4_simple_python.json", [line])
    with pytest.raises(DataError, match=r"simple_python\.json, line 1: it is not as expected"):
        list(items_of(small.folder, "simple_python"))


def test_damaged_conversations_are_named_with_the_line(small: Any) -> None:
    small.fill("multi_turn_base")
    small.write(
        "possible_answer/BFCL_v4_multi_turn_base.json",
        [{"id": "multi_turn_base_0", "ground_truth": [["pwd()"]]}],
    )
    with pytest.raises(DataError, match=r"BFCL_v4_multi_turn_base\.json, line 1"):
        list(items_of(small.folder, "multi_turn_base"))


def test_the_stand_ins_do_not_stay() -> None:
    assert checker() is checker()
    assert "bfcl_eval.constants.model_config" not in sys.modules


def test_splits_and_protocols_that_do_not_exist_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown split 'simple'"):
        Bfcl().load(DataFolder(tmp_path), "simple")
    with pytest.raises(UsageError, match="long-context turns only"):
        Bfcl(BfclSettings(protocol="genenv")).load(DataFolder(tmp_path), "live")


class Hiding(PathFinder):
    """Finds every package but one."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None if fullname.startswith("bfcl_eval") else PathFinder.find_spec(fullname, path, target)


def test_a_missing_package_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded = [name for name in sys.modules if name.startswith("bfcl_eval")]
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    others = [finder for finder in sys.meta_path if finder is not PathFinder]
    monkeypatch.setattr(sys, "meta_path", [*others, Hiding])
    data_folder.cache_clear()
    try:
        with pytest.raises(UsageError, match=r"pip install --no-deps bfcl-eval==2026\.3\.23"):
            Bfcl().load(DataFolder(tmp_path), "all")
    finally:
        data_folder.cache_clear()


class TestRealData:
    """The data of the installed package."""

    def test_every_category_has_its_items_and_loads_quickly(self, tmp_path: Path) -> None:
        data = DataFolder(tmp_path)
        with within(3):
            items = Bfcl().load(data, "all")
        counts = Counter(item.groups["category"] for item in items)
        assert [counts[name] for name in ALL] == [
            *(400, 100, 50, 200, 200, 200, 240),
            *(258, 1053, 16, 24, 884, 16),
            *(200, 200, 200, 200),
            *(155, 155),
        ]
        assert len({item.id for item in items}) == len(items) == 4751
        assert len(data.hashes) == 17 + 14 + 8 + (2 + 5 + 2)  # the last of the memories
        assert all(data.hashes[name] == data._known[name] for name in data.hashes)

    def test_every_split_loads(self, tmp_path: Path) -> None:
        sizes = {split: len(Bfcl().load(DataFolder(tmp_path), split)) for split in list(SPLITS)[1:7]}
        assert sizes == {
            **{"single_turn": 3641, "multi_turn": 800, "non_live": 1390, "live": 2251},
            **{"memory": 310, "format_sensitivity": 5200},
        }

    def test_the_right_calls_of_conversations_are_right(self, tmp_path: Path) -> None:
        benchmark = Bfcl()
        items = benchmark.load(DataFolder(tmp_path), "multi_turn")[::20]
        for item in items:
            right = [[turn] for turn in item.data.truth]
            assert benchmark.grade(item, {"turns": right}).score == 1.0
            last = max(index for index, turn in enumerate(item.data.truth) if turn)
            right[last] = []
            assert benchmark.grade(item, {"turns": right}).score == 0.0

    def test_turns_on_their_own_are_right_with_the_right_calls(self, tmp_path: Path) -> None:
        benchmark = Bfcl(BfclSettings(protocol="genenv"))
        items = benchmark.load(DataFolder(tmp_path), "all")
        assert len(items) == sum(1 for item in items if item.data.truth[item.data.only]) == 731
        for item in items[::40]:
            assert benchmark.grade(item, {"turns": [[item.data.truth[item.data.only]]]}).score == 1.0
            assert benchmark.grade(item, {"turns": [[]]}).score == 0.0
