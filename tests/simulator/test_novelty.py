"""How near two texts are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.simulator.novelty import Archive, shingles

words = st.lists(st.sampled_from(["send", "mail", "to", "Zoë", "20", "東京"]), min_size=1, max_size=8)


def similarity(first: str, second: str) -> float:
    archive = Archive()
    archive.add("first", first)
    return archive.nearest(second)[0]


def test_shingles_are_words_and_pairs_of_neighbours():
    assert shingles("Pay Zoë, pay_now!") == {"pay", "zoë", "now", "pay zoë", "zoë pay", "pay now"}
    assert shingles("?!") == frozenset()


def test_similarity_by_hand():
    # {a, b, c, "a b", "b c"} and {b, c, d, "b c", "c d"}: 3 of 7
    assert similarity("a b c", "b c d") == pytest.approx(3 / 7)
    assert similarity("a b", "c d") == 0.0


def test_the_nearest_text_is_found_among_many():
    archive = Archive()
    for name, text in [("far", "x y z"), ("near", "a b c"), ("nearer", "b c d")]:
        archive.add(name, text)
    assert archive.nearest("b c d e") == (pytest.approx(5 / 7), "nearer")
    assert archive.nearest("q") == (0.0, None)
    assert len(archive) == 3


def test_a_name_is_put_in_once():
    archive = Archive()
    archive.add("one", "a b")
    archive.add("one", "c d")
    assert archive.nearest("c d") == (0.0, None)
    assert archive.nearest("a b") == (1.0, "one")


@given(order=st.permutations(["t1", "t2", "t3"]))
def test_of_equally_near_texts_the_first_name_is_given_whatever_the_order(order):
    archive = Archive()
    for name in order:
        archive.add(name, f"a b {name}")
    assert archive.nearest("a b")[1] == "t1"


@given(first=words, second=words)
def test_similarity_is_symmetric_and_between_zero_and_one(first, second):
    one, other = " ".join(first), " ".join(second)
    assert similarity(one, other) == similarity(other, one)
    assert 0.0 <= similarity(one, other) <= 1.0


@given(text=words)
def test_a_text_is_identical_to_itself_whatever_its_case(text):
    assert similarity(" ".join(text), " ".join(text).upper()) == 1.0
