"""Rounds in flight in a whole run: who attempted what, and that a kill loses nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import cast

import pytest

from genenv.config.run import RunConfig, dump_toml, parse_config
from genenv.errors import UsageError
from genenv.progress import Silent
from genenv.runs.folder import RunFolder
from genenv.runs.store.store import PoolStore
from genenv.training.loop import CoEvolution
from genenv.training.opening import build_players, open_environment
from genenv.types import Json, JsonObject

ROUNDS = 6


def settings(staleness: int, **sections: JsonObject) -> dict[str, Json]:
    return {
        "run": {
            "rounds": ROUNDS,
            "eval_every": 3,
            "eval_tasks": 6,
            "seed": 5,
            "staleness": staleness,
            "keep_checkpoints": 1,
        },
        "environment": {"name": "programs"},
        "simulator": {"contexts": 4, "variations": 2},
        "agent": {"rollouts": 3, "replayed": 4, "importance_cap": 2.0},
        "curriculum": {"base_share": 0.3, "review_share": 0.2, "replay_share": 0.2},
        "policy": {"backend": "scripted"},
        **sections,
    }


def build(config: RunConfig, path: Path) -> CoEvolution:
    env = open_environment(config)
    folder = RunFolder.open(path) if path.exists() else RunFolder.create(path, dump_toml(config))
    return CoEvolution(config, env, build_players(config, env), folder)


def metrics(path: Path) -> list[dict[str, float]]:
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


@pytest.fixture(scope="module", params=[1, 2])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    path = tmp_path_factory.mktemp("runs") / "whole"
    build(parse_config(settings(request.param)), path).run()
    return request.param, path


def test_a_round_says_how_old_its_attempts_are(whole: tuple[int, Path]) -> None:
    staleness, path = whole
    ages = [line.get("agent/staleness") for line in metrics(path)]
    assert ages == [None, *(min(staleness, number - 1) for number in range(1, ROUNDS + 1))]


def test_as_many_checkpoints_are_kept_as_going_on_needs(whole: tuple[int, Path]) -> None:
    staleness, path = whole
    assert len(list((path / "checkpoints").iterdir())) == staleness + 1


@pytest.mark.long
@pytest.mark.parametrize("killed", [1, 4, ROUNDS])
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(
    whole: tuple[int, Path], tmp_path: Path, killed: int
) -> None:
    staleness, unbroken = whole
    config, path = parse_config(settings(staleness)), tmp_path / "killed"
    loop = build(config, path)
    learn = loop.learner.learn

    async def failing(produced, stage):
        return 1 / 0 if produced.number == killed else await learn(produced, stage)

    loop.learner.learn = failing  # ty: ignore
    with pytest.raises(ZeroDivisionError):
        loop.run()
    build(config, path).run()
    assert metrics(path) == metrics(unbroken)
    with (
        PoolStore.open(path / "pool.db", create=False) as store,
        PoolStore.open(unbroken / "pool.db", create=False) as other,
    ):
        assert store.digest() == other.digest()


@pytest.mark.long
def test_the_agent_that_attempts_is_as_old_as_it_says(tmp_path: Path) -> None:
    """The script solves more after each update: what is attempted ahead is solved by an older one."""
    skills: dict[int, list[float]] = {}
    for staleness in (0, 2):
        loop = build(parse_config(settings(staleness)), tmp_path / str(staleness))
        agent, skills[staleness] = loop.policies.agent, []
        roll_out = agent.roll_out

        async def told(env, tasks, *, round_, agent=agent, roll_out=roll_out, own=skills[staleness]):
            own.append(agent.trainer.count)
            return await roll_out(env, tasks, round_=round_)

        agent.roll_out = told
        loop.run()
    assert skills[2] == [max(0, count - 2) for count in skills[0]]


@pytest.mark.long
def test_a_run_that_has_ended_can_grow(whole: tuple[int, Path], tmp_path: Path) -> None:
    staleness, unbroken = whole
    short = settings(staleness)
    short["run"] = {**cast(JsonObject, short["run"]), "rounds": 4}
    build(parse_config(short), tmp_path / "run").run()
    build(parse_config(settings(staleness)), tmp_path / "run").run()
    names = ("agent/success_rate", "agent/staleness", "tokens/agent_sampled", "agent/steps")
    found, due = ([[row.get(n) for n in names] for row in metrics(p)] for p in (tmp_path / "run", unbroken))
    assert found == due


def test_weights_that_are_gone_are_said_and_the_oldest_there_are_attempt(
    whole: tuple[int, Path], tmp_path: Path
) -> None:
    staleness, unbroken = whole
    path, told = tmp_path / "moved", list[str]()
    shutil.copytree(unbroken, path)
    for number in range(ROUNDS):
        shutil.rmtree(path / "checkpoints" / f"round-{number:04d}", ignore_errors=True)
    longer = settings(staleness)
    longer["run"] = {**cast(JsonObject, longer["run"]), "rounds": ROUNDS + 3}

    class Telling(Silent):
        def note(self, text: str) -> None:
            told.append(text)

    loop = build(parse_config(longer), path)
    loop.reporter.reporter = Telling()
    loop.run()
    assert any(f"no checkpoint before that of round {ROUNDS} is here" in text for text in told)
    ages = [row["agent/staleness"] for row in metrics(path)[ROUNDS + 1 :]]
    assert ages == [min(staleness, place) for place in range(3)]


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        (
            {"shift": {"round": 3, "environment": {"renamed": True}}},
            "rounds of two worlds cannot be in flight",
        ),
        ({"curriculum": {"candidates": 4}}, "cannot ask weights that are learning"),
    ],
)
def test_what_cannot_be_in_flight_is_refused(sections: dict[str, JsonObject], says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        parse_config(settings(1, **sections))
    assert "\n" not in str(refused.value)
    parse_config(settings(0, **sections))
