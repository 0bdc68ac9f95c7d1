"""A run that goes on from a round of another run: `genenv train --from RUN@ROUND`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from genenv.config.run import load_config
from genenv.errors import UsageError
from genenv.runs.folder import RunFolder
from genenv.runs.store.store import PoolStore
from genenv.training.branching import Origin
from typed import refused, run, succeeds

CONFIG = Path(__file__).parents[2] / "configs" / "household.toml"
SMALL = {
    "policy.backend": "scripted",
    "run.rounds": 2,
    "run.eval_tasks": 5,
    "run.keep_checkpoints": 9,
    "simulator.contexts": 2,
    "simulator.variations": 2,
}


def words(out: Path, *more: object, **settings: Any) -> list[object]:
    said = {**SMALL, **{name.replace("__", "."): value for name, value in settings.items()}}
    return [
        "train",
        CONFIG,
        *(w for k, v in said.items() for w in ("--set", f"{k}={v}")),
        *more,
        "--out",
        out,
    ]


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "parent"
    succeeds(*words(path, run__rounds=3))
    return path


def digest(path: Path) -> str:
    with PoolStore.open(path / "pool.db", create=False) as store:
        return store.digest()


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_branch_with_equal_settings_is_the_run_it_came_from(
    number: int, parent: Path, tmp_path: Path
) -> None:
    before = digest(parent)
    succeeds(*words(tmp_path / "branch", "--from", f"{parent}@{number}", run__rounds=3))
    assert digest(tmp_path / "branch") == digest(parent) == before
    first, second = ((path / "metrics.jsonl").read_text() for path in (tmp_path / "branch", parent))
    assert first.splitlines()[: number + 1] == second.splitlines()[: number + 1]
    with (
        PoolStore.open(tmp_path / "branch" / "pool.db", create=False) as one,
        PoolStore.open(parent / "pool.db", create=False) as other,
    ):
        assert one.run_id() != other.run_id()
        assert not one.damage(whole=True)


@pytest.mark.long
def test_a_branch_is_a_run_of_its_own_with_its_own_settings(parent: Path, tmp_path: Path) -> None:
    out = tmp_path / "branch"
    succeeds(*words(out, "--from", f"{parent}@1", "--variant", "variation", agent__lr=1e-5))
    config = load_config(out / "config.toml")
    assert (config.variant, config.agent.lr, config.run.rounds) == ("variation", 1e-5, 2)
    assert (
        f"# goes on from {parent}@1: these settings hold from round 2 on" in (out / "config.toml").read_text()
    )
    with (
        PoolStore.open(out / "pool.db", create=False) as one,
        PoolStore.open(parent / "pool.db", create=False) as other,
    ):
        assert one.rounds() == (0, 1, 2)
        assert one.batches(1) == other.batches(1)
        assert one.batches(2) != other.batches(2)
        assert not any(p.generation.token_ids for batch in one.batches(2) for p in batch.proposals)
    succeeds("train", "--resume", "--out", out, "--set", "run.rounds=3")
    assert succeeds("doctor", out).exit_code == 0


@pytest.mark.long
def test_arms_of_one_warm_up_share_it_and_other_seeds_begin_there(parent: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        succeeds(*words(tmp_path / str(seed), "--from", f"{parent}@0", run__seed=seed, run__rounds=1))
    with (
        PoolStore.open(tmp_path / "1" / "pool.db", create=False) as one,
        PoolStore.open(tmp_path / "2" / "pool.db", create=False) as other,
    ):
        assert one.metrics(0) == other.metrics(0)
        assert one.batches(1) != other.batches(1)


@pytest.mark.parametrize(
    ("origin", "settings", "sentence"),
    [
        ("@9", {}, "keeps no checkpoint of round 9; it keeps 0, 1, 2, 3"),
        ("@3", {}, "run.rounds is 2, but"),
        ("@1", {"run__seed": 5}, "another seed can begin at round 0 only"),
        ("@1", {"environment__single_step_share": 0.5}, "environment."),
        ("@1", {"policy__lora_rank": 4}, "policy.lora_rank is 4, but 16 in"),
    ],
)
def test_what_cannot_go_on_from_there_is_refused(
    origin: str, settings: dict[str, Any], sentence: str, parent: Path, tmp_path: Path
) -> None:
    out = tmp_path / "branch"
    assert sentence in refused(*words(out, "--from", f"{parent}{origin}", **settings))
    assert not (out / "config.toml").exists()


FIRST = """
class First:
    def __init__(self, config): pass
    def choose(self, seeds, n, rng): return seeds[:n]
    def observe(self, groups): pass
    def state_dict(self): return {}
    def load_state_dict(self, state): pass
