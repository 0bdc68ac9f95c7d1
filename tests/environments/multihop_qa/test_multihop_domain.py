import asyncio
import importlib.util
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.config.run import load_config
from genenv.curriculum.settings import CurriculumConfig
from genenv.environments import load_environment
from genenv.environments.base import Environment, OutOfTurns
from genenv.environments.multihop_qa.environment import MultihopQA
from genenv.environments.multihop_qa.search import NOTHING
from genenv.environments.multihop_qa.spec import MultihopConfig, QuestionSpec
from genenv.environments.multihop_qa.world import spec_of
from genenv.errors import UsageError
from genenv.gate.gate import HELD_OUT_SIMILARITY, Gate, base_tasks
from genenv.gate.novelty import Archive
from genenv.types import (
    Context,
    Generation,
    Lineage,
    Message,
    Origin,
    Profile,
    Rejection,
    RejectReason,
    Seed,
    Task,
)
from quickly import within

ENVIRONMENT = MultihopQA()
SEARCH = MultihopQA(MultihopConfig(mode="search"))
CLOSED = MultihopQA(MultihopConfig(mode="closed_book", reward="soft"))
OSLO = QuestionSpec(
    hops=2,
    answer="currency",
    start="Oslo",
    relations=["capital of", "currency"],
    question="What is the currency of the country whose capital is <start>?",
)


def built(env: MultihopQA, spec: QuestionSpec = OSLO, origin: Origin = Origin.SEED) -> Task | Rejection:
    return env.build(spec, task_id="t", lineage=Lineage(origin=origin), rng=random.Random(0))


def task_of(env: MultihopQA, spec: QuestionSpec = OSLO) -> Task:
    task = built(env, spec)
    assert isinstance(task, Task), task
    return task


def refused(**changes: Any) -> Rejection:
    """What is said of a changed question, by build or by audit."""
    outcome = built(ENVIRONMENT, OSLO.model_copy(update=changes))
    rejection = outcome if isinstance(outcome, Rejection) else ENVIRONMENT.audit(outcome, random.Random(0))
    assert rejection is not None
    assert rejection.explanation.endswith(".")
    return rejection


def admitted(gate: Gate, seed: Seed, spec: Any, name: str = "g") -> Task | Rejection:
    context = Context(id="c", round=1, seed=seed, messages=())
    generation = Generation(
        id=name,
        context_id="c",
        prompt_ids=(),
        token_ids=(),
        logprobs=(),
        text=json.dumps(spec),
        finished=True,
    )
    return gate.admit([context], [generation])[0].outcome


def alternatives(seed: Seed) -> Any:
    return ENVIRONMENT.spec_schema(seed)["anyOf"]


def fresh_gate(env: MultihopQA = ENVIRONMENT) -> Gate:
    return Gate(env, CurriculumConfig(), seed=0)


def test_it_is_a_environment_of_the_registry() -> None:
    env: Environment = load_environment("multihop_qa")
    assert isinstance(env, MultihopQA)
    assert env.spec is QuestionSpec


def test_the_shipped_configuration_is_one() -> None:
    config = load_config(Path(__file__).parents[3] / "configs" / "multihop_qa.toml")
    assert config.environment.name == "multihop_qa"
    assert config.run.rounds == 10


# --- base data ---


@pytest.mark.long
def test_seeds_and_held_out_tasks_are_many_and_always_the_same() -> None:
    again = MultihopQA()
    assert len(ENVIRONMENT.seeds()) == 400
    assert len(ENVIRONMENT.held_out()) == 160
    assert [seed.spec for seed in again.seeds()] == [seed.spec for seed in ENVIRONMENT.seeds()]
    assert list(again.held_out()) == list(ENVIRONMENT.held_out())
    assert len({json.dumps([s.spec["start"], s.spec["relations"]]) for s in ENVIRONMENT.seeds()}) == 400
    assert (
        {seed.spec["hops"] for seed in ENVIRONMENT.seeds()}
        == {2, 3, 4}
        == {task.spec["hops"] for task in ENVIRONMENT.held_out()}
    )


def answers(tasks: Sequence[Task]) -> set[str]:
    return {str(task.oracle[-1]) for task in tasks}


