"""Regular expressions that others wrote: matched and drawn from within limits."""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
import time

import pytest

from fuzzing import limits
from genenv.untrusted.patterns import BadPattern, TookTooLong, draw, engine, is_pattern, is_simple

SENTENCE = "ergonomic wireless keyboard and mouse combination-set"


@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"^([A-Za-z]+\s?)*$", "^(a|aa)+$", "(.*)*(.*)*x$"])
def test_a_pattern_that_takes_re_for_ever_is_matched_at_once(pattern: str) -> None:
    finds = engine(pattern)
    with limits(1):
        assert not finds("a" * 2000 + "!")
        assert not finds(SENTENCE)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"^\d{3}-\d{4}$", "555-1234", True),
        (r"b", "abc", True),
        (r"^(?=.*\d)[a-z\d]+$", "abc1", True),
        (r"^(?=.*\d)[a-z\d]+$", "abc", False),
        (r"^\p{L}+$", "Zoë", True),
        (r"^(a)\1$", "aa", True),
        (r"^(?<year>\d{4})$", "2026", True),
    ],
)
def test_patterns_of_other_languages_are_matched(pattern: str, text: str, found: bool) -> None:
    assert engine(pattern)(text) is found


@pytest.mark.parametrize(
    ("pattern", "texts", "others"),
    [
        ("^[+--]+$", ["+,-", ","], ["*"]),  # the range from + to -, and -
        ("^[a-z&&b]+$", ["a&b"], ["A"]),
        ("^[a~~b]+$", ["a~b"], ["c"]),
        ("^[a[b]+$", ["a[b"], ["]"]),
        ("^[]a]+$", ["]a"], ["b"]),
        (r"^[^\]\-\-]+$", ["ab"], ["a-", "]"]),
        (r"^\d+$", ["12"], ["٣", "1\n"]),
        (r"^[\d-x]+$", ["1-x"], ["y", "٣"]),
        (r"^[+-\d]+$", ["5", "+-"], [",", "."]),
        (r"^[_-\w]+$", ["a-1"], [".", "é"]),
        (r"^\w+$", ["a_1"], ["é"]),
        (r"^[\w.]+$", ["a.1"], ["é"]),
        (r"^\D\W$", ["٣é"], ["1é", "٣a"]),
        (r"^[\D]$", ["٣"], ["1"]),
        (r"^(?!x)[\d\W]$", ["1", "é"], ["a", "٣a"]),
        (r"^\\d$", ["\\d"], ["1"]),
        ("^(?!x)a$", ["a"], ["a\n"]),
        ("^(?!x)(a$|b$)", ["a", "b"], ["a\n", "b\n"]),
        (r"^(?!x)a\$[$]$", ["a$$"], ["a$$\n"]),
        ("(?m)^(?!x)a$", ["a\nb"], ["xa"]),
    ],
)
def test_patterns_mean_what_they_mean_in_ecmascript(
    pattern: str, texts: list[str], others: list[str]
) -> None:
    finds = engine(pattern)
    assert all(map(finds, texts))
    assert not any(map(finds, others))


def test_what_cannot_be_known_in_time_is_neither_a_match_nor_none() -> None:
    with limits(), pytest.raises(TookTooLong, match=r"it takes over 0.1 s to match"):
        engine(r"^(?=a)(a|a|aa)+(?!b)\1c$")("a" * 4000 + "!")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("[ab]{0,5}(?:a[ab]{0,900}){0,90}c", "ab" * 1000),
        ("[ab]{0,5}(?:a[ab]{0,900}){0,9}c", "ab" * 10_000),
        ("a{0,200}?{0,200}" + "(?:a?){0,200}c", "a" * 10_000),
    ],
)
def test_a_pattern_that_no_engine_matches_quickly_is_stopped(pattern: str, text: str) -> None:
    finds = engine(pattern)
    began = time.process_time()
    with contextlib.suppress(TookTooLong):
        assert not finds(text)
    assert time.process_time() - began < 0.6
    assert finds("ac")


