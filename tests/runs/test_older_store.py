"""A store older than what lies beside it, damage, and other runs' files: nothing lost, nothing silent."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import scripted_genenv as fakes
from genenv.config.run import dump_toml, load_config
from genenv.runs.folder import RunFolder
from genenv.runs.store import database
from genenv.runs.store.store import PoolStore
from genenv.training import opening
from typed import run


def resumed(path: Path, rounds: int = 5) -> Result:
    return run("train", path / "config.toml", "--out", path, "--resume", "--set", f"run.rounds={rounds}")


def refused(result: Result) -> str:
    """The one sentence in which a command ended."""
    assert result.exit_code == 2, (result.exception, result.stderr)
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()[-1].removeprefix("genenv: ")


def contents(path: Path) -> dict[str, bytes]:
    """All files of a folder but locks, and what SQLite makes beside a store for as long as it is open."""
    passing = (".lock", "pool.db-wal", "pool.db-shm")
    files = [file for file in path.rglob("*") if file.is_file() and file.name not in passing]
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def digest(path: Path) -> str:
    with PoolStore.open(path / "pool.db", create=False) as store:
        return store.digest()


@pytest.fixture(scope="module", autouse=True)
def scripted() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        fakes.few_base_data(patch)
        patch.setattr(opening, "load_players", fakes.scripted_players)
        yield


@pytest.fixture(scope="module")
def saved(scripted: None, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """One run as it was after 2, 4 and 5 rounds; it keeps the checkpoints of its last two."""
    root = tmp_path_factory.mktemp("saved")
    (root / "settings.toml").write_text(fakes.SETTINGS.format(rounds=2), encoding="utf-8")
    assert run("train", root / "settings.toml", "--out", root / "run").exit_code == 0
    copies: dict[int, Path] = {}
    for rounds in (2, 4, 5):
        assert resumed(root / "run", rounds).exit_code == 0
        copies[rounds] = shutil.copytree(root / "run", root / f"after-{rounds}")
    return copies


@pytest.fixture
def path(saved: dict[int, Path], tmp_path: Path) -> Path:
    """The run after 5 rounds, with the checkpoints of rounds 4 and 5."""
    return shutil.copytree(saved[5], tmp_path / "run")


@pytest.mark.parametrize("rounds", [5, 6])
def test_a_run_that_goes_on_reads_all_of_its_store_once(
    path: Path, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[str] = []
    prepare = database._prepare

    def traced(connection: sqlite3.Connection, *values: Any, **options: Any) -> None:
        connection.set_trace_callback(lambda sql: checks.append(sql) if "quick_check" in sql else None)
        prepare(connection, *values, **options)

    monkeypatch.setattr(database, "_prepare", traced)
    assert resumed(path, rounds).exit_code == 0
    assert len(checks) == 1


# an older copy of the store is put back


@pytest.mark.parametrize("restored", [("pool.db",), ("pool.db", "metrics.jsonl")])
def test_an_older_store_goes_on_from_its_checkpoint_and_what_is_newer_is_kept(
    saved: dict[int, Path], path: Path, restored: tuple[str, ...]
) -> None:
    """Also where the metrics are put back with it, so that only the checkpoint tells of the newer round."""
    for name in restored:
        shutil.copy(saved[4] / name, path / name)
    before = contents(path)
    result = resumed(path)
    assert result.exit_code == 0, result.stderr
    kept = contents(path / "set-aside-1")
    newer = {name: data for name, data in before.items() if name.startswith("checkpoints/round-0005/")}
    assert len(newer) > 2
    assert {name: kept.get(name) for name in newer} == newer
    assert kept.get("metrics.jsonl") == (before["metrics.jsonl"] if len(restored) == 1 else None)
    told = " ".join(result.stderr.split())
    assert "ends at round 4, and round-0005" in told
    assert f"set aside in {path / 'set-aside-1'}, nothing was deleted" in told
    assert digest(path) == digest(saved[5])
    assert resumed(path).stderr == "going on with a run ...\n", "once is enough"


@pytest.mark.parametrize("rounds", [5, 9])
def test_an_older_store_whose_checkpoint_is_gone_changes_nothing_and_says_what_to_do(
    saved: dict[int, Path], path: Path, rounds: int
) -> None:
    """Its checkpoint, of round 2, went when later ones came. Not even the settings are rewritten."""
    shutil.copy(saved[2] / "pool.db", path / "pool.db")
    before = contents(path)
    sentence = refused(resumed(path, rounds))
    missing = path / "checkpoints/round-0002"
    assert f"pool.db ends at round 2, whose checkpoint {missing} is missing" in sentence
    assert "(there are those of 4, 5); put back that one, or the pool.db" in sentence
    assert contents(path) == before


def test_a_store_that_is_ahead_of_its_checkpoints_is_a_sentence_too(
    saved: dict[int, Path], path: Path
) -> None:
    shutil.rmtree(path / "checkpoints")
    shutil.copytree(saved[2] / "checkpoints", path / "checkpoints")
    before = contents(path)
    assert "ends at round 5, whose checkpoint" in refused(resumed(path, 6))
    assert contents(path) == before


def test_a_store_before_its_first_round_is_not_taken_for_a_new_run_when_a_round_was_committed(
    path: Path, tmp_path: Path
) -> None:
    (path / "pool.db").unlink()
    (path / "metrics.jsonl").unlink()
    PoolStore.open(path / "pool.db", create=True).close()
    before = contents(path)
    assert "pool.db is damaged (it holds no round, but " in refused(resumed(path))
    assert "already holds a run" in refused(run("train", path / "config.toml", "--out", path))
    assert contents(path) == before


# the write-ahead log is lost after a kill


def killed_with_a_reader(saved: dict[int, Path], rounds: int, to: Path) -> Path:
    """What a kill leaves while a reader, such as a report, keeps the log out of the file; without the log."""
    live = shutil.copytree(saved[rounds], to / "live")
    with closing(sqlite3.connect(live / "pool.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM rounds").fetchone()
        assert resumed(live).exit_code == 0
        assert (live / "pool.db-wal").stat().st_size > 0
        lost = shutil.ignore_patterns("pool.db-wal", "pool.db-shm")
        return shutil.copytree(live, to / "killed", ignore=lost)


@pytest.mark.long
def test_a_lost_log_sets_newer_rounds_aside_where_the_run_can_go_on(
    saved: dict[int, Path], tmp_path: Path
) -> None:
    path = killed_with_a_reader(saved, 4, tmp_path)
    before = contents(path)
    result = resumed(path)
    assert result.exit_code == 0, result.stderr
    kept = contents(path / "set-aside-1")
    assert kept["metrics.jsonl"] == before["metrics.jsonl"]
    assert kept["checkpoints/round-0005/MANIFEST.json"] == before["checkpoints/round-0005/MANIFEST.json"]
    assert digest(path) == digest(saved[5])


@pytest.mark.long
def test_a_lost_log_changes_nothing_where_the_run_cannot_go_on(
    saved: dict[int, Path], tmp_path: Path
) -> None:
    path = killed_with_a_reader(saved, 2, tmp_path)
    before = contents(path)
    assert "ends at round 2, whose checkpoint" in refused(resumed(path))
    assert contents(path) == before


# metrics


@pytest.mark.parametrize("damage", ["one more line", "a changed line", "garbage"])
def test_metrics_that_are_not_the_stores_are_made_anew_and_a_copy_is_kept(path: Path, damage: str) -> None:
    file = path / "metrics.jsonl"
    whole = file.read_bytes()
    spoilt = {
        "one more line": whole + b'{"round": 6}\n',
        "a changed line": whole.replace(b'"round": 1,', b'"round": 7,'),
        "garbage": b"\x00" * len(whole),
    }[damage]
    assert spoilt != whole
    file.write_bytes(spoilt)
    assert resumed(path).exit_code == 0
    assert file.read_bytes() == whole
    assert (path / "set-aside-1" / "metrics.jsonl").read_bytes() == spoilt


def test_a_finished_run_that_was_mended_does_not_say_that_nothing_was_changed(path: Path) -> None:
    assert "are committed, nothing was changed" in resumed(path).stdout
    (path / "metrics.jsonl").write_text("garbage", encoding="utf-8")
    result = resumed(path)
    assert "metrics.jsonl does not fit it: set aside in" in result.stderr
    assert result.stdout.splitlines()[0] == f"{path} is finished: all of its 5 rounds are committed"


# other rounds, other runs


def test_the_checkpoint_of_another_round_is_refused(path: Path) -> None:
    shutil.rmtree(path / "checkpoints/round-0005")
    shutil.copytree(path / "checkpoints/round-0004", path / "checkpoints/round-0005")
    before = contents(path)
    assert "round-0005 is the checkpoint of round 4, not of 5" in refused(resumed(path, 6))
    assert "is the checkpoint of round 4" in refused(run("generate", path / "config.toml", "--run", path))
    assert contents(path) == before


@pytest.mark.long
def test_the_checkpoint_of_another_run_is_refused(path: Path, tmp_path: Path) -> None:
    """Of one with the same settings, so that the weights would fit."""
    other = tmp_path / "other"
    assert run("train", path / "config.toml", "--out", other).exit_code == 0
    shutil.rmtree(path / "checkpoints/round-0005")
    shutil.copytree(other / "checkpoints/round-0005", path / "checkpoints/round-0005")
    assert "round-0005 is of another run" in refused(resumed(path, 6))
    assert "round-0005 is of another run" in refused(run("generate", path / "config.toml", "--run", path))


def test_the_same_round_played_again_is_another_checkpoint(path: Path) -> None:
    """As after an older store was put back: run and round agree, what was learned need not."""
    folder = path / "checkpoints/round-0005"
    (folder / "agent/scripted.json").write_text('{"learned": 99}', encoding="utf-8")
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    content = (folder / "agent/scripted.json").read_bytes()
    manifest["files"]["agent/scripted.json"] = {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    (folder / "MANIFEST.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert "is not the checkpoint that round 5 was committed with" in refused(resumed(path, 6))


def test_a_checkpoint_without_a_run_does_not_fit_a_run_that_has_ids(path: Path) -> None:
    file = path / "checkpoints/round-0005/MANIFEST.json"
    manifest = json.loads(file.read_text())
    del manifest["run"]
    file.write_text(json.dumps(manifest), encoding="utf-8")
    assert "round-0005/MANIFEST.json is damaged (KeyError: 'run')" in refused(resumed(path, 6))


# damage inside the store, and the doctor


def spoil(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path / "pool.db")) as database, database:
        assert database.execute(sql).rowcount > 0


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("UPDATE rounds SET state = replace(state, '1', '2') WHERE number = 3", "round 3 itself"),
        ("UPDATE tasks SET payload = payload || ' ' WHERE round = 1", "tasks of round 1"),
        ("UPDATE seeds SET skills = '[]' WHERE n = 1", "seeds"),
        ("UPDATE traces SET reward = 1 - reward WHERE round = 5", "traces of round 5"),
        ("UPDATE run SET legacy_until = 9", "the run's own row"),
        ("DELETE FROM checksums", "all checksums"),
    ],
)
def test_a_run_is_not_continued_on_data_that_changed(path: Path, sql: str, named: str) -> None:
    spoil(path, sql)
    before = contents(path)
    sentence = refused(resumed(path, 6))
    assert f"pool.db is damaged (changed since committed: {named}" in sentence
    assert f"restore a copy of it, or start a new run; `genenv doctor {path}` says more" in sentence
    assert contents(path) == before


def test_old_traces_that_changed_stop_no_run_but_the_doctor_says_so(path: Path) -> None:
    spoil(path, "UPDATE traces SET explanation = 'x' WHERE round = 1")
    going_on = resumed(path, 6)
    assert going_on.exit_code == 0
    assert "changed since committed: traces of round 1): the run reads none of this" in going_on.stderr
    result = run("doctor", path)
    told = " ".join(result.stdout.replace("│", " ").split())
    assert "changed since committed: traces of round 1; the run can be continued" in told
    assert refused(result) == f"{path} is damaged: pool.db; the table says what to do"


@pytest.mark.parametrize(
    ("setting", "sql", "named"),
    [
        (
            "curriculum.replay_share=0.1",
            "UPDATE traces SET readable = 1 - readable WHERE round = 1",
            "traces",
        ),
        ("simulator.per_seed=5", "UPDATE generations SET text = 'x' WHERE n = 1", "generations"),
    ],
)
def test_what_only_some_runs_read_again_stops_those(path: Path, setting: str, sql: str, named: str) -> None:
    spoil(path, sql)
    config = load_config(path / "config.toml", [setting])
    RunFolder(path).write_settings(dump_toml(config))
    assert f"changed since committed: {named} of round 1" in refused(resumed(path, 6))
    told = " ".join(run("doctor", path).stdout.replace("│", " ").split())
    assert "can be continued" not in told


def test_the_doctor_finds_a_whole_run_fine_and_changes_nothing(path: Path) -> None:
    before = contents(path)
    result = run("doctor", path)
    assert result.exit_code == 0, result.stderr
    told = result.stdout
    for word in ("config.toml", "pool.db", "rounds 0 to 5", "round-0004", "round-0005", "metrics.jsonl"):
        assert word in told
    assert "damaged" not in told
    assert contents(path) == before


def test_the_doctor_names_every_part_that_is_not_fine(saved: dict[int, Path], path: Path) -> None:
    shutil.copy(saved[4] / "pool.db", path / "pool.db")
    (path / "config.toml").write_text("[run]\nround = 1\n", encoding="utf-8")
    (path / "checkpoints/round-0004/agent/scripted.json").write_text("{}", encoding="utf-8")
    sentence = refused(run("doctor", path))
    assert sentence.startswith(f"{path} is damaged: config.toml, round-0004, round-0005, metrics.jsonl; ")
    shutil.rmtree(path / "checkpoints/round-0004")
    assert "round-0004 missing" in " ".join(run("doctor", path).stdout.replace("│", " ").split())


def test_the_doctor_checks_the_rest_of_a_run_whose_store_is_unreadable(path: Path) -> None:
    (path / "pool.db").write_bytes(b"no database" * 900)
    (path / "checkpoints/round-0004/agent/scripted.json").unlink()
    sentence = refused(run("doctor", path))
    assert sentence.startswith(f"{path} is damaged: pool.db, round-0004; ")


@pytest.mark.usefixtures("impatient")
def test_the_doctor_may_look_at_a_run_in_progress(path: Path) -> None:
    with RunFolder.open(path).lock():
        result = run("doctor", path)
    assert result.exit_code == 0, result.stderr
    assert "a process writes it" in " ".join(result.stdout.replace("│", " ").split())


def test_the_doctor_wants_a_run(tmp_path: Path) -> None:
    assert "is not a folder; name the folder of a run" in refused(run("doctor", tmp_path / "none"))


# what else overwrites


def test_generate_writes_over_no_file(path: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious", encoding="utf-8")
    sentence = refused(run("generate", path / "config.toml", "--n", 1, "--out", tmp_path / "mine.txt"))
    assert sentence == f"{tmp_path / 'mine.txt'} exists already; choose another --out, or delete it"
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "precious"
