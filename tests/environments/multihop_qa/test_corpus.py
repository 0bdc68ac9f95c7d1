import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genenv.environments.multihop_qa.environment import MultihopQA
from genenv.environments.multihop_qa.kb import Fact
from genenv.environments.multihop_qa.spec import MultihopConfig, QuestionSpec
from genenv.environments.multihop_qa.world import load_corpus
from genenv.errors import UsageError
from genenv.types import Lineage, Origin, Task

TEAMS = (
    "Delta",
    "Echo",
    "Foxtrot",
    "Golf",
    "Hotel",
    "India",
    "Juliett",
    "Kilo",
    "Lima",
    "Mike",
    "Oscar",
    "Papa",
)


def company() -> list[dict[str, Any]]:
    """Teams with leads, floors and cities: facts that share names, and a relation with several objects."""
    lines: list[dict[str, Any]] = [
        {"relation": "lead", "words": ["the lead of", "the head of"], "functional": True},
    ]
    for number, team in enumerate(TEAMS):
        lead, room, town = f"Ada {team[::-1].title()}", f"Room {number + 10}", f"Port {team}o"
        lines.append(
            {
                "title": f"Team {team}",
                "text": f"Team {team} is led by {lead}.\nIt uses a laptop and a phone.",
                "facts": [
                    [f"Team {team}", "lead", lead],
                    [f"Team {team}", "tool", "laptop"],
                    [f"Team {team}", "tool", "phone"],
                ],
                "aliases": [team],
            }
        )
        lines.append(
            {
                "title": lead,
                "text": f"{lead} sits in {room} and comes from {town}.",
                "facts": [[lead, "room", room], [lead, "home town", town]],
            }
        )
        lines.append(
            {"title": room, "text": f"{room} has door {number}-X.", "facts": [[room, "door", f"{number}-X"]]}
        )
    return lines


