"""Evaluations from the command on: what is asked, what is written, what is continued."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from endpoints import Server
from evaluation.conftest import Sums
from genenv.chat.assistant import Assistant
from genenv.errors import ContextOverflow, DataError, NoAnswer, RolloutError, UsageError
from genenv.evaluation import evaluate as evaluation
from genenv.evaluation import models
from genenv.evaluation.base import Item
from genenv.evaluation.config import load_evaluation_config
from genenv.evaluation.evaluate import Request, evaluate, slug
from genenv.evaluation.results import Outcome, Results
from genenv.progress import Silent, Stage
from genenv.types import Json

pytestmark = pytest.mark.usefixtures("sums")


def right(question: str) -> str:
    return str(sum(int(part) for part in question.split("+")))


@pytest.fixture
def measure(sums_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: Any) -> Any:
    """Evaluate a scripted assistant; `measure.last` is the assistant."""

    def run(
        answer: Any = right, *, workers: int = 4, overrides: tuple[str, ...] = (), **changes: Any
    ) -> Outcome:
        run.last = scripted(answer, workers)  # type: ignore[attr-defined]
        monkeypatch.setattr(evaluation, "assistant", lambda *_: run.last)  # type: ignore[attr-defined]
        fields = {"names": ["sums"], "policy": "p", "data": sums_data, "out": tmp_path / "r.jsonl", **changes}
        return next(evaluate(Request(**fields), load_evaluation_config(overrides), Silent()))

    return run


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_item_is_asked_once_and_written_down_in_its_order(measure: Any, tmp_path: Path) -> None:
    outcome = measure()
    written = lines(tmp_path / "r.jsonl")
    assert [line["id"] for line in written] == [f"s{n}" for n in range(1, 13)]
    assert written[0]["conversation"] == [
        {"role": "user", "content": "1 + 1"},
        {"role": "assistant", "content": "2"},
    ]
    assert written[0]["explanation"] == "Right."
    assert len(measure.last.asked) == 12
    assert outcome.figures[0].value == 1.0
    assert [(f.group, f.items) for f in outcome.figures[:3]] == [
        ("", 12),
        ("size=small", 8),
        ("size=large", 4),
    ]


def test_the_summary_says_what_was_measured(measure: Any, tmp_path: Path) -> None:
    measure(overrides=("sampling.temperature=0.5",), limit=6)
    summary = json.loads((tmp_path / "r.summary.json").read_text())
    assert summary["complete"] is True
    assert summary["items"] == summary["limit"] == 6
    assert summary["sampling"]["temperature"] == 0.5
    assert list(summary["data"]) == ["sums/test.jsonl"]
    assert len(summary["data"]["sums/test.jsonl"]) == 64
    assert summary["tokens"] == {"prompt": 18, "sampled": 6, "replies": 6, "cut": 0}


def test_a_limit_is_spread_evenly_over_the_groups(measure: Any, tmp_path: Path) -> None:
    measure(limit=6)
    sizes = [line["groups"]["size"] for line in lines(tmp_path / "r.jsonl")]
    assert sizes == ["small"] * 3 + ["large"] * 3


def test_items_that_fail_are_counted_apart_and_asked_again_on_resume(measure: Any, tmp_path: Path) -> None:
    outcome = measure(lambda q: RolloutError("down") if q.startswith("3") else right(q))
    assert len(outcome.failed) == 1
    assert outcome.figures[0].items == 11
    assert json.loads((tmp_path / "r.summary.json").read_text())["complete"] is False
    again = measure(resume=True)
    assert measure.last.asked == ["3 + 3"]
    assert not again.failed
    assert again.figures[0].items == 12


def test_what_does_not_fit_the_window_is_wrong_and_counted(measure: Any) -> None:
    outcome = measure(lambda q: ContextOverflow("too long") if q.startswith("1000") else right(q))
    assert outcome.overflow == 2
    assert outcome.figures[0].items == 12
    assert outcome.figures[0].value == pytest.approx(10 / 12)


def test_a_dead_endpoint_is_not_asked_for_everything(measure: Any) -> None:
    outcome = measure(lambda _: NoAnswer("down"), workers=2)
    assert len(outcome.failed) == 12
    assert len(measure.last.asked) <= 6
    assert outcome.failed[-1].explanation.endswith("down")
    assert outcome.figures == []


def test_items_that_are_refused_one_by_one_keep_no_other_from_being_asked(measure: Any) -> None:
    refused = {f"{n} + {n}" for n in range(2, 7)}
    outcome = measure(lambda q: RolloutError("refused") if q in refused else right(q), workers=1)
    assert len(measure.last.asked) == 12
    assert len(outcome.failed) == 5


def test_items_that_were_never_asked_come_before_those_that_failed(measure: Any) -> None:
    measure(lambda q: NoAnswer("down") if q in ("1 + 1", "2 + 2", "3 + 3") else right(q), workers=1)
    assert measure.last.asked == ["1 + 1", "2 + 2"]
    measure(lambda q: NoAnswer("down") if q == "1 + 1" else right(q), workers=1, resume=True)
    assert measure.last.asked == [
        *(f"{n} + {n}" for n in range(3, 9)),
        *(f"{10**n} + {n}" for n in range(1, 5)),
        *("1 + 1", "2 + 2"),
    ]


def test_a_run_that_was_killed_continues_where_it_was(measure: Any, tmp_path: Path) -> None:
    def dies(question: str) -> str:
        if question == "5 + 5":
            raise KeyboardInterrupt
        return right(question)

    with pytest.raises(KeyboardInterrupt):
        measure(dies, workers=1)
    path = tmp_path / "r.jsonl"
    assert len(lines(path)) == 4
    path.write_text(path.read_text() + '{"id": "s5", "gro', encoding="utf-8")
    outcome = measure(resume=True)
    assert len(measure.last.asked) == 8
    assert outcome.spending == {"cost": 1.3}, "five questions before it was killed, and eight after"
    assert outcome.figures[0].value == 1.0
    assert outcome.figures[0].items == 12


def test_what_was_paid_counts_for_the_benchmark_for_which_it_was_paid(
    measure: Any, sums_data: Path, tmp_path: Path
) -> None:
    """`eval all` has one assistant for all of them, which has answered others already."""
    measure()
    asked = Request(names=["sums"], policy="p", data=sums_data, out=tmp_path / "other.jsonl")
    (other,) = evaluate(asked, load_evaluation_config(()), Silent())
    assert len(measure.last.asked) == 24
    assert other.spending == {"cost": 1.2}


class JudgedSums(Sums):
    """Sums whose answers a judge sees."""

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self.judge: Assistant | None = None

    async def attempt(self, item: Item, talk: Any) -> Json:
        answer = await super().attempt(item, talk)
        if self.judge is not None:
            await self.judge.talk(0)([{"role": "user", "content": f"Is it {answer}?"}])
        return answer


@pytest.fixture
def judged(sums_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server) -> Any:
    """Evaluate a model behind an endpoint with a judge behind one; the outcome, and both assistants."""
    pytest.importorskip("openai", reason="the openai client is not installed: pip install 'genenv[api]'")
    made: list[Any] = []

    def assistant(*asked: Any) -> Any:
        made.append(models.assistant(*asked))
        return made[-1]

    monkeypatch.setattr(evaluation, "benchmark_class", lambda _: JudgedSums)
    monkeypatch.setattr(evaluation, "assistant", assistant)

    def run(*overrides: str) -> tuple[Outcome, list[Any]]:
        policy, judge = (f"openai:{server.url}#{name}" for name in ("small", "big"))
        request = Request(
            names=["sums"], policy=policy, judge=judge, data=sums_data, out=tmp_path / "r.jsonl", limit=4
        )
        return next(evaluate(request, load_evaluation_config(overrides), Silent())), made

    return run


def test_what_the_judge_costs_is_told_apart_and_its_connections_are_closed(
    judged: Any, server: Server
) -> None:
    outcome, made = judged("endpoint.price_in=1000000")
    assert outcome.spending == {
        **{"prompt_tokens": 40, "tokens": 20, "cost": 40.0},
        **{"judge_prompt_tokens": 40, "judge_tokens": 20, "judge_cost": 40.0},
    }
    assert [body["model"] for body in server.requests].count("big") == 2 + 4  # two while it is met
    assert [one._clients for one in made] == [{}, {}]


def test_the_policy_and_the_judge_share_the_limit_of_the_cost(judged: Any, server: Server) -> None:
    outcome, _ = judged("endpoint.price_in=1000000", "endpoint.max_cost=85", "endpoint.concurrency=1")
    assert len(outcome.failed) == 3  # both are met for 60, and the first item costs 20
    assert outcome.failed[0].explanation == "endpoint.max_cost = 85 is spent"
    assert len(server.requests) == 4 + 3


def test_a_smaller_limit_on_resume_loses_no_record(measure: Any, tmp_path: Path) -> None:
    measure()
    outcome = measure(resume=True, limit=4)
    assert len(outcome.records) == 4
    assert len(lines(tmp_path / "r.jsonl")) == 12


def test_results_that_go_on_with_a_larger_limit_are_not_complete_until_they_end(
    measure: Any, tmp_path: Path
) -> None:
    def dies(question: str) -> str:
        if question == "5 + 5":
            raise KeyboardInterrupt
        return right(question)

    def complete() -> bool:
        return json.loads((tmp_path / "r.summary.json").read_text())["complete"]

    measure(limit=4)
    assert complete()
    with pytest.raises(KeyboardInterrupt):
        measure(dies, resume=True, limit=12, workers=1)
    assert not complete()
    measure(resume=True, limit=4)
    assert complete()


def test_all_leaves_held_out_tasks_out_unless_they_are_named(measure: Any) -> None:
    assert measure(names=["all"]).name == "sums"
    with pytest.raises(UsageError, match="p is of no run"):
        measure(names=["all", "held-out"], out=None)


def test_results_are_not_overwritten(measure: Any) -> None:
    measure()
    with pytest.raises(UsageError, match="--resume or choose another --out"):
        measure()


def test_results_are_not_continued_with_other_settings(measure: Any) -> None:
    measure(limit=3)
    with pytest.raises(UsageError, match=r"other settings\.strict, sampling\.temperature;"):
        measure(resume=True, overrides=("sums.strict=true", "sampling.temperature=1"))


def test_results_are_not_continued_on_other_data(measure: Any, sums_data: Path) -> None:
    measure(limit=3)
    path = sums_data / "sums" / "test.jsonl"
    path.write_text(path.read_text() + '{"a": 1, "b": 2, "size": "small"}\n')
    with pytest.raises(UsageError, match="other data;"):
        measure(resume=True)


def test_a_damaged_record_is_named(measure: Any, tmp_path: Path) -> None:
    measure()
    path = tmp_path / "r.jsonl"
    path.write_text(path.read_text().replace('"id": "s2"', '"ID": "s2"'))
    with pytest.raises(DataError, match=r"r\.jsonl, line 2: it is not a record"):
        measure(resume=True)


@pytest.mark.parametrize(
    "change", [{"id": []}, {"score": "much"}, {"groups": 1}, {"conversation": 5}, {"tokens": {"prompt": "x"}}]
)
def test_a_record_of_a_wrong_shape_is_named(measure: Any, tmp_path: Path, change: dict[str, Any]) -> None:
    measure(limit=2)
    path = tmp_path / "r.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([json.dumps({**json.loads(first), **change}) + "\n", *rest]))
    with pytest.raises(DataError, match=r"r\.jsonl, line 1: it is not a record"):
        measure(resume=True)


def test_results_without_their_summary_are_not_continued(measure: Any, tmp_path: Path) -> None:
    measure(limit=2)
    (tmp_path / "r.summary.json").unlink()
    with pytest.raises(UsageError, match="has lost its summary"):
        measure(resume=True)


def test_a_summary_whose_items_were_never_written_is_begun_anew(measure: Any, tmp_path: Path) -> None:
    measure(lambda _: RolloutError("down"))
    (tmp_path / "r.jsonl").unlink()
    assert measure(resume=True).figures[0].items == 12


def test_lost_items_of_a_summary_with_figures_are_not_asked_again_unasked(
    measure: Any, tmp_path: Path
) -> None:
    """Their figures would be written over."""
    measure(lambda q: RolloutError("down") if q.startswith("3") else right(q))
    (tmp_path / "r.jsonl").unlink()
    before = (tmp_path / "r.summary.json").read_bytes()
    with pytest.raises(DataError, match=r"r\.jsonl is missing; restore a copy of it, or"):
        measure(resume=True)
    assert (tmp_path / "r.summary.json").read_bytes() == before


def test_a_last_record_without_the_end_of_its_line_is_not_lost(measure: Any, tmp_path: Path) -> None:
    """Some editors take it off; a record that a kill cut off is never whole JSON."""
    measure()
    path = tmp_path / "r.jsonl"
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    measure(resume=True)
    assert measure.last.asked == []
    path.write_bytes(path.read_bytes()[:-2])
    measure(resume=True)
    assert len(measure.last.asked) == 1


@pytest.mark.usefixtures("impatient")
def test_two_at_once_do_not_write_the_same_results(measure: Any, tmp_path: Path) -> None:
    measure(limit=2)
    with Results(tmp_path / "r.jsonl").lock(), pytest.raises(UsageError, match="by another process"):
        measure(resume=True)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"split": "dev"}, "there is no split 'dev': sums has test, hard"),
        ({"names": ["sums", "nonsense"]}, "unknown benchmark 'nonsense'"),
        ({"judge": "p"}, "takes a judge"),
        ({"data": Path("nowhere")}, "there is no folder nowhere"),
    ],
)
def test_a_wrong_request_is_one_sentence(measure: Any, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        measure(**changes)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("sums.strickt=true", "did you mean 'sums.strict'"),
        ("policy.model=x", "unknown setting 'policy.model'"),
        ("sampling.temperature=-1", "allowed: number, >= 0"),
        ("endpoint=1", "'endpoint' is a section"),
    ],
)
def test_a_wrong_setting_is_one_sentence(override: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_evaluation_config([override])
    assert sentence in str(caught.value)


def test_results_of_other_settings_are_other_files(measure: Any, tmp_path: Path) -> None:
    paths = [
        measure(out=tmp_path / "o", limit=2, overrides=overrides).results.path.name
        for overrides in ((), ("sums.strict=true",))
    ]
    assert paths == ["sums-test.jsonl", "sums-test-strict=True.jsonl"]


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        ("smollm2-135m", "smollm2-135m"),
        ("runs/demo@12:agent", "runs-demo@12-agent"),
        ("openai:http://localhost:8000/v1#org/model", "org-model"),
        ("openai:http://localhost:8000/v1#accounts/m#accounts/d", "accounts-m-accounts-d"),
        ("../../..", "policy"),
    ],
)
def test_results_are_named_after_the_policy(policy: str, name: str) -> None:
    assert slug(policy) == name


def test_hostile_text_is_written_and_read_again(measure: Any, tmp_path: Path) -> None:
    text = "\ud800 \x00 \u2028 " + "[" * 10_000
    measure(lambda _: text, limit=2)
    assert lines(tmp_path / "r.jsonl")[0]["answer"] == text
    assert measure(resume=True, limit=2).figures[0].value == 0.0


class Games(Sums):
    """Sums that take up to four replies each, and two in fact."""

    name = "games"

    def many_turns(self, item: Item) -> bool:
        return True

    def most_replies(self, item: Item) -> int:
        return 4

    async def attempt(self, item: Item, talk: Any) -> Json:
        await super().attempt(item, talk)
        return await super().attempt(item, talk)


class Noted(Silent):
    """Keeps the notes of a stage."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    @contextlib.contextmanager
    def stage(self, name: str, *, items: int | None, unit: str) -> Generator[Stage]:
        yield lambda _tokens, _items, note="": self.notes.append(note)


def test_progress_of_items_with_many_turns_counts_replies(
    sums_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: Any
) -> None:
    monkeypatch.setattr(evaluation, "benchmark_class", lambda _: Games)
    monkeypatch.setattr(evaluation, "assistant", lambda *_: scripted(right, 1))
    config, shown = load_evaluation_config([]), Noted()
    config = replace(config, benchmarks={**config.benchmarks, "games": config.benchmarks["sums"]})
    request = Request(names=["sums"], policy="p", data=sums_data, out=tmp_path / "r.jsonl", limit=2)
    next(evaluate(request, config, shown))
    assert shown.notes == [
        "1 of at most 8 replies",
        "2 of at most 8 replies",
        "2 of at most 6 replies, score 100.0%",
        "3 of at most 6 replies, score 100.0%",
        "4 of at most 6 replies, score 100.0%",
        "4 of at most 4 replies, score 100.0%",
    ]
