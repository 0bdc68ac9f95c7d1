"""The scripts of `bench/` still run: nobody looks at them between two measurements, and the code goes on.

Types are checked by `make check`. Here each script is imported and asked for help, and has a small run.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import scripted_genenv
from bundles import EXAMPLES
from genenv import Lineage, Origin, Rejection
from genenv.config.run import load_config
from genenv.errors import UsageError
from genenv.research.sweeps.compare import compare_runs
from genenv.runs.folder import RunFolder

TESTS = Path(__file__).parent
BENCH = TESTS.parent / "bench"
RUNS = 'if __name__ == "__main__":'
SCRIPTS = {path.stem for path in BENCH.glob("*.py") if RUNS in path.read_text(encoding="utf-8")}
SIZES = ("--dtype", "float32", "--repeats", "1")

TABLES = {"interval_size", "stated_intervals"}
"""Those of SLOW that print a table of Markdown; the others print JSON."""
FAST = {
    "agents",
    "control",
    "environments",
    "picture",
    "viewer_pictures",
    "portability",
    "quickstart_seeds",
    "rows_picture",
    "imported",
    "textarena_games",
    "own_tools",
    "tinker_cookbook",
    "memory_table",
    "paper_rows",
}
"""Those whose small run is one of the tests below, or of another file."""
BY_HAND = {"cleanrl_worker", "parity_travelplanner", "travelplanner_worker"}
"""Those whose smallest run takes minutes, and what they start."""
SLOW: dict[str, tuple[str, ...]] = {
    "generate": (*SIZES, "--model", "{tiny}", "--prompts", "2", "--length", "24", "--new", "4"),
    "update": (*SIZES, "--model", "{tiny}", "--groups", "2", "--rollouts", "2", "--prompt", "24",
               "--completion", "4", "--peer-batch", "4"),
    "round": (*SIZES, "--prompts", "2", "--group", "2", "--length", "24", "--new", "4", "--peer-batch", "4"),
    "scaling": ("rounds", "--rounds", "22"),
    "kernels": ("--repeats", "1"),
    "against": ("--tree", "{here}", "--repeats", "1", "--turns", "1", "--", "bench/generate.py", "--model",
                "{tiny}", "--dtype", "float32", "--prompts", "2", "--length", "24", "--new", "4"),
    "unchanged": ("--only", "tool_calling-scripted", "--set", "run.rounds=1", "--out", "{out}"),
    "viewer_load": ("--run", "{out}/load", "--tasks", "48", "--contexts", "2", "--asks", "1", "--readers",
                    "2", "--rounds", "1", "--every", "0"),
    "soak": ("--rounds", "4", "--every", "2", "--stall", "1", "--out", "{out}"),
    "samplers": ("ahead", "--rounds", "3", "--tasks", "4", "--latency", "0.05", "--learning", "0.05"),
    "growth": ("--rounds", "3", "--distinct", "20", "--asked", "2"),
    "kill_resume": ("{scripted}", "--kills", "1", "--out", "{out}", "--command", "{program}"),
    "sessions": ("--repeats", "5"),
    "parity_alfworld": ("--games", "1", "--random", "2"),
    "parity_api_bank": (),
    "parity_bamboogle": (),
    "parity_bfcl": ("--only", "simple_java", "memory_rec_sum"),
    "gpu_update": ("--model", "{tiny}", "--work", "1x2x8+8", "--repeats", "1"),
    "interval_size": ("--draws", "20"),
    "stated_intervals": (),
    "cleanrl_ppo": ("ours", "Pendulum-v1", "--steps", "800", "--batch", "800", "--epochs", "1"),
    "random_models": ("smollm2-135m", "--layers", "1", "--tokenizer", "{tiny}", "--out", "{out}"),
}  # fmt: skip
"""Small runs of the others: the words after the script's name."""
HELPS = """
import json, os, runpy, sys, traceback
failed = {}
sys.path.insert(0, os.path.dirname(sys.argv[1]))
for path in sys.argv[1:]:
    text = open(path, encoding="utf-8").read()
    asks = "add_argument" in text and "__main__" in text
    sys.argv = [path, "--help"]
    try:
        runpy.run_path(path, run_name="__main__" if asks else "bench")
    except SystemExit as end:
        if end.code:
            failed[path] = f"status {end.code}"
    except Exception:
        failed[path] = traceback.format_exc()
print(json.dumps(failed))
"""


