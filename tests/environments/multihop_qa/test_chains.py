import contextlib
import functools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.environments.multihop_qa.kb import THINGS, BrokenChain, Fact, KnowledgeBase, built_in, joined
from genenv.environments.multihop_qa.spec import (
    EVERYDAY,
    Misread,
    draw_question,
    named,
    question_pattern,
    strange_word,
)
from genenv.environments.multihop_qa.world import MAX_CHAINS, Chain, Chains, load_world

WORLD = load_world(None)
BASE = built_in()
seeds = st.integers(0, 2**32)


@functools.cache
def all_starts() -> list[str]:
    return sorted(name for name in BASE.by_subject if WORLD.chains.of(name))


starts = st.deferred(lambda: st.sampled_from(all_starts()))


def hops(*names: str) -> list:
    return [BASE.hops[name] for name in names]


def ends(start: str, *names: str) -> list[str]:
    return [step.end for step in BASE.follow(start, hops(*names))]


def test_chains_go_forward_and_back() -> None:
    assert ends("Paris", "capital of", "official language", "script") == ["France", "French", "Latin script"]
    assert ends("Po", "symbol of", "next element") == ["polonium", "astatine"]


@pytest.mark.parametrize(
    ("start", "names", "sentence"),
    [
        ("Switzerland", ["official language", "script"], "ambiguous: it leads to French and German"),
        ("Euro", ["currency of", "capital"], "'currency of' of Euro is ambiguous"),
        ("France", ["capital", "capital of"], "Hop 2 uses the relation 'capital' a second time"),
        ("Sweden", ["capital", "country"], "Hop 2 comes back to Sweden"),
        ("Paris", ["capital", "country"], "no 'capital' hop from Paris"),
        ("Japan", ["continent", "country"], "Hop 1 ends at Asia, from which no chain goes on"),
    ],
)
def test_a_chain_without_a_unique_end_says_why(start: str, names: list[str], sentence: str) -> None:
    with pytest.raises(BrokenChain) as caught:
        BASE.follow(start, hops(*names))
    assert sentence in str(caught.value)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(starts, seeds)
def test_a_chain_ends_where_a_join_over_all_facts_ends(start: str, seed: int) -> None:
    chain = random.Random(seed).choice(WORLD.chains.of(start))
    steps = BASE.follow(start, chain.hops)
    assert joined(BASE.facts, start, chain.hops) == {steps[-1].end} == {chain.answer}
    path = [start, *(step.end for step in steps)]
    assert len(set(path)) == len(path)
    assert all(BASE.kind(bridge) in THINGS for bridge in path[1:-1])
    assert BASE.kind(chain.answer) == chain.kind
    assert not any(named(BASE.names(end), start) for end in path[1:])


def test_a_join_without_a_match_is_empty_and_with_several_has_all() -> None:
    facts = [Fact("A", "capital", "B"), Fact("C", "capital", "B")]
    assert joined(facts, "X", hops("capital")) == set()
    assert joined(facts, "B", hops("capital of")) == {"A", "C"}


def test_what_every_question_could_have_as_a_word_is_no_answer() -> None:
    assert ends("Iceland", "official language", "language code") == ["Icelandic", "is"]
    found = [chain.answer for chain in WORLD.chains.of("Iceland")]
    assert "is" not in found
    assert "Latin script" in found


@pytest.mark.long
def test_no_built_in_start_reaches_the_limit_of_chains() -> None:
    assert max(len(WORLD.chains.of(start)) for start in all_starts()) < MAX_CHAINS / 4


def test_the_side_of_a_name_is_stable() -> None:
    assert [WORLD.chains.is_held_out(name) for name in ("France", "Paris", "polonium")] == [
        True,
        False,
        False,
    ]
    share = sum(map(WORLD.chains.is_held_out, all_starts())) / len(all_starts())
    assert 0.2 < share < 0.3


def test_things_that_share_a_name_are_on_one_side() -> None:
    side = WORLD.chains.is_held_out
    by_name: dict[str, bool] = {}
    for name in BASE:
        for each in BASE.names(name):
            assert by_name.setdefault(each.casefold(), side(name)) == side(name), name
    facts = [Fact(f"Team {n}", "capital", f"n{n}") for n in range(40)] + [Fact("n0", "country", "x")]
    base = KnowledgeBase(facts, aliases={f"Team {n}": [f"N{n}"] for n in range(40)})
    chains = Chains(base)
    assert all(chains.is_held_out(f"Team {n}") == chains.is_held_out(f"n{n}") for n in range(40))
    assert base.key("x") == "x"


def test_no_training_chain_has_a_held_out_chain_inside() -> None:
    side, tried = WORLD.chains.is_held_out, 0
    for start in all_starts()[::9]:
        for chain in WORLD.chains.on_side(start, held_out=False):
            hidden = [place for place, name in enumerate(chain.path) if side(name)]
            assert not hidden or max(hidden) - min(hidden) < 2, chain
            assert {0, len(chain.hops)}.isdisjoint(hidden)
            tried += len(chain.hops) == 4
    assert tried > 300


