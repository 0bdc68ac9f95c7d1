import itertools
import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import genenv
from fact_corrections import DENIED, DENIED_FACTS
from genenv.environments.multihop_qa.kb import (
    RELATIONS,
    Fact,
    KnowledgeBase,
    built_in,
    facts_in,
    line_of,
    passage_of,
)

DATA = Path(genenv.__file__).parent / "environments/multihop_qa/data"
BASE = built_in()
ROWS = (DATA / "facts.tsv").read_text(encoding="utf-8").splitlines()


def test_there_are_enough_facts_and_relations_in_a_small_file() -> None:
    assert len(ROWS) >= 15_000
    assert len(RELATIONS) >= 20
    assert {fact.relation for fact in BASE.facts} == {relation.name for relation in RELATIONS}
    assert (DATA / "facts.tsv").stat().st_size < 1_000_000


def test_no_fact_is_there_twice_and_lines_are_sorted() -> None:
    assert len(set(ROWS)) == len(ROWS) == len(BASE.facts)
    cells = [tuple(row.split("\t")) for row in ROWS]
    assert cells == sorted(cells)
    assert all(cell == " ".join(cell.split()) and cell for row in cells for cell in row)


def test_functional_relations_have_one_object_for_each_subject() -> None:
    objects = Counter((fact.subject, fact.relation) for fact in BASE.facts)
    several = {relation for (_, relation), number in objects.items() if number > 1}
    assert several == {relation.name for relation in RELATIONS if relation.many}


def test_each_name_stands_for_one_kind_of_thing() -> None:
    kinds: defaultdict[str, set[str]] = defaultdict(set)
    for fact in BASE.facts:
        relation = BASE.relations[fact.relation]
        kinds[fact.subject].add(relation.subject)
        kinds[fact.object].add(relation.object)
    assert {name: found for name, found in kinds.items() if len(found) > 1} == {}


def test_no_way_back_goes_where_the_data_lacks_some() -> None:
    assert not {"official language of", "discovered in", "only neighbor"} & set(BASE.hops)


def test_an_only_airport_has_no_other_near() -> None:
    only = {fact.subject: fact.object for fact in BASE.facts if fact.relation == "airport"}
    assert len(only) > 500
    assert only["Oslo"] == "Oslo Gardermoen Airport"
    for city in ("Toronto", "Moscow", "Milan", "Glasgow", "Gothenburg", "New York City"):
        assert city not in only
    serves = {(fact.object, fact.subject) for fact in BASE.facts if fact.relation == "city served"}
    assert set(only.items()) <= serves


def test_what_is_denied_is_not_there() -> None:
    found = {(fact.subject, fact.relation) for fact in BASE.facts}
    assert not found & set(DENIED)
    assert not set(map(tuple, BASE.facts)) & set(DENIED_FACTS)
    assert all(reason for reason in (*DENIED.values(), *DENIED_FACTS.values()))
    largest = {fact.subject for fact in BASE.facts if fact.relation == "largest city"}
    wrong = {"Palau", "Micronesia", "San Marino", "Liechtenstein", "Taiwan", "U.S. Virgin Islands", "Kuwait"}
    assert not largest & wrong
    assert not [name for name in BASE if name in ("Simplified script", "Traditional script")]


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("aluminum", "aluminium"),
        ("cesium", "caesium"),
        ("The Netherlands", "Holland"),
        ("Myanmar", "Burma"),
        ("Democratic Republic of the Congo", "DR Congo"),
        ("Macao", "Macau"),
        ("Timor Leste", "East Timor"),
    ],
)
def test_well_known_other_names_are_there(name: str, alias: str) -> None:
    assert alias in BASE.names(name)


def test_aliases_are_of_things_that_are_known() -> None:
    assert len(BASE.aliases) > 150
    assert all(name in BASE and others and name not in others for name, others in BASE.aliases.items())


def test_no_two_ways_along_relations_share_a_name_or_a_phrase() -> None:
    names = [name for r in RELATIONS for name in (r.name, r.back) if name]
    phrases = [phrase for r in RELATIONS for phrase in (*r.words, *r.back_words)]
    assert len(set(names)) == len(names)
    assert len(set(phrases)) == len(phrases)
    assert all(bool(r.back) == bool(r.back_words) for r in RELATIONS)


def test_well_known_facts_are_there() -> None:
    for fact in (
        Fact("France", "capital", "Paris"),
        Fact("Denmark", "currency", "Danish Krone"),
        Fact("polonium", "symbol", "Po"),
        Fact("Colorado", "state capital", "Denver"),
        Fact("Nagoya", "country", "Japan"),
        Fact("Italian", "language code", "it"),
    ):
        assert fact in BASE.facts


def test_every_made_passage_says_exactly_its_facts() -> None:
    for title in itertools.islice(BASE.by_subject, 0, None, 7):
        passage = passage_of(BASE, title)
        assert facts_in(BASE, line_of(passage)) == set(passage.facts) == set(BASE.by_subject[title])


def test_text_that_is_no_passage_says_nothing() -> None:
    assert facts_in(BASE, "") == facts_in(BASE, "Its capital is Paris.") == set()
    assert facts_in(BASE, "France (city): Its capital is Paris.") == set()


def test_equal_facts_count_once() -> None:
    fact = Fact("France", "capital", "Paris")
    assert KnowledgeBase([fact, fact]).facts == (fact,)
    assert json.dumps(fact) == '["France", "capital", "Paris"]'
