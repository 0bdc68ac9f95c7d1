"""Small runs with texts of a test, and a reader who asks a viewer for paths as they are."""

from __future__ import annotations

import html
import http.client
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from genenv.evaluation.results import Record, as_json
from genenv.runs.folder import RunFolder
from genenv.runs.store.records import Evaluation, RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.statistics import rate
from genenv.texts import clean
from genenv.types import (
    Context,
    Generation,
    Group,
    Lineage,
    Message,
    Origin,
    Proposal,
    Rejection,
    RejectReason,
    Seed,
    StopReason,
    Task,
    TaskBatch,
    Trace,
)
from genenv.viewer.folders import Run
from genenv.viewer.pages import Viewer

HOSTILE = (
    "</pre><script>alert(1)</script><img src=x onerror=alert(1)> [x](javascript:alert(1)) {{ 7*7 }} {% raw %}"
    "<svg onload=alert(1)> \x1b[2J\x07\x00 \u202eturned\u202c \ud800 'quote\" &amp; %2e%2e/ \u2028"
)
CONFIG = """{head}[run]
rounds = {rounds}
seed = {seed}
[environment]
name = "sums"
[curriculum]
alpha = 0.5
{more}"""
METRICS = {
    "agent/eval_success": 0.25,
    "curriculum/p_hat_mean": 0.5,
    "simulator/valid_rate": 0.5,
    "simulator/rejected/leak": 1.0,
    "time/rollout_s": 3.0,
    "time/round_s": 4.0,
    "tokens/sampled": 80.0,
}


def run_of(metrics: Mapping[str, Sequence[float | None]]) -> Run:
    """A run with these metrics in its rounds, from 1 on."""
    most = max(map(len, metrics.values()), default=0)
    rounds = {
        number + 1: {name: found for name, line in metrics.items() if (found := line[number]) is not None}
        for number in range(most)
    }
    settings = {"curriculum.alpha": 0.5}
    return Run(name="demo", path=Path("none"), settings=settings, rounds=rounds, notes=())


def write_run(
    folder: Path,
    *,
    rounds: int,
    text: str = "plain",
    planned: int = 2,
    run_seed: int = 7,
    head: str = "",
    more: str = "",
) -> RunFolder:
    """A run with one seed, and in each round a task with four rollouts, a refusal and an evaluation.

    `head` and `more` are lines before and after those of `CONFIG`.
    """
    config = CONFIG.format(rounds=planned, seed=run_seed, head=head, more=more)
    made = RunFolder.create(folder, config)
    seed = Seed(id=f"seed {clean(text)}", environment="sums", spec={"text": text}, skills=("adding",))
    base = task_of(f"base {clean(text)}", text, Lineage(origin=Origin.SEED, seed_id=seed.id))
    held_out = task_of("held-0", text, Lineage(origin=Origin.HELD_OUT))
    with PoolStore.open(made.pool, create=False) as store:
        store.put_base([seed], [base, held_out])
        for number in range(rounds):
            commit(made, store, number, text, seed=seed)
    return made


def commit(folder: RunFolder, store: PoolStore, number: int, text: str = "plain", *, seed: Seed) -> None:
    """Add a round; those from 1 on have a task."""
    batches = [_batch(number, text, seed)] if number else []
    record = RoundRecord(
        number=number,
        metrics=METRICS | {"agent/eval_success": 0.25 + 0.05 * number},
        state={},
        batches=batches,
        groups=[group for batch in batches for group in batch.groups],
        evaluations=[
            Evaluation(task_id="held-0", success=True, reward=1.0, replies=(text,), explanation=text)
        ],
    )
    with folder.committing(store, record):
        pass


