"""Runs compared with runs: budgets by hand, real runs through the command line, what is not comparable."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np
import pytest
from scipy import stats

from genenv.config.resolved import with_values
from genenv.config.run import RunConfig, parse_config
from genenv.config.variants import with_variant
from genenv.errors import UsageError
from genenv.research.sweeps.compare import (
    AT_THE_END,
    COLUMNS,
    COST_COLUMNS,
    BudgetContrast,
    Comparison,
    SampleEfficiency,
    by_metric,
    compare,
    compare_runs,
    costs,
    findings,
    metric_notes,
    paired,
    rows,
)
from genenv.research.sweeps.page import final_rows, learning_curves
from genenv.research.sweeps.readings import BUDGETS, MeasuredRun, Measurement, _counted_agents, read_run
from genenv.runs.folder import RunFolder
from genenv.statistics import difference, seeds_needed
from typed import refused, succeeds

CONFIGS = Path(__file__).parents[3] / "configs"
SMALL = [
    *("--set", "policy.backend=scripted", "--set", "run.rounds=2", "--set", "run.eval_tasks=12"),
    *("--set", "run.eval_every=1", "--set", "simulator.contexts=2", "--set", "simulator.variations=2"),
    *("--set", "agent.rollouts=2"),
]


def measured(round_: int, spent: float, *solved: float) -> Measurement:
    scores = {f"t{i}": value for i, value in enumerate(solved)}
    return Measurement(round_, dict.fromkeys(BUDGETS, spent), scores)


def reading(*measurements: Measurement) -> MeasuredRun:
    return MeasuredRun(Path("run"), "a", 0, RunConfig(), measurements, {})


def test_between_measurements_scores_lie_on_straight_lines() -> None:
    run = reading(measured(0, 0, 0, 0), measured(1, 100, 1, 0), measured(2, 300, 1, 1))
    assert run.at("attempts", 0) == {"t0": 0, "t1": 0}
    assert run.at("attempts", 25) == {"t0": 0.25, "t1": 0}
    assert run.at("attempts", 100) == {"t0": 1, "t1": 0}
    assert run.at("attempts", 200) == {"t0": 1, "t1": 0.5}
    assert run.at("attempts", 9_999) == {"t0": 1, "t1": 1}


def test_a_level_is_reached_where_the_line_crosses_it() -> None:
    run = reading(measured(0, 0, 0, 0), measured(1, 100, 1, 0), measured(2, 300, 1, 1))
    assert run.spent_to_reach(0.25) == 50
    assert run.spent_to_reach(0.5) == 100
    assert run.spent_to_reach(0.75) == 200
    assert run.spent_to_reach(0.0) == 0
    assert reading(measured(0, 0, 0, 0)).spent_to_reach(0.1) is None


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweeps") / "sweep"
    names = ["--variants", "base,variation,grammar", "--seeds", "3", "--contrast", "variation:base"]
    succeeds("sweep", CONFIGS / "tiny.toml", *SMALL, *names, "--jobs", 2, "--out", out)
    return out


@pytest.mark.long
def test_what_a_run_has_spent_is_the_sum_of_its_rounds(sweep: Path) -> None:
    run = read_run(sweep / "variation" / "seed-1")
    spent = [measurement.spent["attempts"] for measurement in run.measured]
    attempts = [run.metrics[number].get("agent/attempts", 0.0) for number in (0, 1, 2)]
    assert spent == [attempts[0], attempts[0] + attempts[1], sum(attempts)]
    assert run.measured[-1].mean == pytest.approx(run.metrics[2]["agent/eval_success"])


@pytest.mark.long
def test_a_sweep_is_compared_as_it_was_planned(sweep: Path, tmp_path: Path) -> None:
    found = compare([sweep])
    assert list(found.variants) == ["base", "variation", "grammar"]
    assert {(one.one, one.other) for one in found.contrasts} == {("variation", "base")}
    end = next(one for one in found.contrasts if one.budget == AT_THE_END)
    runs = paired(found.variants, ("variation", "base"))
    by_hand = [one.measured[-1].mean - other.measured[-1].mean for one, other in runs]
    assert end.difference.value == pytest.approx(sum(by_hand) / 3)
    assert end.difference.seeds == 3
    assert not [note for note in found.notes if "rounds apart" in note]
    said = succeeds("compare", sweep, "--out", tmp_path / "page")
    assert "variation against base, at " in said.stdout
    page = (tmp_path / "page" / "compare.html").read_text()
    assert page.count("<figure>") >= 5
    assert page.count("<figure>") == page.count('role="img"')
    assert '<tr><th scope="row">variation</th>' in page
    assert not re.findall(r'(?:src|href)="', page), "it loads no other file"
    with (tmp_path / "page" / "curves.csv").open() as file:
        assert len(list(csv.reader(file))) == 1 + 9 * 3
    with (tmp_path / "page" / "contrasts.csv").open() as file:
        contrasts = list(csv.DictReader(file))
    assert len(contrasts) == len(found.contrasts)
    for row, one in zip(contrasts, found.contrasts, strict=True):
        assert float(row["difference"]) == one.difference.value
        assert row["p"] == ("" if math.isnan(one.difference.p) else str(one.difference.p))


@pytest.mark.long
def test_all_pairs_are_read_at_one_amount_that_is_asked_for(sweep: Path) -> None:
    """Without it each pair is read where its cheaper run ended."""
    spent = {name: read_run(sweep / name / "seed-0").measured for name in ("variation", "base")}
    amount = min(one[-1].spent["sampled tokens"] for one in spent.values()) / 2
    found = compare([sweep], at={"sampled tokens": amount})
    row = next(one for one in found.contrasts if one.budget == "sampled tokens")
    runs = paired(found.variants, ("variation", "base"))
    by_hand = [fmean(run.at("sampled tokens", amount).values()) for run, _ in runs]
    assert (row.amount, row.means[0]) == (amount, pytest.approx(fmean(by_hand)))
    assert not [note for note in found.notes if "less than" in note]
    said = succeeds("compare", sweep, "--at", "sampled tokens=1e9").stdout
    assert (
        "variation:base at equal sampled tokens lacks 3 seeds (0, 1, 2): one of the two runs spent less"
        in said
    )
    assert said.count("1,000,000,000") == 1, "in the note alone"
    assert "must be BUDGET=AMOUNT" in refused("compare", sweep, "--at", "attempts=many")
    assert "nowhere does not exist" in refused("compare", "nowhere", "--at", "attempts=9")
    assert "unknown budget" in refused("compare", sweep, "--at", "token=5")


def test_sampled_tokens_are_those_of_both_policies_and_of_scored_demonstrations() -> None:
    assert set(BUDGETS["all tokens"]) - set(BUDGETS["sampled tokens"]) == {
        "tokens/agent_trained",
        "tokens/simulator_trained",
    }


@pytest.mark.long
def test_variants_are_compared_by_any_metric_of_their_last_rounds(sweep: Path) -> None:
    found = compare([sweep])
    (row,) = by_metric(found, ["agent/success_rate"], last=2)
    runs = paired(found.variants, ("variation", "base"))
    one, other = (
        [(run.metrics[1]["agent/success_rate"] + run.metrics[2]["agent/success_rate"]) / 2 for run in own]
        for own in zip(*runs, strict=True)
    )
    assert row.means == pytest.approx((sum(one) / 3, sum(other) / 3))
    assert row.difference.p == pytest.approx(stats.ttest_rel(one, other).pvalue)
    said = succeeds("compare", sweep, "--metric", "agent/success_rate", "--last", 2).stdout
    assert f"{row.means[0]:.4g}" in said
    assert "did you mean 'agent/success_rate'" in refused("compare", sweep, "--metric", "agent/sucess_rate")
    # base has no new tasks: nothing is paired
    assert "no two paired runs have a metric" in refused("compare", sweep, "--metric", "tasks/mixed")


@pytest.mark.long
def test_what_each_variant_cost_stands_beside_the_differences(sweep: Path) -> None:
    found = compare([sweep])
    rows = {row[0]: dict(zip(COST_COLUMNS, row, strict=True)) for row in costs(found)}
    assert list(rows) == ["base", "variation", "grammar"]
    checks = [
        sum(one.get("tasks/checked", 0.0) for one in run.metrics.values())
        for run in found.variants["grammar"]
    ]
    assert rows["grammar"]["gate checks"] == f"{fmean(checks):,.0f}" == "8"
    assert rows["base"]["gate checks"] == "–", "no simulator, no gate"
    said = succeeds("compare", sweep).stdout
    assert "gate checks" in said
    assert "seconds" in said


def test_success_at_equal_optimizer_steps_is_an_outcome_and_no_test() -> None:
    apart = difference(np.array([[1.0, 1.0], [1.0, 0.9]]), np.zeros((2, 2)))
    steps, tokens = (
        BudgetContrast("a", "b", apart, adjusted, budget, 9.0, (1.0, 0.0))
        for budget, adjusted in (("optimizer steps", math.nan), ("all tokens", 0.03))
    )
    assert (steps.outcome(), tokens.outcome()) == ("an outcome, no test", "better")
    assert steps.cells(".1f", scale=100)[2:] == ("–", "2", "an outcome, no test")


def test_few_tasks_are_named_where_no_number_of_seeds_is_enough() -> None:
    apart_SN = np.array([[1.0, 0.0, -1.0, 0.4], [0.9, 0.1, -1.0, 0.3], [1.0, 0.0, -0.9, 0.4]])
    apart = difference(apart_SN, np.zeros((3, 4)))
    contrast = BudgetContrast("a", "b", apart, apart.p, AT_THE_END, 1.0, (0.5, 0.4))
    (line,) = findings(Comparison("e", {}, [contrast], []))
    assert "no number of seeds would show it on these 4 held-out tasks" in line


def test_the_seeds_that_would_show_a_difference_are_those_of_all_tests_together() -> None:
    rng = np.random.default_rng(0)
    apart = difference(rng.normal(0.02, 0.1, (9, 50)) + rng.normal(0, 0.05, (9, 1)), np.zeros((9, 50)))
    assert apart.spread is not None
    rows = [BudgetContrast(name, "z", apart, 1.0, AT_THE_END, 1.0, (0.5, 0.4)) for name in "abcd"]
    for number in (1, 4):
        line = findings(Comparison("e", {}, rows[:number], []))[0]
        needed = seeds_needed(apart.value, apart.spread, 0.05 / number)
        assert f"about {needed} seeds would show it" in line


@pytest.mark.long
def test_without_a_plan_all_are_held_against_the_first_and_that_is_said(sweep: Path) -> None:
    runs = [sweep / name / f"seed-{seed}" for name in ("grammar", "base") for seed in (0, 1)]
    said = succeeds("compare", *runs).stdout
    assert "base against grammar" in said
    assert "no comparison was named beforehand" in said
    assert "grammar against base" in succeeds("compare", *runs, "--contrast", "grammar:base").stdout


@pytest.mark.long
def test_one_seed_says_nothing_of_seeds(sweep: Path) -> None:
    said = succeeds("compare", sweep / "base" / "seed-0", sweep / "variation" / "seed-0").stdout
    assert "one seed: nothing can be said of seeds" in said


@pytest.mark.long
def test_missing_and_unfinished_runs_are_said_and_the_rest_is_compared(sweep: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sweep, tmp_path / "moved")
    shutil.rmtree(copy / "variation" / "seed-2")
    longer = RunFolder(copy / "base" / "seed-1")
    longer.write_settings(longer.config.read_text().replace("rounds = 2", "rounds = 9"))
    said = succeeds("compare", copy).stdout
    assert "variation, seed 2 is left out" in said
    assert "seeds 2 have a run of one of them only" in said
    assert "is not finished: round 2 of 9" in said
    found = compare([copy], [("base", "grammar")])
    seeds = {one.budget: one.difference.seeds for one in found.contrasts}
    assert seeds[AT_THE_END] == 2  # without the one that has seven rounds to go
    assert seeds["attempts"] == 2  # nor at equal budgets, where it would be read early
    level = [fmean(found.variants["grammar"][seed].measured[-1].scores.values()) for seed in (0, 2)]
    assert found.sample_efficiency[0].level == pytest.approx(fmean(level))


def of_rounds(
    variant: str, seed: int, rounds: int, *measurements: Measurement, shift: int = 0
) -> MeasuredRun:
    """A run that has come to a round, of four."""
    document = {"run": {"rounds": 4}, "environment": {"name": "programs"}}
    if shift:
        document["shift"] = {"round": shift, "environment": {"depths": [2, 2]}}
    metrics = {number: {} for number in range(rounds + 1)}
    return MeasuredRun(Path(variant, str(seed)), variant, seed, parse_config(document), measurements, metrics)


def test_a_difference_on_a_line_over_several_rounds_is_shown_and_not_tested() -> None:
    """Both are on one curve, 0.3 to 0.7 within the first tokens; one spends three times as many."""

    def ran(name: str, seed: int, spent: float, middle: int) -> MeasuredRun:
        noise = seed / 500
        ends = measured(0, 0, 0.3 + noise, 0.3), measured(4, spent, 0.7, 0.7 - noise)
        return of_rounds(
            name, seed, 4, ends[0], *[measured(middle, 50, 0.7, 0.7 + noise)] * bool(middle), ends[1]
        )

    def compared(middle: int) -> Comparison:
        runs = [ran(name, seed, 100, middle) for name in "cd" for seed in range(3)]
        runs += [ran("dear", seed, 300, middle) for seed in range(3)]
        return compare_runs(runs, [("dear", "c"), ("dear", "d"), ("c", "d")])

    far = compared(0)
    by_pair = {one.one: one for one in far.contrasts if one.budget == "attempts"}
    assert by_pair["dear"].difference.value < -0.2
    assert (by_pair["dear"].outcome(), by_pair["dear"].rounds_around) == ("between measurements, no test", 4)
    assert by_pair["dear"].numbers()[3:5] == ("", "")
    assert by_pair["c"].adjusted == by_pair["c"].difference.p == 1.0, "Holm counts what is tested"
    assert findings(far)[0].startswith("dear against c, at the end")
    assert [note for note in far.notes if "rounds apart" in note] == [
        "measurements are up to 4 rounds apart: success at equal attempts, agent tokens, sampled tokens, all "
        "tokens that is read on a straight line between them is shown and not tested; run.eval_every=1 "
        "measures every round"
    ]
    near = compared(3)
    assert all(one.is_tested for one in near.contrasts if one.budget == "attempts")
    assert findings(near)[0].startswith("dear against c, at 100 attempts each")
    assert not [note for note in near.notes if "rounds apart" in note]


def test_a_run_that_has_just_begun_takes_no_budget_from_the_others(tmp_path: Path) -> None:
    whole = [
        of_rounds(variant, seed, 4, measured(0, 0, 0.2, 0.3), measured(4, 100, 0.4 + lead, 0.5 + seed / 50))
        for variant, lead in (("a", 0.2), ("b", 0.0))
        for seed in range(3)
    ]
    begun = [
        of_rounds("a", 3, 2, measured(0, 0, 0.2, 0.3), measured(2, 10, 0.2, 0.3)),
        of_rounds("b", 3, 1, measured(0, 0, 0.2, 0.3)),
    ]
    alone, beside = compare_runs(whole, [("a", "b")]), compare_runs([*whole, *begun], [("a", "b")])
    assert [(one.budget, one.difference) for one in beside.contrasts] == [
        (one.budget, one.difference) for one in alone.contrasts
    ]
    assert len(beside.contrasts) > 1
    assert list(costs(beside)) == list(costs(alone))
    assert beside.sample_efficiency == alone.sample_efficiency
    assert sum("is no part of any row" in note for note in beside.notes) == 2
    early = compare_runs([*whole[3:], *begun, of_rounds("a", 0, 3, measured(0, 0, 0), measured(3, 50, 1))])
    assert early.contrasts


def test_an_amount_before_the_first_measurement_of_a_run_is_in_no_row_and_is_said() -> None:
    runs = [
        of_rounds(name, seed, 4, measured(0, begun, 0.2, 0.3), measured(4, 1000, 0.5, 0.5 + seed / 50))
        for name, begun in (("a", 900), ("b", 0))
        for seed in range(3)
    ]
    early, late = (compare_runs(runs, [("a", "b")], at={"all tokens": amount}) for amount in (100, 900))
    assert "all tokens" not in {one.budget for one in early.contrasts}
    assert "all tokens" in {one.budget for one in late.contrasts}
    assert "a:b at equal all tokens lacks 3 seeds (0, 1, 2): " in "".join(early.notes)
    assert "".join(early.notes).endswith("one of the two runs was first measured after more than 100")
    assert not [note for note in late.notes if "lacks" in note]


def test_an_amount_that_a_run_never_spent_is_in_no_row_and_is_said() -> None:
    runs = [
        of_rounds(name, seed, 4, measured(0, 0, 0.2, 0.3), measured(4, spent, 0.5, 0.5 + seed / 50))
        for name, ends in (("a", (1000, 1000, 400)), ("b", (1000, 500, 1000)))
        for seed, spent in enumerate(ends)
    ]
    found = compare_runs(runs, [("a", "b")], at={"all tokens": 900})
    assert [one.difference.seeds for one in found.contrasts if one.budget == "all tokens"] == [1]
    (said,) = (note for note in found.notes if "lacks" in note)
    assert said == ("a:b at equal all tokens lacks 2 seeds (1, 2): one of the two runs spent less than 900")
    beyond = compare_runs(runs, [("a", "b")], at={"all tokens": 1e6})
    assert "all tokens" not in {one.budget for one in beyond.contrasts}


def test_curves_are_drawn_where_all_runs_are_measured() -> None:
    runs = [
        of_rounds("a", seed, 4, measured(0, begun, 0.2), measured(4, 1000, 0.5))
        for seed, begun in enumerate((400, 600))
    ]
    chart = learning_curves({"a": runs, "b": [of_rounds("b", 0, 0, measured(0, 900, 0.2))]}, "attempts", "")
    assert chart is not None
    drawn = {group["name"]: group["x"] for group in cast(Any, chart)["groups"]}
    assert (drawn["a (2)"][0], drawn["a (2)"][-1], drawn["b (1)"]) == (600, 1000, [900])


def test_only_held_out_tasks_that_all_runs_measured_count_anywhere() -> None:
    runs = [
        of_rounds(name, seed, 4, measured(0, 0, 0.2, 0.3), measured(4, 100, 0.5, lead + seed / 50))
        for name, lead in (("a", 0.7), ("b", 0.5))
        for seed in range(3)
    ]
    more = [
        replace(run, measured=[replace(one, scores={**one.scores, "more": 1.0}) for one in run.measured])
        for run in runs[:3]
    ]
    found, alike = compare_runs([*more, *runs[3:]], [("b", "a")]), compare_runs(runs, [("b", "a")])
    assert str(found.contrasts) == str(alike.contrasts)
    assert found.sample_efficiency == alike.sample_efficiency, "the level is of the shared tasks"
    assert "only the 2 held-out tasks that all runs measured count" in found.notes


def test_each_pair_has_a_finding_though_one_has_no_row_at_equal_rollouts() -> None:
    def played(name: str, seed: int, *spent: float) -> MeasuredRun:
        before = measured(0, 0, 0.2), measured(2, spent[0] - 1, 0.4)
        each = [dict.fromkeys(BUDGETS, one) for one in spent]
        after = [Measurement(number, one, {"later": 0.5}) for number, one in enumerate(each, 3)]
        return of_rounds(name, seed, 4, *before, *after, shift=3)

    dear, cheap = (50.0, 100.0), (10.0, 20.0)
    runs = [played(name, seed, *dear) for name in "ab" for seed in range(2)]
    runs += [played("c", seed, *cheap) for seed in range(2)]
    found = findings(compare_runs(runs, [("a", "b"), ("a", "c")]))
    assert found[0].startswith("a against b, at 100 attempts each")
    assert found[1].startswith("a against c, at the end")


def test_equal_differences_have_no_interval_and_seeds_without_a_metric_are_said() -> None:
    runs = [
        of_rounds(name, seed, 4, measured(0, 0, 0.2, 0.3), measured(4, 100, lead, lead))
        for name, lead in (("a", 0.7), ("b", 0.5))
        for seed in range(3)
    ]
    for run in (*runs[:2], *runs[3:5]):  # not of seed 2
        cast(Any, run.metrics)[4]["agent/kl"] = 0.1 + run.seed
    found = compare_runs(runs, [("a", "b")])
    assert [row[COLUMNS.index("95% interval")] for row in rows(found)] == ["–", "–", "–", "–", "–", "–"]
    kl = by_metric(found, ["agent/kl"], last=2)
    assert metric_notes(kl, found) == [
        "agent/kl, a against b: 1 seed left out, where a run has no such metric"
    ]


def test_runs_of_one_variant_with_other_settings_are_said_to_be_so() -> None:
    runs = [
        of_rounds(name, seed, 4, measured(0, 0, 0.2, 0.3), measured(4, 100, 0.5, 0.5 + seed / 50))
        for name in "ab"
        for seed in range(2)
    ]
    config = with_values(runs[0].config, {"run.seed": 5, "agent.rollouts": 16, "run.rounds": 2})
    found = compare_runs([replace(runs[0], config=config), *runs[1:]], [("a", "b")])
    said = next(note for note in found.notes if note.startswith("the runs of a differ in "))
    assert {"agent.rollouts", "run.rounds"} == set(said.partition(" in ")[2].partition(":")[0].split(", "))
    assert not [note for note in found.notes if note.startswith("the runs of b")]


def test_variants_that_differ_in_what_their_names_do_not_say_are_said_to(tmp_path: Path) -> None:
    half, base = "rl+agent.advantage=mine.py:half", "base+agent.lr=1e-4"

    def ran(variant: str, seed: int, digest: str, **settings: Any) -> MeasuredRun:
        config = parse_config(
            with_variant({"environment": {"name": "programs"}, "run": {"rounds": 4}}, variant)
        )
        path = tmp_path / variant / str(seed)
        path.mkdir(parents=True, exist_ok=True)
        (path / "files.json").write_text(json.dumps({"environment.file": digest, "agent.advantage": variant}))
        results = measured(0, 0, 0.2, 0.3), measured(4, 100, 0.5, 0.5 + seed / 50)
        config = with_values(
            config, {"run.seed": seed, "run.keep_checkpoints": 5 + (variant == base), **settings}
        )
        return MeasuredRun(path, variant, seed, config, results, {number: {} for number in range(5)})

    unlike = {"policy.model": "qwen2.5-7b", "agent.max_new_tokens": 2048, "run.rounds": 3}
    alike = [ran(name, seed, "f") for name in (half, base) for seed in (0, 1)]
    assert not [note for note in compare_runs(alike).notes if "differ" in note or "is not the same" in note]
    runs = [*alike[:2], *(ran(base, seed, "g", **unlike) for seed in (0, 1))]
    notes = compare_runs(runs, [(base, half)]).notes
    (said,) = (note for note in notes if "which neither name says" in note)
    assert said.startswith(f"{base} and {half} differ in ")
    assert {*said.partition(" in ")[2].partition(", which")[0].split(", ")} == {*unlike}
    (said,) = (note for note in notes if "is not the same" in note)
    assert said.startswith(f"{base} and {half}: what environment.file names is not the same in both: ")


def test_a_contrast_named_both_ways_is_one_test_and_one_with_itself_none() -> None:
    runs = [
        of_rounds(name, seed, 4, measured(0, 0, 0.2, 0.3), measured(4, 100, 0.5, lead + seed / 50))
        for name, lead in (("a", 0.7), ("b", 0.5))
        for seed in range(3)
    ]
    once, twice = (compare_runs(runs, pairs) for pairs in ([("a", "b")], [("a", "b"), ("b", "a")]))
    assert [str(one) for one in twice.contrasts] == [str(one) for one in once.contrasts]
    with pytest.raises(UsageError, match="compares a variant with itself"):
        compare_runs(runs, [("a", "a")])


def test_a_run_before_its_shift_is_left_out_of_those_behind_it() -> None:
    after = Measurement(4, dict.fromkeys(BUDGETS, 100.0), {"later": 0.5})
    whole = [
        of_rounds(variant, seed, 4, measured(0, 0, 0.2), measured(2, 50, 0.4), after, after, shift=3)
        for variant in "ab"
        for seed in (0, 1)
    ]
    early = of_rounds("a", 2, 1, measured(0, 0, 0.2), shift=3)
    found = compare_runs([*whole, early], [("a", "b")])
    assert any(
        "a/2 is left out: it is at round 1, before its shift in round 3" in note for note in found.notes
    )


@pytest.mark.long
def test_a_named_contrast_without_a_run_yet_leaves_the_others(sweep: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sweep, tmp_path / "moved")
    shutil.rmtree(copy / "variation")
    file = copy / "sweep.json"
    planned = json.loads(file.read_text())
    file.write_text(json.dumps(planned | {"contrasts": [["variation", "base"], ["grammar", "base"]]}))
    said = succeeds("compare", copy).stdout
    assert "contrasts with variation are left out: no run of it can be read" in said
    assert "grammar against base" in said
    assert "there is no run of variant 'variation'" in refused(
        "compare", copy, "--contrast", "variation:base"
    )


@pytest.mark.long
def test_what_cannot_be_compared_is_one_sentence(sweep: Path, tmp_path: Path) -> None:
    other = tmp_path / "travel"
    succeeds("train", CONFIGS / "multihop_qa.toml", *SMALL, "--variant", "base", "--out", other)
    never = tmp_path / "never"
    blind = ["--set", "run.eval_every=0", "--set", "run.rounds=1", "--variant", "rl"]
    succeeds("train", CONFIGS / "tiny.toml", *SMALL, *blind, "--out", never)
    one = sweep / "base" / "seed-0"
    assert "compare runs of one environment" in refused("compare", one, sweep / "grammar" / "seed-0", other)
    assert "has measured no held-out tasks" in refused("compare", one, never)
    assert "name runs of two variants or more" in refused("compare", one)
    assert "nothing is paired" in refused("compare", one, sweep / "grammar" / "seed-1")
    assert "are both of variant base" in (sentence := refused("compare", one, one))
    assert "compare them in genenv view, or train one with another --variant or run.seed" in sentence
    assert "--last is of the metrics that --metric names" in refused("compare", sweep, "--last", "3")
    assert "there is no run of variant 'rl'" in refused("compare", sweep, "--contrast", "rl:base")
    (tmp_path / "empty").mkdir()
    assert "holds no run" in refused("compare", one, tmp_path / "empty")
    assert "does not exist" in refused("compare", tmp_path / "a.jsonl", "--contrast", "a:b")
    (tmp_path / "a.jsonl").touch()
    assert "are for runs" in refused("compare", tmp_path / "a.jsonl", "--contrast", "a:b")
    with pytest.raises(UsageError, match="holds no run"):
        read_run(tmp_path)


def run_of(variant: str, seed: int, rounds: int, done: int, **settings: object) -> MeasuredRun:
    """A run whose metric is its round, of which `done` rounds of `rounds` are committed."""
    config = parse_config({"run": {"rounds": rounds}, "environment": {"name": "programs", **settings}})
    results = [measured(number, 10.0 * number, number / 20, 0) for number in range(done + 1)]
    metrics = {number: {"agent/kl": number + 0.01 * seed} for number in range(done + 1)}
    return MeasuredRun(Path(variant) / str(seed), variant, seed, config, results, metrics)


def test_a_metric_of_an_unfinished_run_is_compared_in_the_rounds_that_both_have() -> None:
    runs = [run_of(name, seed, 20, done) for seed in (0, 1) for name, done in (("a", 20), ("b", 6))]
    (row,) = by_metric(compare_runs(runs), ["agent/kl"], last=5)
    assert row.means == pytest.approx((4.005, 4.005))  # rounds 2 to 6 of both
    (row,) = by_metric(compare_runs(runs), ["agent/kl"], last=99)
    assert row.means == pytest.approx((3.505, 3.505))  # round 0 is the warm-up
    more = [*runs, *(run_of(name, seed, 20, 20) for seed in (2, 3) for name in "ab")]
    (row,) = by_metric(compare_runs(more), ["agent/kl"], last=5)
    assert row.difference.seeds == 2  # of the finished runs, as in the rows of success
    assert final_rows({"a": runs[::2], "b": runs[1::2]}) == [("a", 0.5, "0.500 to 0.500", [0.5, 0.5])]


def test_variants_with_other_settings_of_the_environment_are_said_to_have_other_tasks() -> None:
    runs = [run_of(n, seed, 2, 2, renamed=n == "b") for seed in (0, 1) for n in ("a", "b")]
    notes = [note for note in compare_runs(runs).notes if "environment.renamed" in note]
    assert len(notes) == 1
    assert notes[0].startswith("b and a differ in environment.renamed: ")
    same = [run_of(n, seed, 2, 2) for seed in (0, 1) for n in ("a", "b")]
    assert not [note for note in compare_runs(same).notes if "differ in" in note]


def test_a_level_that_runs_begin_at_is_not_one_that_they_never_reached() -> None:
    def ends(variant: str, seed: int, *solved: float) -> MeasuredRun:
        results = [measured(number, 10.0 * number, value) for number, value in enumerate(solved)]
        config = parse_config({"run": {"rounds": 2}})
        return MeasuredRun(Path(variant), variant, seed, config, results, {n: {} for n in range(3)})

    runs = [ends(n, s, *values) for s in (0, 1) for n, values in (("a", (1, 1, 1)), ("b", (0, 0, 1)))]
    (found,) = compare_runs(runs, [("a", "b")]).sample_efficiency
    assert (found.missing, found.begun) == ((0, 0), (2, 0))
    said = next(one for one in findings(compare_runs(runs, [("a", "b")])) if one.startswith("Attempts"))
    assert "a began there in 2 of 2 seeds" in said


def test_rollouts_that_both_runs_share_are_of_neither() -> None:
    """As those of a warm-up, or of a run from which both go on in round 10."""

    def ran(name: str, seed: int, each: float, *solved: float, past: float) -> MeasuredRun:
        began = measured(0, 0, 0.1), measured(1, past, 0.3)
        own = [measured(n, past + n * each, value) for n, value in enumerate(solved, 2)]
        return of_rounds(name, seed, 4, *(began if past else ()), *own)

    def found(past: float, *solved: float) -> tuple[SampleEfficiency, str]:
        runs = [ran("slow", seed, 100 + seed, *solved, past=past) for seed in range(3)]
        runs += [ran("fast", seed, 50 + seed, *solved, past=past) for seed in range(3)]
        compared = compare_runs(runs, [("fast", "slow")])
        (one,) = compared.sample_efficiency
        return one, next(line for line in findings(compared) if line.startswith("Attempts"))

    alone, later = found(0, 0.3, 0.4, 0.5), found(10_000, 0.3, 0.4, 0.5)
    assert alone[0].ratio is not None
    assert 0.4 < alone[0].ratio[0] < 0.6
    assert later[0].ratio == pytest.approx(alone[0].ratio)
    at_once, said = found(10_000, 0.3, 0.3, 0.3)
    assert (at_once.ratio, at_once.begun) == (None, (3, 3))
    assert "fast began there in 3 of 3 seeds" in said
    far = [
        of_rounds(n, s, 4, measured(0, 0, 0.1), measured(4, spent, 0.5))
        for n, spent in (("a", 90), ("b", 80))
        for s in (0, 1)
    ]
    (line,) = (one for one in findings(compare_runs(far)) if one.startswith("Attempts"))
    assert "b was not measured near there in 2 of 2 seeds" in line
    before = replace(measured(0, 0, 0.1), scores={"of the world before": 0.1})
    changed = of_rounds("a", 0, 4, before, measured(2, 100, 0.5), measured(4, 200, 0.6), shift=2)
    assert changed.spent_to_reach(0.4) == 100, "the world before was paid for"


def test_with_seats_the_leading_agent_counts_and_with_a_regret_the_weak_one() -> None:
    seats = {"asker": "one", "answerer": "two"}
    agents = {"one": {}, "two": {}}
    played = parse_config({"environment": {"name": "guess_who", "seats": seats}, "agents": agents})
    assert set(_counted_agents(played)) == {"one"}
    paired = parse_config(with_variant({}, "paired"))
    assert set(_counted_agents(paired)) == {"protagonist"}
    assert set(_counted_agents(parse_config({"agents": agents}))) == {"one", "two"}


def test_runs_of_one_variant_with_other_versions_of_a_file_are_said_to_be_so(tmp_path: Path) -> None:
    runs = []
    for seed, digest in ((0, "a"), (1, "a"), (2, "b")):
        for name in ("a", "b"):
            path = tmp_path / name / str(seed)
            path.mkdir(parents=True)
            (path / "files.json").write_text(json.dumps({"agent.advantage": digest if name == "a" else "a"}))
            runs.append(replace(run_of(name, seed, 2, 2), path=path))
    told = [note for note in compare_runs(runs).notes if "agent.advantage" in note]
    assert told == [
        "a: what agent.advantage names is not the same in seeds 0, 1 and seeds 2; play some of them again"
    ]
    more = [*runs, *(run_of("c", seed, 2, 2) for seed in range(3))]
    assert "not compared: c; name them with --contrast A:B" in compare_runs(more, [("a", "b")]).notes