@pytest.mark.long
def test_no_start_or_answer_of_held_out_tasks_is_one_of_seeds_or_of_the_grammar() -> None:
    reserved = answers(ENVIRONMENT.held_out()) | {str(task.spec["start"]) for task in ENVIRONMENT.held_out()}
    tasks = list(base_tasks(ENVIRONMENT, ENVIRONMENT.seeds(), seed=0).values())
    assert len(tasks) == len(ENVIRONMENT.seeds())
    assert reserved.isdisjoint(answers(tasks) | {str(task.spec["start"]) for task in tasks})
    for seed in ENVIRONMENT.seeds():
        for each in alternatives(seed):
            fields = each["properties"]
            names = [item["const"] for item in fields["relations"]["prefixItems"]]
            start = fields["start"]["const"]
            hops = [ENVIRONMENT.world.base.hops[name] for name in names]
            end = ENVIRONMENT.world.base.follow(start, hops)[-1].end
            assert not ENVIRONMENT.world.chains.is_held_out(start)
            assert not ENVIRONMENT.world.chains.is_held_out(end)
            assert reserved.isdisjoint({start, end})


def test_build_refuses_what_is_reserved_unless_it_is_a_held_out_task() -> None:
    spec = QuestionSpec.model_validate(ENVIRONMENT.held_out()[0].spec)
    rejection = built(ENVIRONMENT, spec, Origin.GENERATED)
    assert isinstance(rejection, Rejection)
    assert rejection.reason is RejectReason.HELD_OUT
    assert isinstance(built(ENVIRONMENT, spec, Origin.HELD_OUT), Task)


def test_build_refuses_a_chain_with_a_held_out_chain_inside() -> None:
    chains = ENVIRONMENT.world.chains
    refused = 0
    for start in ENVIRONMENT.world.base.by_kind["airport"]:
        for chain in chains.of(start):
            ends_are_free = not any(map(chains.is_held_out, (start, chain.answer)))
            if ends_are_free and chains.reserved(chain.path):
                outcome = built(ENVIRONMENT, spec_of(chain, random.Random(0)), Origin.GENERATED)
                assert isinstance(outcome, Rejection)
                assert outcome.reason is RejectReason.HELD_OUT
                refused += 1
                break
    assert refused >= 10


def test_no_seed_is_near_a_held_out_task() -> None:
    archive = Archive()
    for task in ENVIRONMENT.held_out():
        archive.add(task.id, ENVIRONMENT.surface(task))
    nearest = [
        archive.nearest(ENVIRONMENT.surface(task))[0]
        for task in base_tasks(ENVIRONMENT, ENVIRONMENT.seeds(), seed=0).values()
    ]
    assert max(nearest) < HELD_OUT_SIMILARITY


@pytest.mark.long
@pytest.mark.parametrize("env", [ENVIRONMENT, CLOSED])
def test_seeds_and_held_out_tasks_pass_the_audit(env: MultihopQA) -> None:
    rng = random.Random(5)
    for task in [*env.held_out(), *base_tasks(env, ENVIRONMENT.seeds()[::2], seed=0).values()]:
        assert env.audit(task, rng) is None, task.spec
        assert env.check(task, task.oracle).reward == 1.0


@pytest.mark.long
def test_held_out_tasks_that_no_search_can_solve_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    narrow = MultihopQA(MultihopConfig(mode="search", results=1, result_chars=120))
    found = narrow.held_out()
    assert 100 < len(found) < 160
    assert f"{160 - len(found)} of 160 held-out questions cannot be answered" in caplog.text
    assert all(narrow.audit(task, random.Random(1)) is None for task in found)
    assert len(SEARCH.held_out()) == 160


def test_a_search_shows_whole_sentences_at_least() -> None:
    base = ENVIRONMENT.world.base
    says = (base.relations[fact.relation].says.format(fact.object) for fact in base.facts)
    least = next(
        each.ge for each in MultihopConfig.model_fields["result_chars"].metadata if hasattr(each, "ge")
    )
    assert max(map(len, says)) < least


@pytest.mark.long
def test_nearly_every_seed_can_be_answered_by_searching() -> None:
    rng = random.Random(5)
    tasks = list(base_tasks(SEARCH, SEARCH.seeds(), seed=0).values())[::4]
    rejections = [found for task in tasks if (found := SEARCH.audit(task, rng)) is not None]
    assert len(rejections) <= 3
    assert all(found.explanation.startswith("No passage says the ") for found in rejections)


# --- what the simulator gets ---


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(st.deferred(lambda: st.sampled_from(ENVIRONMENT.seeds())), st.integers(0, 2**32))
def test_what_the_grammar_allows_passes_the_gate(draw: Any, seed: Seed, number: int) -> None:
    rng = random.Random(number)
    schema = ENVIRONMENT.spec_schema(seed)
    for spec in (draw(schema, rng), ENVIRONMENT.variation(seed, rng)):
        assert isinstance(admitted(fresh_gate(), seed, spec), Task), spec


