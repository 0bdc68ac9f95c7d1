"""The pages of `genenv eval`: results, item by item, and two policies side by side."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from genenv.viewer import asking
from viewer_runs import HOSTILE, Tags, text_of, write_results, write_run

ITEMS, ITEM = "/evaluations/items", "/evaluations/item"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder of runs, and one of evaluations beside it."""
    write_run(tmp_path / "runs" / "demo", rounds=1)
    write_results(tmp_path / "evaluations" / "base" / "sums-main", [1, 1, 0, 0, 0.5, -1])
    write_results(tmp_path / "evaluations" / "tuned" / "sums-main", [1, 0, 1, 1, 0.5, 1], policy="tuned")
    write_results(tmp_path / "evaluations" / "tuned" / "other", [1], policy="tuned", benchmark="others")
    return tmp_path


ONE, OTHER = "evaluations/base/sums-main", "evaluations/tuned/sums-main"


def test_evaluations_are_listed_with_their_figures(place: Path, serve: Any) -> None:
    text = text_of(serve(place / "runs", evaluations=place / "evaluations").page("/evaluations"))
    assert re.search(rf"{ONE} sums main base 50\.0% [\d.]+–[\d.]+ success 6 1", text), text
    assert "evaluations/tuned/other others main tuned" in text


def test_evaluations_below_the_runs_are_found_and_none_is_no_error(place: Path, serve: Any) -> None:
    write_results(place / "runs" / "demo" / "evaluations" / "held-out", [1, 0])
    write_results(place / "runs" / "sweep" / "sums", [1, 0])
    reader = serve(place / "runs", evaluations=place / "none")
    text = text_of(reader.page("/evaluations"))
    assert "runs/demo/evaluations/held-out" in text
    assert "runs/sweep/sums" in text
    assert ONE not in text
    (place / "empty").mkdir()
    assert "There is no result of genenv eval here" in text_of(serve(place / "empty").page("/evaluations"))


def items_of(page: str) -> list[str]:
    return [html.unescape(one) for one in re.findall(r'<th scope="row"><a href="[^"]*&amp;id=([^"]*)"', page)]


def test_the_items_of_one_are_chosen_by_outcome_and_text(place: Path, serve: Any) -> None:
    reader = serve(place / "runs", evaluations=place / "evaluations")
    for kind, found in (("", 6), ("right", 2), ("wrong", 3), ("failed", 1)):
        page = reader.page(asking(ITEMS, one=ONE, kind=kind))
        assert page.count("it says plain") == found, kind
    text = text_of(reader.page(asking(ITEMS, one=ONE)))
    assert "◐ 0.50" in text
    assert "no answer" in text
    assert "item-3" in text_of(reader.page(asking(ITEMS, one=ONE, text="ITEM-3")))
    assert "No item fits" in text_of(reader.page(asking(ITEMS, one=ONE, text="nowhere")))


def test_two_policies_have_flips_and_a_paired_interval(place: Path, serve: Any) -> None:
    reader = serve(place / "runs", evaluations=place / "evaluations")
    page = reader.page(asking(ITEMS, one=ONE, other=OTHER))
    text = text_of(page)
    assert re.search(r"\+20\.0 points \(95% interval −?[\d.]+ to [\d.]+\) .* over the 5 items", text), text
    assert "not significant" in text
    assert "3 won , 1 lost" in text
    assert "item-1" in (lost := text_of(reader.page(asking(ITEMS, one=ONE, other=OTHER, kind="lost"))))
    assert "item-2" not in lost
    won = text_of(reader.page(asking(ITEMS, one=ONE, other=OTHER, kind="won")))
    assert all(f"item-{n}" in won for n in (2, 3, 5))
    assert "others" not in re.findall(r"<select name=\"other\">(.*?)</select>", page, re.S)[0]


def test_notes_on_two_policies_name_evaluations_and_no_path_of_the_machine(place: Path, serve: Any) -> None:
    file = place / "evaluations" / "tuned" / "sums-main.summary.json"
    summary = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(summary | {"complete": False, "items": 4, "split": "other"}), encoding="utf-8")
    reader = serve(place / "runs", evaluations=place / "evaluations")
    text = text_of(page := reader.page(asking(ITEMS, one=ONE, other=OTHER)))
    assert f"{OTHER} is not complete" in text
    assert f"{OTHER} differs from {ONE} in split" in text
    assert str(place) not in page


