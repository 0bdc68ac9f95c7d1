"""The fuzzing itself: what it lets pass, and what it finds."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import strategies as st

from fuzzing import FEW, Fuzz, TooSlow, limits
from genenv.errors import UsageError


def test_a_sentence_of_genenv_is_no_finding_and_another_error_is_one() -> None:
    def refuses(_: int) -> None:
        raise UsageError("it is no number")

    def breaks(number: int) -> None:
        if number > 5:
            raise KeyError(number)

    Fuzz(None)(st.integers(), refuses)
    with pytest.raises(KeyError):
        Fuzz(None)(st.integers(0, 100), breaks)


def test_an_error_that_says_nothing_is_a_finding() -> None:
    def refuses(_: int) -> None:
        raise UsageError("")

    with pytest.raises(AssertionError, match="has to say"):
        Fuzz(None)(st.just(1), refuses)


def test_what_never_ends_or_takes_all_memory_is_a_finding() -> None:
    def never_ends() -> None:
        while True:
            pass

    with pytest.raises(TooSlow), limits(0.05):
        never_ends()
    with pytest.raises(TooSlow), limits(0.05):  # one step of the interpreter
        re.match("(a+)+$", "a" * 22 + "b")
    with pytest.raises(MemoryError), limits(most_bytes=50 << 20):
        bytearray(4 << 30)  # more than any freed piece that the worker of this suite may still hold


def test_with_time_given_it_goes_on_until_the_time_is_over() -> None:
    tried: list[int] = []
    start = time.monotonic()
    Fuzz(0.2)(st.integers(), tried.append)
    assert time.monotonic() - start >= 0.2
    assert len(tried) > FEW


@pytest.mark.long
def test_guided_by_coverage_a_fault_behind_one_branch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("atheris", reason="atheris is not installed here")
    monkeypatch.setenv("GENENV_FUZZ_COVERAGE", "1")

    def read(text: str) -> None:
        if len(text) > 3:
            raise ValueError("planted")

    with pytest.raises(AssertionError, match="drawn from the bytes"):
        Fuzz(3.0)(st.text(), read)
    Fuzz(1.0)(st.text(), len)
