"""Which generations become tasks: each reason of the gate, reached on purpose."""

from __future__ import annotations

import json

import pytest

from genenv.curriculum.settings import CurriculumConfig
from genenv.errors import UsageError
from genenv.gate.gate import MAX_SPEC_CHARS, Gate
from genenv.types import Origin, Rejection, RejectReason, Task


def spec(left: int = 1, right: int = 2, **changes) -> str:
    return json.dumps({"turns": 1, "left": left, "right": right} | changes)


def make_gate(toy, **config) -> Gate:
    return Gate(toy.Environment(), CurriculumConfig(**({"novelty_threshold": 0.1} | config)), seed=0)


def admit(gate: Gate, toy, *texts: str, finished: bool = True) -> list:
    generations = [toy.generation(text, name=f"g{i}", finished=finished) for i, text in enumerate(texts)]
    return gate.admit([toy.context()], generations)


@pytest.mark.parametrize(
    ("text", "reason", "sentence"),
    [
        ("a sum, please", RejectReason.SYNTAX, "It is not JSON"),
        ("[" * 5000, RejectReason.SYNTAX, "It is not JSON"),
        (" " * MAX_SPEC_CHARS + spec(), RejectReason.SYNTAX, "characters, and 20,000 are read at most."),
        ("9" * 5000, RejectReason.SYNTAX, "It is not JSON"),
        ('"a sum"', RejectReason.SCHEMA, "the spec: "),
        (spec(turns=9), RejectReason.SCHEMA, "turns: "),
        (spec(left=-4), RejectReason.EXECUTION, "Negative numbers"),
        (spec(left=13), RejectReason.ORACLE_FAILS, "Its own solution fails: not the sum"),
        (spec(left=7), RejectReason.TRIVIAL, "An empty or a random attempt passes."),
        (spec(left=5), RejectReason.CHECKS_DISAGREE, "same verdict twice"),
        (spec(left=17), RejectReason.UNSTATED, "17 is never stated."),
        (spec(left=-1, right=0), RejectReason.EXECUTION, "Negative numbers"),
        (spec(left=0, right=-1), RejectReason.TRIVIAL, "An empty or a random attempt passes."),
    ],
)
def test_each_rule_that_a_generation_breaks_has_its_reason_and_its_sentence(toy, text, reason, sentence):
    gate = make_gate(toy)
    (proposal,) = admit(gate, toy, text)
    assert isinstance(proposal.outcome, Rejection)
    assert proposal.outcome.reason is reason
    assert sentence in proposal.outcome.explanation
    assert proposal.novelty is None
    assert len(gate.archive) == 0


def test_a_generation_that_was_cut_off_is_not_even_parsed(toy):
    (proposal,) = admit(make_gate(toy), toy, spec(), finished=False)
    assert proposal.outcome.reason is RejectReason.UNFINISHED
    assert f"within {len(spec())} tokens" in proposal.outcome.explanation


def test_a_good_generation_becomes_a_task_with_its_lineage(toy):
    (proposal,) = admit(make_gate(toy), toy, spec(20, 22))
    task = proposal.outcome
    assert isinstance(task, Task)
    assert task.id == "task-g0"
    assert task.oracle == ("42",)
    assert task.lineage.origin is Origin.GENERATED
    assert (task.lineage.seed_id, task.lineage.context_id, task.lineage.generation_id) == (
        "seed-1",
        "r0001-c00",
        "g0",
    )
    assert proposal.novelty == 1.0


def test_a_repetition_within_a_round_or_of_an_older_task_is_a_duplicate(toy):
    gate = make_gate(toy)
    gate.remember([toy.task(8, 9, name="old")])
    first, second, third = admit(gate, toy, spec(20, 22), spec(20, 22), spec(8, 9))
    assert isinstance(first.outcome, Task)
    assert second.outcome == Rejection(RejectReason.DUPLICATE, "It shares 100% of its words with task-g0.")
    assert third.outcome.reason is RejectReason.DUPLICATE
    assert "old" in third.outcome.explanation
    assert len(gate.archive) == 2


def test_novelty_is_the_distance_to_the_nearest_task_of_the_archive(toy):
    gate = make_gate(toy)
    gate.remember([toy.task(8, 9, name="old")])
    (proposal,) = admit(gate, toy, spec(8, 10))
    # add, 8, and, "add 8", "8 and" are shared; 9, 10, "and 9", "and 10" are not
    assert proposal.novelty == pytest.approx(1 - 5 / 9)
    for threshold, is_task in (
        (4 / 9 + 1e-12, True),
        (0.5, False),
    ):  # the edge is no copy, for rounding either
        gate = make_gate(toy, novelty_threshold=threshold)
        gate.remember([toy.task(8, 9, name="old")])
        assert isinstance(admit(gate, toy, spec(8, 10))[0].outcome, Task) is is_task


def test_a_threshold_of_zero_rejects_no_repetition(toy):
    gate = make_gate(toy, novelty_threshold=0.0)
    assert [p.novelty for p in admit(gate, toy, spec(20, 22), spec(20, 22))] == [1.0, 0.0]


def test_a_copy_of_a_held_out_task_is_rejected(toy):
    gate = make_gate(toy)
    gate.protect([toy.task(20, 22, name="exam")])
    copy, far = admit(gate, toy, spec(20, 22), spec(30, 33))
    assert copy.outcome.reason is RejectReason.HELD_OUT
    assert "exam" in copy.outcome.explanation
    assert isinstance(far.outcome, Task)


def test_the_published_gate_takes_whatever_parses_and_executes(toy):
    gate = make_gate(toy, gate="executes")
    texts = [spec(left=13), spec(left=7), spec(left=5), spec(left=17)]
    assert all(isinstance(p.outcome, Task) for p in admit(gate, toy, *texts))
    rejected = admit(gate, toy, "no json", spec(left=-4))
    assert [p.outcome.reason for p in rejected] == [RejectReason.SYNTAX, RejectReason.EXECUTION]


def test_the_gate_decides_the_same_every_time(toy):
    texts = [spec(i, i + 1) for i in (7, 13, 20, 21, 22)] + ["x", spec(20, 21)]
    assert admit(make_gate(toy), toy, *texts) == admit(make_gate(toy), toy, *texts)


OWN = """
from genenv.types import Rejection, RejectReason

def lets(env, task, rng):
    return None

def rejects(env, task, rng):
    return Rejection(RejectReason.TRIVIAL, "too easy")

def names(env, task, rng):
    return Rejection("too easy", "too easy")

def says(env, task, rng):
    return True
"""


def test_a_gate_of_ones_own_gives_a_rejection_or_nothing(toy, tmp_path):
    file = tmp_path / "own_gate.py"
    file.write_text(OWN, encoding="utf-8")
    (taken,) = admit(make_gate(toy, gate=f"{file}:lets"), toy, spec(20, 22))
    assert isinstance(taken.outcome, Task)
    (left,) = admit(make_gate(toy, gate=f"{file}:rejects"), toy, spec(20, 22))
    assert left.outcome == Rejection(RejectReason.TRIVIAL, "too easy")
    for name, gave in (("says", "True"), ("names", r"Rejection\(reason='too easy'")):
        with pytest.raises(
            UsageError, match=rf"curriculum.gate is '.*:{name}', which gave {gave}.*; return "
        ):
            admit(make_gate(toy, gate=f"{file}:{name}"), toy, spec(20, 22))