def test_a_variation_is_never_its_seed() -> None:
    rng = random.Random(1)
    for seed in ENVIRONMENT.seeds()[:100]:
        spec = ENVIRONMENT.variation(seed, rng)
        assert (spec["start"], spec["relations"]) != (seed.spec["start"], seed.spec["relations"])


@pytest.mark.long
def test_the_grammar_allows_variations_and_no_other_specs(draw: Any, written_under: Any) -> None:
    for seed in ENVIRONMENT.seeds()[::40]:
        schema, rng = ENVIRONMENT.spec_schema(seed), random.Random(seed.id)
        for spec in (draw(schema, rng), *(ENVIRONMENT.variation(seed, rng) for _ in range(4))):
            assert written_under(schema, spec), spec
    seed = ENVIRONMENT.seeds()[0]
    schema, spec = ENVIRONMENT.spec_schema(seed), dict(ENVIRONMENT.variation(seed, random.Random(0)))
    for wrong in ({**spec, "hops": 5}, {**spec, "start": "Oz"}, {**spec, "question": "What is the answer?"}):
        assert not written_under(schema, wrong)
    assert not written_under(schema, dict(reversed(spec.items())))


@pytest.mark.long
def test_the_grammar_of_every_seed_is_small_but_leaves_a_choice() -> None:
    schemas = [ENVIRONMENT.spec_schema(seed) for seed in ENVIRONMENT.seeds()]
    sizes = [len(schema["anyOf"]) for schema in schemas]
    assert min(sizes) >= 5
    assert max(sizes) <= 60
    assert max(len(json.dumps(schema)) for schema in schemas) < 150_000


def test_the_simulator_is_told_the_job_the_choices_and_the_profile() -> None:
    profile = Profile(overall=0.25, success={ENVIRONMENT.seeds()[0].skills[0]: 0.5}, attempts={})
    system, user = ENVIRONMENT.simulator_messages(ENVIRONMENT.seeds()[0], profile, 0.5)
    assert "solved 50% of the time" in system.content
    assert "It solves 25% now" in user.content
    assert "<start>" in user.content
    for each in alternatives(ENVIRONMENT.seeds()[0]):
        fields = each["properties"]
        assert fields["start"]["const"] in system.content
        for name in fields["relations"]["prefixItems"]:
            assert name["const"] in system.content
    assert all(
        sum(len(m.content) for m in ENVIRONMENT.simulator_messages(seed, profile, 0.5)) < 1_300
        for seed in ENVIRONMENT.seeds()
    )


def test_skills_are_few() -> None:
    skills = Counter(skill for seed in ENVIRONMENT.seeds() for skill in seed.skills)
    assert {"hops:2", "hops:3", "hops:4", "backward", "answer:value", "answer:city"} <= set(skills)
    assert len(skills) <= 13


# --- the gate ---


def test_the_task_is_the_question_with_its_passages() -> None:
    task = task_of(ENVIRONMENT)
    assert task.payload["answers"] == ["Norwegian Krone", "Norwegian kroner"]
    assert task.oracle == ("Norwegian Krone",)
    *passages, question = task.messages[-1].content.splitlines()
    assert question == "What is the currency of the country whose capital is Oslo?"
    assert len(passages) == 1 + 3  # both facts are about Norway
    assert sum(line.startswith("- Norway (country): ") for line in passages) == 1
    assert task == task_of(ENVIRONMENT)
    assert task_of(CLOSED).messages[-1].content == question == task_of(SEARCH).messages[-1].content


@pytest.mark.parametrize(
    ("changes", "reason", "sentence"),
    [
        ({"hops": 3}, "inconsistent", "hops is 3, but there are 2 relations"),
        ({"answer": "city"}, "inconsistent", "Norwegian Krone is a currency"),
        ({"start": "Osloo"}, "execution", "nothing called 'Osloo'"),
        ({"relations": ["capital of", "mayor"]}, "execution", "There is no relation 'mayor'"),
        ({"relations": ["capital of", "official language"]}, "execution", "ambiguous"),
        ({"question": "What is the currency of the country whose capital is it?"}, "unstated", "name Oslo"),
        (
            {"question": "What is the money of <start>?"},
            "unstated",
            "lacks the words of the relation 'capital of'",
        ),
        ({"question": "What about the country whose capital is <start>?"}, "unstated", "relation 'currency'"),
        (
            {"question": "Is Norwegian Krone the currency of the country whose capital is <start>?"},
            "leak",
            "answer",
        ),
        (
            {"question": "In Norway: the currency of the country whose capital is <start>?"},
            "leak",
            "a bridge",
        ),
        (
            {"question": "For Peru, the currency of the country whose capital is <start>?"},
            "leak",
            "'Peru', which is no everyday word",
        ),
        (
            {"question": "On <what>: the currency of the country whose capital is <start>?"},
            "inconsistent",
            "blank",
        ),
        (
            {"question": "What is the old name of the currency of the country whose capital is <start>?"},
            "inconsistent",
            "Before the chain stands 'old name of'",
        ),
        ({"question": "<start> " * 90}, "schema", "characters"),
        ({"question": "<start>?"}, "schema", "5 characters, fewer than 8"),
    ],
)
def test_every_rejection_explains_itself(changes: Any, reason: str, sentence: str) -> None:
    rejection = refused(**changes)
    assert rejection.reason == reason
    assert sentence in rejection.explanation