@pytest.fixture
def few_base_data(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_genenv.few_base_data(monkeypatch, seeds=12, held_out=2, small=True)


def _module(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"smoke_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def bench(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _module(BENCH / f"{name}.py", monkeypatch)


def program(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, env=os.environ | environment
    )


def test_types_of_the_benches_are_checked() -> None:
    settings = tomllib.loads((TESTS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert {"src", "bench"} <= set(settings["tool"]["basedpyright"]["include"])
    lowered = [
        path.name
        for path in BENCH.glob("*.py")
        if any(f"# pyright: {level}\n" in path.read_text(encoding="utf-8") for level in ("basic", "off"))
    ]
    assert not lowered


def test_every_bench_has_a_small_run() -> None:
    missing = SCRIPTS - FAST - BY_HAND - SLOW.keys()
    assert not missing, f"write a small run of {', '.join(sorted(missing))}, or its words into SLOW"


@pytest.mark.long
def test_every_bench_is_imported_and_answers_to_help() -> None:
    """All in one process, which imports what they share once; the official code of BFCL comes last."""
    paths = sorted(BENCH.glob("*.py"), key=lambda path: ("bfcl" in path.name, path.name))
    done = program("-c", HELPS, *paths)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {}


@pytest.mark.long
def test_all_spoiled_programs_of_own_tools_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--tasks", "24", "--held-out", "4", "--mutations", "60")
    monkeypatch.setattr(sys, "argv", ["own_tools.py", str(EXAMPLES / "desk.py"), *small])
    bench("own_tools", monkeypatch).main()
    said = {
        key: value for line in capsys.readouterr().out.splitlines() for key, value in json.loads(line).items()
    }
    assert (said["mutations"], said["refused"]) == (60, 60)
    assert said["tasks"] == 24


SMALL_CONTROL = """
[run]
rounds = 2
eval_every = 1
eval_tasks = 9
keep_checkpoints = 3

[environment]
name = "control"
base_tasks = 4
held_out_tasks = 12

[environment.values]
lift = [1.2, 1.0]
tolerance = [0.8, 0.6]
hold = [6, 8]

[curriculum]
band_filter = false
base_share = 0.0
review_share = 0.0
gate = "executes"
novelty_threshold = 0.0

[simulator]
writes = "parameters"
contexts = 3
variations = 1

[agent]
algorithm = "ppo"
rollouts = 4
max_new_tokens = 121

[policy]
backend = "ppo"
context_tokens = 1024
ppo = { hidden = 8, initial_std = 1.0 }
"""


@pytest.mark.long
def test_variants_of_control_are_read_at_equal_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    control, config, out = bench("control", monkeypatch), tmp_path / "small.toml", tmp_path / "sweep"
    config.write_text(SMALL_CONTROL, encoding="utf-8")
    variants = "variation,paired+agent.rollouts=4"
    words = ("sweep", config, "--variants", variants, "--seeds", 1, "--set", "agent.rollouts=8", "--out", out)
    done = program("-m", "genenv", *words)
    assert done.returncode == 0, done.stderr
    control.main(["measure", str(out), "--attempts", "2"])
    title, _, head, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert title.startswith("sweep, at ")
    assert head == "| variant | runs | uniform | CVaR 10% | named | steps to 50% |"
    assert [row.split(" | ")[:2] for row in rows] == [["| domain randomization", "1"], ["| PAIRED", "1"]]
    runs = [control.read(out / name / "seed-0", name, 0) for name in variants.split(",")]
    steps = min(run.spent[-1] for run in runs)
    assert 2 in [run.round_at(steps) for run in runs]
    kept = (out / "control.jsonl").read_text(encoding="utf-8")
    control.main(["measure", str(out), str(out), "--attempts", "2"])  # nothing is rolled out again
    assert (out / "control.jsonl").read_text(encoding="utf-8") == kept
    for name in variants.split(","):  # as if they had been stopped a round before their end
        folder = RunFolder(out / name / "seed-0")
        folder.write_settings(folder.config.read_text("utf-8").replace("rounds = 2", "rounds = 3", 1))
    with pytest.raises(SystemExit):
        control.main(["measure", str(out), "--attempts", "2"])
    assert "no run of" in capsys.readouterr().err
    control.main(["measure", str(out), "--attempts", "2", "--steps", str(steps)])
    assert capsys.readouterr().out.count("| 1 |") == 2
    with pytest.raises(SystemExit):
        control.main(["measure", str(out), "--attempts", "0"])
    assert "--attempts is 0, but must be at least 1" in capsys.readouterr().err


def test_differences_between_curricula_are_paired_by_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    control = bench("control", monkeypatch)
    runs = [
        (
            control.Run(variant=name, seed=seed, path="", spent=[0.0], to_half=0.0),
            control.Measured(run="", round=1, attempts=1, uniform=0.5, worst=0.0, named=rate),
        )
        for name, rates in (("accel", (0.5, 0.6, 0.9)), ("plr", (0.4, 0.6, 0.7)))
        for seed, rate in enumerate(rates)
    ]
    control.print_contrasts(runs, ["accel:plr", "plr:accel"])
    rows = capsys.readouterr().out.strip().splitlines()[2:]
    # differences 10, 0, 20: mean 10, standard error 10 / sqrt(3), t(0.975, 2) = 4.303, p = 0.225
    assert rows[0] == "| accel:plr | named | +10.0 (-14.8 to 34.8; 0.451) | 3 |"
    assert rows[2] == "| accel:plr | uniform | +0.0 (0.0 to 0.0; 1.000) | 3 |"
    with pytest.raises(SystemExit, match="no seed has finished runs"):
        control.print_contrasts(runs, ["accel:sfl"])


def test_steps_to_a_level_are_read_between_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    control = bench("control", monkeypatch)
    assert control.steps_to(0.5, [(0.0, 0.1), (100.0, 0.3), (200.0, 0.7), (300.0, 0.2)]) == pytest.approx(150)
    assert control.steps_to(0.5, [(0.0, 0.1), (100.0, 0.3)]) == float("inf")
    assert control.steps_to(0.5, [(0.0, 0.6)]) == 0.0
    assert control.half_text([100.0, float("inf"), float("inf")]) == "not reached (1 of 3)"
    assert [control.is_drawn(f"held-out-{name}") for name in ("0012", "earth")] == [True, False]


@pytest.mark.usefixtures("few_base_data")
def test_a_environment_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = bench("environments", monkeypatch)
    monkeypatch.setattr(sys, "argv", ["environments", "tool_calling", "--specs", "8", "--mutations", "4"])
    module.main()
    found = json.loads(capsys.readouterr().out)
    assert found["specs"] == 8
    assert found["passed"] + sum(found["rejected"].values()) == 8
    assert found["mutations"] <= 4


SCRIPTED = """
[run]
rounds = 2
eval_tasks = 4
eval_every = 1

[simulator]
contexts = 2
variations = 1
max_new_tokens = 2000

[agent]
rollouts = 2
max_new_tokens = 2000

[policy]
dtype = "float32"
"""


@pytest.mark.slow
def test_seeds_of_a_run_are_tabled_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, runs, picture = tmp_path / "settings.toml", tmp_path / "runs", tmp_path / "picture.svg"
    config.write_text(SCRIPTED, encoding="utf-8")
    scripted = f"{sys.executable} {TESTS / 'scripted_genenv.py'}"
    words = [str(config), "--seeds", "3", "--out", str(runs), "--command", scripted]
    bench("quickstart_seeds", monkeypatch).main(words)
    (figures,) = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["seed"], figures["rounds"], len(figures["p_hat_late"])) == (3, 2, 1)
    done = program(BENCH / "picture.py", runs / "seed-3", "--out", picture)
    assert done.returncode == 0, done.stderr
    assert picture.read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SLOW if (BENCH / f"{name}.py").exists()])
def test_a_small_run_ends_well(name: str, tiny: Any, tmp_path: Path) -> None:
    if name.startswith("parity") and not os.environ.get("GENENV_DATA"):
        pytest.skip("set GENENV_DATA to the folder of the benchmarks' data to test on it")
    scripted = tmp_path / "settings.toml"
    scripted.write_text(SCRIPTED, encoding="utf-8")
    places = {
        "{here}": TESTS.parent,
        "{tiny}": tiny.folder(max_position_embeddings=2048),
        "{scripted}": scripted,
        "{out}": tmp_path / "runs",
        "{program}": f"{sys.executable} {TESTS / 'scripted_genenv.py'}",
    }
    words = list(SLOW[name])
    for key, place in places.items():
        words = [word.replace(key, str(place)) for word in words]
    done = program(BENCH / f"{name}.py", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("| " if name in TABLES else "{") in done.stdout


@pytest.mark.long
def test_the_picture_of_a_reproduction_has_its_rows_and_the_papers_values(tmp_path, monkeypatch):
    rows = "| before training | 40.1 ± 2.0 | |\n| random | 45.0 ± 1.5 | |\n| paper | 47.5 | |\n"
    page = tmp_path / "reproduce.md"
    page.write_text(
        f"# Page\n\n## Ours\n\nSuccess.\n\n| row | mean | seeds |\n|---|---|---|\n{rows}\n## Next\n"
    )
    drawn = bench("rows_picture", monkeypatch)
    assert drawn.read_rows(page.read_text()) == {
        "before training": (40.1, 2.0),
        "random": (45.0, 1.5),
        "paper": (47.5, 0.0),
    }
    out = tmp_path / "rows.svg"
    subprocess.run([sys.executable, BENCH / "rows_picture.py", page, "--out", out], check=True)
    assert out.read_text().startswith("<?xml")


def test_a_contrast_without_a_second_variant_is_one_sentence(monkeypatch, capsys, tmp_path):
    rows = bench("paper_rows", monkeypatch)
    shared = str(BENCH.parent / "configs" / "tiny-paper.toml")
    with pytest.raises(SystemExit):
        rows.main(["contrasts", shared, "--contrast", "paper", "--file", str(tmp_path / "rows.jsonl")])
    assert "--contrast 'paper' is not of the form A:B, two variants" in capsys.readouterr().err


@pytest.mark.long
def test_rows_of_a_reproduction_are_kept_and_make_the_same_page(tmp_path, monkeypatch):
    rows, out, kept = bench("paper_rows", monkeypatch), tmp_path / "out", tmp_path / "rows.jsonl"
    small = ("rounds=1", "eval_every=1", "eval_tasks=12")
    words = ("reproduce", BENCH.parent / "configs" / "tiny-paper.toml", "--rows", "base,paper", "--seeds", 1)
    settings = [*(f"run.{one}" for one in small), "simulator.contexts=2", "policy.backend=scripted"]
    done = program(
        "-m", "genenv", *words, "--out", out, *(word for one in settings for word in ("--set", one))
    )
    assert done.returncode == 0, done.stderr
    assert [rows.keep(out, kept, "abc")[0] for _ in range(2)] == [2, 0]
    with pytest.raises(UsageError, match="holds no reproduction"):
        rows.keep(tmp_path / "elsewhere", kept, "abc")
    assert [(one["variant"], one["seed"], one["commit"]) for one in rows.lines(kept)] == [
        ("paper+base", 0, "abc"),
        ("paper", 0, "abc"),
    ]
    before = kept.read_text()
    for has, other, why in (
        ('"commit":"abc"', '"commit":"def"', r"of another commit \(def\) than paper\+base, seed 0"),
        ('"settings":"', '"settings":"0', "of other settings than"),
        ('"round":1', '"round":2', "of other results than"),
    ):
        kept.write_text(before.replace(has, other))
        with pytest.raises(UsageError, match=why):
            rows.keep(out, kept, "abc")
    first, second = map(json.loads, before.splitlines())
    del first["settings"]  # as older versions kept it
    kept.write_text(json.dumps(first) + "\n")
    assert rows.keep(out, kept, "abcdef01")[0] == 1
    assert rows.lines(kept)[1] == {**second, "commit": "abcdef01", "tasks": first["tasks"]}
    kept.write_text(before)
    assert rows.keep(out / "rows", tmp_path / "of-a-sweep.jsonl", "abc")[0] == 2
    runs = [rows.run_of(line, load_config(out / "rows" / "config.toml")) for line in rows.lines(kept)]
    compared = compare_runs(runs, [("paper", "paper+base")])
    assert rows.at_equal_amounts(compared)[0].startswith("the end")
    pages = rows.page(out / "rows" / "config.toml", kept, [4]), (out / "reproduce.md").read_text()
    for begins in ("| before training |", "| base |", "| paper |", "- "):
        one, other = ([line for line in page.splitlines() if line.startswith(begins)] for page in pages)
        assert one == other


@pytest.mark.long
def test_sessions_of_python_are_executed_with_limits(tmp_path, monkeypatch):
    """A file with a few doctests; what other sessions print is found by running them."""
    monkeypatch.syspath_prepend(str(BENCH))
    environment = importlib.import_module("python_output.environment")
    codes = [f"x = [3, 1, {n}]\nsorted(x)" for n in range(40)]
    found = [
        {"package": "stdlib", "place": f"m:f{n}", "code": code, "value": str(sorted([3, 1, n]))}
        for n, code in enumerate(codes)
    ]
    (tmp_path / "doctests.json").write_text(json.dumps({"versions": {}, "doctests": found}))
    settings = {"doctests": str(tmp_path / "doctests.json"), "seeds": 8, "held_out": 8}
    env = environment.PythonOutput(environment.PythonOutputConfig(**settings))
    assert (len(env.seeds()), len(env.held_out())) == (8, 8)

    def made(code: str) -> str:
        spec, lineage = environment.Session(code=code), Lineage(origin=Origin.GENERATED)
        task = env.build(spec, task_id="t", lineage=lineage, rng=random.Random(0))
        return task.reason.value if isinstance(task, Rejection) else str(task.payload["value"])

    changed = {env.variation(seed, random.Random(n))["code"] for seed in env.seeds() for n in range(4)}
    assert len(changed) > 12
    assert all(made(code) not in ("schema", "execution") for code in changed)
    printed = {
        "len({'a', 'b'})": "2",
        "import numpy as np\nnp.array([1]) + 1": "array([2])",
        "object()": "execution",  # another address each time
        "import time\ntime.perf_counter()": "execution",
        "x": "execution",
        "open('a', 'w').write('b')": "1",
        "open('a').read()": "execution",  # each session has a folder of its own
        "import socket\nsocket.create_connection(('127.0.0.1', 9))": "execution",
        "1": "schema",
        "x = 1\nx == 1": "inconsistent",  # truth values are left out
    }
    assert {code: made(code) for code in printed} == printed
    for depth in range(1, 5):
        parameters = env.parameters(depth=depth, size=3, kind="int")
        value = made(env.drawn(parameters, env.seeds()[0], random.Random(depth)).code)
        assert value.lstrip("-").isdigit() or value == "execution"  # a list of numbers and letters


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end(monkeypatch: pytest.MonkeyPatch) -> None:
    interquartile_mean = bench("control", monkeypatch).interquartile_mean
    value, low, high = interquartile_mean([[0.0, 0.4, 0.5, 0.6, 1.0]])  # one of five at each end
    assert value == pytest.approx(0.5)
    assert 0.0 <= low < 0.5 < high <= 1.0
    assert interquartile_mean([[0.0, 0.4], [0.6, 9.0]])[0] == pytest.approx(0.5)
    assert interquartile_mean([[0.3] * 10])[1:] == pytest.approx((0.3, 0.3))
    assert all(map(math.isnan, interquartile_mean([[0.3], [0.5]])[1:]))


def test_runs_are_drawn_again_within_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal runs of two environments have no spread, though the environments differ."""
    interquartile_mean = bench("control", monkeypatch).interquartile_mean
    assert interquartile_mean([[0.2] * 4, [0.8] * 4]) == pytest.approx((0.5, 0.5, 0.5))


def test_the_intervals_of_interquartile_means_cover_the_truth_about_as_often_as_they_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interquartile_mean = bench("control", monkeypatch).interquartile_mean
    rng = np.random.default_rng(1)
    runs = rng.normal(0.5, 0.1, (200, 10))
    covered = [low <= 0.5 <= high for _, low, high in (interquartile_mean([run.tolist()]) for run in runs)]
    assert 0.85 < sum(covered) / len(covered) < 0.99


def test_the_worst_levels_are_ranked_by_other_rollouts_than_they_are_measured_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worst_mean = bench("control", monkeypatch).worst_mean
    ranked_by = [0.9, 0.1, 0.5, 0.0, 1.0, 0.8, 0.7, 0.9, 1.0, 0.6]
    scores = [1.0, 0.4, 0.5, 0.2, 1.0, 0.8, 0.7, 0.9, 1.0, 0.0]
    assert worst_mean(ranked_by, scores, 0.1) == pytest.approx(0.2)
    assert worst_mean(ranked_by, scores, 0.25) == pytest.approx(0.3)  # two of ten
    assert worst_mean(ranked_by, scores, 0.01) == pytest.approx(0.2)  # at least one
    assert worst_mean(ranked_by, scores, 1.0) == pytest.approx(0.65)
    with pytest.raises(ValueError, match="1 and 2 levels"):
        worst_mean([0.1], [0.1, 0.2], 0.1)
