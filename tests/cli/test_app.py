"""What people type: help loads nothing, and every wrong input ends in one sentence and status 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import genenv
import genenv.runs.store.database
import scripted_genenv as fakes
from genenv.cli.app import COMMANDS, _about, load_command
from typed import refused, run, succeeds

pytestmark = pytest.mark.usefixtures("scripted")


def test_the_version_is_printed() -> None:
    assert succeeds("--version").stdout == f"genenv {genenv.__version__}\n"


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, sysconfig, typer, typer.rich_utils; from pathlib import Path\n"
        "sys.argv = ['genenv', '--help']; before = set(sys.modules)\n"
        "try:\n"
        "    from genenv.cli.app import main\n"
        "    main()\n"
        "finally:\n"
        "    installed = sysconfig.get_path('purelib')\n"
        "    files = {n: getattr(sys.modules[n], '__file__', None) for n in set(sys.modules) - before}\n"
        "    print(*sorted(n for n, f in files.items() if str(f).startswith(installed)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in ("train", "generate", "report", "doctor"))
    foreign = {name.partition(".")[0] for name in done.stderr.split()} - {"genenv"}
    assert foreign <= {"typer", "rich", "markdown_it", "mdurl", "pygments"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_that_stands_for_a_command_is_the_first_that_it_says_of_itself(name: str) -> None:
    command = load_command(name)
    assert command.name == name
    assert _about(COMMANDS[name]) == (command.help or "").partition("\n")[0]


@pytest.mark.parametrize(
    "words", [["train"], ["trian", "a.toml"], ["generate", "a.toml", "--n", "0"], ["report"]]
)
def test_a_wrong_command_line_shows_how_to_write_it(words: list[str]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.long
def test_a_real_process_ends_in_one_sentence_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "genenv", "train", str(tmp_path / "none.toml")], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("genenv: there is no file ")
    assert done.stderr.splitlines()[:-1] == ["starting a run ..."]


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("run.round=3", "unknown setting 'run.round'; did you mean 'run.rounds'?"),
        ("run.rounds=many", "setting 'run.rounds' is \"many\"; allowed: "),
        ("run.rounds", "--set takes key=value"),
        ("environment.name=chess", "unknown environment 'chess'"),
    ],
)
def test_a_wrong_setting_is_named(config: Path, override: str, sentence: str) -> None:
    assert refused("train", config, "--set", override).startswith(sentence)


def test_a_config_must_be_a_toml_file(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("rounds = = 3", encoding="utf-8")
    assert "there is no file" in refused("train", tmp_path / "none.toml")
    assert (
        "is a folder; name a TOML file, or one of dataset, demo, household-aim, household-lab, "
        in refused("train", tmp_path)
    )
    assert "is not valid TOML" in refused("train", tmp_path / "bad.toml")


@pytest.mark.parametrize("command", ["train", "generate"])
def test_a_corpus_is_read_before_anything_is_made_and_its_bad_line_is_named(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.jsonl").write_text('{"title": "Ada", "text": "Ada leads."}\n{"title": 3}\n')
    config = tmp_path / "questions.toml"
    config.write_text('[environment]\nname = "multihop_qa"\n')
    monkeypatch.chdir(tmp_path)
    assert f"{tmp_path / 'own.jsonl'}, line 2: " in refused(command, config, "--corpus", "own.jsonl")
    assert "environment.corpus" in refused(command, config, "--corpus", "nowhere.jsonl")
    config.write_text("")
    assert "unknown setting 'environment.corpus'" in refused(command, config, "--corpus", "own.jsonl")


@pytest.mark.parametrize("command", ["train", "generate"])
@pytest.mark.parametrize(
    ("seeds", "sentence"),
    [
        (0, "the environment has no seeds to vary"),
        (2, "simulator.contexts is 3, but the environment has 2 seeds"),
    ],
)
def test_too_few_seeds_are_noticed_before_anything_is_made(
    command: str, seeds: int, sentence: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.few_base_data(monkeypatch, seeds=seeds)
    assert refused(command, config, "--out", tmp_path / "x").startswith(sentence)
    assert not (tmp_path / "x").exists()
