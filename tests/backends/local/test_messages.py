"""What processes that train together tell each other: JSON of a few classes, and nothing that is run."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.agent.policy import AgentConfig
from genenv.algorithms.datum import Datum, Objective
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.base import Role
from genenv.backends.local.processes import Call, Opening, decoded, encoded
from genenv.backends.settings import PolicyConfig, VllmConfig
from genenv.types import Choices

DATUM = Datum(
    prompt_ids=(1, 2),
    completion_ids=(3, 4),
    weights=(0.1, 1 / 3),
    loss="ppo",
    advantages=(-1.5, 1e-30),
    temperature=0.7,
    schema={"type": "object", "is": "tuple", "of": [1, None, {"a": True}]},
    choices=(Choices(start=0, replies=((1, 2), (3,))),),
)
POLICY = PolicyConfig(model="tiny", vllm=VllmConfig(addresses=("http://a:1",)), threads=3)
ROLE = Role(name="agent", optimizer=OptimizerConfig(), reference=True)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner)
    ),
)


@pytest.mark.parametrize(
    "value",
    [
        Opening(POLICY, (ROLE,), 7),
        Call("agent", "forward_backward", ([DATUM, DATUM], Objective(kl="k3")), {}),
        Call("agent", "load", (Path("/run/checkpoints/1"),), {}),
        Call("agent", "logprobs", ((DATUM,),), {"reference": True}),
        None,
    ],
    ids=["opening", "learning", "path", "options", "end"],
)
def test_what_is_told_is_heard_as_it_was(value: Any) -> None:
    found = decoded(encoded(value))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.long
@given(PLAIN)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    found = decoded(encoded(value))
    assert found == value
    assert type(found) is type(value)


def test_of_settings_that_build_on_others_those_are_told() -> None:
    own = AgentConfig(lr=3e-3)
    role = Role(name="agent", optimizer=own, reference=False)
    found = decoded(encoded(role))
    assert type(found.optimizer) is OptimizerConfig
    assert found.optimizer.model_dump() == own.model_dump(include=set(OptimizerConfig.model_fields))


def test_numbers_that_are_none_come_back() -> None:
    found = decoded(encoded({0: (math.nan, math.inf)}))
    assert math.isnan(found[0][0])
    assert found[0][1] == math.inf


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(None),
        b"",
        b"{",
        b'{"a": 1}',
        b'{"is": "Popen", "of": {}}',
        b'{"is": "Call", "of": {"x": 1}}',
        b"[" * 10**6,
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decoded(data)


def test_other_classes_are_not_told() -> None:
    class Objective:
        """One of the same name."""

    for value in (object(), Objective(), {1, 2}, b"bytes"):
        with pytest.raises(TypeError, match="nothing that processes tell each other"):
            encoded(value)
