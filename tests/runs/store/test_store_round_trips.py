"""Whatever a round holds reads back equal: unicode of every kind, empty sequences, floats to the last bit."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genenv.runs.store.records import Evaluation, RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.types import (
    Context,
    Generation,
    Group,
    Lineage,
    Message,
    Origin,
    Proposal,
    Rejection,
    RejectReason,
    Seed,
    SimulatorSample,
    StopReason,
    Task,
    TaskBatch,
    Trace,
)

TEXT = st.text(st.characters(codec=None), max_size=20)  # lone surrogates and NULs included
IDS = st.lists(st.integers(0, 2**32 - 1), max_size=6).map(tuple)
FLOATS = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=6).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=4)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
MESSAGES = st.lists(
    st.builds(Message, role=st.sampled_from(["system", "user", "assistant", "tool"]), content=TEXT),
    max_size=3,
).map(tuple)


@st.composite
def records(draw: st.DrawFn) -> RoundRecord:
    """A round with every kind of content."""
    seed = Seed(id=draw(st.text("ab", max_size=3)), environment="d", spec=draw(OBJECTS), skills=draw(TEXTS))
    context = Context(id="c", round=1, seed=seed, messages=draw(MESSAGES))
    generations = [
        Generation(
            id=f"g{n}",
            context_id="c",
            prompt_ids=draw(IDS),
            token_ids=draw(IDS),
            logprobs=draw(FLOATS),
            text=draw(TEXT),
            finished=draw(st.booleans()),
        )
        for n in range(2)
    ]
    task = Task(
        id="t",
        environment="d",
        skills=draw(TEXTS),
        messages=draw(MESSAGES),
        spec=draw(OBJECTS),
        payload=draw(OBJECTS),
        oracle=draw(TEXTS),
        lineage=Lineage(origin=Origin.GENERATED, seed_id=seed.id, context_id="c", generation_id="g0"),
    )
    trace = Trace(
        id="tr",
        task_id="t",
        token_ids=draw(IDS),
        sampled=draw(st.lists(st.booleans(), max_size=6).map(tuple)),
        logprobs=draw(FLOATS),
        prompt_tokens=draw(st.integers(0, 10**9)),
        messages=draw(MESSAGES),
        reward=draw(st.floats(0, 1)),
        success=draw(st.booleans()),
        explanation=draw(TEXT),
        stop_reason=draw(st.sampled_from(StopReason)),
        version=draw(st.none() | st.integers(0, 10**9)),
        readable=draw(st.none() | st.booleans()),
    )
    rejection = Rejection(reason=draw(st.sampled_from(RejectReason)), explanation=draw(TEXT))
    group = Group(task=task, traces=(trace,))
    batch = TaskBatch(
        context=context,
        proposals=(
            Proposal(generation=generations[0], outcome=task, novelty=draw(st.none() | st.floats(0, 1))),
            Proposal(generation=generations[1], outcome=rejection),
        ),
        groups=(group,),
        p_hat=draw(st.none() | st.floats(0, 1)),
        env_reward=draw(st.floats(0, 1)),
    )
    return RoundRecord(
        number=1,
        metrics=draw(st.dictionaries(TEXT, st.floats(allow_nan=False, allow_infinity=False), max_size=3)),
        state=draw(OBJECTS),
        batches=(batch,),
        groups=(group,),
        samples=(SimulatorSample(generation=generations[0], weight=draw(st.floats(0, 1))),),
        surfaces={"t": draw(TEXT)},
        evaluations=(
            Evaluation(task_id="t", success=False, reward=0.5, replies=draw(TEXTS), explanation=draw(TEXT)),
        ),
    )


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(record=records())
def test_whatever_a_round_holds_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, record: RoundRecord
) -> None:
    folder = tmp_path_factory.mktemp("pool")
    with PoolStore.open(folder / "pool.db", create=True) as store:
        store.commit_round(record)
        assert store.metrics(1) == record.metrics
        assert store.state(1) == record.state
        assert store.batches(1) == record.batches
        assert store.groups(1) == record.groups
        assert store.samples(1) == record.samples
        assert dict(store.surfaces()) == record.surfaces
        assert store.evaluations(1) == record.evaluations
        assert list(store.tasks()[0].spec) == list(record.groups[0].task.spec), "key order is kept"
    shutil.rmtree(folder)