def _batch(number: int, text: str, seed: Seed) -> TaskBatch:
    context = Context(
        id=f"c{number}", round=number, seed=seed, messages=(Message(role="user", content=f"write {text}"),)
    )
    written = [
        Generation(
            id=f"c{number}-g{n}", context_id=context.id, prompt_ids=(1,), token_ids=(2,), logprobs=(-1.0,),
            text=f"spec {text}", finished=True,
        )
        for n in range(2)
    ]  # fmt: skip
    lineage = Lineage(
        origin=Origin.GENERATED, seed_id=seed.id, context_id=context.id, generation_id=written[0].id
    )
    task = task_of(f"task-{number} {clean(text)}", text, lineage)
    group = Group(task=task, traces=tuple(trace_of(task, number, n, text) for n in range(4)))
    return TaskBatch(
        context=context,
        proposals=(
            Proposal(generation=written[0], outcome=task, novelty=0.5),
            Proposal(
                generation=written[1],
                outcome=Rejection(reason=RejectReason.LEAK, explanation=f"it says the answer {text}"),
            ),
        ),
        groups=(group,),
        p_hat=number % 5 / 4,
        env_reward=0.5,
    )


def task_of(name: str, text: str, lineage: Lineage) -> Task:
    return Task(
        id=name,
        environment="sums",
        skills=("adding", text),
        messages=(Message(role="system", content="You add."), Message(role="user", content=f"2 + 2? {text}")),
        spec={"left": 2, "text": text},
        payload={"right": text},
        oracle=(f"4 {text}",),
        lineage=lineage,
    )


def trace_of(task: Task, number: int, n: int, text: str) -> Trace:
    success = n < number % 5
    return Trace(
        id=f"{task.id}/{n}",
        task_id=task.id,
        token_ids=(1, 52, 256),
        sampled=(False, True, True),
        logprobs=(0.0, -0.05, -3.0),
        prompt_tokens=1,
        messages=(Message(role="assistant", content=f"{4 if success else 5} {text}"),),
        reward=float(success),
        success=success,
        explanation=f"says {text}",
        stop_reason=StopReason.DONE,
        version=number,
        readable=True,
    )


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Tags(HTMLParser):
    """The tags of a page, with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text.replace("<wbr>", ""))
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def text_of(page: str) -> str:
    return Tags(page).text


class Reader:
    """Asks a server for paths as they are, and follows nothing."""

    def __init__(self, server: Viewer) -> None:
        self.server = server
        self.host = f"127.0.0.1:{urlsplit(server.url).port}"
        self.marks = server.marks

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        given = {"Host": self.host} | {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection(self.host, timeout=20)) as connection:
            connection.putrequest(method, path, skip_host=True)
            for name, value in given.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(status=answer.status, headers=found, body=answer.read())

    def page(self, path: str, status: int = 200) -> str:
        answer = self.ask(path)
        assert answer.status == status, (path, answer.status, answer.text[:2000])
        return answer.text


def ids_of(page: str) -> list[str]:
    """The ids of the tasks that a list shows, in its order."""
    found = re.findall(r'<div><a href="[^"]*/-/task\?([^"]*)"', page)
    return [parse_qs(html.unescape(query))["id"][0] for query in found]


def write_results(
    file: Path, scores: Sequence[float], *, policy: str = "base", text: str = "plain", benchmark: str = "sums"
) -> None:
    """Write what `genenv eval` writes: items, and a summary."""
    records = [
        Record(
            id=f"item-{place}",
            groups={"kind": "short" if place % 2 else "long"},
            status="failed" if score < 0 else "graded",
            score=max(0.0, score),
            measures={"length": 1.0},
            explanation=f"it says {text}",
            answer={"replies": [text]},
            conversation=[{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": text}],
            unread=[f"a part {text}"],
        )
        for place, score in enumerate(scores)
    ]
    answered = [one.score for one in records if one.status == "graded"]
    summary = {
        "complete": True,
        "benchmark": benchmark,
        "split": "main",
        "policy": {"name": policy},
        "items": len(scores),
        "of": len(scores),
        "failed": len(scores) - len(answered),
        "figures": as_json([rate("success", answered)]),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_suffix(".jsonl").write_text("".join(one.line() for one in records), encoding="utf-8")
    file.with_suffix(".summary.json").write_text(json.dumps(summary), encoding="utf-8")
