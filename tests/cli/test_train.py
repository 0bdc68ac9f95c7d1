"""`genenv train`: a run is never overwritten, goes on where it stopped, and keeps its committed rounds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import genenv
import genenv.runs.store.database
import scripted_genenv as fakes
from genenv.config.run import all_settings, load_config
from genenv.errors import UsageError
from genenv.progress import Silent
from genenv.runs.folder import RunFolder
from genenv.runs.store.store import PoolStore
from genenv.training import opening
from typed import refused, succeeds

pytestmark = pytest.mark.usefixtures("scripted")


def rounds(path: Path) -> tuple[int, ...]:
    with PoolStore.open(path / "pool.db", create=False) as store:
        return store.rounds()


def digest(path: Path) -> str:
    with PoolStore.open(path / "pool.db", create=False) as store:
        return store.digest()


def contents(path: Path) -> dict[str, bytes]:
    """All files of a run but its lock."""
    files = [file for file in path.rglob("*") if file.is_file() and file.name != ".lock"]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def test_a_run_ends_with_six_lines_and_what_to_type_next(
    finished: Path, config: Path, tmp_path: Path
) -> None:
    result = succeeds("train", config, "--out", tmp_path / "again")
    lines = result.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "held-out success",
        "valid tasks of the simulator",
        "mean p_hat in the last third of the rounds",
        "new tasks with mixed outcomes, the only ones with a GRPO signal",
        "rounds",
        "time",
        "pictures and tasks",
    ]
    assert lines[-1].endswith(f"genenv report {tmp_path / 'again'}")
    assert "  2/2" in result.stderr
    assert digest(finished) == digest(tmp_path / "again")


def test_a_run_is_never_overwritten(finished: Path, config: Path) -> None:
    before = contents(finished)
    sentence = refused("train", config, "--out", finished)
    assert "already holds a run of 2 rounds; continue it with --resume or choose another --out" in sentence
    assert contents(finished) == before


def test_a_start_that_failed_can_be_mended_and_repeated(
    config: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warmup(*_: Any) -> Any:
        raise UsageError("set agent.warmup.check_tasks lower")

    def cold(*arguments: Any) -> Any:
        return replace(fakes.scripted_players(*arguments), warmup=warmup)

    out = ["--out", tmp_path / "mended"]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tensorboard.summary", None)
        patch.delattr(opening, "load_players")  # no model is loaded first
        sentence = refused("train", config, *out, "--set", "logging.tensorboard=true")
        assert sentence.endswith("pip install tensorboard")
        assert not (tmp_path / "mended").exists()
        patch.setattr(opening, "load_players", cold, raising=False)
        assert "set agent.warmup.check_tasks lower" in refused("train", config, *out, "--set", "run.seed=3")
    succeeds("train", config, *out)
    assert digest(tmp_path / "mended") == digest(finished)
    assert contents(tmp_path / "mended")["config.toml"] == contents(finished)["config.toml"]


def test_resuming_a_finished_run_changes_nothing_and_says_so(finished: Path, config: Path) -> None:
    before = contents(finished)
    for settings in (config, finished / "config.toml"):
        lines = succeeds("train", settings, "--out", finished, "--resume").stdout.splitlines()
        assert lines[0] == f"{finished} is finished: all of its 2 rounds are committed, nothing was changed"
        assert len(lines) == 8
    assert contents(finished) == before


def test_a_finished_run_whose_last_line_of_metrics_was_torn_gets_it_back(
    finished: Path, config: Path
) -> None:
    whole = (finished / "metrics.jsonl").read_bytes()
    (finished / "metrics.jsonl").write_bytes(whole[:-30])
    succeeds("train", config, "--out", finished, "--resume")
    assert (finished / "metrics.jsonl").read_bytes() == whole


def test_a_run_can_be_made_longer_and_nothing_else(finished: Path, config: Path) -> None:
    sentence = refused("train", config, "--out", finished, "--resume", "--set", "curriculum.alpha=0.6")
    assert "was started with other settings: curriculum.alpha (see " in sentence
    succeeds("train", config, "--out", finished, "--resume", "--set", "run.rounds=4")
    assert rounds(finished) == (0, 1, 2, 3, 4)
    assert load_config(finished / "config.toml").run.rounds == 4
    sentence = refused("train", config, "--out", finished, "--resume", "--set", "run.rounds=2")
    assert "is a run of 4 rounds, which cannot become 2; add --set run.rounds=4, or more" in sentence


def test_only_a_run_can_be_resumed_or_reported(tmp_path: Path, config: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "is not a folder" in refused("train", config, "--out", tmp_path / "none", "--resume")
    assert "holds no run" in refused("train", config, "--out", tmp_path / "empty", "--resume")
    assert "holds no run" in refused("report", tmp_path / "empty")
    assert "is not a folder" in refused("report", config)
    assert "is not a folder" in refused("generate", config, "--run", tmp_path / "none")


def test_out_must_be_usable(tmp_path: Path, config: Path) -> None:
    assert "is a file; choose another --out" in refused("train", config, "--out", config)
    sentence = refused("train", config, "--out", config / "below")
    assert f"cannot be written ({config} is a file); choose another --out" in sentence
    assert "is a folder; name a file" in refused("generate", config, "--out", tmp_path)


@pytest.mark.usefixtures("impatient")
def test_a_run_is_opened_once_at_a_time(finished: Path, config: Path) -> None:
    with RunFolder.open(finished).lock():
        for rounds_ in (2, 3):
            sentence = refused(
                "train", config, "--out", finished, "--resume", "--set", f"run.rounds={rounds_}"
            )
            assert f"is being written by another process (process {os.getpid()})" in sentence
    assert load_config(finished / "config.toml").run.rounds == 2


def test_of_two_starts_in_one_folder_the_settings_of_one_are_not_kept_with_the_rounds_of_the_other(
    config: Path, finished: Path, tmp_path: Path
) -> None:
    out, settings = tmp_path / "two", load_config(config)
    with pytest.raises(UsageError, match=r"another process has started or continued .*two meanwhile"):
        opening.start(settings, out, Silent(), begun=lambda: RunFolder.create(out, "seed = 8\n") and None)
    assert ((out / "config.toml").read_text(), rounds(out)) == ("seed = 8\n", ())
    file = finished / "config.toml"
    longer = file.read_text().replace("rounds = 2", "rounds = 5")
    with pytest.raises(UsageError, match="another process has started or continued"):
        opening.go_on(
            finished, Silent(), overrides=["run.rounds=3"], begun=lambda: file.write_text(longer) and None
        )
    assert (file.read_text(), rounds(finished)) == (longer, (0, 1, 2))


def test_a_damaged_checkpoint_is_named(finished: Path, config: Path) -> None:
    (finished / "checkpoints/round-0002/agent/scripted.json").write_text("{}", encoding="utf-8")
    sentence = refused("train", config, "--out", finished, "--resume", "--set", "run.rounds=3")
    assert "round-0002/agent/scripted.json is damaged" in sentence
    assert "scripted.json is damaged" in refused("generate", config, "--run", finished)
    assert rounds(finished) == (0, 1, 2)


def test_a_damaged_database_is_named(finished: Path, config: Path) -> None:
    (finished / "pool.db").write_bytes(b"not a database, but long enough to be taken for one" * 40)
    for words in (["train", config, "--out", finished, "--resume"], ["report", finished]):
        assert "pool.db is damaged (file is not a database)" in refused(*words)


def test_a_database_that_lost_its_rounds_is_not_taken_for_a_new_one(finished: Path, config: Path) -> None:
    (finished / "pool.db").write_bytes(b"")
    before = contents(finished / "checkpoints")
    sentence = refused("train", config, "--out", finished, "--resume")
    assert "pool.db is damaged (it holds no round, but " in sentence
    assert contents(finished / "checkpoints") == before


def no_space(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def rust_no_space(*_: Any) -> None:
    import safetensors

    raise safetensors.SafetensorError(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    )


def sqlite_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite itself refuses to let the file grow."""
    prepare = genenv.runs.store.database._prepare

    def limited(connection: Any, path: Path, **options: Any) -> None:
        prepare(connection, path, **options)
        connection.execute("PRAGMA max_page_count = 1")  # raised by SQLite to the size that the file has

    monkeypatch.setattr(genenv.runs.store.database, "_prepare", limited)


