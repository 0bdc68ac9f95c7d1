"""The reward `progress`: an older checkpoint of the agent is what the present one is compared with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from genenv.backends.base import open_backend
from genenv.config.run import load_config
from genenv.errors import UsageError
from genenv.training import opening
from typed import succeeds

SMALL = (
    *("policy.model=tiny", "policy.tuning=full", "policy.dtype=float32", "policy.device=cpu"),
    *(
        "policy.threads=1",
        "policy.context_tokens=128",
        "environment.name=programs",
        "run.eval_every=0",
        "run.keep_checkpoints=1",
    ),
    *("agent.max_new_tokens=16", "agent.lr=1e-2", "agent.rollouts=4", "agent.replayed=8"),
    *("simulator.contexts=4", "curriculum.base_share=0.3", "curriculum.candidates=3"),
)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GENENV_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def train(out: Path, *more: str, source: str = "") -> str:
    """A run in which the agent also imitates solutions, so that predicted rates move; what it says."""
    file = out.parent / "small.toml"
    file.write_text("")
    words = [word for one in (*SMALL, *more) for word in ("--set", one)]
    begun = ["--from", source] if source else []
    return succeeds("train", file, "--variant", "variation+progress", *words, *begun, "--out", out).output


def metrics(path: Path) -> list[dict[str, float]]:
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "whole"
    train(path, "run.rounds=5")
    return path


@pytest.mark.long
def test_a_resumed_run_compares_the_same_versions_of_the_agent(whole: Path, tmp_path: Path) -> None:
    expected = metrics(whole)
    risen = [line.get("probe/progress_new") for line in expected[1:]]
    assert risen[0] is None  # in round 1 both versions are the agent after the warm-up
    assert all(risen[1:])
    kept = sorted(path.name for path in (whole / "checkpoints").iterdir())
    assert kept == ["round-0003", "round-0004", "round-0005"]
    train(tmp_path / "parts", "run.rounds=3")
    succeeds("train", "--resume", "--out", tmp_path / "parts", "--set", "run.rounds=5")
    assert metrics(tmp_path / "parts") == expected


@pytest.mark.long
def test_both_versions_count_in_tokens_and_one_round_is_another_distance(whole: Path, tmp_path: Path) -> None:
    train(tmp_path / "near", "run.rounds=3", "curriculum.progress_rounds=1")
    near, far = metrics(tmp_path / "near"), metrics(whole)
    assert near[:3] == far[:3]  # up to round 2 the older version is that of round 0 in both
    assert near[3]["probe/progress_new"] != far[3]["probe/progress_new"]
    for name in ("tokens/agent_read", "tokens/agent_probed"):
        first, *later = (line[name] / line["probe/candidates"] for line in far[1:])
        assert later == pytest.approx([2 * first] * 4, rel=0.1)


@pytest.mark.long
def test_a_branch_compares_with_its_origin_and_says_so(whole: Path, tmp_path: Path) -> None:
    said = train(tmp_path / "branch", "run.rounds=5", source=f"{whole}@3")
    assert "round 5 measures progress since round 3, as the checkpoint of round 2" in said
    found = metrics(tmp_path / "branch")
    assert ("probe/progress" in found[4], "probe/progress" in found[5]) == (False, True)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["foretold_by=attempts"], 'set foretold_by to "likelihoods"'),
        (["env_reward=progress"], "set foretold_attempts above 0"),
        (["env_reward=progress", "foretold_attempts=16", "seed_choice=bandit"], "set env_reward to another"),
    ],
)
def test_what_cannot_be_compared_is_refused(settings: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load_config(None, [f"curriculum.{one}" for one in settings], variant="variation+progress")


def test_an_agent_that_is_frozen_is_refused() -> None:
    with pytest.raises(UsageError, match="a frozen agent makes no progress"):
        load_config(None, ["agent.train=false"], variant="variation+progress")


def test_a_backend_that_cannot_score_an_older_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(None, ["policy.backend=scripted"], variant="variation+progress")
    env = opening.open_environment(config)
    opening.build_players(config, env)

    def one_version(*arguments: Any, **options: Any) -> Any:
        return replace(open_backend(*arguments, **options), scores_written=False)

    monkeypatch.setattr(opening, "open_backend", one_version)
    with pytest.raises(UsageError, match="backend 'scripted' cannot score tasks under an older version"):
        opening.build_players(config, env)
