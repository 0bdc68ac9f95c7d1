"""The shift test, read: cases worked by hand, and real runs through the command line."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from genenv.config.run import parse_config
from genenv.research.sweeps.readings import BUDGETS, MeasuredRun, Measurement, read_run
from genenv.research.sweeps.recovery import recoveries, recovery_contrasts, shifted_run
from genenv.research.sweeps.recovery import recovery_contrast_text as in_words
from genenv.research.sweeps.recovery import recovery_text as fell
from typed import refused, succeeds

SHIFTING = parse_config(
    {"environment": {"name": "programs"}, "shift": {"round": 3, "environment": {"renamed": True}}}
)
TINY = Path(__file__).parents[3] / "configs" / "tiny.toml"
TASKS = 20


def measured(round_: int, solved: int, *, world: str) -> Measurement:
    scores = {f"{world}-{i}": float(i < solved) for i in range(TASKS)}
    return Measurement(round_, dict.fromkeys(BUDGETS, 100.0 * round_), scores)


def run(*after: int, seed: int = 0, before: int = 10, at: int = 4) -> MeasuredRun:
    """Half solved before round 3; then so many of 20 after each round."""
    first = [measured(0, 2, world="old"), measured(2, before, world="old"), measured(2, at, world="new")]
    rest = [measured(place, solved, world="new") for place, solved in enumerate(after, start=3)]
    return MeasuredRun(Path("run"), "a", seed, SHIFTING, [*first, *rest], {})


def test_a_run_is_back_in_the_first_round_that_is_as_good_as_before() -> None:
    shifted = shifted_run(run(6, 9, 8, 10, 12))
    assert shifted is not None
    assert (shifted.round, shifted.before, shifted.at, shifted.rounds) == (3, 0.5, 0.2, 5)
    assert shifted.back(0.9) == (2, 200)
    assert shifted.back(1.0) == (4, 400)
    assert shifted.lasted(1.0, 3) == 3


def test_who_does_not_fall_is_back_at_once_and_who_never_is_has_no_round() -> None:
    kept, lost = shifted_run(run(10, at=10)), shifted_run(run(6, 7, 8))
    assert kept is not None
    assert lost is not None
    assert kept.back(1.0) == (0, 0)
    assert lost.back(0.9) is None
    assert lost.lasted(0.9, 3) == 3


def test_a_run_without_a_second_world_has_no_fall() -> None:
    assert shifted_run(MeasuredRun(Path("run"), "a", 0, SHIFTING, run(6).measured[:2], {})) is None
    assert shifted_run(MeasuredRun(Path("run"), "a", 0, SHIFTING, run(6).measured[:3], {})) is None


def test_levels_are_reached_in_the_last_world_and_scores_leap_between_two() -> None:
    one = run(6, 8)
    assert one.spent_to_reach(0.5) is None
    assert one.spent_to_reach(0.3) == 300
    gap = [one.measured[0], *one.measured[3:]]
    leaping = MeasuredRun(Path("run"), "a", 0, SHIFTING, gap, {})
    assert leaping.at("attempts", 150) == one.measured[0].scores


def test_variants_are_means_over_seeds_and_who_never_was_back_counts_with_its_rounds() -> None:
    (one,) = recoveries({"a": [run(9, 10, 11), run(6, 9, 10, seed=1), run(5, 6, 7, seed=2)], "b": []})
    assert one.before[0] == 0.5
    assert one.drop[0] == pytest.approx(0.3)
    nine, ten = one.back
    assert (nine.share, nine.rounds[0], nine.attempts[0], nine.never, nine.within) == (0.9, 2, 200, 1, 3)
    assert ten.rounds[0] == pytest.approx((2 + 3 + 3) / 3)
    half = stats.t.ppf(0.975, 2) * stats.sem([1, 2, 3])
    assert nine.rounds[1:] == pytest.approx((2 - half, 2 + half))
    said = fell(one)
    assert "50.0% before, 20.0% in the other world, a drop of 30.0 points" in said
    assert (
        "Back at 90% of the level before: not within 3 rounds in 1 of 3 seeds, so after at least 2.0 rounds"
        in said
    )


def test_pairs_are_compared_in_the_rounds_that_both_had() -> None:
    fast = [run(10, 10, 10, 10, seed=seed) for seed in range(3)]
    slow = [run(5, 5 + 5 * (seed == 0), 10, seed=seed) for seed in range(2)] + [run(5, 5, 5, seed=2)]
    rows = recovery_contrasts({("fast", "slow"): list(zip(fast, slow, strict=True))})
    assert [row.share for row in rows] == [0.9, 1.0]
    apart = [-1, -2, -2]
    for row in rows:
        assert row.difference.value == pytest.approx(sum(apart) / 3)
        assert row.adjusted == pytest.approx(stats.ttest_1samp(apart, 0).pvalue)
        assert row.never == (0, 1)
    assert "fast is sooner" in in_words(rows[0])
    assert "slow was not in 1" in in_words(rows[0])


@given(after=st.lists(st.integers(0, TASKS), min_size=1, max_size=8), at=st.integers(0, TASKS))
def test_ninety_percent_is_never_later_than_the_whole(after: list[int], at: int) -> None:
    shifted = shifted_run(run(*after, at=at))
    assert shifted is not None
    assert shifted.lasted(0.9, 99) <= shifted.lasted(1.0, 99)
    if (back := shifted.back(1.0)) is not None:
        assert max([at, *after]) >= 10
        assert back[1] == 100 * back[0]
        assert not any(solved >= 10 for solved in after[: max(0, back[0] - 1)])


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweeps") / "sweep"
    small = ["policy.backend=scripted", "run.rounds=6", "run.eval_tasks=30", "run.eval_every=3"]
    small += ["simulator.contexts=4", "shift.round=3", "shift.environment.renamed=true"]
    settings = [word for one in small for word in ("--set", one)]
    names = ["--variants", "base,variation", "--seeds", "2", "--contrast", "variation:base"]
    succeeds("sweep", TINY, *settings, *names, "--jobs", 1, "--out", out)
    return out


@pytest.mark.long
def test_what_is_read_is_what_the_store_holds(sweep: Path) -> None:
    one = read_run(sweep / "variation" / "seed-1")
    assert [m.round for m in one.measured] == [0, 2, 2, 3, 4, 5, 6]
    shifted = shifted_run(one)
    assert shifted is not None
    assert shifted.before == pytest.approx(one.metrics[2]["agent/eval_success"])
    assert shifted.at == pytest.approx(one.metrics[3]["agent/eval_at_shift"])
    assert [taken[0] for taken in shifted.after] == [0, 1, 2, 3, 4]
    assert shifted.after[1][1] == one.metrics[3]["agent/attempts"]
    assert shifted.after[-1][2] == pytest.approx(one.metrics[6]["agent/eval_success"])


@pytest.mark.long
def test_a_comparison_says_it_in_words_and_as_rows(sweep: Path, tmp_path: Path) -> None:
    said = succeeds("compare", sweep, "--out", tmp_path / "page").stdout
    said = " ".join(said.split())
    assert "variation at the shift (round 3):" in said
    assert "variation against base, rounds until back at the level before:" in said
    page = (tmp_path / "page" / "compare.html").read_text()
    assert "Around the shift" in page
    with (tmp_path / "page" / "shift.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["variant"], row["seed"]) for row in rows] == [
        (name, seed) for name in ("base", "variation") for seed in "01"
    ]
    assert all(math.isclose(float(r["drop"]), float(r["before"]) - float(r["at shift"])) for r in rows)
    with (tmp_path / "page" / "curves.csv").open() as file:
        assert [row["world"] for row in csv.DictReader(file)] == list("1122222") * 4


@pytest.mark.long
def test_runs_of_different_worlds_are_refused(sweep: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    small = ["policy.backend=scripted", "run.rounds=3", "run.eval_tasks=30", "simulator.contexts=4"]
    settings = [word for one in [*small, "shift.round=3"] for word in ("--set", one)]
    shift = ["--set", 'shift.environment.operations=["up", "first"]']
    succeeds("train", TINY, *settings, *shift, "--variant", "rl", "--out", other)
    assert "shift into different worlds" in refused("compare", sweep, other)
    unshifted = tmp_path / "unshifted"
    succeeds("train", TINY, *settings, "--set", "shift.round=0", "--variant", "rl", "--out", unshifted)
    assert "the same run.eval_tasks and [shift]" in refused("compare", sweep, unshifted)