def test_an_address_with_a_number_beyond_all_items_shows_none(place: Path, serve: Any) -> None:
    reader = serve(place / "runs", evaluations=place / "evaluations")
    assert "No item fits" in text_of(reader.page(asking(ITEMS, one=ONE, **{"from": 10**12})))
    for number in ("9" * 5000, "\u00b2", "x"):
        assert "give a" in text_of(reader.page(asking(ITEMS, one=ONE, **{"from": number}), status=400))


def test_the_viewer_of_one_run_shows_the_evaluations_of_that_run_alone(tmp_path: Path, serve: Any) -> None:
    write_run(tmp_path / "mine", rounds=1)
    for folder in ("mine/evaluations", "private", "other-run/evaluations"):
        write_results(tmp_path / folder / "sums", [1])
    reader = serve(tmp_path / "mine")
    assert "mine/evaluations/sums" in (page := text_of(reader.page("/evaluations")))
    assert "private" not in page
    assert "other-run" not in page
    reader.page(asking(ITEMS, one="mine/evaluations/sums"))
    for name in (f"{tmp_path.name}/private/sums", f"{tmp_path.name}/other-run/evaluations/sums"):
        reader.page(asking(ITEMS, one=name), status=404)


def test_an_item_is_shown_of_both_side_by_side(place: Path, serve: Any) -> None:
    reader = serve(place / "runs", evaluations=place / "evaluations")
    page = reader.page(asking(ITEM, one=ONE, other=OTHER, id="item-1"))
    text = text_of(page)
    assert page.count("<article>") == 2
    assert "base ✓ right" in text
    assert "tuned ✗ wrong" in text
    assert "2 + 2?" in text


@pytest.mark.parametrize(
    "path",
    [
        asking(ITEMS, one="none"), asking(ITEMS, one=ONE, other="none"), asking(ITEM, one=ONE, id="none"),
        asking(ITEMS, one="../evaluations/base/sums-main"), asking(ITEMS, one="evaluations/../secret/sums"),
        asking(ITEMS, one="evaluations/link/sums"), asking(ITEMS, one="evaluations/base/linked"), ITEMS, ITEM,
    ],
)  # fmt: skip
def test_what_is_no_evaluation_is_not_found(path: str, place: Path, serve: Any) -> None:
    write_results(place / "secret" / "sums", [1])
    (place / "evaluations" / "link").symlink_to(place / "secret")
    (place / "evaluations" / "base" / "linked.summary.json").symlink_to(
        place / "secret" / "sums.summary.json"
    )
    serve(place / "runs", evaluations=place / "evaluations").page(path, status=404)


def test_damaged_results_are_named_and_the_rest_is_shown(place: Path, serve: Any) -> None:
    folder = place / "evaluations" / "base"
    write_results(folder / "gone", [1])
    (folder / "gone.jsonl").unlink()
    (folder / "bad.summary.json").write_bytes(b"\xff{")
    with (folder / "sums-main.jsonl").open("ab") as file:
        file.write(b'\xff\xfe\n[1]\n{"id": "x"}\n' + b"[" * 100_000 + b'\n{"id": "item-9", "sta')
    reader = serve(place / "runs", evaluations=place / "evaluations")
    text = text_of(reader.page("/evaluations"))
    assert "bad.summary.json is damaged" in text
    assert str(place) not in text
    assert "gone.jsonl is missing" in text_of(
        reader.page(asking(ITEMS, one="evaluations/base/gone"), status=503)
    )
    assert "all items (6)" in text_of(reader.page(asking(ITEMS, one=ONE)))
    reader.page(asking(ITEMS, one="evaluations/base/bad"), status=503)


@pytest.mark.long
def test_hostile_texts_of_items_are_text(place: Path, serve: Any) -> None:
    hostile = HOSTILE + "x" * 5_000_000
    write_results(place / "evaluations" / "base" / "hostile", [1, 0], policy=HOSTILE, text=hostile)
    write_results(place / "evaluations" / "tuned" / "hostile", [1, 1], policy=f"2{HOSTILE}", text=hostile)
    reader = serve(place / "runs", evaluations=place / "evaluations")
    names = {"one": "evaluations/base/hostile", "other": "evaluations/tuned/hostile"}
    for path in ("/evaluations", asking(ITEMS, **names), asking(ITEM, **names, id="item-0")):
        page = reader.page(path)
        assert len(page) < 100_000, path
        assert "<script>alert(1)</script>" in text_of(page)
        for tag, attributes in Tags(page).tags:
            assert tag not in ("img", "iframe", "object"), path
            assert tag != "script" or (attributes.get("src") or "").startswith("/static/")
            assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\ud800-\udfff]", page), path