def failing_save(error: Callable[..., None]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr("genenv.backends.scripted.ScriptedTrainer.save", error)


def test_running_out_of_memory_twice_ends_in_a_sentence_and_the_run_goes_on_with_less(
    halfway: Path, config: Path
) -> None:
    def too_large(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genenv.backends.scripted.ScriptedTrainer.forward_backward", too_large)
        sentence = refused("train", config, "--out", halfway, "--resume")
    assert sentence.startswith("memory ran out")
    assert "policy.max_batch_rows" in sentence
    succeeds("train", config, "--out", halfway, "--resume", "--set", "policy.max_batch_rows=2")
    assert load_config(halfway / "config.toml").policy.max_batch_rows == 2


@pytest.mark.parametrize(
    "fill",
    [
        failing_save(no_space),
        failing_save(rust_no_space),
        lambda patch: patch.setattr("genenv.files.os.fsync", no_space),
        sqlite_full,
        lambda patch: patch.setattr("genenv.runs.folder.metrics_line", no_space),
    ],
    ids=["writing weights", "writing weights, safetensors", "flushing a checkpoint", "SQLite", "metrics"],
)
def test_a_full_disk_keeps_committed_rounds(
    fill: Callable[[pytest.MonkeyPatch], None], halfway: Path, finished: Path, config: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fill(patch)
        assert "the disk is full" in refused("train", config, "--out", halfway, "--resume")
    assert rounds(halfway)[:2] == (0, 1)
    succeeds("train", config, "--out", halfway, "--resume")
    assert digest(halfway) == digest(finished)
    assert len((halfway / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 3


def test_stopping_a_run_by_hand_keeps_committed_rounds(halfway: Path, finished: Path, config: Path) -> None:
    assert rounds(halfway) == (0, 1)
    assert digest(halfway) != digest(finished)
    succeeds("train", config, "--out", halfway, "--resume")
    assert digest(halfway) == digest(finished)


def extremes() -> dict[str, dict[str, float]]:
    """The fractions among the settings of a run, each at an end of its range; counts cost what they say."""
    ends: dict[str, dict[str, float]] = {"lowest": {}, "highest": {}}
    for key, field in all_settings("tool_calling"):
        bounds = {sign: value for rule in field.metadata for sign, value in vars_of(rule)}
        if (
            field.annotation is float
            and "curriculum" in key
            and not key.endswith(("base_share", "review_share", "replay_share"))
        ):
            ends["lowest"][key], ends["highest"][key] = bounds["ge"], bounds["le"]
    return ends


def vars_of(rule: object) -> list[tuple[str, float]]:
    return [(sign, float(getattr(rule, sign))) for sign in ("ge", "le") if hasattr(rule, sign)]


@pytest.mark.long
@pytest.mark.parametrize("key", sorted(extremes()["lowest"]))
def test_a_run_goes_through_with_a_setting_at_either_end_of_its_range(
    key: str, config: Path, tmp_path: Path
) -> None:
    for end, values in extremes().items():
        succeeds(
            "train",
            config,
            "--out",
            tmp_path / end,
            "--set",
            f"{key}={values[key]!r}",
            "--set",
            "run.rounds=1",
        )


@pytest.mark.long
def test_a_run_goes_through_with_priors_at_the_ends_of_their_range(config: Path, tmp_path: Path) -> None:
    for prior in ("[0.01, 0.01]", "[10000.0, 10000.0]", "[0.01, 10000.0]"):
        succeeds("train", config, "--out", tmp_path / prior, "--set", f"curriculum.prior={prior}")
