"""Runs side by side: which belong together, their curves over seeds, and differences paired by seed."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from genenv.viewer.compare import charts, costs, differing, folders, groups, limited, paired
from genenv.viewer.folders import Runs
from genenv.viewer.pages import address, compared
from viewer_runs import text_of, write_run


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two variants with seeds 0, 1 and 2; one solves the held-out task in all, the other in the last."""
    root = tmp_path_factory.mktemp("compared")
    for name, trained, successes in (("rl", "true", (1, 1, 1)), ("random", "false", (0, 0, 1))):
        for seed, success in enumerate(successes):
            folder = write_run(
                root / "sweep" / name / f"seed-{seed}",
                rounds=3,
                run_seed=seed,
                head=f'variant = "{name}"\n',
                more=f"[simulator]\ntrain = {trained}\n",
            )
            with closing(sqlite3.connect(folder.pool)) as db:
                db.execute("UPDATE evaluations SET success = ? WHERE round = 2", (success,))
                db.commit()
            set_metric(folder.metrics, "simulator/valid_rate", [0.1 * seed, 0.1 * seed + 0.2, 0.1 * seed])
    return root


def set_metric(path: Path, name: str, values: Sequence[float | None]) -> None:
    """Write a metric of each round."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line, value in zip(lines, values, strict=True):
        line.pop(name, None)
        line |= {} if value is None else {name: value}
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def test_runs_that_differ_in_the_seed_alone_are_one_line_with_its_band(sweep: Path) -> None:
    found = groups(Runs(sweep).all())
    assert [(group.name, list(group.seeds)) for group in found] == [
        ("random", ["0", "1", "2"]),
        ("rl", ["0", "1", "2"]),
    ]
    valid = {chart["title"]: chart for chart in charts(found, "simulator", "rounds")}["simulator/valid_rate"]
    lines: Any = valid["groups"]
    assert [line["name"] for line in lines] == ["random (n = 3)", "rl (n = 3)"]
    assert lines[0]["x"] == [0, 1, 2]
    assert lines[0]["mean"] == [0.1, 0.3, 0.1]
    # t(0.975, 2) = 4.3027, s = 0.1: 4.3027 * 0.1 / sqrt(3) = 0.2484
    assert lines[0]["low"] == pytest.approx([-0.1484, 0.0516, -0.1484], abs=1e-4)
    assert lines[0]["high"] == pytest.approx([0.3484, 0.5484, 0.3484], abs=1e-4)


def test_one_run_has_no_band_and_curves_run_along_what_was_spent(sweep: Path) -> None:
    found = groups([Runs(sweep).find("sweep/rl/seed-1")])
    (line,) = next(chart["groups"] for chart in charts(found, "key", "tokens"))  # type: ignore[misc]
    assert line["x"] == [80, 160, 240]
    assert line["low"] == line["high"] == [None] * 3


def test_only_settings_that_differ_are_listed_side_by_side(sweep: Path) -> None:
    assert differing(groups(Runs(sweep).all())) == [("simulator.train", ["False", "True"])]


def test_held_out_success_is_paired_by_seed_and_task_and_other_metrics_by_seed(sweep: Path) -> None:
    found = groups(Runs(sweep).all())
    rows, notes = paired(found, found[0])
    assert not notes
    cells = {row.metric: (row.one, row.when, row.cell) for row in rows}
    # Differences 1, 1, 0: mean 2/3, standard error 1/3, t = 2 with 2 degrees of freedom.
    assert cells["agent/eval_success"] == (
        "rl",
        "round 2",
        ("+0.667", "-0.768 to +2.101", "0.184", "within noise", "3"),
    )
    assert cells["simulator/valid_rate"][2] == ("0", "–", "–", "the same in all seeds", "3")
    (held, *_), _ = paired(found, found[1])
    assert (held.one, held.cell[0]) == ("random", "-0.667")


def test_costs_are_means_over_runs_with_their_range(sweep: Path) -> None:
    assert costs(groups(Runs(sweep).all())) == [
        ("rounds", ["2", "2"]),
        ("tokens sampled", ["240", "240"]),
        ("seconds", ["12", "12"]),
    ]


def test_the_page_of_a_folder_and_of_its_runs_is_the_same(sweep: Path, serve: Any) -> None:
    reader = serve(sweep)
    front = reader.page("/")
    assert f'href="{compared(["sweep"])}">sweep</a>' in front
    assert "sweep/random 3 0.250 → 0.350" in text_of(front)
    assert "sweep 6 2 configurations" in text_of(front)
    boxes = re.findall(r'<input type="checkbox" name="run" value="([^"]*)"', front)
    assert boxes[:3] == ["sweep", "sweep/random", "sweep/rl"]
    names = boxes[3:]
    assert len(names) == 6
    page = text_of(reader.page(compared(["sweep"])))
    for sentence in (
        "2 configurations compared",
        "rl +0.667 -0.768 to +2.101 0.184 within noise 1 0.333 3 round 2",
        "simulator.train False True",
        "tokens sampled 240 240",
        "3 ✓ finished : seed 0 , seed 1 , seed 2",
    ):
        assert sentence in page
    assert text_of(reader.page(compared(names))) == page
    assert "Against rl, paired by seed" in text_of(reader.page(f"{compared(names)}&base=rl"))
    assert text_of(reader.page("/?text=random")).count("✓ finished") == 3
    assert 'value="sweep/rl/seed-0" aria-label="compare sweep/rl/seed-0" checked' in reader.page(
        "/?run=sweep/rl/seed-0"
    )
    two = text_of(reader.page(compared(["sweep/rl", "sweep/random"])))
    assert "2 configurations compared" in two
    data = json.loads(reader.page(f"/compare/curves?{compared(['sweep']).partition('?')[2]}&along=seconds"))
    assert data["charts"][0]["groups"][0]["x"] == [4, 8, 12]


@pytest.mark.parametrize(
    ("query", "status", "sentence"),
    [
        ("", 200, "Mark two or more runs"),
        ("?run=sweep/rl/seed-0", 200, "Mark two or more runs"),
        ("/curves", 400, "no run is chosen"),
        ("?run=sweep/rl/seed-9", 404, "not the folder of a run"),
        ("?run=../x", 404, "not the folder of a run"),
        ("?run=sweep&show=x&along=y&base=z", 200, "2 configurations"),
    ],
)
def test_a_wrong_choice_is_named(query: str, status: int, sentence: str, sweep: Path, serve: Any) -> None:
    assert sentence in text_of(serve(sweep).page(f"/compare{query}", status=status))


def test_marks_outlast_a_filter_and_a_filter_compares_what_it_shows(sweep: Path, serve: Any) -> None:
    reader = serve(sweep)
    page = reader.page("/?text=SEED-1+rl&run=sweep/random/seed-0&run=sweep/random&run=gone")
    rows = re.findall(r'aria-label="compare ([^"]*)"', page)
    assert rows == ["sweep/rl/seed-1"], "all words count, whatever their order"
    said = text_of(page)
    assert "Marked, but not in this list sweep/random/seed-0 sweep/random" in said
    assert page.count(" checked>") == 2
    assert "gone" not in said
    filtered = reader.page("/?text=random")
    assert "Compare these 3 runs" in text_of(filtered)
    assert compared([f"sweep/random/seed-{n}" for n in (2, 1, 0)]).replace("&", "&amp;") in filtered or all(
        f"sweep%2Frandom%2Fseed-{n}" in filtered for n in range(3)
    )
    assert re.findall(r'aria-label="compare all runs in ([^"]*)"', filtered) == ["sweep/random"]
    assert "Marked, but not" not in text_of(reader.page("/?run=sweep/rl/seed-0"))


def test_what_cannot_be_compared_is_said_and_the_rest_is_shown(tmp_path: Path, serve: Any) -> None:
    spoiled: Mapping[str, tuple[int, str]] = {
        "a": (0, ""),
        "b": (0, "beta = 3.0\n"),
        "c": (5, "beta = 4.0\n"),
    }
    for name, (seed, more) in spoiled.items():
        write_run(tmp_path / name, rounds=3, run_seed=seed, more=more)
    (tmp_path / "b" / "pool.db").write_bytes(b"no store")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "metrics.jsonl").write_text("{", encoding="utf-8")
    page = text_of(serve(tmp_path).page(compared(list("abcd"))))
    assert "b and a: pool.db" in page
    assert "Held-out tasks are not paired" in page
    assert "c and a have no seed in common, so nothing is paired." in page
    assert "b +0.000 – – one seed 0.35 0.35 1 round 2" in page
    assert "curriculum.beta – 3.0 4.0 –" in page


def test_runs_that_are_not_finished_are_left_out_where_others_are(tmp_path: Path) -> None:
    for name, more in (("a", ""), ("b", "beta = 3.0\n")):
        for seed in (0, 1):
            rounds = 2 if (name, seed) == ("b", 1) else 3
            write_run(tmp_path / name / str(seed), rounds=rounds, run_seed=seed, more=more)
    found = groups(Runs(tmp_path).all())
    assert [group.name for group in found] == ["a", "b"]
    rows, notes = paired(found, found[0])
    assert notes == ["b against a: 1 seed left out, whose runs are not finished."]
    assert {row.difference.seeds for row in rows} == {1}


def test_a_page_of_hostile_names_runs_nothing(tmp_path: Path, serve: Any) -> None:
    write_run(tmp_path / "<script>alert(1)<", rounds=2, more='x = "<script>alert(1)</script>"\n')
    write_run(tmp_path / "plain", rounds=2)
    reader = serve(tmp_path)
    page = reader.page(compared(["<script>alert(1)<", "plain"]))
    assert "<script>alert" not in page
    assert address("<script>alert(1)<") in page


def test_of_too_many_runs_all_configurations_keep_the_same_seeds(tmp_path: Path, serve: Any) -> None:
    for name in ("a", "b"):
        for seed in range(120):
            folder = tmp_path / "sweep" / name / f"{seed}"
            folder.mkdir(parents=True)
            (folder / "config.toml").write_text(f'variant = "{name}"\n[run]\nseed = {seed}\nrounds = 1\n')
            lines = [{"round": number, "agent/eval_success": 0.5} for number in range(2)]
            (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    kept, (note,) = limited(groups(Runs(tmp_path).all()), 200)
    assert [list(group.seeds) for group in kept] == [sorted(map(str, range(100)))] * 2
    assert note == (
        "40 of 240 runs are left out, as at most 200 are compared at once: shown are 100 seeds of 120, the "
        "same of all configurations. Choose fewer runs to see others."
    )
    reader = serve(tmp_path)
    assert note in text_of(reader.page(compared(["sweep"])))
    names = [f"sweep/{name}/{seed}" for name in ("b", "a") for seed in range(120)]
    assert note in text_of(reader.page(compared(names))), "runs of one configuration were named first"
    charts_ = json.loads(reader.page(f"/compare/curves?{compared(names).partition('?')[2]}"))["charts"]
    assert [line["name"] for line in charts_[0]["groups"]] == ["a (n = 100)", "b (n = 100)"]


def test_more_configurations_than_runs_that_can_be_compared_are_cut_off(tmp_path: Path) -> None:
    for beta in range(5):
        write_run(tmp_path / f"r{beta}", rounds=1, more=f"beta = {beta}.0\n")
    kept, notes = limited(groups(Runs(tmp_path).all()), 3)
    assert [group.name for group in kept] == ["r0", "r1", "r2"]
    assert "2 of 5 runs are left out" in notes[0]


def test_held_out_tasks_of_other_settings_of_the_environment_are_paired_with_a_note(tmp_path: Path) -> None:
    for name, depth in (("a", 1), ("b", 2)):
        folder = write_run(tmp_path / name, rounds=3)
        text = folder.config.read_text(encoding="utf-8")
        folder.config.write_text(text.replace('name = "sums"', f'name = "sums"\ndepth = {depth}'))
    found = groups(Runs(tmp_path).all())
    rows, notes = paired(found, found[0])
    assert rows[0].means == (1.0, 1.0)
    assert notes == [
        "b and a differ in environment.depth: if held-out tasks of one id are other tasks with that, the "
        "difference is one of tasks too."
    ]


def test_held_out_tasks_of_two_environments_are_not_paired(tmp_path: Path) -> None:
    for name in ("sums", "products"):
        folder = write_run(tmp_path / name, rounds=3)
        text = folder.config.read_text(encoding="utf-8")
        folder.config.write_text(text.replace('name = "sums"', f'name = "{name}"'))
    found = groups(Runs(tmp_path).all())
    rows, notes = paired(found, found[0])
    assert rows[0].means == (0.35, 0.35), "the metric, by seed"
    assert notes == ["sums and products: these are runs of sums and products. Held-out tasks are not paired."]


def test_a_seed_that_was_run_twice_counts_once(tmp_path: Path, serve: Any) -> None:
    for name, rounds in (("again", 2), ("first", 3)):
        write_run(tmp_path / "s" / name, rounds=rounds, run_seed=0)
    write_run(tmp_path / "s" / "other", rounds=3, run_seed=1)
    (found,) = groups(Runs(tmp_path).all())
    assert [run.name for run in found.runs] == ["s/first", "s/other"], "the one with more rounds"
    page = text_of(serve(tmp_path).page(compared(["s"])))
    assert "s: left out, as another run has the same settings and seed: s/again." in page
    assert "s 2 ✓ finished : seed 0 , seed 1" in page


def test_a_branch_is_a_configuration_of_its_own(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / "t" / f"s{seed}", rounds=3, run_seed=seed, head='variant = "rl"\n')
        note = f"# goes on from runs/t/s{seed}@1: these settings hold from round 2 on\n\n"
        write_run(tmp_path / "t" / f"b{seed}", rounds=3, run_seed=seed, head=f'{note}variant = "rl"\n')
    found = groups(Runs(tmp_path).all())
    assert [(group.name, [run.name for run in group.runs]) for group in found] == [
        ("rl (branch of round 1)", ["t/b0", "t/b1"]),
        ("rl", ["t/s0", "t/s1"]),
    ]
    (both, *_) = folders(Runs(tmp_path).all(), Runs(tmp_path).all())
    assert both.configurations == 2


def test_the_mean_of_a_folder_is_of_the_environment_after_a_shift(tmp_path: Path) -> None:
    for seed in (0, 1):
        folder = write_run(tmp_path / "s" / f"{seed}", rounds=5, run_seed=seed)
        set_metric(folder.metrics, "agent/eval_success", [0.8, 0.9, 0.9, 0.3, 0.4 + 0.2 * seed])
        set_metric(folder.metrics, "agent/eval_at_shift", [None, None, None, 0.2, None])
    runs = Runs(tmp_path).all()
    (both,) = folders(runs, runs)
    assert both.held_out == pytest.approx((0.2, 0.5))
    (chart,) = [one for one in charts(groups(runs), "key", "rounds") if one["title"] == "agent/eval_success"]
    assert str(chart["note"]).endswith("From round 3 on in another environment.")