@settings(max_examples=60, deadline=None)
@given(starts, st.booleans(), seeds)
def test_chains_of_a_side_have_both_ends_there(start: str, held_out: bool, seed: int) -> None:
    found = WORLD.chains.some(start, (3, 2, 1), held_out=held_out, rng=random.Random(seed))
    assert all(
        WORLD.chains.is_held_out(chain.start) == WORLD.chains.is_held_out(chain.answer) == held_out
        for chain in found
    )
    lengths = [len(chain.hops) for chain in found]
    assert [lengths.count(n) <= most for n, most in ((2, 3), (3, 2), (4, 1))] == [True] * 3


# --- words ---


def a_chain(start: str, seed: int) -> Chain:
    return random.Random(seed).choice(WORLD.chains.of(start))


@settings(max_examples=150, deadline=None)
@given(starts, seeds)
def test_what_is_asked_is_read_back(start: str, seed: int) -> None:
    chain = a_chain(start, seed)
    question = draw_question(chain.hops, random.Random(seed))
    assert re.fullmatch(question_pattern(chain.hops), question)
    reading = WORLD.reader.read(question.replace("<start>", start), BASE.names(start))
    assert reading.hops == chain.hops
    assert not reading.stray


def read(question: str, start: str) -> list[str]:
    return [hop.name for hop in WORLD.reader.read(question, BASE.names(start)).hops]


def test_questions_may_have_one_part_or_two_and_free_words_around() -> None:
    assert read("What is the currency of the country whose capital is Oslo?", "Oslo") == [
        "capital of",
        "currency",
    ]
    two = "My aunt asks: think of the capital of Chad. So, what is the time zone of that city, please?"
    with pytest.raises(Misread, match="stand apart"):
        read(two, "Chad")  # "that city" is to end the question
    assert read(two.replace(", please", ""), "Chad") == ["capital", "time zone"]
    assert read("do you know the currency of the capital of the UK", "United Kingdom") == [
        "capital",
        "currency",
    ]


def test_capitals_do_not_matter_in_the_words_of_a_relation() -> None:
    question = (
        "WHAT IS THE IATA CODE OF THE AIRPORT OF OSLO? Now: what is the iata code of the airport of Oslo"
    )
    assert read(question[44:], "Oslo") == ["airport", "IATA code"]
    assert read("What is THE IATA CODE OF The Airport That \u017ferves Oslo?", "Oslo") == [
        "airport",
        "IATA code",
    ]


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("What is the currency of the country whose capital is Rome?", "does not name Oslo"),
        ("What is the currency of Oslo's country?", "does not name Oslo"),
        ("Oslo: what is the currency of the country whose capital is it?", "does not name Oslo"),
        ("The capital of a land: what is the country whose capital is Oslo?", "stand apart"),
        (
            "Take the country whose capital is Oslo. What is the currency of that city?",
            "there stands a country",
        ),
        ("", "does not name Oslo"),
    ],
)
def test_words_out_of_place_are_no_chain(question: str, sentence: str) -> None:
    with pytest.raises(Misread) as caught:
        WORLD.reader.read(question, ["Oslo"])
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "question",
    [
        "What is the old name of the capital of the country of Oslo?",
        "What is the mother of the capital of the country of Oslo?",
        "Who is from the capital of the country of Oslo?",
        "When was the capital of the country of Oslo made?",
        "How long is the name of the capital of the country of Oslo?",
        "What is not the capital of the country of Oslo?",
        "My aunt asks what is the name of the capital of the country of Oslo?",
        "the capital of the country of Oslo?",
        "What is the capital of the country of Oslo like?",
        "Take the capital of the country of Oslo. How long is that name?",
        "Take the country of Oslo. How long is the name of the capital of that country?",
        "Quiz: who was in the country of Oslo. What is the capital of that country?",
    ],
)
def test_a_question_about_the_end_of_a_chain_does_not_ask_for_it(question: str) -> None:
    assert "the chain stands" in WORLD.reader.read(question, ["Oslo"]).stray


@pytest.mark.parametrize("opening", ["My aunt asks, ", "A hard one. ", "Again: ", "", "Who knows? "])
def test_free_words_may_open_a_question(opening: str) -> None:
    question = f"{opening}WHAT IS the capital of the country of Oslo?"
    assert WORLD.reader.read(question, ["Oslo"]).stray == ""


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(Misread):
        assert WORLD.reader.read(text, ["Oslo"]).hops


@pytest.mark.parametrize(
    ("words", "strange"),
    [
        ("My aunt's friend asks: could you, please -", None),
        ("", None),
        ("Think of krone", "krone"),
        ("is it not", "not"),
        ("the 7 of us", "7"),
        ("N o r w a y", "N"),
        ("Norwegіan", "Norwegіan"),  # with a Cyrillic letter
        ("it is _", "_"),
        ("O'Oslo", "O"),
        ("my 'krone", "krone"),
        ("$", "$"),
    ],
)
def test_only_everyday_words_may_stand_around_a_chain(words: str, strange: str | None) -> None:
    assert strange_word(words) == strange


def test_no_everyday_word_is_part_of_an_answer_that_a_chain_has() -> None:
    ends = {chain.answer for start in all_starts()[::20] for chain in WORLD.chains.of(start)}
    assert not {end for end in ends if named([end], " ".join(EVERYDAY))}


def test_short_names_count_with_their_capitals_only() -> None:
    assert named(["IS"], "What is it?") is None
    assert named(["IS"], "Is the code IS?") == "IS"
    assert named(["Iceland"], "the ICELAND trip") == "Iceland"
    assert named(["Oman"], "a woman") is None