def test_a_passage_that_lacks_a_fact_is_noticed() -> None:
    task = task_of(ENVIRONMENT)
    system, user = task.messages
    short = re.sub(" ?Its currency is Norwegian Krone[.]", "", user.content)
    less = replace(task, messages=(system, Message(role="user", content=short)))
    rejection = ENVIRONMENT.audit(less, random.Random(0))
    assert rejection is not None
    assert rejection.explanation == "No passage says the currency of Norway."
    more = user.content.replace("Its currency is", "Its currency is Euro. Its currency is")
    two = replace(task, messages=(system, Message(role="user", content=more)))
    rejection = ENVIRONMENT.audit(two, random.Random(0))
    assert rejection is not None
    assert rejection.reason is RejectReason.CHECKS_DISAGREE


@pytest.mark.parametrize("env", [ENVIRONMENT, SEARCH, CLOSED])
def test_every_mutation_is_rejected(mutants: Any, env: MultihopQA) -> None:
    rng = random.Random(11)
    tried: Counter[str] = Counter()
    for seed in random.Random(2).sample(ENVIRONMENT.seeds(), 40):
        for kind, spec in mutants(seed.spec, rng):
            outcome = admitted(fresh_gate(env), seed, spec)
            assert isinstance(outcome, Rejection), (kind, spec)
            assert outcome.explanation
            tried[kind] += 1
    assert len(tried) >= 22
    assert sum(tried.values()) > 700


def test_the_same_path_in_other_words_is_a_duplicate_and_another_path_is_not() -> None:
    gate, rng = fresh_gate(), random.Random(0)
    spec, other = (
        ENVIRONMENT.variation(seed, rng) for seed in (ENVIRONMENT.seeds()[0], ENVIRONMENT.seeds()[7])
    )
    assert isinstance(admitted(gate, ENVIRONMENT.seeds()[0], spec, "a"), Task)
    hops = [ENVIRONMENT.world.base.hops[name] for name in spec["relations"]]
    asked = " ".join(hop.words[-1] for hop in reversed(hops))
    again = admitted(
        gate, ENVIRONMENT.seeds()[0], {**spec, "question": f"I wonder, can you name {asked} <start>"}, "b"
    )
    assert isinstance(again, Rejection)
    assert again.reason is RejectReason.DUPLICATE
    assert isinstance(admitted(gate, ENVIRONMENT.seeds()[7], other, "c"), Task)


# --- attempts ---


class Script:
    """An agent that says what it is told to, and remembers what it heard."""

    def __init__(self, replies: Sequence[str]) -> None:
        self.replies = list(replies)
        self.heard: list[Message] = []

    async def ask(self, messages: Sequence[Message]) -> str:
        self.heard += messages
        return self.replies.pop(0)


def played(env: MultihopQA, task: Task, replies: Sequence[str]) -> Script:
    script = Script(replies)
    asyncio.run(env.episode(task).run(script.ask))
    return script


@pytest.mark.parametrize("env", [ENVIRONMENT, CLOSED])
def test_without_search_an_episode_is_one_question(env: MultihopQA) -> None:
    task = task_of(env)
    script = played(env, task, ["search: Oslo", "never said"])
    assert script.heard == list(task.messages)
    assert script.replies == ["never said"]
    assert env.episode(task).max_turns == 1


def test_a_search_is_answered_with_passages_until_the_agent_answers() -> None:
    task = task_of(SEARCH)
    script = played(SEARCH, task, [*task.oracle, "never said"])
    assert script.replies == ["never said"]
    first, second = script.heard[len(task.messages) :]
    assert first.role == second.role == "tool"
    assert "Its capital is Oslo." in first.content
    assert "Its currency is Norwegian Krone." in second.content
    assert len(second.content.splitlines()) == 3
    assert SEARCH.check(task, task.oracle).success


