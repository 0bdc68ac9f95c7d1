"""Runs of several agents, at seats of one episode or without: whose success the pages and the report show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from genenv.runs.folder import RunFolder
from genenv.runs.store.records import Evaluation, RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.types import Context, Generation, Group, Lineage, Origin, Proposal, Seed, Task, TaskBatch
from genenv.viewer import address
from genenv.viewer.compare import groups, paired
from genenv.viewer.curves import heats
from genenv.viewer.folders import Runs
from genenv.viewer.frozen import write_report
from viewer_runs import ids_of, task_of, text_of, trace_of

SEATS = """[environment.seats]
asker = "asker"
answerer = "answerer"
"""
CONFIG = """[run]
rounds = 2
seed = {seed}
[environment]
name = "sums"
{seats}[agents.asker]
train = true
[agents.answerer]
train = true
[curriculum]
alpha = 0.5
{more}"""
HELD_OUT = [task_of(f"held-{n}", "plain", Lineage(origin=Origin.HELD_OUT)) for n in range(4)]


def write_agents(folder: Path, *, seats: str = SEATS, seed: int = 0, more: str = "") -> RunFolder:
    """Two rounds: the asker solves 1 and 3 of 4 rollouts and held-out tasks, the answerer all of them.

    The task of the first round comes back in the second.
    """
    made = RunFolder.create(folder, CONFIG.format(seed=seed, seats=seats, more=more))
    first = Seed(id="seed", environment="sums", spec={}, skills=("adding",))
    written: list[Task] = []
    with PoolStore.open(made.pool, create=False) as store:
        store.put_base([first], HELD_OUT)
        for number, solved in ((1, 1), (2, 3)):
            record = _round(number, solved, first, written, named=bool(seats))
            with made.committing(store, record):
                pass
    return made


def _round(number: int, solved: int, seed: Seed, written: list[Task], *, named: bool) -> RoundRecord:
    context = Context(id=f"c{number}", round=number, seed=seed, messages=())
    generation = Generation(
        id=f"g{number}", context_id=context.id, prompt_ids=(1,), token_ids=(2,), logprobs=(-1.0,), text="{}",
        finished=True,
    )  # fmt: skip
    lineage = Lineage(
        origin=Origin.GENERATED, seed_id=seed.id, context_id=context.id, generation_id=generation.id
    )
    written.append(task_of(f"task-{number}", "plain", lineage))

    def rolled(task: Task, agent: str, successes: int) -> Group:
        ids = [f"{task.id}/{n}{f'/{agent}' if named else agent}@{number:016x}" for n in range(4)]
        traces = [
            replace(trace_of(task, number, n, "plain"), id=id_, success=n < successes)
            for n, id_ in enumerate(ids)
        ]
        return Group(task=task, traces=tuple(traces), agent=agent)

    def evaluated(agent: str, successes: int) -> list[Evaluation]:
        return [
            Evaluation(
                task_id=task.id,
                success=n < successes,
                reward=0.0,
                replies=(agent,),
                explanation="",
                agent=agent,
            )
            for n, task in enumerate(HELD_OUT)
        ]

    of_round = [*(rolled(task, "asker", solved) for task in written[::-1])]
    of_round += [rolled(task, "answerer", 4) for task in written[::-1]]
    batch = TaskBatch(
        context=context,
        proposals=(Proposal(generation=generation, outcome=written[-1], novelty=0.5),),
        groups=(of_round[0], of_round[len(written)]),
        p_hat=solved / 4,
        env_reward=0.5,
    )
    rate = solved / 4
    own: dict[str, float] = {"agents/asker/success_rate": rate, "agents/answerer/success_rate": 1.0}
    metrics = {
        **own,
        "agent/success_rate": rate if named else (rate + 1) / 2,
        "agent/eval_success": rate if named else (rate + 1) / 2,
        f"tasks/p_hat/{20 if solved == 1 else 60}-{40 if solved == 1 else 80}": 1.0,
        "tasks/mixed": 1.0,
        "tasks/share/adding": 1.0,
    }
    evaluations = [*evaluated("asker", solved), *evaluated("answerer", 4)]
    return RoundRecord(
        number=number, metrics=metrics, state={}, batches=[batch], groups=of_round, evaluations=evaluations
    )


def _numbers(folder: RunFolder) -> Sequence[str]:
    text = text_of(write_report(folder.path).read_text(encoding="utf-8"))
    return re.findall(r"(?:\d\.\d\d ){1}\d\.\d\d to \d\.\d\d", text)


def test_with_seats_the_report_shows_the_success_of_the_leading_agent(tmp_path: Path) -> None:
    # Wilson's interval of 1 of 4, and of 3 of 4
    assert _numbers(write_agents(tmp_path / "demo")) == ["0.25 0.05 to 0.70", "0.75 0.30 to 0.95"]


def test_the_interval_of_several_agents_counts_each_held_out_task_once(tmp_path: Path) -> None:
    # 2.5 of 4 tasks is the mean of both agents: not 5 of 8, whose interval is 0.31 to 0.86
    assert _numbers(write_agents(tmp_path / "demo", seats=""))[0] == "0.62 0.22 to 0.91"


def test_with_seats_the_comparison_is_of_the_leading_agent(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_agents(tmp_path / "a" / f"{seed}", seed=seed)
        write_agents(tmp_path / "b" / f"{seed}", seed=seed, more="beta = 3.0\n")
    found = groups(Runs(tmp_path).all())
    (held_out, *_), _ = paired(found, found[0])
    assert held_out.means == (0.75, 0.75)


def test_with_a_regret_the_comparison_is_of_the_weak_agent(tmp_path: Path) -> None:
    more = 'agents_reward = "regret"\nregret_agents = ["answerer", "asker"]\n'
    for name, beta in (("a", ""), ("b", "beta = 3.0\n")):
        write_agents(tmp_path / name, seats="", more=more + beta)
    found = groups(Runs(tmp_path).all())
    (held_out, *_), _ = paired(found, found[0])
    assert held_out.means == (0.75, 0.75)


@pytest.mark.parametrize("page", ["small", "indexed"])
def test_with_seats_the_page_of_two_rounds_counts_the_leading_one_and_names_the_other(
    page: str, tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page == "indexed":
        monkeypatch.setattr("genenv.viewer.rounds._FEW", 0)
    write_agents(tmp_path / "demo")
    reader = serve(tmp_path)
    text = text_of(reader.page(address("demo", "rounds", round=2, before=1)))
    assert "Success rose by 50.0 points, from 25.0% to 75.0%" in text
    assert "Held-out success rose by 50.0 points, from 25.0% to 75.0%: 0 of 4 tasks lost, 2 won" in text
    assert "asker asker" in text, "the replies to held-out tasks are those of the leading agent"
    assert "agents/answerer/success_rate 100.0% 100.0%" in text


def test_with_seats_a_cell_of_a_map_lists_the_tasks_that_it_counts(tmp_path: Path, serve: Any) -> None:
    write_agents(tmp_path / "demo")
    reader, run = serve(tmp_path), Runs(tmp_path).find("demo")
    links = [
        (link, row.label)
        for heat in heats(run)
        for row in heat.rows
        for share, link in zip(row.shares, row.links, strict=True)
        if share and heat.of_new
    ]
    assert [label for _, label in links] == ["60 to 80%", "20 to 40%", "adding", "adding"]
    for link, label in links:
        number = link.partition("round=")[2].partition("&")[0]
        assert ids_of(reader.page(f"/runs/demo/-/{link}")) == [f"task-{number}"], label


def test_with_seats_a_list_and_a_task_show_the_rate_of_the_leading_one(tmp_path: Path, serve: Any) -> None:
    write_agents(tmp_path / "demo")
    reader = serve(tmp_path)
    for query in ({}, {"text": "plain"}):
        text = text_of(reader.page(address("demo", "tasks", **query)))
        assert "task-2 generated, round 2 3/4" in text
        assert "held-2 held out solved in 1 of 2 evaluations" in text
    text = text_of(reader.page(address("demo", "task", id="task-1")))
    assert "round 1 1/4 round 2 3/4" in text
    assert "demo · answerer – – – 1 : 4/4, 2 : 4/4" in text, "the other seat is a row of its own"