def written(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return written(tmp_path / "company.jsonl", company())


@pytest.mark.parametrize("mode", ["closed_book", "passages", "search"])
def test_a_users_facts_make_questions_that_pass_the_gate(corpus: Path, mode: Any) -> None:
    env = MultihopQA(MultihopConfig(corpus=str(corpus), mode=mode))
    assert len(env.seeds()) >= 20
    assert len(env.held_out()) >= 1
    rng = random.Random(0)
    for seed in env.seeds():
        spec = QuestionSpec.model_validate(seed.spec)
        task = env.build(spec, task_id="t", lineage=Lineage(origin=Origin.SEED), rng=rng)
        assert isinstance(task, Task), task
        assert env.audit(task, rng) is None
        assert env.check(task, task.oracle).success
        assert not env.check(task, env.random_replies(task, rng)).success
        assert "tool" not in spec.relations  # a team has two
        varied = QuestionSpec.model_validate(env.variation(seed, rng))
        assert isinstance(
            env.build(varied, task_id="v", lineage=Lineage(origin=Origin.GENERATED), rng=rng), Task
        )


def test_a_question_about_a_users_facts_shows_the_users_own_words(corpus: Path) -> None:
    env = MultihopQA(MultihopConfig(corpus=str(corpus), distractors=1))
    spec = QuestionSpec(
        hops=2,
        answer="thing",
        start="Team Echo",
        relations=["lead", "room"],
        question="What is the room of the head of <start>?",
    )
    task = env.build(spec, task_id="t", lineage=Lineage(origin=Origin.SEED), rng=random.Random(1))
    assert isinstance(task, Task)
    lines = task.messages[-1].content.splitlines()
    assert len(lines) == 4
    assert lines[-1] == "What is the room of the head of Team Echo?"
    assert "- Team Echo: Team Echo is led by Ada Ohce. It uses a laptop and a phone." in lines
    assert "- Ada Ohce: Ada Ohce sits in Room 11 and comes from Port Echoo." in lines
    assert env.check(task, ["room 11"]).success


def test_a_seed_that_has_no_other_chain_is_offered_its_own(tmp_path: Path) -> None:
    def chain(number: int) -> dict[str, Any]:
        names = [f"{word}{number}" for word in ("Start", "Bridge", "End")]
        facts = [[names[0], f"first {'abc'[number % 3]}", names[1]], [names[1], "second", names[2]]]
        return {"title": names[0], "text": " ".join(names), "facts": facts}

    path = written(tmp_path / "chains.jsonl", [chain(number) for number in range(60)])
    env = MultihopQA(MultihopConfig(corpus=str(path)))
    for seed in env.seeds():
        assert env.spec_schema(seed)["anyOf"]
        assert env.variation(seed, random.Random(0))["hops"] == 2


def test_passages_without_facts_join_the_search(tmp_path: Path) -> None:
    path = written(tmp_path / "p.jsonl", [{"title": "Zyxel notes", "text": "Zyxel is a made-up town."}])
    env = MultihopQA(MultihopConfig(corpus=str(path), mode="search"))
    found = env.world.index.search("zyxel", results=3, chars=160)
    assert found == "Zyxel notes: Zyxel is a made-up town."
    assert len(env.seeds()) == 400
    assert "Tokyo" in env.world.index.search("capital of Japan", results=3, chars=160)


def test_equal_facts_in_two_passages_are_fine_and_the_first_is_the_source(tmp_path: Path) -> None:
    lines = [
        {"title": name, "text": "Anna lives in Rome.", "facts": [["Anna", "town", "Rome"]]} for name in "AB"
    ]
    base = load_corpus(written(tmp_path / "p.jsonl", lines)).base()
    assert base is not None
    assert base.facts == (Fact("Anna", "town", "Rome"),)
    assert base.source(base.facts[0]) == "A"


ANNA = {"title": "A", "text": "Anna lives in Rome.", "facts": [["Anna", "town", "Rome"]]}
ELSE = {"title": "B", "text": "Anna lives in Bonn.", "facts": [["Anna", "town", "Bonn"]]}


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (['{"title": "A", "text":'], "line 1: it is not JSON; write one object a line"),
        ([json.dumps(ANNA), "", "[" * 5000], "line 3: it is not JSON; write one object a line"),
        (["[1, 2]"], "line 1: it is not a JSON object"),
        (['{"title": "A"}'], "line 1: text: Field required"),
        (['{"title": "A", "text": "x", "fact": []}'], "line 1: fact: Extra inputs are not permitted"),
        (['{"title": 3, "text": "x"}'], "line 1: title: Input should be a valid string"),
        (
            ['{"title": "A", "text": "x", "facts": [["a", "b"]]}'],
            "line 1: facts.0: List should have at least 3",
        ),
        (['{"title": "A", "text": "' + "x" * 30_000 + '"}'], "line 1: it is longer than 20000 characters"),
        ([json.dumps(ANNA)] * 2, "line 2: the title 'A' stands in line 1 too"),
        (
            [json.dumps({**ANNA, "facts": ANNA["facts"] * 2})],
            "line 1: it gives the same fact twice; remove one",
        ),
        (
            [json.dumps({**ANNA, "facts": [["Anna", "town", "Oslo"]]})],
            "line 1: the fact ['Anna', 'town', 'Oslo'] is about 'Oslo', which",
        ),
        (
            [json.dumps({**ANNA, "facts": [["Anna", "town<start>", "Rome"]]})],
            "line 1: the relation 'town<start>' is not in plain words",
        ),
        (
            ['{"relation": "town", "functional": true}', json.dumps(ANNA), json.dumps(ELSE)],
            "line 3: it contradicts line 2: town of Anna is 'Rome' there and 'Bonn' here",
        ),
        ([json.dumps(ANNA), '{"relation": "town"}'], "line 2: relation 'town' was described or used before"),
        (['{"relation": "town", "words": ["<start> of"]}'], "line 1: words.0: String should match pattern"),
        ([""], "has no passage; write one JSON object a line"),
        (
            [json.dumps(ANNA), '{"relation": "home", "words": ["the town of"]}'],
            "'the town of' means two relations; give one of them other words",
        ),
        (
            [json.dumps(ANNA), json.dumps({**ELSE, "facts": [["Anna", "Town", "Bonn"]]})],
            "'Town' means two relations; give one of them other words",
        ),
        (
            [json.dumps(ANNA), json.dumps({"title": "A\rB", "text": "x"})],
            "line 2: title: Value error, a name must be one line",
        ),
        (
            [json.dumps({"title": "A", "text": "x", "facts": [["A\u2028B", "town", "x"]]})],
            "line 1: facts.0.0: Value error, a name must be one line",
        ),
        ([json.dumps(ANNA)], "make 0 questions to train on and 0 held-out ones"),
    ],
)
def test_a_wrong_file_ends_in_one_sentence_that_says_where(
    tmp_path: Path, lines: list[str], sentence: str
) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        MultihopQA(MultihopConfig(corpus=str(path)))
    assert sentence in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_second_object_of_an_ordinary_relation_is_no_contradiction(tmp_path: Path) -> None:
    base = load_corpus(written(tmp_path / "p.jsonl", [ANNA, ELSE])).base()
    assert base is not None
    assert base.hops_from("Anna") == []


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for path, sentence in (
        (tmp_path / "none.jsonl", "No such file or directory; check the setting environment.corpus"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(UsageError, match=sentence):
            load_corpus(path)
    with pytest.raises(UsageError, match="is no name of a file; check the setting"):
        load_corpus(tmp_path / "a\0b.jsonl")
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"title": "A", "text": "a"}\n{"title": "Caf\xe9", "text": "b"}\n')
    with pytest.raises(UsageError, match=r"latin\.jsonl, line 2: it is not UTF-8 text"):
        load_corpus(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_any_file_is_read_or_refused_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"any\.jsonl"):
        load_corpus(path)
