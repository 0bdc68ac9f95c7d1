"""Tasks by their parameters: what can be set can be drawn, passes the gate, and is what was asked for."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from genenv.config.run import dump_toml, parse_config
from genenv.environments import load_environment
from genenv.environments.base import Environment, HasParameters, Options
from genenv.environments.common import at_random, read_base, schema_of
from genenv.environments.wrappers import ByParameters
from genenv.errors import UsageError
from genenv.gate.gate import base_tasks, examined
from genenv.runs.folder import RunFolder
from genenv.runs.store.store import PoolStore
from genenv.training.loop import CoEvolution
from genenv.training.opening import build_players, open_environment
from genenv.types import JsonObject, Lineage, Origin, Profile, Rejection, Task

NAMES = ("programs", "tool_calling", "household", "multihop_qa", "travel", "guess_who")
N = 24
UNSAID = {"tools", "relations", "o"}
"""Parameters that are not a field of the spec in the same form."""


@pytest.fixture(scope="module", params=NAMES)
def env(request: pytest.FixtureRequest) -> Environment:
    return cast(Environment, ByParameters(load_environment(request.param)))


def task_of(env: Environment, parameters: JsonObject, seed_id: str, draw: int) -> Task | Rejection:
    lineage = Lineage(origin=Origin.GENERATED, seed_id=seed_id, context_id="c", generation_id="g")
    spec = env.spec.model_validate(parameters)
    return env.build(spec, task_id="t", lineage=lineage, rng=random.Random(draw))


@pytest.mark.long
def test_what_can_be_set_is_drawn_and_passes_the_gate(
    env: Environment, written_under: Callable[[JsonObject, JsonObject], bool]
) -> None:
    rng, seeds, passed = random.Random(0), env.seeds(), 0
    for number in range(N):
        seed = rng.choice(seeds)
        parameters = env.variation(seed, rng)
        assert written_under(env.spec_schema(seed), parameters)
        task = task_of(env, parameters, seed.id, number)
        assert isinstance(task, Task)
        assert {
            name: task.spec[name] for name in parameters if name not in UNSAID
        }.items() <= parameters.items()
        again = task_of(env, parameters, seed.id, number)
        assert isinstance(again, Task)
        assert (again.spec, again.messages) == (task.spec, task.messages)
        passed += examined(env, task, random.Random(1)) is None
    assert passed >= 0.9 * N


def test_the_same_parameters_are_drawn_to_different_tasks(env: Environment) -> None:
    rng = random.Random(3)
    seed = rng.choice(env.seeds())
    parameters = env.variation(seed, rng)
    tasks = [task_of(env, parameters, seed.id, draw) for draw in range(8)]
    assert len({json.dumps(task.spec) for task in tasks if isinstance(task, Task)}) > 2


def test_base_tasks_are_those_of_the_environment(env: Environment) -> None:
    plain = load_environment(env.name)
    seeds = env.seeds()[:3]
    assert list(seeds) == list(plain.seeds()[:3])
    assert base_tasks(env, seeds, seed=1) == base_tasks(plain, seeds, seed=1)
    assert isinstance(read_base(env, seeds[0].spec), plain.spec)


def test_the_simulator_is_told_the_target_and_shown_no_example(env: Environment) -> None:
    seed = env.seeds()[0]
    told = env.simulator_messages(seed, Profile(overall=0.2, success={seed.skills[0]: 0.1}), 0.5)
    text = "\n".join(message.content for message in told)
    assert ("50 2 " if env.name == "programs" else "50%") in text
    assert env.name == "programs" or "20% now" in text
    assert "Example" not in text
    written = next(
        (str(value) for name, value in seed.spec.items() if name in {"instruction", "query"}), None
    )
    assert written is None or written not in text


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        (
            "tool_calling",
            {
                "n_calls": 2,
                "chained": True,
                "answer": False,
                "n_tools": 4,
                "gap": "none",
                "tools": "add_note>lock_door",
            },
        ),
        (
            "tool_calling",
            {
                "n_calls": 1,
                "chained": False,
                "answer": False,
                "n_tools": 4,
                "gap": "none",
                "tools": "dance",
            },
        ),
        ("household", {"task": "heat", "size": "small", "hidden": False, "target": "Unicorn"}),
        ("programs", {"d": 2, "n": 3, "o": "f"}),
        ("programs", {"d": 2, "n": 3, "o": "ff"}),  # no program ends with an operation on the text
        ("guess_who", {"n": 4, "k": 6, "t": 2}),
        ("multihop_qa", {"hops": 2, "answer": "city", "relations": "cousin, hat"}),
    ],
)
def test_what_cannot_be_drawn_is_rejected_with_a_sentence(name: str, parameters: JsonObject) -> None:
    env = cast(Environment, ByParameters(load_environment(name)))
    found = task_of(env, parameters, env.seeds()[0].id, 0)
    assert isinstance(found, Rejection)
    assert found.explanation.endswith(".")


def test_first_fields_come_alike_however_many_ways_there_are_to_each() -> None:
    options = [{"n": [1], "what": ["a"]}, {"n": [2], "what": list("bcdefghij")}]
    rng = random.Random(0)
    counts = Counter(at_random(options, rng)["n"] for _ in range(400))
    assert 150 < counts[1] < 250
    assert len(schema_of(options)["anyOf"]) == 2  # pyright: ignore[reportArgumentType] - a list


def test_a_environment_without_parameters_says_so(toy: Any) -> None:
    with pytest.raises(UsageError, match=f"the environment {toy.Environment.name} has none"):
        ByParameters(toy.Environment())
    assert not isinstance(toy.Environment(), HasParameters)


def test_whole_specs_of_a_file_are_not_parameters() -> None:
    with pytest.raises(UsageError, match="holds whole specs"):
        parse_config({"simulator": {"source": "file", "file": "a.jsonl", "writes": "parameters"}})


@pytest.mark.long
def test_a_run_by_parameters_stores_whole_specs_and_goes_on(tmp_path: Any) -> None:
    settings: Any = {
        "run": {"rounds": 2, "eval_tasks": 4},
        "environment": {"name": "tool_calling", "apps": ["notes", "home", "files"]},
        "shift": {"round": 2, "environment": {"apps": ["notes", "home", "music"]}},
        "simulator": {"contexts": 2, "variations": 3, "source": "variation", "writes": "parameters"},
        "agent": {"rollouts": 2},
        "policy": {"backend": "scripted"},
    }
    config = parse_config(settings)
    world = open_environment(config)
    folder = RunFolder.create(tmp_path / "run", dump_toml(config))
    CoEvolution(config, world, build_players(config, world), folder).run()
    with PoolStore.open(folder.pool, create=False) as store:
        groups = [group for number in (1, 2) for group in store.groups(number)]
    written = [group.task for group in groups if group.task.lineage.origin is Origin.GENERATED]
    assert len(written) >= 8
    assert all("calls" in task.spec for task in written)


@pytest.mark.parametrize("turned", [False, True])
def test_alternatives_may_have_fields_of_their_own(turned: bool) -> None:
    options: Options = [{"kind": ["add"], "size": [1, 2]}, {"kind": ["noop"]}]
    found = [at_random(options[::-1] if turned else options, random.Random(number)) for number in range(40)]
    assert {json.dumps(one) for one in found} == {
        '{"kind": "add", "size": 1}',
        '{"kind": "add", "size": 2}',
        '{"kind": "noop"}',
    }
