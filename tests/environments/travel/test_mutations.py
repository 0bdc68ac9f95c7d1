"""No spec that was made wrong becomes a task."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path

import pytest

from genenv.curriculum.settings import CurriculumConfig
from genenv.environments.travel.environment import Travel
from genenv.environments.travel.spec import TravelConfig
from genenv.gate.gate import Gate
from genenv.types import Context, Generation, Rejection, Task

pytest.importorskip("ortools", reason="OR-Tools is not installed: pip install 'genenv[travel]'.")


def _mutations():
    spec = importlib.util.spec_from_file_location(
        "travel_mutations", Path(__file__).with_name("mutations.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MUTATIONS = _mutations()
SETTINGS = [TravelConfig(), TravelConfig(form="day", longest=3, reference_tokens=300)]


def outcome(env: Travel, seed, spec) -> Task | Rejection:
    context = Context(id="c", round=0, seed=seed, messages=())
    text = json.dumps(spec)
    written = Generation(
        id="g", context_id="c", prompt_ids=(), token_ids=(), logprobs=(), text=text, finished=True
    )
    return Gate(env, CurriculumConfig(), seed=0).admit([context], [written])[0].outcome


@pytest.mark.long
@pytest.mark.parametrize("config", SETTINGS)
def test_every_mutant_is_rejected_with_a_sentence(config):
    env, rng = Travel(config), random.Random(3)
    kinds: set[str] = set()
    for seed in rng.sample(env.seeds(), 3):
        for kind, spec in MUTATIONS.mutants(env.variation(seed, rng), rng):
            kinds.add(kind)
            found = outcome(env, seed, spec)
            assert isinstance(found, Rejection), f"{kind} survives: {spec}"
            assert found.explanation.endswith("."), found.explanation
    assert len(kinds) >= 35
    assert {
        "locked budget",
        "unknown cuisine",
        "no such room",
        "no way to travel",
        "leaked restaurant",
    } <= kinds