def test_a_long_text_is_matched_by_either_engine_alike() -> None:
    finds = engine(r"^(?:[a-z]{1,63}\.){1,200}[a-z]{2,63}$")
    for count in (2, 100):
        text = "abcdefgh." * count
        assert finds(f"{text}org")
        assert not finds(f"{text}org\n")


@pytest.mark.parametrize("pattern", ["(", "[^]", "a" * 30_000, "(?=b)(a{9999}){9999}", "\\"])
def test_what_no_engine_reads_is_no_pattern(pattern: str) -> None:
    with limits():
        assert not is_pattern(pattern)
        with pytest.raises(BadPattern):
            draw(pattern, random.Random(0))


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            r"^(a+)+$",
            r"^((a+)+)+$",
            r"^([A-Za-z]+\s?)*$",
            r"^[A-Z]{3}-\d{4}$",
            r"^[A-Z]{200}$",
            r"^(?=.*\d)[a-z\d]{3,5}$",
        ),
        *(r"^\p{L}+$", r"^(?<year>\d{4})$", "[\\u0000-\\U0010ffff]{3}", r"^[^a]$", r"(a)|b"),
    ],
)
def test_what_is_drawn_matches_and_is_short(pattern: str) -> None:
    with limits():
        found = draw(pattern, random.Random(1))
    assert engine(pattern)(found)
    assert len(found) <= 20_000


@pytest.mark.parametrize(
    "pattern", ["(a{65535}){65535}", "(?=b)a{9999}", "^(?!a)a$", "(?:" * 200 + "a+" + ")+" * 200]
)
def test_where_nothing_can_be_drawn_it_is_said(pattern: str) -> None:
    with limits(), pytest.raises(BadPattern):
        draw(pattern, random.Random(0))


def test_simple_patterns_are_those_that_all_engines_read_alike() -> None:
    simple = [r"^\d{3}$", "^(?:a|b)+$", r"^[\w.-]+@example\.com$", ""]
    special = ["(?=a)", r"\p{L}", r"(a)\1", "a++", "(", r"a\Z", "[+--]", "[a~~]", "[a[b]"]
    assert [one for one in simple + special if is_simple(one)] == simple
    assert all(re.compile(one) for one in simple)


@pytest.mark.parametrize(
    "count", ["{1000000000}", "{1000000000,}", "{0,1000000000}", "{ 99999999999999999999 }"]
)
def test_a_count_that_takes_all_memory_is_no_pattern_that_is_read(count: str) -> None:
    with limits():
        for pattern in (f"^[a-z]{count}$", f"(?=x)[a-z]{count}"):
            assert not is_pattern(pattern) or not engine(pattern)("ab")
            with contextlib.suppress(BadPattern):
                draw(pattern, random.Random(1))


@pytest.mark.parametrize(
    ("pattern", "longest"),
    [("^se(-[a-z0-9]+)+$", 2 + 9 * 10), ("^[a-z]+(-[a-z]+)*$", 9 + 8 * 10), ("^x{3,}$", 11)],
)
def test_a_quantifier_without_an_upper_bound_gives_texts_of_the_length_that_ids_have(
    pattern: str, longest: int
) -> None:
    lengths = [len(draw(pattern, random.Random(seed))) for seed in range(300)]
    assert max(lengths) <= longest
    assert len(set(lengths)) > 5


@pytest.mark.parametrize(
    "pattern", ["^[^/?]+$", "^[^/]+$", "^.+$", r"^\S+$", r"^[^@ ]+@[^\s]+\.com$", r"^[\D]{4}$"]
)
def test_where_a_pattern_only_excludes_characters_ordinary_ones_are_drawn(pattern: str) -> None:
    for seed in range(100):
        assert re.fullmatch(r"[A-Za-z0-9@.]+", draw(pattern, random.Random(seed)))


def test_another_process_draws_the_same_texts() -> None:
    patterns = ["^[^/?]+$", r"^\W+$", r"^[^\w]{3}$", r"^[\S]+$"]
    code = (
        "import random\nfrom genenv.untrusted.patterns import draw\n"
        f"print([draw(p, random.Random(n)) for p in {patterns} for n in range(5)])"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1] != b""
