"""How properties are drawn: the same examples for everybody, and afresh for those who ask."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[1]
PROPERTY = "test_the_sign_of_a_number_changes_twice"


def drawn(profile: str) -> list[int]:
    numbers: list[int] = []

    @settings(settings.get_profile(profile), max_examples=20)
    @given(st.integers())
    def draw(number: int) -> None:
        numbers.append(number)

    draw()
    return numbers


def test_without_a_word_everybody_draws_the_same_examples() -> None:
    assert drawn("steady") == drawn("steady")
    assert drawn("random") != drawn("random")
    assert not settings.get_profile("random").derandomize, "also where CI is set"


@pytest.mark.parametrize("profile", ["steady", "random"])
def test_no_property_fails_because_a_machine_is_busy(profile: str) -> None:
    assert settings.get_profile(profile).deadline is None


@settings(max_examples=7)
@given(st.integers())
def test_the_sign_of_a_number_changes_twice(number: int) -> None:
    assert (-number) * -1 == number


@pytest.mark.long
@pytest.mark.parametrize(("profile", "examples"), [("steady", 7), ("random", 70)])
def test_a_random_run_draws_ten_times_as_many_where_a_test_says_how_many_too(
    profile: str, examples: int
) -> None:
    shown = ["--hypothesis-show-statistics", "--hypothesis-profile", profile]
    command = [sys.executable, "-m", "pytest", *shown, f"{__file__}::{PROPERTY}"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"settings.max_examples={examples}\n" in found.stdout
