"""`genenv report` and `genenv doctor`: where the page is, what is here."""

from __future__ import annotations

from pathlib import Path

import pytest

from typed import succeeds

pytestmark = pytest.mark.usefixtures("scripted")


@pytest.mark.long
def test_report_prints_where_the_page_is(finished: Path) -> None:
    assert succeeds("report", finished).stdout == f"report: {finished / 'report.html'}\n"
    assert (finished / "report.html").stat().st_size > 10_000


@pytest.mark.long
def test_doctor_says_what_is_here() -> None:
    told = succeeds("doctor").stdout
    for word in ("Python", "memory", "torch", "xgrammar", "embedded model", "wandb"):
        assert word in told
