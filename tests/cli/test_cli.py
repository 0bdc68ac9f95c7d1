"""What people type: every wrong input ends in one sentence and status 2, and committed rounds stay."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import genenv
import genenv.runs.store.database
import scripted_genenv as fakes
from genenv.cli import opening
from genenv.cli.app import COMMANDS, load_command
from genenv.config.run import all_settings, load_config
from genenv.errors import UsageError
from genenv.gate.gate import Gate
from genenv.runs.folder import RunFolder
from genenv.runs.store.store import PoolStore
from genenv.types import Origin
from typed import run, succeeds


def refused(*words: object) -> str:
    """The one sentence in which a command ends."""
    result = run(*words)
    assert result.exit_code == 2, (result.exception, result.stderr)
    sentences = [line for line in result.stderr.splitlines() if line.startswith("genenv: ")]
    assert sentences == result.stderr.splitlines()[-1:]
    assert "Traceback" not in result.stderr
    return sentences[0].removeprefix("genenv: ")


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


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.few_base_data(monkeypatch)
    monkeypatch.setattr(opening, "load_players", fakes.scripted_players)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(fakes.SETTINGS.format(rounds=2), encoding="utf-8")
    return path


@pytest.fixture
def finished(config: Path, tmp_path: Path) -> Path:
    """A run of two rounds."""
    succeeds("train", config, "--out", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def halfway(config: Path, tmp_path: Path) -> Path:
    """A run that was stopped in its second round."""
    admit, calls = Gate.admit, []

    def stop(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return admit(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gate, "admit", stop)
        result = run("train", config, "--out", tmp_path / "halfway")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1].startswith("genenv: stopped; committed rounds are kept")
    return tmp_path / "halfway"


# the words themselves


def test_the_version_is_printed() -> None:
    assert succeeds("--version").stdout == f"genenv {genenv.__version__}\n"


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, time; start = time.process_time(); sys.argv = ['genenv', '--help']\n"
        "from genenv.cli.app import main\n"
        "try: main()\n"
        "finally: print(time.process_time() - start, 'torch' in sys.modules, file=sys.stderr)"
    )
    fastest = 9.0
    for _ in range(3):  # the machine may be busy
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        took, torch = done.stderr.split()
        fastest = min(fastest, float(took))
        assert torch == "False"
        assert all(name in done.stdout for name in ("train", "generate", "report", "doctor"))
        if fastest < 0.5:
            break
    assert fastest < 0.5


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_that_stands_for_a_command_is_the_first_that_it_says_of_itself(name: str) -> None:
    command = load_command(name)
    assert command.name == name
    assert COMMANDS[name][1] == (command.help or "").partition("\n")[0]


@pytest.mark.parametrize(
    "words", [["train"], ["trian", "a.toml"], ["generate", "a.toml", "--n", "0"], ["report"]]
)
def test_a_wrong_command_line_shows_how_to_write_it(words: list[str]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_real_process_ends_in_one_sentence_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "genenv", "train", str(tmp_path / "none.toml")], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("genenv: there is no file ")
    assert done.stderr.splitlines()[:-1] == ["starting a run ..."]


# settings and base data


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("run.round=3", "unknown setting 'run.round'; did you mean 'run.rounds'?"),
        ("run.rounds=many", "setting 'run.rounds' is \"many\"; allowed: "),
        ("run.rounds", "--set takes key=value"),
        ("domain.name=chess", "unknown domain 'chess'"),
    ],
)
def test_a_wrong_setting_is_named(config: Path, override: str, sentence: str) -> None:
    assert refused("train", config, "--set", override).startswith(sentence)


def test_a_config_must_be_a_toml_file(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("rounds = = 3", encoding="utf-8")
    assert "there is no file" in refused("train", tmp_path / "none.toml")
    assert "is a folder; name a TOML file, or one of household, " in refused("train", tmp_path)
    assert "is not valid TOML" in refused("train", tmp_path / "bad.toml")


@pytest.mark.parametrize("command", ["train", "generate"])
def test_a_corpus_is_read_before_anything_is_made_and_its_bad_line_is_named(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.jsonl").write_text('{"title": "Ada", "text": "Ada leads."}\n{"title": 3}\n')
    config = tmp_path / "questions.toml"
    config.write_text('[domain]\nname = "multihop_qa"\n')
    monkeypatch.chdir(tmp_path)
    assert f"{tmp_path / 'own.jsonl'}, line 2: " in refused(command, config, "--corpus", "own.jsonl")
    assert "domain.corpus" in refused(command, config, "--corpus", "nowhere.jsonl")
    config.write_text("")
    assert "unknown setting 'domain.corpus'" in refused(command, config, "--corpus", "own.jsonl")


@pytest.mark.parametrize("command", ["train", "generate"])
@pytest.mark.parametrize(
    ("seeds", "sentence"),
    [(0, "the domain has no seeds to vary"), (2, "simulator.contexts is 3, but the domain has 2 seeds")],
)
def test_too_few_seeds_are_noticed_before_anything_is_made(
    command: str, seeds: int, sentence: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.few_base_data(monkeypatch, seeds=seeds)
    assert refused(command, config, "--out", tmp_path / "x").startswith(sentence)
    assert not (tmp_path / "x").exists()


# folders


def test_a_run_ends_with_five_lines_and_what_to_type_next(
    finished: Path, config: Path, tmp_path: Path
) -> None:
    result = succeeds("train", config, "--out", tmp_path / "again")
    lines = result.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "held-out success",
        "valid tasks of the simulator",
        "mean p_hat in the last third of the rounds",
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
        sentence = refused("train", config, *out, "--set", "logging.tensorboard=true")
        assert sentence.endswith("pip install tensorboard")
        assert not (tmp_path / "mended").exists()
        patch.setattr(opening, "load_players", cold)
        assert "set agent.warmup.check_tasks lower" in refused("train", config, *out, "--set", "run.seed=3")
    succeeds("train", config, *out)
    assert digest(tmp_path / "mended") == digest(finished)
    assert contents(tmp_path / "mended")["config.toml"] == contents(finished)["config.toml"]


def test_resuming_a_finished_run_changes_nothing_and_says_so(finished: Path, config: Path) -> None:
    before = contents(finished)
    for settings in (config, finished / "config.toml"):
        lines = succeeds("train", settings, "--out", finished, "--resume").stdout.splitlines()
        assert lines[0] == f"{finished} is finished: all of its 2 rounds are committed, nothing was changed"
        assert len(lines) == 7
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
    assert "Not a directory; check that the file or folder is there and that you may use it" in sentence
    assert "is a folder; name a file" in refused("generate", config, "--out", tmp_path)


def test_a_run_is_opened_once_at_a_time(finished: Path, config: Path) -> None:
    with RunFolder.open(finished).lock():
        for rounds_ in (2, 3):
            sentence = refused(
                "train", config, "--out", finished, "--resume", "--set", f"run.rounds={rounds_}"
            )
            assert f"is being written by another process (process {os.getpid()})" in sentence
    assert load_config(finished / "config.toml").run.rounds == 2


# damage


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

    def limited(connection: Any, path: Path) -> None:
        prepare(connection, path)
        connection.execute("PRAGMA max_page_count = 1")  # raised by SQLite to the size that the file has

    monkeypatch.setattr(genenv.runs.store.database, "_prepare", limited)


def failing_save(error: Callable[..., None]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr("genenv.backends.scripted.ScriptedLearner.save", error)


def test_running_out_of_memory_twice_ends_in_a_sentence_and_the_run_goes_on_with_less(
    halfway: Path, config: Path
) -> None:
    def too_large(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genenv.backends.scripted.ScriptedLearner.update", too_large)
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
        lambda patch: patch.setattr("genenv.runs.checkpoint.os.fsync", no_space),
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


# extreme settings


def extremes() -> dict[str, dict[str, float]]:
    """The fractions among the settings of a run, each at an end of its range; counts cost what they say."""
    ends: dict[str, dict[str, float]] = {"lowest": {}, "highest": {}}
    for key, field in all_settings("tool_calling"):
        bounds = {sign: value for rule in field.metadata for sign, value in vars_of(rule)}
        if (
            field.annotation is float
            and "curriculum" in key
            and not key.endswith(("base_share", "review_share"))
        ):
            ends["lowest"][key], ends["highest"][key] = bounds["ge"], bounds["le"]
    return ends


def vars_of(rule: object) -> list[tuple[str, float]]:
    return [(sign, float(getattr(rule, sign))) for sign in ("ge", "le") if hasattr(rule, sign)]


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


def test_a_run_goes_through_with_priors_at_the_ends_of_their_range(config: Path, tmp_path: Path) -> None:
    for prior in ("[0.01, 0.01]", "[10000.0, 10000.0]", "[0.01, 10000.0]"):
        succeeds("train", config, "--out", tmp_path / prior, "--set", f"curriculum.prior={prior}")


# the other commands


def test_generate_writes_tasks_that_passed_the_gate(finished: Path, config: Path, tmp_path: Path) -> None:
    result = succeeds(
        "generate", config, "--n", "3", "--run", finished, "--out", tmp_path / "deep" / "tasks.jsonl"
    )
    lines = (tmp_path / "deep" / "tasks.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    assert {"id", "messages", "oracle", "spec"} <= json.loads(lines[0]).keys()
    assert "3 tasks of " in result.stderr
    assert len(succeeds("generate", config, "--n", "2").stdout.splitlines()) == 2


def test_generate_knows_the_tasks_that_its_run_has_already(
    finished: Path, config: Path, tmp_path: Path
) -> None:
    succeeds("generate", config, "--n", "3", "--run", finished, "--out", tmp_path / "tasks.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text("utf-8").splitlines()]
    with PoolStore.open(finished / "pool.db", create=False) as store:
        known = store.tasks(origin=Origin.GENERATED)
        last = store.last_round()
    assert known
    assert {line["id"].partition("-c")[0] for line in lines} == {f"task-r{last + 1:04d}"}
    assert not {json.dumps(line["spec"]) for line in lines} & {json.dumps(dict(t.spec)) for t in known}


def test_generate_wants_the_model_and_the_domain_of_its_run(finished: Path, config: Path) -> None:
    options = ("--run", finished, "--set", "policy.lora_alpha=1", "--set", "domain.style=json")
    sentence = refused("generate", config, *options)
    assert "was trained with other settings: domain.style, policy.lora_alpha; " in sentence


def test_generate_says_so_when_nothing_passes(config: Path) -> None:
    sentence = refused("generate", config, "--set", "simulator.max_new_tokens=20")
    assert sentence.startswith("none of 30 generations passed the gate; ")


def test_generate_writes_no_more_than_it_was_asked_for(config: Path) -> None:
    result = succeeds(
        "generate", config, "--n", "1", "--set", "simulator.contexts=20", "--set", "simulator.variations=1"
    )
    written = int(re.search(r"1 tasks of (\d+) generations", result.stderr)[1])
    assert written <= 3, "it once wrote a whole round, 20 specs, for one task"


def test_report_prints_where_the_page_is(finished: Path) -> None:
    assert succeeds("report", finished).stdout == f"report: {finished / 'report.html'}\n"
    assert (finished / "report.html").stat().st_size > 10_000


def test_doctor_says_what_is_here() -> None:
    told = succeeds("doctor").stdout
    for word in ("Python", "memory", "torch", "xgrammar", "embedded model", "wandb"):
        assert word in told
