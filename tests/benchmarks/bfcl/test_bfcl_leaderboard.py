"""The row of the official leaderboard: what it would have, and what was not measured."""

from __future__ import annotations

from typing import Any

import pytest

from genenv.benchmarks.bfcl.benchmark import Bfcl, BfclSettings
from genenv.benchmarks.bfcl.data import ALL, MISSING, WEIGHTS
from genenv.evaluation.base import Item, Prices
from genenv.evaluation.results import Record


def answered(scores: dict[str, list[float]], **more: Any) -> list[tuple[Item, Record]]:
    return [
        (
            Item(id=f"{name}_{at}", groups={"category": name}, data=None),
            Record(
                **{"id": f"{name}_{at}", "groups": {}, "status": "graded", "measures": {}, "explanation": ""},
                score=score,
                **more,
            ),
        )
        for name, found in scores.items()
        for at, score in enumerate(found)
    ]


def row_of(
    scores: dict[str, list[float]], prices: Prices | None = None, **more: Any
) -> tuple[Any, list[str]]:
    row, said = Bfcl().leaderboard(answered(scores, **more), prices)
    return row, list(said)


def test_the_weights_of_what_is_here_and_what_is_missing_are_the_whole() -> None:
    assert WEIGHTS["memory_kv_and_rec_sum"] + WEIGHTS["missing"] == pytest.approx(WEIGHTS["agentic"])
    core = ("non_live", "live", "irrelevance", "multi_turn")
    assert sum(WEIGHTS[name] for name in core) + WEIGHTS["agentic"] == 100


def test_no_overall_is_shown_as_the_whole() -> None:
    row, said = row_of({name: [1.0] for name in ALL})
    assert row["columns"]["Overall Acc"] == "N/A"
    assert row["not_measured"] == MISSING
    assert row["weight_measured"] == 0.7333
    assert row["overall_of_measured"] == pytest.approx(1.0)
    assert row["overall_missing_as_zero"] == pytest.approx(11 / 15)
    assert row["overall_v3"] == pytest.approx(1.0)
    assert said[0] == (
        "no overall here is the leaderboard's: 26.7% of its weights were not measured (memory_vector, "
        "web_search_base, web_search_no_snippet)"
    )


def test_columns_are_as_the_official_table_rounds_them() -> None:
    scores = {name: [0.0] for name in ALL}
    scores |= {"simple_python": [1.0, 0.0, 0.0], "live_simple": [1.0] * 2, "memory_kv": [1.0, 1.0, 0.0]}
    columns = row_of(scores)[0]["columns"]
    assert columns["Non-Live Simple AST"] == "11.11%"
    assert columns["Non-Live AST Acc"] == "2.78%"
    assert columns["Live Acc"] == "40.00%"
    assert columns["Memory KV"] == "66.67%"
    assert columns["Memory Acc"] == columns["Memory Vector"] == columns["Web Search Acc"] == "N/A"


def test_a_mean_over_what_was_not_asked_is_not_zero_but_unknown() -> None:
    row, said = row_of({"live_simple": [1.0], "multi_turn_base": [1.0]})
    assert row["columns"]["Live Simple AST"] == "100.00%"
    assert row["columns"]["Live Acc"] == row["columns"]["Multi Turn Acc"] == "N/A"
    assert row["not_measured"]["live_multiple"] == "it was not asked"
    assert row["overall_of_measured"] is row["overall_missing_as_zero"] is row["overall_v3"] is None
    assert not any("leaderboard" in sentence for sentence in said)


def test_latencies_are_those_of_replies_and_costs_need_prices() -> None:
    more = {"latencies_s": [0.5, 1.5, 0.0], "tokens": {"prompt": 1_000_000, "sampled": 500_000}}
    row, said = row_of({"live_simple": [1.0, 0.0]}, Prices(prompt=0.15, sampled=0.6), **more)
    columns = row["columns"]
    assert columns["Total Cost ($)"] == "0.9"
    assert columns["Latency Mean (s)"] == "1.0"
    assert columns["Latency Standard Deviation (s)"] == "0.58"  # of 0.5, 1.5, 0.5, 1.5, as a sample
    assert columns["Latency 95th Percentile (s)"] == "1.5"
    assert row["prices"] == {"prompt": 0.15, "sampled": 0.6}
    assert said[-2:] == [
        "latency of a reply: mean 1.0 s, standard deviation 0.58 s, 95th percentile 1.5 s",
        "total cost: 0.9, in the currency of the prices",
    ]
    row, said = row_of({"live_simple": [1.0, 0.0]}, **more)
    assert row["columns"]["Total Cost ($)"] == "N/A"
    assert "prices" not in row
    assert said[-1].startswith("total cost: N/A")


def test_one_reply_has_no_standard_deviation_and_none_no_latency() -> None:
    columns = row_of({"live_simple": [1.0]}, latencies_s=[2.0])[0]["columns"]
    assert (columns["Latency Mean (s)"], columns["Latency Standard Deviation (s)"]) == ("2.0", "N/A")
    assert row_of({"live_simple": [1.0]})[0]["columns"]["Latency Mean (s)"] == "N/A"


def test_nothing_answered_and_the_papers_protocol_have_no_row() -> None:
    assert Bfcl().leaderboard([], None) == ({}, ())
    papers = Bfcl(BfclSettings(protocol="genenv"))
    assert papers.leaderboard(answered({"multi_turn_long_context": [1.0]}), None) == ({}, ())
