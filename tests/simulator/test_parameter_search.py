"""Searches over task parameters without a network: what they write, what they learn, and kills."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from genenv.environments.common import schema_of
from genenv.errors import DataError
from genenv.runs.store.store import PoolStore
from genenv.simulator.parameter_search import (
    SEARCHES,
    STATE,
    decisions,
    edited,
    elite,
    fitted,
)
from genenv.simulator.policy import spec_schemas
from genenv.simulator.settings import SEARCHING, SimulatorConfig
from genenv.types import (
    Feedback,
    Generation,
    Group,
    Lineage,
    Origin,
    Profile,
    Proposal,
    Rejection,
    RejectReason,
    Scored,
    SimulatorSample,
    TaskBatch,
)
from typed import refused, stopped_in_round_two, succeeds

TINY = Path(__file__).parents[2] / "configs" / "tiny-rare.toml"
SMALL = ["policy.backend=scripted", "simulator.contexts=2", "simulator.variations=4", "run.eval_every=0"]
REJECTED = None
OPTIONS = [
    {"depth": [1], "ends": ["i"]},
    {"depth": [2, 3], "ends": ["r", "s"]},
]


class Toy:
    """What a search reads of an environment, and rounds whose tasks pay for a low depth."""

    def __init__(self, toy: Any, source: str, **settings: Any) -> None:
        self.toy, self.number = toy, 0
        self.env = toy.Environment()
        self.env.spec_schema = lambda seed: schema_of(OPTIONS)
        shape = {"writes": "parameters", "contexts": 1, "variations": 40, "batch": 10}
        config = SimulatorConfig.model_validate({"source": source, **shape, **settings})
        self.search: Any = SEARCHES[source](config, seed=0)

    def contexts(self) -> list[Any]:
        self.number += 1
        return [replace(self.toy.context(f"r{self.number}-c00"), round=self.number)]

    def propose(self) -> tuple[Any, list[Generation]]:
        contexts = self.contexts()
        return contexts[0], asyncio.run(self.search.propose(self.env, contexts))

    def learn(
        self, written: list[tuple[str, float, int | None]], *, publish: bool = True
    ) -> Mapping[str, float]:
        """Learn from specs with their rewards and the successes of 8 rollouts, or `REJECTED`."""
        (context,) = self.contexts()
        made = [
            Generation(id=f"{context.id}-g{i}", context_id=context.id, text=text, finished=True)
            for i, (text, _, _) in enumerate(written)
        ]
        rejection = Rejection(RejectReason.DUPLICATE, "It is a copy.")
        refused = [
            Proposal(generation=one, outcome=rejection)
            for one, (_, _, k) in zip(made, written, strict=True)
            if k is REJECTED
        ]
        groups = [
            Group(
                task=replace(self.toy.task(), lineage=Lineage(origin=Origin.GENERATED, generation_id=one.id)),
                traces=tuple(replace(self.toy.trace((1,), [(2,)]), success=i < k) for i in range(8)),
            )
            for one, (_, _, k) in zip(made, written, strict=True)
            if k is not REJECTED
        ]
        batch = TaskBatch(
            context=context, proposals=tuple(refused), groups=tuple(groups), p_hat=None, env_reward=0
        )
        total = sum(reward for _, reward, _ in written)
        feedback = Feedback(
            batches=[batch],
            samples=[
                SimulatorSample(generation=one, weight=reward / total if total else 0.0)
                for one, (_, reward, _) in zip(made, written, strict=True)
            ],
            scored=[
                Scored(generation=one, reward=reward)
                if k is REJECTED
                else Scored(generation=one, reward=reward, rate=k / 8, mixed=0 < k < 8)
                for one, (_, reward, k) in zip(made, written, strict=True)
            ],
            profile=Profile(),
            schemas=spec_schemas(self.env, [context]),
        )
        found = asyncio.run(self.search.learn(self.env, feedback, round_=self.number, rounds=10))
        if publish:
            asyncio.run(self.search.publish())
        return found


def spec(depth: int, ends: str) -> str:
    return json.dumps({"depth": depth, "ends": ends}, separators=(",", ":"))


def counted(written: list[Generation], name: str) -> Counter[Any]:
    return Counter(json.loads(one.text)[name] for one in written)


@pytest.mark.parametrize("source", SEARCHING)
def test_before_it_has_learned_a_search_draws_each_value_equally_often(toy, source):
    search = Toy(toy, source, variations=300)
    _, written = search.propose()
    depths = counted(written, "depth")
    assert set(depths) == {1, 2, 3}
    assert all(70 < count < 130 for count in depths.values())
    assert counted(written, "ends")["i"] == depths[1]
    assert not any(one.token_ids for one in written)  # no token is sampled


def test_decisions_without_an_alternative_are_left_out() -> None:
    assert [one.parameter for one in decisions(OPTIONS, {"depth": 1, "ends": "i"})] == ["depth"]
    two = decisions(OPTIONS, {"depth": 2, "ends": "s"})
    assert [(one.values, one.chosen) for one in two] == [((1, 2, 3), 2), (("r", "s"), "s")]


def test_the_gradient_of_the_table_is_that_of_its_loss(toy):
    table = Toy(toy, "table", kl_coefficient=0.5, lr=1e-3).search
    state = table._learned
    made = decisions(OPTIONS, {"depth": 2, "ends": "s"}) + decisions(OPTIONS, {"depth": 1, "ends": "i"})
    depth, ends = made[0].row, made[1].row
    state.logits = {depth: [0.3, -0.2, 0.1], ends: [0.5, -0.4]}
    data = [(0.25, made[:2]), (0.5, made[2:])]
    found: dict[str, Any] = {}
    table._adam = lambda gradients, rate: found.update(gradients)
    before = table._step(data, 1.0)["simulator/loss"]
    for row, gradient in found.copy().items():
        for place, slope in enumerate(gradient):
            state.logits[row][place] += 1e-6
            assert (table._step(data, 1.0)["simulator/loss"] - before) / 1e-6 == pytest.approx(
                slope, abs=1e-5
            )
            state.logits[row][place] -= 1e-6


def test_the_table_moves_to_what_is_paid_and_its_anchor_holds_it(toy):
    free, held = Toy(toy, "table", lr=0.3, kl_coefficient=0.0), Toy(toy, "table", lr=0.3, kl_coefficient=10.0)
    for _ in range(5):
        for one in (free, held):
            done = one.learn([(spec(1, "i"), 1.0, 4), (spec(2, "r"), 0.1, 0), (spec(3, "s"), 0.1, 0)])
            assert done["simulator/steps"] == 1
    shares = [counted(one.propose()[1], "depth")[1] / 40 for one in (free, held)]
    assert shares[0] > 0.8 > 0.6 > shares[1]
    for one, near in ((free, False), (held, True)):
        context, written = one.propose()
        found = asyncio.run(
            one.search.decision_metrics(written, {context.id: one.env.spec_schema(context.seed)})
        )
        assert (found["simulator/decision_kl"] < 0.05) is near
    assert Toy(toy, "table").learn([])["simulator/skipped_updates"] == 1


def test_the_table_learns_from_specs_of_earlier_rounds_that_accumulate(toy):
    table = Toy(toy, "table", lr=0.5)
    earlier = Generation(id="g", context_id="r0-c00", text=spec(3, "r"), finished=True)
    feedback = Feedback(
        batches=[],
        samples=[SimulatorSample(generation=earlier, weight=1.0)],
        scored=[],
        profile=Profile(),
        schemas={"r0-c00": schema_of(OPTIONS)},
    )
    asyncio.run(table.search.learn(table.env, feedback, round_=1, rounds=10))
    asyncio.run(table.search.publish())
    drawn = Counter(json.loads(one.text)["depth"] for one in table.propose()[1])
    assert drawn[3] > drawn[2]


def test_equal_pay_leaves_the_cross_entropy_method_where_its_specs_were(toy):
    cem = Toy(toy, "cem", search={"elite_share": 0.25, "smoothing": 0.5})
    cem.learn([(spec(depth, "i" if depth == 1 else "r"), 0.2, 1) for depth in (1, 2, 3)])
    logits = cem.search._learned.logits[decisions(OPTIONS, {"depth": 1, "ends": "i"})[0].row]
    assert [math.exp(one) for one in logits] == pytest.approx([1 / 3] * 3)
    cem.learn([(spec(1, "i"), 0.9, 4), *[(spec(3, "s"), 0.1, 0)] * 3])  # one of four is the elite
    logits = cem.search._learned.logits[decisions(OPTIONS, {"depth": 1, "ends": "i"})[0].row]
    assert [math.exp(one) for one in logits] == pytest.approx([2 / 3, 1 / 6, 1 / 6])


def test_specs_that_tie_at_the_edge_share_the_places_of_the_elite() -> None:
    assert elite([0.1, 0.9, 0.1, 0.5, 0.1], 0.6) == pytest.approx([1 / 3, 1, 1 / 3, 1, 1 / 3])
    assert elite([0.3, 0.2, 0.4], 0.5) == [1, 0, 1]
    assert elite([0.2] * 4, 0.25) == [0.25] * 4


def test_what_is_learned_is_written_by_only_when_it_is_published(toy):
    cem = Toy(toy, "cem", search={"smoothing": 0.99})
    cem.learn([(spec(1, "i"), 0.9, 4)], publish=False)
    assert counted(cem.propose()[1], "depth")[1] < 25
    asyncio.run(cem.search.publish())
    assert counted(cem.propose()[1], "depth")[1] > 35


def test_accel_keeps_levels_with_mixed_outcomes_and_drops_them_later(toy):
    accel = Toy(toy, "accel")
    accel.learn(
        [(spec(1, "i"), 0.9, 4), (spec(2, "r"), 0.3, 0), (spec(3, "s"), 0.4, 8), (spec(1, "i"), 0.5, 8)]
    )
    (level,) = accel.search._learned.levels.items()
    assert (level[0], level[1].score, level[1].round) == (spec(1, "i"), pytest.approx(0.7), 1)
    accel.learn([(spec(1, "i"), 0.2, 8), (spec(2, "s"), 0.6, 1)])
    assert list(accel.search._learned.levels) == [spec(2, "s")]
    accel.learn([(spec(1, "i"), 0.8, 3), (spec(1, "i"), 0.0, REJECTED)])
    assert accel.search._learned.levels[spec(1, "i")].score == pytest.approx(0.4)
    accel.learn([(spec(1, "i"), 0.0, REJECTED)])  # nothing new can be set there
    assert list(accel.search._learned.levels) == [spec(2, "s")]


def test_a_value_that_is_never_in_the_elite_keeps_a_finite_logarithm(toy, tmp_path):
    cem = Toy(toy, "cem", search={"smoothing": 0.99})
    for _ in range(200):  # 0.01^200 is 0
        cem.learn([(spec(1, "i"), 0.9, 4)])
    assert all(map(math.isfinite, (z for row in cem.search._learned.logits.values() for z in row)))
    asyncio.run(cem.search.save(tmp_path))
    asyncio.run(Toy(toy, "cem").search.load(tmp_path))


@pytest.mark.parametrize("source", SEARCHING)
def test_a_branch_of_a_run_with_another_search_starts_anew(toy, source, tmp_path):
    """PLR and ACCEL keep the same buffer."""
    for other in SEARCHING:
        began = Toy(toy, other)
        began.learn([(spec(1, "i"), 0.9, 4), (spec(2, "r"), 0.1, 1)])
        asyncio.run(began.search.save(tmp_path / other))
        mine = Toy(toy, source)
        asyncio.run(mine.search.load(tmp_path / other))
        goes_on = {source, other} <= {"plr", "accel"} or source == other
        assert (mine.search._learned == (began if goes_on else Toy(toy, source)).search._learned) is True


def test_a_branch_that_writes_specs_instead_of_parameters_starts_anew(toy, tmp_path):
    began = Toy(toy, "plr")
    began.learn([(spec(1, "i"), 0.9, 4)])
    asyncio.run(began.search.save(tmp_path))
    mine = Toy(toy, "plr", writes="spec")
    asyncio.run(mine.search.load(tmp_path))
    assert began.search._learned.levels
    assert not mine.search._learned.levels


def test_accel_replays_the_best_levels_and_the_oldest(toy):
    accel = Toy(toy, "accel", search={"staleness": 0.4, "rank_temperature": 0.5, "buffer_size": 3})
    accel.learn([(spec(1, "i"), 0.9, 4)])
    accel.learn([(spec(2, "r"), 0.5, 1), (spec(2, "s"), 0.7, 1)])
    levels = accel.search._learned.levels
    # ranks 1, 3, 2: 36/49, 4/49, 9/49; ages in round 3: 2, 1, 1
    expected = [0.6 * rank / 49 + 0.4 * age / 4 for rank, age in ((36, 2), (4, 1), (9, 1))]
    assert accel.search._chances(levels, 3) == pytest.approx(expected)
    accel.learn([(spec(3, "r"), 0.95, 4)])  # a fourth level: the one with the smallest chance leaves
    assert set(levels) == {spec(1, "i"), spec(2, "s"), spec(3, "r")}


def test_accel_writes_a_replay_then_its_edit_and_else_uniform_draws(toy):
    accel = Toy(toy, "accel", search={"replay_probability": 1.0})
    accel.learn([(spec(2, "r"), 0.9, 4)])
    _, written = accel.propose()
    assert {one.text for one in written[::2]} == {spec(2, "r")}
    assert {one.text for one in written[1::2]} <= {spec(1, "i"), spec(3, "r"), spec(2, "s")}
    assert len({one.text for one in written[1::2]}) == 3
    never = Toy(toy, "accel", search={"replay_probability": 0.0})
    never.learn([(spec(2, "r"), 0.9, 4)])
    assert counted(never.propose()[1], "depth")[2] < 30


def test_plr_replays_levels_as_they_are_and_a_robust_one_only_scores_the_others(toy):
    for source, train_on_new in (("plr", True), ("plr", False), ("accel", False)):
        search = {"replay_probability": 0.5, "train_on_new": train_on_new}
        toyed = Toy(toy, source, search=search)
        assert all(one.scored_only is not train_on_new for one in toyed.propose()[1])
        toyed.learn([(spec(2, "r"), 0.9, 4)])
        _, written = toyed.propose()
        trained = [one.text for one in written if not one.scored_only]
        assert len(trained) == 40 if train_on_new else 5 < len(trained) < 35
        if not train_on_new:
            assert set(trained) == {spec(2, "r")}
        if source == "plr":
            assert 15 < sum(one.text == spec(2, "r") for one in written) < 35
    always = Toy(toy, "plr", search={"replay_probability": 1.0})
    always.learn([(spec(2, "r"), 0.9, 4), (spec(3, "s"), 0.9, 8)])
    assert {one.text for one in always.propose()[1]} == {spec(2, "r")}


def test_sfl_scores_uniform_levels_first_and_then_trains_on_the_best_of_them(toy):
    search = {"period": 4, "scored_rounds": 2, "elite_share": 0.5, "buffer_share": 0.75}
    sfl = Toy(toy, "sfl", search=search)
    assert all(one.scored_only for one in sfl.propose()[1])
    sfl.number = 0
    sfl.learn([(spec(1, "i"), 0.0, 8), (spec(2, "r"), 0.9, 4), (spec(3, "s"), 0.0, REJECTED)])
    assert not sfl.search._learned.levels  # of its two rounds one is left
    assert all(one.scored_only for one in sfl.propose()[1])
    sfl.number = 1
    sfl.learn(
        [(spec(2, "r"), 0.5, 1), (spec(2, "s"), 0.6, 2), (spec(3, "r"), 0.0, 0), (spec(1, "i"), 0.0, 0)]
    )
    assert list(sfl.search._learned.levels) == [
        spec(2, "r"),
        spec(2, "s"),
    ]  # half of four, the rejected apart
    assert sfl.search._learned.levels[spec(2, "r")].score == pytest.approx(0.7)
    _, written = sfl.propose()
    assert not any(one.scored_only for one in written)
    kept = Counter(one.text in (spec(2, "r"), spec(2, "s")) for one in written)
    assert 25 < kept[True] < 40
    sfl.number = 2
    sfl.learn([(spec(3, "s"), 1.0, 4)])  # a round that trains changes nothing
    assert list(sfl.search._learned.levels) == [spec(2, "r"), spec(2, "s")]
    sfl.number = 4
    sfl.learn([(spec(3, "s"), 0.4, 1)])
    assert list(sfl.search._learned.scored) == [spec(3, "s")]
    sfl.learn([])
    assert list(sfl.search._learned.levels) == [spec(3, "s")]


def test_an_edit_changes_one_parameter_by_one_step_and_repairs_the_later_ones() -> None:
    options = [{"size": [1, 2, 3, 4], "kind": ["a", "b", "c"]}]
    found = Counter(
        tuple(edited({"size": 3, "kind": "b"}, options, random.Random(i)).values()) for i in range(200)
    )
    assert set(found) == {(2, "b"), (4, "b"), (3, "a"), (3, "c")}
    assert edited({"depth": 2, "ends": "r"}, [{"depth": [2], "ends": ["r"]}], random.Random(0)) == {
        "depth": 2,
        "ends": "r",
    }
    assert fitted({"depth": 1, "ends": "s"}, OPTIONS, random.Random(0)) == {"depth": 1, "ends": "i"}
    assert fitted({"depth": 9, "ends": "q"}, OPTIONS, random.Random(0))["depth"] in (1, 2, 3)


@pytest.mark.parametrize("source", SEARCHING)
def test_a_state_comes_back_and_a_damaged_one_is_one_sentence(toy, source, tmp_path):
    one, other = Toy(toy, source, lr=0.3), Toy(toy, source, lr=0.3)
    for _ in range(5):
        one.learn([(spec(1, "i"), 0.9, 4), (spec(2, "r"), 0.1, 1)])
    asyncio.run(other.search.load(tmp_path / "none"))  # the branch of a run without this search
    asyncio.run(one.search.save(tmp_path / "state"))
    asyncio.run(other.search.load(tmp_path / "state"))
    other.number = one.number
    assert one.propose()[1] == other.propose()[1]
    (tmp_path / "state" / STATE).write_text('{"levels": 3}')
    with pytest.raises(DataError, match=f"is damaged: it is no state of simulator.source '{source}'"):
        asyncio.run(one.search.load(tmp_path / "state"))


@pytest.mark.long
@pytest.mark.parametrize("source", SEARCHING)
def test_a_killed_run_goes_on_as_if_it_had_not_been(source: str, tmp_path: Path) -> None:
    words = [
        "train",
        TINY,
        *(w for text in (*SMALL, "run.rounds=3", "agent.rollouts=4") for w in ("--set", text)),
    ]
    words += ["--variant", f"simulator.source={source}+simulator.lr=0.3"]
    succeeds(*words, "--out", tmp_path / "whole")
    stopped_in_round_two(*words, "--out", tmp_path / "run")
    succeeds("train", "--resume", "--out", tmp_path / "run")
    with (
        PoolStore.open(tmp_path / "whole" / "pool.db", create=False) as whole,
        PoolStore.open(tmp_path / "run" / "pool.db", create=False) as run,
    ):
        assert whole.digest() == run.digest()
        assert all(whole.metrics(number)["tokens/simulator_sampled"] == 0 for number in (1, 2, 3))
    states = [
        next((tmp_path / name / "checkpoints").glob(f"*3/simulator/{STATE}")) for name in ("whole", "run")
    ]
    assert states[0].read_text() == states[1].read_text()
    part = {"plr": "levels", "accel": "levels", "sfl": "scored"}.get(source, "logits")
    assert json.loads(states[0].read_text())["state"][part]  # it did learn


@pytest.mark.parametrize("source", SEARCHING)
def test_what_a_search_cannot_do_is_refused_in_a_sentence(source: str, tmp_path: Path) -> None:
    def sentence(*settings: str) -> str:
        said = (f"simulator.source={source}", *SMALL, *settings)
        return refused("train", TINY, *(w for s in said for w in ("--set", s)), "--out", tmp_path / "run")

    whole = sentence("simulator.writes=spec", "curriculum.novelty_threshold=0.1")
    if source in ("table", "cem"):
        assert f"source is '{source}', which sets parameters" in whole
    else:
        assert f"simulator.source '{source}' with simulator.writes 'spec' replays specs" in whole
    if source == "accel":
        no_edits = sentence("simulator.writes=spec", "curriculum.novelty_threshold=0")
        assert "the environment programs edits no specs" in no_edits
    assert f"source is '{source}', which learns from round to round" in sentence("simulator.per_seed=9")
    assert "elite_share" in sentence("simulator.search.elite_share=0")
    alone = sentence("simulator.search.train_on_new=false", "simulator.train=false")
    if source in ("plr", "accel"):
        assert "train is false, so none is ever replayed" in alone
    else:
        assert f"a setting of 'plr' and 'accel', but source is '{source}'" in alone
    never = ("simulator.search.train_on_new=false", "simulator.search.replay_probability=0")
    assert "but replay_probability is 0" in sentence(*never)
    assert "no round is left to train in" in sentence("simulator.search.scored_rounds=10")
    if source == "table":
        assert "so algorithm must be 'rwr'" in sentence("simulator.algorithm=grpo")
    assert not (tmp_path / "run").exists()
