"""How near two texts are."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.gate import novelty
from genenv.gate.novelty import Archive

words = st.lists(st.sampled_from(["send", "mail", "to", "Zoë", "20", "東京"]), min_size=1, max_size=8)


def similarity(first: str, second: str) -> float:
    archive = Archive()
    archive.add("first", first)
    return archive.nearest(second)[0]


def shingles(text: str) -> frozenset[str]:
    """The words and the pairs of neighbouring words of a text, lower-cased."""
    found = re.findall(r"[^\W_]+", text.lower())
    return frozenset(found) | {f"{a} {b}" for a, b in itertools.pairwise(found)}


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


def scanned(texts: Mapping[str, str], text: str) -> tuple[float, str | None]:
    """The rule, word for word: the most similar of all texts, the first by id of several."""
    new, best, found = shingles(text), 0.0, None
    for name in sorted(texts):
        own = shingles(texts[name])
        if (shared := len(new & own)) and shared / len(new | own) > best:
            best, found = shared / len(new | own), name
    return best, found


@pytest.mark.long
@given(
    texts=st.lists(words.map(" ".join) | st.sampled_from(["", "?!"]), max_size=40),
    asked=st.lists(words.map(" ".join) | st.sampled_from(["", "never written", "send never"]), min_size=1),
    sizes=st.sampled_from([(1, 2, 1, 1), (2, 2, 4, 0), (3, 2, 1, 10**9), (2, 4, 10**9, 16)]),
    seed=st.integers(0, 99),
)
def test_the_archive_says_what_a_look_at_every_text_says(texts, asked, sizes, seed):
    loose, joined, first, cost = sizes
    named = {f"t{number:02d}": text for number, text in enumerate(texts)}
    order = random.Random(seed).sample(sorted(named), len(named))
    with pytest.MonkeyPatch.context() as patch:  # indices already of a few texts, and joined
        patch.setattr(novelty, "_LOOSE", loose)
        patch.setattr(novelty, "_JOINED", joined)
        patch.setattr(novelty, "MOST_TEXTS", 8)
        patch.setattr(novelty, "FIRST_PAIRS", first)
        patch.setattr(novelty, "FIRST_PAIRS", first)
        patch.setattr(novelty, "_COST", cost)
        archive = Archive()
        for name in order:
            archive.add(name, named[name])
        assert [archive.nearest(text) for text in asked] == [scanned(named, text) for text in asked]


def written(rng: random.Random, n: int) -> dict[str, str]:
    """Texts of twenty words, some very common, most rare; every tenth is nearly the one before."""
    texts: dict[str, str] = {}
    last: list[str] = []
    for number in range(n):
        last = [f"w{int(3000 ** rng.random())}" for _ in range(20)] if number % 10 else [*last[:-1], "x"]
        texts[f"t{rng.getrandbits(40):x}"] = " ".join(last)
    return texts


@pytest.mark.long
def test_the_archive_says_what_a_look_at_every_text_says_of_some_thousand_texts():
    rng = random.Random(0)
    texts, archive = written(rng, 2000), Archive()
    for name, text in texts.items():
        archive.add(name, text)
    near = [text.replace(" w1 ", " w7 ") for text in list(texts.values())[::400]]
    for text in [*written(rng, 10).values(), *near, "w1 w2 w3", "w1", ""]:
        assert archive.nearest(text) == scanned(texts, text)


@pytest.mark.long
def test_the_commonest_words_are_not_looked_at_when_a_near_text_is_known(monkeypatch):
    """Sublinear, counted and not timed: shingles in texts, of those that are looked at for a near copy."""
    rng = random.Random(0)
    texts, archive = written(rng, 10_000), Archive()
    for name, text in texts.items():
        archive.add(name, text)
    own = {name: shingles(text) for name, text in texts.items()}
    counted, look = [], novelty.Search.look

    def counting(search, pairs):
        before = search._pairs
        reached = look(search, pairs)
        counted.append(before - search._pairs)
        return reached

    for module in (novelty,):
        monkeypatch.setattr(module, "FIRST_PAIRS", 200)  # for an archive that is small enough for a test
    monkeypatch.setattr(novelty.Search, "look", counting)
    for name, text in list(texts.items())[1::1999]:
        counted.clear()
        copy = shingles(f"{text} never")
        assert archive.nearest(f"{text} never")[0] > 0.9, name
        shared = sum(len(copy & parts) for parts in own.values())
        assert sum(counted) < shared / 5
