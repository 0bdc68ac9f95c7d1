"""A mixture: tasks of several environments for one agent, each with the checker of its own."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from bundles import made
from genenv.config.resolved import anchored
from genenv.config.run import as_tables, load_config, parse_config
from genenv.environments import close_environment, load_environment
from genenv.environments.base import Environment, HasParameters
from genenv.environments.common import read_base
from genenv.environments.mixture import Mixture, MixtureConfig, interleaved, member_of, seeds_by_share, spread
from genenv.environments.wrappers import ByParameters
from genenv.errors import UsageError
from genenv.evaluation.environment_check import BROKEN, check_environment
from genenv.evaluation.held_out import HeldOut, HeldOutConfig
from genenv.gate.gate import Gate, base_tasks, written
from genenv.types import Json, JsonObject, Profile, Task
from typed import refused, succeeds

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "environments.md"
TWO: JsonObject = {
    "sums": {"name": "programs"},
    "rooms": {"name": "household", "share": 3, "mode": "single"},
}


def mixture(members: JsonObject) -> Environment:
    config = parse_config({"environment": {"name": "mixture", "members": members}})
    return load_environment("mixture", config.environment.settings)


@pytest.fixture(scope="module")
def env() -> Environment:
    return mixture(TWO)


def complaint(members: Json) -> str:
    with pytest.raises(UsageError) as raised:
        mixture(cast(JsonObject, members))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_seeds_are_in_proportion_to_the_shares_and_evenly_mixed(env: Environment) -> None:
    members = [seed.id.partition(":")[0] for seed in env.seeds()]
    assert Counter(members) == {"rooms": 320, "sums": 106}  # 320 household seeds for a share of 3
    assert Counter(members[:40]) == {"rooms": 30, "sums": 10}
    assert [seed.skills[0] for seed in env.seeds()] == members
    assert all(skill.startswith(f"{seed.skills[0]}:") for seed in env.seeds() for skill in seed.skills[1:])


@pytest.mark.long
def test_each_task_keeps_the_checker_of_its_member(env: Environment) -> None:
    own = {"sums": load_environment("programs"), "rooms": cast(Any, env).members["rooms"]}
    for task in [*base_tasks(env, env.seeds()[:20], seed=0).values(), *env.held_out()[:20]]:
        member = member_of(task)
        assert member is not None
        assert env.check(task, task.oracle).success
        wrong = env.random_replies(task, random.Random(0))
        verdict = env.check(task, wrong)
        assert not verdict.success
        spec = own[member].spec.model_validate(task.spec["spec"])
        alone = own[member].build(spec, task_id="t", lineage=task.lineage, rng=random.Random(0))
        assert isinstance(alone, Task)
        alone = replace(alone, payload=task.payload, messages=task.messages)
        assert own[member].check(alone, wrong) == verdict
        assert env.surface(task) == own[member].surface(alone)


def test_held_out_tasks_come_in_turn_and_the_main_ones_of_all_members_first(env: Environment) -> None:
    tasks = env.held_out()
    assert [member_of(task) for task in tasks[:4]] == ["sums", "rooms", "sums", "rooms"]
    main = cast(Any, env).main_held_out
    rooms, sums = cast(Any, env).members["rooms"], cast(Any, env).members["sums"]
    assert main == rooms.main_held_out + len(sums.held_out())
    assert Counter(map(member_of, tasks[:main]))["rooms"] == rooms.main_held_out
    assert len({task.id for task in tasks}) == len(tasks) == len(rooms.held_out()) + len(sums.held_out())


def test_the_simulator_is_given_the_prompt_of_the_seeds_member_and_its_rates_alone(env: Environment) -> None:
    rooms = cast(Any, env).members["rooms"]
    seed = next(seed for seed in env.seeds() if seed.skills[0] == "rooms")
    own = next(one for one in rooms.seeds() if f"rooms:{one.id}" == seed.id)
    rates = {"sums": 0.9, "sums:depth:1": 0.9, "rooms": 0.25, "rooms:pick": 0.125}
    profile = Profile(success=rates, attempts=dict.fromkeys(rates, 8.0), overall=0.5)
    there = Profile(success={"pick": 0.125}, attempts={"pick": 8.0}, overall=0.25)
    assert env.simulator_messages(seed, profile, 0.5) == rooms.simulator_messages(own, there, 0.5)
    assert env.spec_schema(seed) == rooms.spec_schema(own)
    assert env.variation(seed, random.Random(1)) == rooms.variation(own, random.Random(1))


def test_a_spec_is_of_the_seeds_member_unless_it_names_another(env: Environment) -> None:
    gate = Gate(env, parse_config({}).curriculum, seed=0)
    seeds = {seed.skills[0]: seed for seed in env.seeds()}
    of_rooms = env.variation(seeds["rooms"], random.Random(3))

    def outcome(member: str, spec: Json, number: int) -> Any:
        one = written(seeds[member], json.dumps(spec), context_id=f"c{number}", generation_id=f"c{number}-g0")
        (proposal,) = gate.admit([one[0]], [one[1]])
        return proposal.outcome

    assert member_of(outcome("rooms", of_rooms, 0)) == "rooms"
    named = {"member": "rooms", "spec": env.variation(seeds["rooms"], random.Random(4))}
    assert member_of(outcome("sums", named, 1)) == "rooms"
    assert outcome("sums", of_rooms, 2).reason == "schema"
    assert "no member 'attic'" in outcome("sums", {"member": "attic", "spec": {}}, 3).explanation
    assert outcome("sums", [1], 4).reason == "schema"


def test_parameters_are_those_of_the_seeds_member(env: Environment) -> None:
    by = cast(Environment, ByParameters(env))
    for seed in by.seeds()[:8]:
        chosen = by.variation(seed, random.Random(5))
        task = by.build(
            by.spec.model_validate(chosen),
            task_id="t",
            lineage=base_tasks(by, [seed], seed=0)[seed.id].lineage,
            rng=random.Random(0),
        )
        assert isinstance(task, Task)
        assert member_of(task) == seed.skills[0]
    assert read_base(by, by.seeds()[0].spec) == read_base(env, env.seeds()[0].spec)


def test_a_member_without_parameters_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )[0]
    (tmp_path / "weekdays_of_a_mixture.py").write_text(example, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    mixed = mixture({**TWO, "days": {"name": "weekdays_of_a_mixture:Weekdays"}})
    assert not isinstance(mixed, HasParameters)
    with pytest.raises(UsageError, match=r"member 'days' of the mixture has none; set it"):
        ByParameters(mixed)


@pytest.mark.long
def test_it_keeps_what_environments_promise_with_a_bundle_among_its_members(tmp_path: Path) -> None:
    made(tmp_path / "desk", base=12, held_out=4)
    members: JsonObject = {**TWO, "desk": {"name": str(tmp_path / "desk")}}
    config = parse_config({"environment": {"name": "mixture", "members": members}})
    mixed = load_environment("mixture", config.environment.settings)
    try:
        found = list(check_environment(mixed, config, n=9))
        assert [one for one in found if one.state == BROKEN] == []
        assert any(one.what.startswith("desk: ") for one in cast(Any, mixed).findings())
        assert "of 320 seeds of rooms are used" in str(cast(Any, mixed).omitted)
    finally:
        close_environment(mixed)


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({}, "a mixture needs two members or more"),
        ({"sums": {"name": "programs"}}, "a mixture needs two members or more"),
        ({**TWO, "zoo": {"name": "zoo"}}, "zoo: unknown environment 'zoo'"),
        ({**TWO, "zoo": {"share": 2}}, "zoo names no environment; add name = ..."),
        ({**TWO, "more": {"name": "programs", "share": 0}}, "more.share is 0; allowed: number, > 0"),
        ({**TWO, "more": {"name": "programs"}}, "sums and more are the same environment"),
        (
            {**TWO, "more": {"name": "programs", "depth": [1, 2]}},
            "more: unknown setting 'depth'; did you mean 'depths'?",
        ),
        ({**TWO, "more": {"name": "programs", "renamed": 3}}, "more.renamed is 3; allowed: true or false"),
        ({**TWO, "more": {"name": "mixture", "members": TWO}}, "more is a mixture itself"),
        ({**TWO, "More": {"name": "programs", "renamed": True}}, "'More' is no name of a member"),
        ({**TWO, "more": 3}, "setting 'environment.members' is"),
    ],
)
def test_what_is_wrong_with_members_is_said_in_a_sentence(members: Json, sentence: str) -> None:
    assert sentence in complaint(members)


def test_members_are_closed_if_a_later_one_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = list[str]()

    def opened(name: str, settings: Any) -> Any:
        if name == "household":
            raise UsageError("no rooms")
        return type(
            "World", (), {"close": lambda self: closed.append(name), "world": property(lambda self: self)}
        )()

    monkeypatch.setattr("genenv.environments.mixture.load_environment", opened)
    with pytest.raises(UsageError, match="no rooms"):
        Mixture(MixtureConfig(members=cast(Any, TWO)))
    assert closed == ["programs"]


def test_the_same_table_twice_is_refused_as_any_toml_file(tmp_path: Path) -> None:
    table = '[environment.members.sums]\nname = "programs"\n'
    (tmp_path / "twice.toml").write_text(f'[environment]\nname = "mixture"\n{table}{table}')
    assert "not valid TOML" in refused("check", tmp_path / "twice.toml")


def test_settings_come_back_from_a_file_and_can_be_set_one_by_one(tmp_path: Path) -> None:
    config = parse_config({"environment": {"name": "mixture", "members": TWO}})
    assert parse_config(as_tables(config)) == config
    file = tmp_path / "two.toml"
    file.write_text(
        '[environment]\nname = "mixture"\n[environment.members.a]\nname = "programs"\n'
        '[environment.members.b]\nname = "household"\n'
    )
    settings = cast(Any, load_config(file, ["environment.members.a.share=2"]).environment.settings)
    assert settings.members["a"]["share"] == 2


@pytest.mark.long
def test_a_run_measures_each_member_goes_on_and_is_evaluated_by_member(tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    file.write_text(
        '[environment]\nname = "mixture"\n[environment.members.sums]\nname = "programs"\n'
        '[environment.members.rooms]\nname = "household"\nmode = "single"\n'
    )
    small = ("policy.backend=scripted", "run.eval_tasks=8", "simulator.contexts=4", "run.rounds=1")
    words = [word for one in small for word in ("--set", one)]
    succeeds("train", file, *words, "--out", tmp_path / "run")
    succeeds("train", "--resume", "--out", tmp_path / "run", "--set", "run.rounds=2")
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    both = [last["agent/eval_success/sums"], last["agent/eval_success/rooms"]]
    assert last["agent/eval_success"] == pytest.approx(sum(both) / 2)
    items = HeldOut(HeldOutConfig(run=str(tmp_path / "run"))).load(cast(Any, _Data()), "measured")
    assert [item.groups["member"] for item in items[:2]] == ["sums", "rooms"]


class _Data:
    def __init__(self) -> None:
        self.hashes: dict[str, str] = {}


def test_the_arithmetic_of_shares() -> None:
    assert seeds_by_share({"a": 10, "b": 100}, {"a": 1, "b": 2}) == {"a": 10, "b": 20}
    assert seeds_by_share({"a": 10, "b": 5}, {"a": 1000, "b": 1}) == {"a": 10, "b": 1}
    assert spread("abcdef", 3) == ["a", "c", "e"]
    assert interleaved(["ab", "wxyz"]) == list("awbxyz")
    assert interleaved(["ab", "wxyz"], even=True) == list("waxybz")


def test_members_in_files_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = (
        "from genenv.environments.control.systems import Pendulum\nclass Swing(Pendulum):\n    levels = {}\n"
    )
    (tmp_path / "swing.py").write_text(system)
    (tmp_path / "own.py").write_text(
        "from genenv.environments.programs.environment import Programs as Mine\n"
    )
    monkeypatch.chdir(tmp_path)
    members: JsonObject = {
        "mine": {"name": "own.py:Mine"},
        "swing": {"name": "control", "system": "swing.py:Swing", "base_tasks": 2, "held_out_tasks": 1},
    }
    config = parse_config({"environment": {"name": "mixture", "members": members}})
    elsewhere = anchored(config)
    monkeypatch.chdir("/")
    found = load_environment("mixture", elsewhere.environment.settings)
    assert len({seed.id.partition(":")[0] for seed in found.seeds()}) == 2
