"""Comparisons, from files on: what is put side by side, what is subtracted, what is warned of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from genenv.errors import DataError, UsageError
from genenv.evaluation.compare import compare
from genenv.evaluation.results import Record, Results, as_json
from genenv.statistics import rate


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(name: str, scores: dict[str, float], **changes: Any) -> Path:
        results = Results(tmp_path / f"{name}.jsonl")
        summary = {
            "benchmark": "sums",
            "split": "test",
            "prompt_version": "1",
            "policy": {"name": name},
            "data": {"f": "00"},
            "figures": as_json(
                [rate("accuracy", list(scores.values())), rate("f1", [0.25], group="size=small")]
            ),
            **changes,
        }
        results.open(summary)
        for id_, score in scores.items():
            results.append(
                Record(id=id_, groups={}, status="graded", score=score, measures={}, explanation="")
            )
        results.write_summary({"complete": True, **summary})
        return results.summary

    return write


BEFORE = {f"i{n}": float(n % 4 == 0) for n in range(40)}
AFTER = {f"i{n}": float(n % 2 == 0) for n in range(40)}


def test_figures_stand_side_by_side(written: Any) -> None:
    found = compare([written("a", BEFORE), written("b", AFTER)])
    assert found.names == ("a", "b")
    row = found.rows[0]
    assert (row.name, row.group) == ("accuracy", "")
    assert [cell and cell.value for cell in row.cells] == [0.25, 0.5]
    assert found.warnings == ()


def test_the_difference_is_taken_item_by_item(written: Any) -> None:
    (gain,) = compare([written("a", BEFORE), written("b", AFTER)]).gains
    assert gain is not None
    assert gain.value == 0.25
    assert gain.items == 40
    assert 0.1 < gain.low < 0.25 < gain.high <= 0.4


def test_only_items_that_both_answered_are_subtracted(written: Any) -> None:
    (gain,) = compare([written("a", BEFORE), written("b", {"i0": 1.0, "i1": 1.0, "x": 1.0})]).gains
    assert gain is not None
    assert (gain.items, gain.value) == (2, 0.5)


def test_a_jsonl_file_stands_for_its_summary(written: Any) -> None:
    one, other = written("a", BEFORE), written("b", AFTER)
    items = [Path(str(path).replace(".summary.json", ".jsonl")) for path in (one, other)]
    assert compare(items) == compare([one, other])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": {"f": "11"}}, "differs from .* in data"),
        ({"prompt_version": "2"}, "in prompt_version"),
        ({"limit": 5}, "in limit"),
        ({"genenv": "0.0"}, "in genenv"),
        ({"policy": {"name": "b", "native_tools": True}}, r"in policy\.native_tools"),
        (
            {"policy": {"name": "b", "chat_template_kwargs": {"enable_thinking": False}}},
            r"in policy\.chat_template_kwargs",
        ),
        ({"policy": {"name": "b", "left_out": ["temperature"]}}, r"in policy\.left_out"),
        ({"policy": {"name": "b", "model": "m", "quantize": "nf4"}}, r"in policy\.quantize$"),
        ({"split": "dev", "sampling": {"temperature": 1.0}}, "in split, sampling"),
        ({"policy": {"name": "b", "run": "r", "files": "0f", "tuning": "full"}, "split": "dev"}, "in split$"),
    ],
)
def test_other_conditions_are_warned_of(written: Any, changes: dict[str, Any], words: str) -> None:
    found = compare([written("a", BEFORE), written("b", AFTER, **changes)])
    assert len(found.warnings) == 1
    assert re.search(words, found.warnings[0])


def test_results_that_are_not_complete_are_warned_of(written: Any) -> None:
    path = written("b", AFTER)
    path.write_text(json.dumps({**json.loads(path.read_text()), "complete": False}))
    assert "is not complete" in compare([written("a", BEFORE), path]).warnings[0]


def test_a_policy_measured_twice_is_told_apart_by_its_files(written: Any) -> None:
    found = compare([written("a", BEFORE), written("b", AFTER, policy={"name": "a"})])
    assert found.names[0].endswith("a.summary.json")


def test_different_benchmarks_are_not_compared(written: Any) -> None:
    with pytest.raises(UsageError, match="results of sums and products; compare results of one benchmark"):
        compare([written("a", BEFORE), written("b", AFTER, benchmark="products")])


def test_one_is_not_enough(written: Any) -> None:
    with pytest.raises(UsageError, match="at least two"):
        compare([written("a", BEFORE)])


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"x": 1}', "[" * 100_000),
        '{"benchmark": "sums", "policy": null}',
        '{"benchmark": "sums", "figures": [1]}',
        '{"benchmark": "sums", "seconds": null}',
    ],
)
def test_a_damaged_summary_is_one_sentence(written: Any, tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.summary.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"x\.summary\.json is"):
        compare([written("a", BEFORE), path])


def test_a_missing_summary_is_one_sentence(written: Any) -> None:
    with pytest.raises(UsageError, match="there is no summary nowhere"):
        compare([written("a", BEFORE), Path("nowhere")])


@pytest.mark.parametrize("text", ['{"bad\n', None])
def test_items_that_cannot_be_read_are_warned_of(written: Any, text: str | None) -> None:
    paths = [written(name, BEFORE) for name in "abc"]
    items = paths[1].with_name("b.jsonl")
    items.unlink() if text is None else items.write_text(text)
    found = compare(paths)
    assert found.gains[0] is None
    assert found.gains[1] is not None
    (warning,) = found.warnings
    assert re.match(r"without differences: .*b\.jsonl", warning)
    assert compare(paths, gains=False).warnings == ()


def test_a_limit_is_not_told_of_results_that_are_not_complete(written: Any) -> None:
    whole, stopped = written("a", BEFORE, limit=20), written("b", AFTER)
    summary = json.loads(stopped.read_text(encoding="utf-8"))
    stopped.write_text(json.dumps({**summary, "complete": False}), encoding="utf-8")
    assert compare([whole, stopped]).warnings == (f"{stopped} is not complete; continue it with --resume",)


def test_results_of_a_part_of_the_items_say_so(written: Any) -> None:
    part, whole = (
        written("a", BEFORE, limit=3, items=3, of=180),
        written("b", AFTER, limit=3, items=180, of=180),
    )
    assert compare([part, whole]).warnings == (f"{part} has 3 of the 180 items",)


def test_the_steps_of_one_game_count_once_in_a_difference(written: Any) -> None:
    def clustered(path: Path) -> Path:
        items = path.with_name(path.name.replace(".summary.json", ".jsonl"))
        records = [json.loads(line) for line in items.read_text(encoding="utf-8").splitlines()]
        lines = [json.dumps({**one, "cluster": f"game {i // 10}"}) + "\n" for i, one in enumerate(records)]
        items.write_text("".join(lines), encoding="utf-8")
        return path

    (alone,) = compare([written("a", BEFORE), written("b", AFTER)]).gains
    better = {name: float(int(name[1:]) // 10 in (0, 1)) for name in BEFORE}
    paths = [written("c", dict.fromkeys(BEFORE, 0.0)), written("d", better)]
    (of_items,) = compare(paths).gains
    (of_games,) = compare([clustered(path) for path in paths]).gains
    assert alone is not None
    assert of_items is not None
    assert of_games is not None
    assert of_games.value == of_items.value == 0.5
    assert of_games.high - of_games.low > 2 * (of_items.high - of_items.low)
