"""The form of docs/results: one short page a claim, each with its answer, its command and its full record."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[1] / "docs" / "results"
APPENDIX = sorted((RESULTS / "appendix").glob("*.md"))
CLAIMS = sorted(path for path in RESULTS.glob("*.md") if path.name != "index.md")


def name(page: Path) -> str:
    return page.stem


def links_of(page: Path) -> set[Path]:
    targets = re.findall(r"\]\(([^)#\s:]+)", page.read_text(encoding="utf-8"))
    return {(page.parent / target).resolve() for target in targets}


@pytest.mark.parametrize("page", CLAIMS, ids=name)
def test_a_claim_page_asks_answers_and_says_what_it_is_not(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    title, _, rest = text.partition("\n\n")
    answer = re.match(r"\*\*(.+?)\*\*\n\n", rest, re.DOTALL)
    assert re.fullmatch(r"# .+\?", title)
    assert answer is not None
    assert len(answer[1].split()) <= 40
    assert text.count("\n![") <= 1
    assert re.search(r"^## Reproduce\n.*?^```sh\n\S", text, re.MULTILINE | re.DOTALL)
    assert re.search(r"^## What it is not\n", text, re.MULTILINE)
    assert len(text.splitlines()) < 80


@pytest.mark.parametrize("page", CLAIMS, ids=name)
def test_a_claim_and_its_full_record_name_each_other(page: Path) -> None:
    records = links_of(page) & set(APPENDIX)
    assert records
    assert any(page in links_of(record) for record in records)


@pytest.mark.parametrize("page", APPENDIX, ids=name)
def test_a_page_of_the_appendix_opens_with_what_it_is_and_who_draws_on_it(page: Path) -> None:
    opening = page.read_text(encoding="utf-8").split("\n\n")[1]
    assert opening.startswith("*Appendix: ")
    named = {(page.parent / target).resolve() for target in re.findall(r"\]\((\.\./[\w-]+\.md)\)", opening)}
    assert named
    assert all(page in links_of(claim) for claim in named)


@pytest.mark.parametrize("page", [*CLAIMS, *APPENDIX], ids=lambda page: str(page.relative_to(RESULTS)))
def test_prose_is_wrapped(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    wide = [line for line in text.splitlines() if len(line) > 120 and not line.startswith(("|", "!["))]
    assert wide == []


@pytest.mark.parametrize("page", [*CLAIMS, *APPENDIX], ids=lambda page: str(page.relative_to(RESULTS)))
def test_no_section_stands_twice(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    sections = re.findall(r"^## .*", text, re.MULTILINE)
    assert len(sections) == len(set(sections))


@pytest.mark.parametrize("page", [*CLAIMS, *APPENDIX], ids=lambda page: str(page.relative_to(RESULTS)))
def test_all_rows_of_a_table_have_as_many_cells_as_its_head(page: Path) -> None:
    wrong, cells = list[str](), 0
    for line in page.read_text(encoding="utf-8").splitlines():
        here = re.sub(r"`[^`]*`", "", line).replace(r"\|", "").count("|") if line.startswith("|") else 0
        wrong += [line] if cells and here and here != cells else []
        cells = (cells or here) if here else 0
    assert wrong == []
