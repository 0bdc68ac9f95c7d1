"""The paper's comparison by one command: rows share warm-ups and size of rounds, and stand in one table."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.conftest import Scripted
from genenv.config.run import load_config
from genenv.errors import RolloutError, UsageError
from genenv.evaluation import evaluate as evaluation
from genenv.evaluation.config import load_evaluation_config
from genenv.research.reproduce import (
    PAPER_TABLE,
    PAPER_VALIDATION,
    markdown,
    tables,
    write_pages,
)
from genenv.research.reproduction import (
    ROWS,
    Measured,
    Reproduction,
    Result,
    Results,
    Row,
    collect,
    collect_runs,
    columns,
    headline,
    rows_of,
)
from genenv.research.sweeps.page import along_rounds
from genenv.research.sweeps.readings import BUDGETS, MeasuredRun, Measurement
from typed import refused, run, succeeds

CONFIG = Path(__file__).parents[2] / "configs" / "tiny-paper.toml"
SMALL = (
    *("run.rounds=1", "run.eval_every=1", "run.eval_tasks=12", "simulator.contexts=2", "agent.rollouts=2"),
    "policy.backend=scripted",
)


def words(out: Path, rows: str, *more: object) -> list[object]:
    settings = [word for one in SMALL for word in ("--set", one)]
    return ["reproduce", CONFIG, *settings, "--rows", rows, "--out", out, *more]


def run_of(variant: str, scores: dict[str, float], seed: int = 0) -> MeasuredRun:
    spent: dict[str, float] = {"attempts": 0.0, "all tokens": 0.0}
    measured = [
        Measurement(0, spent, dict.fromkeys(scores, 0.0)),
        Measurement(1, {"attempts": 8.0, "all tokens": 64.0}, scores),
    ]
    config = load_config(CONFIG, [f"run.seed={seed}", "run.rounds=1"])
    metrics = {0: {"time/round_s": 9.0}, 1: {"time/round_s": 2.0, "agent/new_success": 0.25}}
    return MeasuredRun(Path("run"), variant, seed, config, measured, metrics)


def test_every_row_is_a_variant_that_the_configuration_can_have(tmp_path: Path) -> None:
    rows = rows_of(list(ROWS), [957, 1777])
    plan = Reproduction.begin(tmp_path, CONFIG, [], rows=rows, seeds=[0, 1])
    variants = [variant for grid in plan.grids for variant in grid.variants]
    assert sorted(variants) == sorted(row.variant for row in rows.values())
    assert [grid.path.name for grid in plan.grids] == ["rows", "parameters"]
    assert plan.grids[1].variants == ["matched+aim"]
    assert all(grid.shared_warmup for grid in plan.grids)
    assert load_config(plan.grids[0].config).simulator.file == str(tmp_path / "offline.jsonl")
    assert {*PAPER_VALIDATION} < {*rows}


def test_rows_of_earlier_calls_in_the_other_sweep_are_read_and_not_trained(tmp_path: Path) -> None:
    def planned(names: list[str], *settings: str) -> Reproduction:
        return Reproduction.begin(tmp_path, CONFIG, settings, rows=rows_of(names, [5]), seeds=[len(names)])

    planned(["random", "aim"])
    for name, trained in (("aim", "parameters"), ("random", "rows")):
        plan = planned([name])
        assert [grid.path.name for grid in plan.grids] == ["rows", "parameters"]
        assert [grid.path.name for grid in plan.trained] == [trained]
        assert list(plan.known_rows) == ["random", "aim"]
        assert plan.trained[0].seeds == [1, 2]
    with pytest.raises(UsageError, match=r"rows is a sweep of other settings"):
        planned(["aim"], "agent.rollouts=4")


def test_a_simulator_that_sets_parameters_anyway_needs_one_warm_up(tmp_path: Path) -> None:
    setting = 'simulator.writes="parameters"'
    plan = Reproduction.begin(tmp_path, CONFIG, [setting], rows=rows_of(["paper", "aim"], [9]), seeds=[0])
    assert [grid.variants for grid in plan.grids] == [["paper", "matched+aim"]]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("--rows", "bass"), "unknown row 'bass'; did you mean 'base'?"),
        (("--rows", "base,base"), "row 'base' is named twice"),
        (("--rows", ","), "--rows names none"),
        (("--offline", "many"), "--offline takes numbers of tasks, such as 957,1777, not 'many'"),
        (("--offline", "0"), "--offline takes numbers of tasks"),
        (("--set", "simulator.source=variation"), "simulator.source is 'variation', but a model writes"),
        (("--limit", 3), "--limit and --data go with --benchmarks"),
        (("--benchmarks", "bfcl", "--set", "policy.backend=scripted"), "but policy.backend is 'scripted'"),
        (("--benchmarks", "held-out"), "'held-out', which our table has as columns already"),
        (("--benchmarks", "bflc"), "unknown benchmark 'bflc'; did you mean 'bfcl'?"),
        (("--set", 'simulator.writes="parameters"'), "the simulator is warmed up on parameters: name an"),
        (("--set", "run.eval_every=0"), "run.eval_every is 0, so nothing would be measured"),
        (("--set", "simulator.variations=8"), "per_seed is 5, but a context takes 8 variations"),
    ],
)
def test_what_cannot_be_reproduced_is_said_in_a_sentence(
    given: tuple[str, str], sentence: str, tmp_path: Path
) -> None:
    assert sentence in refused("reproduce", CONFIG, "--out", tmp_path / "out", *given)


def test_results_are_read_by_member_and_stand_beside_the_papers(tmp_path: Path) -> None:
    scores = {"usual:1": 1.0, "usual:2": 0.0, "deep:1": 1.0}
    assert columns(run_of("paper", scores), Measurement(1, {}, scores)) == {"usual": 0.5, "deep": 1.0}
    rows = rows_of(["paper", "base"], [9])
    found = Results(
        load_config(CONFIG),
        {"usual": 2, "deep": 1},
        [{"usual": 0.0, "deep": 0.0}] * 2,
        [
            _result("paper", rows["paper"], [run_of("paper", scores, 0), run_of("paper", scores, 1)]),
            _result("base", rows["base"], []),
        ],
    )
    printed, ours, both = tables(found)
    assert dict(zip(printed.head, printed.rows[-1], strict=True))["mean"] == "53.6"
    assert ours.rows[0][:4] == ("before training", "0.0 ± 0.0", "0.0 ± 0.0", "0.0 ± 0.0")
    assert ours.rows[1][:8] == ("paper", "50.0 ± 0.0", "100.0 ± 0.0", "66.7 ± 0.0", "8", "64", "2", "2")
    assert ours.rows[2][:4] == ("base", "–", "–", "–")
    assert both.rows == [("GenEnv", "45.8", "66.7 ± 0.0")]
    text = markdown("title", "subtitle", [printed, ours, both], ["one found"], ["one note"])
    assert re.search(r"^\| GenEnv \| 54\.5 \| 41\.8 \|", text, re.MULTILINE)
    assert text.count("\n| ---") == 3
    assert "- one found" in text


def test_means_and_differences_are_over_tasks_and_notes_on_them_are_on_the_page(tmp_path: Path) -> None:
    """20 of 22 tasks are of one member of the mixture; the runs were not measured between their ends."""
    solved = {"paper+random": (10, 2), "paper": (12, 0)}
    runs = [
        run_of(
            variant, {f"a:{i}": float(i < a) for i in range(20)} | {f"b:{i}": float(i < b) for i in (0, 1)}
        )
        for variant, (a, b) in solved.items()
    ]
    far = [
        replace(run.measured[1], round=4, spent=dict.fromkeys(BUDGETS, 8.0 + i)) for i, run in enumerate(runs)
    ]
    runs = [
        replace(run, measured=[replace(run.measured[0], spent=dict.fromkeys(BUDGETS, 0.0)), end])
        for run, end in zip(runs, far, strict=True)
    ]
    found = collect_runs(load_config(CONFIG), rows_of(["random", "paper"], []), runs, place=tmp_path)
    ours = {row[0]: row[3] for row in tables(found)[1].rows}
    assert (ours["random"], ours["paper"]) == ("54.5", "54.5")
    text = write_pages(found, tmp_path)
    assert "paper against paper+random, at the end: 54.5% and 54.5%, +0.0 points" in text
    _, _, notes = text.partition("## Notes")
    assert "- measurements are up to 4 rounds apart: success at equal" in notes
    assert "measurements are up to 4 rounds apart" in (tmp_path / "reproduce.html").read_text()


def test_runs_of_one_seed_that_began_otherwise_are_said_to(tmp_path: Path) -> None:
    runs = [run_of(variant, {"a:0": 1.0}, seed) for variant in ("paper", "paper+base") for seed in (0, 1)]
    (began, end), rows = runs[1].measured, rows_of(["base", "paper"], [])
    assert collect_runs(load_config(CONFIG), rows, runs, place=tmp_path).notes == []
    runs[1] = replace(runs[1], measured=[replace(began, scores={"a:0": 1.0}), end])
    assert collect_runs(load_config(CONFIG), rows, runs, place=tmp_path).notes == [
        "seed 1 began otherwise in paper+base: before training is that of paper"
    ]


def _result(name: str, row: Row, runs: list[MeasuredRun]) -> Result:
    return Result(name, row, [columns(run, run.measured[-1]) for run in runs], runs)


def test_the_mean_of_each_row_of_the_papers_table_is_that_of_its_columns() -> None:
    for *values, mean in PAPER_TABLE.values():
        assert sum(values) / len(values) == pytest.approx(mean, abs=0.06)


def test_figures_have_the_papers_values_where_they_are_known() -> None:
    runs = {"paper": [run_of("paper", {"usual:1": 1.0})]}
    drawn = along_rounds(runs, "agent/new_success", "Success", "", marks={"the paper": 0.524})
    assert drawn is not None
    assert "the paper: 0.524 at last" in str(drawn["said"])
    assert along_rounds(runs, "tasks/text_tokens", "Length", "", marks={"the paper": 137.0}) is None


@pytest.mark.long
def test_agents_are_measured_on_benchmarks_once_and_stand_in_a_table_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    settings = [word for one in (*SMALL[:-1], "agent.warmup.steps=2") for word in ("--set", one)]
    asked = ["reproduce", CONFIG, *settings, "--rows", "base", "--seeds", 1, "--out", out]
    asked += ["--benchmarks", "bfcl", "--limit", 2]
    with monkeypatch.context() as down:
        down.setattr(evaluation, "assistant", lambda *_: Scripted(lambda _: RolloutError("down")))
        none = run(*asked)
    assert none.exit_code == 1
    assert "4 items of benchmarks without an answer" in none.stdout
    _, _, notes = (out / "reproduce.md").read_text().partition("## Notes")
    assert "- base, seed 0: 2 items of bfcl without an answer" in notes
    shutil.rmtree(out / "benchmarks")
    assert "agent 2 of 2: base, seed 0, on bfcl" in succeeds(*asked, "--resume").stderr
    assert "without an answer" not in (out / "reproduce.md").read_text()
    again = succeeds(*asked, "--resume")
    assert "on bfcl" not in again.stderr
    text = (out / "reproduce.md").read_text()
    assert "scored as in the paper; items: BFCL 2." in text
    more = [word if word != "base" else "supervised" for word in asked]
    assert "base, seed 0" not in succeeds(*more, "--resume").stderr
    text += (out / "reproduce.md").read_text()
    for row in ("before training", "base"):
        assert len(re.findall(rf"^\| {row} \| [\d.]+ \| [\d.]+ \| 1 \|$", text, re.MULTILINE)) == 2
    assert "on bfcl" in succeeds(*asked[:-1], 3, "--resume").stderr
    folder = out / "benchmarks" / "base" / "seed-0"
    for file in folder.glob("*.summary.json"):  # what `--regrade` keeps of the figures before it
        other = file.read_text().replace('"limit": 3', '"limit": 4')
        (folder / file.name.replace(".summary", ".before-1.summary")).write_text(other)
    assert headline(folder, "bfcl", 3) is not None
    assert headline(folder, "bfcl", 4) is None
    (kept,) = (one for one in folder.glob("*.summary.json") if "before" not in one.name)
    summary = json.loads(kept.read_text())
    summary["data"] = dict.fromkeys(summary["data"], "0" * 64)
    kept.write_text(json.dumps(summary))
    assert "was run with other data; choose another --out" in refused(*asked[:-1], 3, "--resume")


@pytest.mark.long
def test_a_warm_up_that_fails_loses_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, rows = tmp_path / "out", rows_of(["base", "offline"], [4])
    plan = Reproduction.begin(out, CONFIG, SMALL, rows=rows, seeds=[0, 1])
    warm_up = list(plan.grids[0].warm_ups())[1].path
    warm_up.parent.mkdir()
    warm_up.write_text("in the way")
    measured: list[list[tuple[str, int]]] = []

    def measure(self: Reproduction, *_: object) -> None:
        assert (out / "reproduce.md").is_file(), "written before a measurement that may fail"
        measured.append([(name, seed) for name, seed, _ in self.agents()])

    asked = Measured(["bfcl"], load_evaluation_config([]))
    monkeypatch.setattr(Measured, "checked", lambda *_, **__: asked)
    monkeypatch.setattr(Reproduction, "measure", measure)
    more = ("--offline", 4, "--seeds", 2, "--benchmarks", "bfcl", "--resume")
    found = run(*words(out, "base,offline", *more))
    assert found.exit_code == 1
    assert found.stderr.count("warm-up, seed 1 failed") == 1, "it is not tried twice"
    assert "failed: warm-up, seed 1: " in found.stdout
    assert measured == [[("before training", 0), ("base", 0), ("offline-4", 0)]]


@pytest.mark.long
def test_two_rows_are_trained_go_on_and_are_shown_on_one_page(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = succeeds(*words(out, "base,offline", "--offline", 4, "--seeds", 1))
    assert "| offline-4 |" in first.stdout
    assert len((out / "offline.jsonl").read_text().splitlines()) == 4
    assert "holds a reproduction already; add --resume" in refused(*words(out, "base"))
    succeeds(*words(out, "base,paper", "--seeds", 1, "--resume"))
    text = (out / "reproduce.md").read_text()
    assert "| paper |" in text
    assert "| offline-4 |" in text  # a row of the first call
    lines = [json.loads(line) for line in (out / "offline.jsonl").read_text().splitlines()]
    assert all(line["tokens"] > 0 for line in lines), "the simulator sampled them"
    assert "in no budget" not in text
    short = refused(*words(out, "offline", "--offline", "4,9", "--seeds", 1, "--resume"))
    assert "offline.jsonl has 4 tasks, and the row offline-9 needs 9" in short
    assert "usual" in text
    assert "paper against paper+base" in text
    page = (out / "reproduce.html").read_text()
    assert "Success on generated tasks" in page
    found = collect(
        Reproduction.begin(out, CONFIG, [*SMALL], rows=rows_of(["base", "paper"], [4]), seeds=[0])
    )
    assert [(one.name, len(one.runs)) for one in found.rows] == [
        ("base", 1),
        ("offline-4", 1),
        ("offline-9", 0),
        ("paper", 1),
    ]
    assert {*found.columns} == {"usual", "renamed", "deep"}
    used = found.rows[1].runs[0].metrics[1]["tokens/simulator_sampled"]
    assert 0 < used <= sum(line["tokens"] for line in lines)
