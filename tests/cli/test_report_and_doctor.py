"""`genenv report` and `genenv doctor`: where the page is, what is here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from genenv.cli import doctor
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


@pytest.mark.long
def test_doctor_breaks_no_word_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    advice = "optional: pip install 'genenv[qlora]'"
    monkeypatch.setitem(doctor._CHECKS, "bitsandbytes", lambda: ("not installed", advice))
    told = succeeds("doctor").stdout
    assert sys.executable in told
    assert advice in told, "brackets are no markup"
    assert max(map(len, told.splitlines())) > 80
    fit = succeeds("doctor", "quickstart", "--set", "policy.context_tokens=1024").stdout
    assert all(line.endswith(("│", "┃", "┓", "┩", "┘", "┤")) for line in fit.splitlines() if line[:1] in "│┃")