"""


@pytest.mark.long
def test_a_branch_with_another_pool_of_fixed_tasks_writes_it_anew(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FIRST)
    fixed = {"simulator__source": "variation", "run__eval_every": 0, "agent__rollouts": 2}
    fixed["curriculum__seed_choice"] = f"{tmp_path / 'own.py'}:First"
    fixed["curriculum__novelty_threshold"] = 0.0
    succeeds(*words(tmp_path / "origin", **fixed, simulator__per_seed=2))
    branch = {**fixed, "simulator__per_seed": 3, "run__rounds": 3}
    succeeds(*words(tmp_path / "branch", "--from", f"{tmp_path / 'origin'}@2", **branch))
    with PoolStore.open(tmp_path / "branch" / "pool.db", create=False) as store:
        first, second, third = (
            {one.generation.text for batch in store.batches(number) for one in batch.proposals}
            for number in (1, 2, 3)
        )
    assert first == second
    assert len(third) == len(first) == 4
    assert not first & third


@pytest.mark.long
def test_a_branch_has_no_kl_term_without_the_reference_of_its_origin(tmp_path: Path) -> None:
    for tuning, is_refused in (("full", True), ("lora", False)):
        origin, out = tmp_path / tuning, tmp_path / f"{tuning}-branch"
        kept = {"policy__tuning": tuning, "run__rounds": 0}
        succeeds(*words(origin, **kept, agent__kl_coefficient=0.0))
        branch = words(out, "--from", f"{origin}@0", **{**kept, "run__rounds": 1}, agent__kl_coefficient=0.1)
        if is_refused:
            assert "keeps no reference for it; set agent.kl_coefficient to 0" in refused(*branch)
        else:
            succeeds(*branch)


@pytest.mark.long
def test_a_branch_s_simulator_has_no_kl_term_without_the_reference_of_its_origin(tmp_path: Path) -> None:
    origin, kept = tmp_path / "origin", {"policy__tuning": "full", "run__rounds": 0}
    succeeds(*words(origin, **kept, simulator__kl_coefficient=0.0))
    kept["run__rounds"] = 1
    branch = words(tmp_path / "branch", "--from", f"{origin}@0", **kept, simulator__kl_coefficient=0.1)
    assert "keeps no reference for it; set simulator.kl_coefficient to 0" in refused(*branch)
    succeeds(*words(tmp_path / "other", "--from", f"{origin}@0", **kept, simulator__kl_coefficient=0.0))


@pytest.mark.long
def test_a_folder_without_a_run_and_a_damaged_checkpoint_are_one_sentence(
    parent: Path, tmp_path: Path
) -> None:
    assert "is not a folder" in refused(*words(tmp_path / "a", "--from", tmp_path / "nowhere"))
    copy = tmp_path / "copy"
    succeeds(*words(copy, run__rounds=1))
    weights = next((copy / "checkpoints" / "round-0001").rglob("scripted.json"))
    weights.write_text('{"count": 7}')
    assert "is damaged" in refused(*words(tmp_path / "b", "--from", f"{copy}@1"))
    assert not (tmp_path / "b" / "config.toml").exists()


def test_a_round_that_is_none_is_one_sentence_and_a_folder_may_be_called_like_one(
    parent: Path, tmp_path: Path
) -> None:
    assert "names no run; name the folder of one, as in" in refused(*words(tmp_path / "a", "--from", ""))
    assert "names no run" in refused(*words(tmp_path / "a", "--from", "@2"))
    found = Origin.named(str(shutil.copytree(parent, tmp_path / "exp@2")))
    assert (found.folder.path.name, found.round) == ("exp@2", 3)


@pytest.mark.long
def test_a_run_without_a_simulator_is_no_start_for_one_with(tmp_path: Path) -> None:
    succeeds(*words(tmp_path / "base", "--variant", "base", run__rounds=1))
    origin = ["--from", f"{tmp_path / 'base'}@1"]
    assert "no simulator's weights" in refused(*words(tmp_path / "branch", *origin))
    succeeds(*words(tmp_path / "branch", *origin, "--variant", "variation"))


@pytest.mark.long
@pytest.mark.parametrize(
    "place", ["PoolStore.copy_to", "PoolStore.branch", "RunFolder.write_settings", "mark_committed"]
)
def test_an_interrupted_start_of_a_branch_is_started_anew_or_goes_on(
    parent: Path, tmp_path: Path, monkeypatch: Any, place: str
) -> None:
    out = tmp_path / "branch"

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"genenv.training.branching.{place}", stop)
        assert run(*words(out, "--from", f"{parent}@2", run__rounds=3)).exit_code != 0
    has_begun = place == "mark_committed"
    assert RunFolder(out).config.exists() is RunFolder(out).pool.exists() is has_begun
    again = words(out, "--from", f"{parent}@2", run__rounds=3)
    succeeds(*(("train", "--resume", "--out", out) if has_begun else again))


@pytest.mark.long
def test_settings_without_a_store_are_those_of_a_start_if_its_store_is_unfinished(
    parent: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    out = tmp_path / "branch"

    plain = Path.rename

    def stop(path: Path, to: Path) -> Path:
        if to.name == "pool.db":
            raise KeyboardInterrupt
        return plain(path, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stop)
        assert run(*words(out, "--from", f"{parent}@1")).exit_code != 0
    assert (RunFolder(out).config.exists(), RunFolder(out).pool.exists()) == (True, False)
    other = RunFolder.create(shutil.copytree(out, tmp_path / "other"), "")
    other.pool.unlink()
    with pytest.raises(UsageError, match="already holds a run"):  # it lost its store
        RunFolder.create(other.path, "")
    succeeds(*words(out, "--from", f"{parent}@1"))