def test_endless_searching_runs_out_of_turns_and_gets_nothing() -> None:
    task = task_of(SEARCH)
    heard: list[Message] = []

    async def ask(messages: Sequence[Message]) -> str:
        heard.extend(messages[-1:])
        return "search: zzzzqqq"

    with pytest.raises(OutOfTurns):
        asyncio.run(SEARCH.episode(task).run(ask))
    assert len(heard) == 6
    assert {message.content for message in heard[1:]} == {NOTHING}
    verdict = SEARCH.check(task, ["search: zzzzqqq"] * 6)
    assert verdict.reward == 0.0
    assert verdict.explanation == "It never answered in 6 replies."
    late = SEARCH.check(task, ["search: x"] * 6 + ["Norwegian Krone"])
    assert not late.success


def test_a_search_shows_the_sentences_that_have_its_words_whole() -> None:
    found = SEARCH.world.index.search("Saint Helena currency", results=1, chars=80)
    assert found.startswith("Saint Helena (country): ")
    assert "Its currency is St. Helena Pound." in found
    assert len(found) <= len("Saint Helena (country): ") + 80
    assert found.endswith(".")


@pytest.mark.parametrize(
    "query", ["", "   ", "?!", "a the of", "x" * 100_000, "\0\ud800", "🙂", "it's (OR) NOT [x]"]
)
def test_odd_searches_find_something_or_nothing(query: str) -> None:
    found = SEARCH.world.index.search(query, results=3, chars=160)
    assert found
    assert len(found) < 1_000


GARBAGE = [
    "",
    " \n ",
    "[" * 100_000,
    '{"a":' * 5_000,
    "\0" * 50,
    "Answer:",
    "search",
    "x" * 10_000_000,
    "search: " + "x " * 5_000_000,
    "Norwegian Krone " * 600_000,
    "\n" * 10_000_000,
]


@pytest.mark.parametrize("env", [ENVIRONMENT, SEARCH, CLOSED])
@pytest.mark.parametrize("reply", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_gets_nothing_quickly_and_is_explained(env: MultihopQA, reply: str) -> None:
    task = task_of(env)
    with within(1.0):
        verdict = env.check(task, [reply])
        played(env, task, [reply, "no"])
    assert verdict.reward == 0.0
    assert verdict.explanation.endswith(".")
    assert len(verdict.explanation) < 200


PLAYED = [(env, task_of(env)) for env in (ENVIRONMENT, SEARCH, CLOSED)]


@given(st.lists(st.text(max_size=80), max_size=8))
def test_any_replies_get_the_same_verdict_twice(replies: list[str]) -> None:
    for env, task in PLAYED:
        verdict = env.check(task, replies)
        assert verdict == env.check(task, replies)
        assert 0.0 <= verdict.reward <= 1.0
        assert verdict.success == (verdict.reward == 1.0)


@pytest.mark.parametrize(
    ("reply", "soft", "explanation"),
    [
        ("Answer: Norwegian Krone", 1.0, "'Norwegian Krone' is right."),
        ("I think so.\nthe NORWEGIAN KRONER.", 1.0, "'the NORWEGIAN KRONER.' is right."),
        ("Krone", 2 / 3, "'Krone' is not 'Norwegian Krone'; word F1 0.67."),
        ("Krone Norwegian", 0.99, "'Krone Norwegian' is not 'Norwegian Krone'; word F1 1.00."),
        ("Norwegian Krone\nor not", 0.0, "'or not' is not 'Norwegian Krone'."),
        ("Swedish Krona", 0.0, "'Swedish Krona' is not 'Norwegian Krone'."),
    ],
)
def test_rewards_are_exact_or_soft(reply: str, soft: float, explanation: str) -> None:
    verdict = CLOSED.check(task_of(CLOSED), [reply])
    assert verdict.reward == pytest.approx(soft)
    assert verdict.explanation == explanation
    assert ENVIRONMENT.check(task_of(ENVIRONMENT), [reply]).reward == float(soft == 1.0)


@pytest.mark.parametrize("env", [ENVIRONMENT, SEARCH, CLOSED])
@pytest.mark.long
def test_random_attempts_always_fail(env: MultihopQA) -> None:
    rng = random.Random(4)
    for task in env.held_out():
        assert not env.check(task, env.random_replies(task, rng)).success


def test_search_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'genenv\[multihop_qa\]'"):
        MultihopQA(MultihopConfig(mode="search"))
    assert MultihopQA().settings.mode == "passages"
