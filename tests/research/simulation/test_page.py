"""What `genenv lab` leaves behind."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from genenv.cli.app import app
from genenv.errors import UsageError
from genenv.research.simulation.learner import LabConfig
from genenv.research.simulation.run import run_arms, summary, write_page

CONFIG = LabConfig(rounds=3)
RUN = CliRunner()


def test_the_command_prints_a_table_and_fills_a_folder(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    options = ["--arms", "random, oracle,state", "--seeds", "5-9", "--rounds", "3", "--jobs", "1"]
    done = RUN.invoke(app, ["lab", *options, "--out", str(out)])
    assert done.exit_code == 0, done.output
    lines = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    order = [name for name in lines if name in {"random", "oracle", "state"}]
    assert order[0] == "oracle"
    assert sorted(order) == ["oracle", "random", "state"]
    assert "3 arms x 5 seeds x 3 rounds of 256 attempts" in done.stdout
    assert sorted(path.name for path in out.iterdir()) == ["curves.csv", "lab.html", "lives.csv"]
    lives = (out / "lives.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in lives] == ["seed", "5", "6", "7", "8", "9"]


@pytest.mark.long
def test_the_folder_holds_the_same_numbers_as_the_table(tmp_path: Path) -> None:
    results = run_arms(["random", "oracle"], CONFIG, seeds=range(6))
    first = write_page(tmp_path / "a", results, CONFIG).read_text(encoding="utf-8")
    assert first == write_page(tmp_path / "b", results, CONFIG).read_text(encoding="utf-8")
    best = summary(results, CONFIG.goal)[0]
    with (tmp_path / "a" / "lives.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert sum(float(row["oracle"]) for row in rows) / 6 == pytest.approx(best.held_out, abs=1e-5)
    assert best.gain == pytest.approx(
        sum(float(row["oracle"]) - float(row["random"]) for row in rows) / 6, abs=1e-5
    )
    with (tmp_path / "a" / "curves.csv").open(encoding="utf-8") as file:
        ends = [row for row in csv.DictReader(file) if row["round"] == "3" and row["arm"] == "oracle"]
    assert float(ends[0]["held_out"]) == pytest.approx(best.held_out, abs=1e-5)
    assert ends[0]["attempts"] == "768"
    (stored,) = re.findall(r'<script type="application/json" id="curves">(.*)</script>', first)
    (chart,) = json.loads(stored)["charts"]
    assert [line["name"] for line in chart["groups"]] == [row.arm for row in summary(results, CONFIG.goal)]
    assert chart["groups"][0]["x"] == [0, 1, 2, 3]
    assert chart["groups"][0]["mean"][-1] == pytest.approx(best.held_out, abs=1e-4)
    assert not re.findall(r'(?:src|href)="', first), "it loads no other file"


def test_without_the_reference_there_is_no_gain() -> None:
    (row,) = summary(run_arms(["oracle"], CONFIG, seeds=range(2)), CONFIG.goal)
    assert row.gain is None


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        write_page(tmp_path / "file", run_arms(["base"], CONFIG, seeds=range(1)), CONFIG)


def test_wrong_words_end_in_one_sentence() -> None:
    done = RUN.invoke(app, ["lab", "--arms", "genenvv"])
    assert done.exit_code == 2
    assert done.stderr.startswith("genenv: unknown arm 'genenvv'; did you mean 'genenv'?")
