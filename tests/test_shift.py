"""A world that changes while an agent learns in it: what is of which world, and that a kill loses nothing."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from genenv.config.run import RunConfig, dump_toml, parse_config
from genenv.environments import close_environment
from genenv.environments.base import Environment
from genenv.environments.common import read_base
from genenv.environments.programs.environment import Programs
from genenv.environments.wrappers import SUFFIX, ShiftingEnvironment
from genenv.errors import UsageError
from genenv.runs.folder import RunFolder
from genenv.runs.store.store import PoolStore
from genenv.runs.summary import summarise
from genenv.training import opening
from genenv.training.loop import CoEvolution
from genenv.training.opening import build_players, open_environment
from genenv.types import Json, JsonObject, Lineage, Origin, Rejection, Task
from genenv.viewer.frozen import write_report
from typed import refused, succeeds

TINY = Path(__file__).parents[1] / "configs" / "tiny.toml"
SHIFT = 3
SETTINGS: dict[str, Json] = {
    "run": {"rounds": 5, "eval_every": 2, "eval_tasks": 6, "seed": 5},
    "environment": {"name": "programs"},
    "shift": {"round": SHIFT, "environment": {"operations": ["reverse", "turn", "last"], "renamed": True}},
    "simulator": {"contexts": 4, "variations": 2, "source": "variation"},
    "agent": {"rollouts": 3, "replayed": 4},
    "curriculum": {"base_share": 0.3, "review_share": 0.2, "replay_share": 0.2, "mastered_success": 0.5},
    "policy": {"backend": "scripted"},
}
LETTERS = set("vwk")
"""Of the operations after the shift."""


def build(config: RunConfig, path: Path) -> CoEvolution:
    env = open_environment(config)
    folder = RunFolder.open(path) if path.exists() else RunFolder.create(path, dump_toml(config))
    return CoEvolution(config, env, build_players(config, env), folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "a"
    build(parse_config(SETTINGS), path).run()
    return path


def test_from_that_round_on_all_tasks_are_of_the_other_world(finished: Path) -> None:
    with PoolStore.open(finished / "pool.db", create=False) as store:
        for number in range(1, 6):
            tasks = [group.task for group in store.groups(number)]
            assert {task.lineage.origin for task in tasks} == {Origin.SEED, Origin.GENERATED}
            for task in tasks:
                written = set(str(task.spec["p"]).partition(">")[2])
                assert (written <= LETTERS) is (number >= SHIFT)
                assert str(task.lineage.seed_id).endswith(SUFFIX) is (number >= SHIFT)


def test_what_is_written_after_the_shift_passes_and_what_was_before_does_not_come_back(
    finished: Path,
) -> None:
    with PoolStore.open(finished / "pool.db", create=False) as store:
        for number in range(SHIFT, 6):
            assert store.metrics(number)["simulator/valid_rate"] > 0.4
            assert store.metrics(number)["agent/readable_rate"] == 1
            rounds = {int(g.task.id.split("-")[1][1:]) for g in store.groups(number) if "task-" in g.task.id}
            assert min(rounds) >= SHIFT


def test_it_is_measured_right_before_the_shift_at_it_and_often_after_it(finished: Path) -> None:
    with PoolStore.open(finished / "pool.db", create=False) as store:
        taken = {number: [e.task_id for e in store.evaluations(number)] for number in range(6)}
        metrics = store.metrics_by_round()
        overview = store.overview()
    before, after = taken[0], taken[5]
    assert len(before) == len(after) == 6
    assert [f"{name}{SUFFIX}" for name in before] == after
    assert taken == {0: before, 1: [], 2: before, 3: [*after, *after], 4: after, 5: after}
    assert [n for n, m in metrics.items() if "agent/eval_at_shift" in m] == [SHIFT]
    assert [round_.held_out and round_.held_out[1] for round_ in overview] == [6, None, 6, 6, 6, 6]


@pytest.mark.parametrize(
    ("writes", "later"),
    [("parameters", {"values": {"lift": [1.6, 1.2]}}), ("spec", {"system": "mountain_car"})],
)
def test_specs_are_those_of_the_environment_after_the_shift(writes: str, later: JsonObject) -> None:
    config = parse_config(
        {
            "environment": {"name": "control", "base_tasks": 4, "held_out_tasks": 4},
            "shift": {"round": 2, "environment": later},
            "simulator": {"writes": writes, "source": "variation", "contexts": 4},
        }
    )
    env = open_environment(config)
    assert isinstance(env, ShiftingEnvironment)
    env.shift()
    seed = env.seeds()[0]
    assert seed.spec == read_base(cast(Environment, env), seed.spec).model_dump(mode="json")
    lineage = Lineage(origin=Origin.GENERATED, seed_id=seed.id)
    for draw in range(4):
        spec = env.spec.model_validate(env.variation(seed, random.Random(draw)))
        assert isinstance(
            env.build(spec, task_id="t", lineage=lineage, rng=random.Random(draw)), Task | Rejection
        )


class Served(Programs):
    """An environment with a process, which is gone when it is closed."""

    open = True

    @property
    def world(self) -> Any:
        return self

    def close(self) -> None:
        self.open = False
        raise OSError("the process is gone")


@pytest.mark.parametrize("shifted", [False, True])
def test_both_environments_are_closed_even_if_one_of_them_fails_to(shifted: bool) -> None:
    both = Served(), Served()
    shifting = ShiftingEnvironment(*both)
    if shifted:
        shifting.shift()
    with pytest.raises(OSError, match="gone"):
        close_environment(cast(Environment, shifting))
    assert [env.open for env in both] == [False, False]


def test_an_environment_is_closed_if_the_later_one_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, both = Served(), list[Served]()

    def load(*_: object) -> Served:
        both.append(first)
        if len(both) > 1:
            raise UsageError("no such environment")
        return first

    monkeypatch.setattr(opening, "load_environment", load)
    with pytest.raises(OSError, match="gone"):
        open_environment(parse_config(SETTINGS))
    assert not first.open


@pytest.mark.long
@pytest.mark.parametrize("killed", range(6))
def test_a_kill_in_any_round_loses_nothing(
    finished: Path, tmp_path: Path, killed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, path = parse_config(SETTINGS), tmp_path / "a"
    loop = build(config, path)
    commit = PoolStore.commit_round

    def dying(self: PoolStore, record, **given) -> None:
        if record.number == killed:
            raise KeyboardInterrupt
        commit(self, record, **given)

    with monkeypatch.context() as patched:
        patched.setattr(PoolStore, "commit_round", dying)
        with pytest.raises(KeyboardInterrupt):
            loop.run()
    build(config, path).run()
    digests: list[str] = []
    for folder in (finished, path):
        with PoolStore.open(folder / "pool.db", create=False) as store:
            assert not store.damage(whole=True)
            digests.append(store.digest())
    assert digests[0] == digests[1]


@pytest.mark.long
def test_what_a_run_came_to_is_said_of_each_world(finished: Path) -> None:
    with PoolStore.open(finished / "pool.db", create=False) as store:
        metrics = store.metrics_by_round()
    there = metrics[SHIFT]["agent/eval_at_shift"], metrics[5]["agent/eval_success"]
    first = metrics[0]["agent/eval_success"], metrics[2]["agent/eval_success"]
    said = summarise(finished)[0]
    worlds = f"{first[0]:.1%} -> {first[1]:.1%}, in the other world {there[0]:.1%} -> {there[1]:.1%}"
    assert said.startswith(f"held-out success: {worlds}")
    page = write_report(finished).read_text()
    assert f"in the other environment from round {SHIFT} on {there[0]:.2f} → {there[1]:.2f}" in page


@pytest.mark.long
def test_the_agent_s_statistics_and_the_archive_stay(tmp_path: Path) -> None:
    config = parse_config(SETTINGS)
    world = build(config, tmp_path / "a").pool
    old = world.base[world.seeds[0].id]
    world.gate.remember(world.held_out)
    texts, profile = len(world.gate.archive), world.stats.profile()
    assert not world.enter(SHIFT - 1)
    assert world.enter(SHIFT)
    assert not world.enter(SHIFT + 1)
    assert len(world.gate.archive) == texts + len(world.base)
    assert world.gate.archive.nearest(world.env.surface(old))[0] == 1
    assert world.stats.profile() == profile
    assert {name for name in world.base if not name.endswith(SUFFIX)} == set()
    similarity, nearest = world.gate.held_out.nearest(world.env.surface(world.held_out[0]))
    assert (similarity, nearest) == (1, world.held_out[0].id)


@pytest.mark.long
def test_a_world_that_is_drawn_from_ids_is_the_one_that_it_would_be_alone() -> None:
    later: dict[str, Json] = {"round": 1, "environment": {"descriptions": False}}
    shifting = open_environment(parse_config({"shift": later}))
    alone = open_environment(parse_config({"environment": {"descriptions": False}}))
    shifting.shift()  # type: ignore[attr-defined]
    for one, other in zip(shifting.held_out()[:20], alone.held_out()[:20], strict=True):
        assert one.id == f"{other.id}{SUFFIX}"
        assert (one.messages, one.payload, one.oracle) == (other.messages, other.payload, other.oracle)
        assert shifting.check(one, one.oracle).success
    for one, other in zip(shifting.seeds()[:20], alone.seeds()[:20], strict=True):
        drawn = shifting.variation(one, random.Random(0))
        assert drawn == alone.variation(other, random.Random(0))


@pytest.mark.long
def test_a_branch_may_begin_to_shift_or_go_on_in_the_other_world(finished: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    shutil.copy(finished / "config.toml", config)
    longer = ["--set", "run.rounds=6", "--from", f"{finished}@5"]
    succeeds("train", config, *longer, "--out", tmp_path / "on")
    assert "keep its shift" in refused(
        "train", config, *longer, "--set", "shift.round=0", "--out", tmp_path / "b"
    )
    still, later = tmp_path / "still", tmp_path / "later"
    succeeds("train", config, "--set", "shift.round=0", "--set", "run.rounds=2", "--out", still)
    succeeds("train", config, "--from", f"{still}@2", "--out", later)
    with PoolStore.open(later / "pool.db", create=False) as store:
        assert [n for n, m in store.metrics_by_round().items() if "agent/eval_at_shift" in m] == [SHIFT]
    for command in ("report", "doctor"):
        succeeds(command, later)


def test_a_shift_that_changes_nothing_and_one_that_is_none_are_sentences(tmp_path: Path) -> None:
    out = [TINY, "--out", tmp_path / "a"]
    nothing = refused("train", *out, "--set", "shift.round=3")
    assert "[shift.environment] changes nothing" in nothing
    unknown = refused("train", *out, "--set", "shift.round=3", "--set", "shift.environment.rename=true")
    assert "did you mean 'shift.environment.renamed'" in unknown
    one_kind = refused(
        "train", *out, "--set", "shift.round=3", "--set", 'shift.environment.operations=["up"]'
    )
    assert "at least one of first, last, largest" in one_kind
