"""The report of a run: complete, self-contained, reproducible, and safe whatever a model wrote."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from base64 import b64encode
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean

import pytest

from genenv.errors import UsageError
from genenv.runs.folder import RunFolder
from genenv.runs.metrics import evaluation_metrics
from genenv.runs.store.records import Evaluation, RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.runs.summary import summarise
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
    SimulatorSample,
    StopReason,
    Task,
    TaskBatch,
    Trace,
)
from genenv.viewer.frozen import write_report
from talk import said

CONFIG = """
[run]
seed = 7
rounds = 8

[policy]
model = "smollm2-135m"

[curriculum]
alpha = 0.5
band_filter = true
k_min = 0.1
"""
APPS = ("calendar", "mail", "travel", "shop", "notes", "smart_home")
WISHES = {
    "calendar": "Put a half-hour call with Zoë on tomorrow, right after the stand-up.",
    "mail": "Let Bram know that the parcel for “Fenwick & Sons” has arrived.",
    "travel": "Find me a train to Ghent on Friday that gets in before ten.",
    "shop": "Order a dozen of the recycled notebooks, the ones with dots.",
    "notes": "Write down that the key is under the blue pot.",
    "smart_home": "It is too bright in here; take the hall lights down to a third.",
}


def commit(folder: RunFolder, store: PoolStore, record: RoundRecord) -> None:
    with folder.committing(store, record):
        pass


class SyntheticRun:
    """Writes a run of plausible values through the real store."""

    def __init__(self, folder: Path, *, seed: int = 0, config: str = CONFIG) -> None:
        self.folder = RunFolder.create(folder, config)
        self.rng = random.Random(seed)
        self.seeds = [
            Seed(id=f"seed-{app}", environment="tool_calling", spec={}, skills=(app,)) for app in APPS
        ]
        lineage = Lineage(origin=Origin.HELD_OUT)
        self.held_out = [self._task(f"held-{n}", APPS[n % 6], n_calls=1, lineage=lineage) for n in range(40)]

    def write(self, rounds: int, *, accepting: bool = True, evaluating: bool = True) -> Path:
        """Commit the start of the run and rounds 1 to `rounds`."""
        with PoolStore.open(self.folder.pool, create=False) as store:
            store.put_base(self.seeds, self.held_out)
            if rounds:
                commit(self.folder, store, self._start(evaluating))
            for number in range(1, rounds + 1):
                progress = number / max(rounds, 8)
                commit(self.folder, store, self._round(number, progress, accepting, evaluating))
        return self.folder.path

    def _start(self, evaluating: bool) -> RoundRecord:
        evaluations = [self._evaluation(task, 0.0) for task in self.held_out] if evaluating else ()
        return RoundRecord(number=0, metrics={"time/warmup_s": 10.0}, state={}, evaluations=evaluations)

    def _round(self, number: int, progress: float, accepting: bool, evaluating: bool) -> RoundRecord:
        batches = [self._batch(number, place, progress, accepting) for place in range(6)]
        samples = [
            SimulatorSample(generation=proposal.generation, weight=0.1)
            for batch in batches
            if batch.p_hat is not None and abs(batch.p_hat - 0.5) <= 0.1
            for proposal in batch.proposals
        ]
        p_hats = [batch.p_hat for batch in batches if batch.p_hat is not None]
        return RoundRecord(
            number=number,
            metrics={
                **({"curriculum/p_hat_mean": fmean(p_hats)} if p_hats else {}),
                "agent/success_rate": 0.2 + 0.4 * progress,
                "agent/eval_success": 0.2 + 0.35 * progress,
                "simulator/valid_rate": 0.45 + 0.45 * progress,
                "agent/kl": 0.02 * number + 0.004 * self.rng.random(),
                "simulator/kl": 0.008 * number,
                "agent/response_tokens": 44 - 6 * progress + self.rng.random(),
                "tasks/required_response_tokens": 26 + 12 * progress + self.rng.random(),
                "tasks/steps_mean": 1.2 + 0.7 * progress,
                "time/propose_s": 12.5,
                "time/rollout_s": 61.25,
            },
            state={},
            batches=batches,
            groups=[group for batch in batches for group in batch.groups],
            samples=samples,
            evaluations=[self._evaluation(task, progress) for task in self.held_out] if evaluating else (),
        )

    def _evaluation(self, task: Task, progress: float) -> Evaluation:
        success = self.rng.random() < 0.2 + 0.35 * progress
        return Evaluation(
            task_id=task.id, success=success, reward=float(success), replies=("x",), explanation=""
        )

    def _batch(self, number: int, place: int, progress: float, accepting: bool) -> TaskBatch:
        app = APPS[min(5, int(abs(self.rng.gauss(0, 1 + 3 * progress))))]
        seed = self.seeds[APPS.index(app)]
        context = Context(id=f"r{number:04d}-c{place:02d}", round=number, seed=seed, messages=())
        proposals: list[Proposal] = []
        groups: list[Group] = []
        for n in range(4):
            generation = Generation(
                id=f"{context.id}-g{n}", context_id=context.id, prompt_ids=(1,), token_ids=(2,),
                logprobs=(-1.0,), text="{}", finished=True,
            )  # fmt: skip
            if not accepting or self.rng.random() > 0.45 + 0.45 * progress:
                reason = self.rng.choice([*RejectReason, RejectReason.UNSTATED, RejectReason.UNSTATED])
                outcome = Rejection(reason=reason, explanation="because")
            else:
                lineage = Lineage(
                    origin=Origin.GENERATED,
                    seed_id=seed.id,
                    context_id=context.id,
                    generation_id=generation.id,
                )
                n_calls = 1 + int(self.rng.random() < 0.2 + 0.5 * progress)
                outcome = self._task(f"t-{generation.id}", app, n_calls=n_calls, lineage=lineage)
                groups.append(self._group(outcome, number, progress))
            proposals.append(Proposal(generation=generation, outcome=outcome))
        attempts = [trace.success for group in groups for trace in group.traces]
        return TaskBatch(
            context=context,
            proposals=tuple(proposals),
            groups=tuple(groups),
            p_hat=sum(attempts) / len(attempts) if attempts else None,
            env_reward=0.5 if attempts else 0.0,
        )

    def _task(self, name: str, app: str, *, n_calls: int, lineage: Lineage) -> Task:
        wish = WISHES[app] + (" Then tell me the number of it." if n_calls > 1 else "")
        call = f'[{{"name": "{app}.create", "arguments": {{"title": "call with Zoë", "minutes": 30}}}}]'
        return Task(
            id=name,
            environment="tool_calling",
            skills=(app, f"calls:{n_calls}"),
            messages=(Message(role="system", content="Tools: …"), Message(role="user", content=wish)),
            spec={
                "n_calls": n_calls, "dependent": n_calls > 1, "n_tools": 4, "phrasing": "indirect",
                "gap": "none", "calls": [], "instruction": wish,
            },
            payload={},
            oracle=(call,) * n_calls,
            lineage=lineage,
        )  # fmt: skip

    def _group(self, task: Task, number: int, progress: float) -> Group:
        ability = min(0.95, max(0.02, self.rng.gauss(0.15 + 0.4 * progress, 0.4 * (1 - progress) + 0.1)))
        return Group(task=task, traces=tuple(self._trace(f"{task.id}-a{n}", task, ability) for n in range(8)))

    def _trace(self, name: str, task: Task, ability: float) -> Trace:
        success = self.rng.random() < ability
        wrong, explanation, reason = self.rng.choice(
            [
                ('[{"name": "calendar.list", "arguments": {}}]', "calls another tool", StopReason.DONE),
                ("Sure! I will do that for you", "no tool was called", StopReason.LENGTH),
                ("", "no tool was called", StopReason.DONE),
            ]
        )
        return Trace(
            id=name,
            task_id=task.id,
            token_ids=(1, 2),
            sampled=(False, True),
            logprobs=(0.0, -0.5),
            prompt_tokens=1,
            messages=said(*(task.oracle if success else (wrong,))),
            reward=float(success),
            success=success,
            explanation="all calls are right" if success else explanation,
            stop_reason=StopReason.DONE if success else reason,
        )


class Page(HTMLParser):
    """The parts of a page that the tests look at."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(self.source)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend((name, value or "") for name, value in attrs)

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] not in (["style"], ["script"]):
            self.words.append(data)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SyntheticRun(tmp_path_factory.mktemp("runs") / "demo").write(8)


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page(write_report(run))


def test_the_file_has_the_pages_of_the_run(page: Page) -> None:
    assert "round 8 of 8" in page.text
    assert "seed 7" in page.text
    assert page.tags.count("h1") == 1
    assert page.source.startswith("<!doctype html>")
    for heading in ("Numbers by round", "Early tasks", "Late tasks", "Refused", "Settings"):
        assert heading in page.text
    assert len(re.findall(r'<details id="task-\d"', page.source)) == 10
    assert "What the agent sees" in page.text
    assert "A solution" in page.text
    assert "run.seed 7" in page.text
    charts = re.findall(r'class="chart"[^>]* data-title="([^"]*)"', page.source)
    stored = re.search(r'id="curves">(.*?)</script>', page.source, re.DOTALL)
    assert stored is not None
    found = [chart["title"] for chart in json.loads(stored[1])["charts"]]
    assert {unescape(title) for title in charts} == set(found) >= {"Held-out success", "Length"}


def test_numbers_of_the_run_can_be_worked_out_by_hand(tmp_path: Path) -> None:
    """Three rounds with p_hat 0.2, 0.4, 0.9: the last third is the last round."""
    folder = RunFolder.create(tmp_path / "demo", CONFIG)
    seed = Seed(id="s", environment="d", spec={}, skills=())
    with PoolStore.open(folder.pool, create=False) as store:
        for number, p_hat in ((1, 0.2), (2, 0.4), (3, 0.9)):
            context = Context(id=f"c{number}", round=number, seed=seed, messages=())
            batch = TaskBatch(context=context, proposals=(), groups=(), p_hat=p_hat, env_reward=0.0)
            metrics = {
                "agent/eval_success": number / 4,
                "curriculum/p_hat_mean": p_hat,
                "time/rollout_s": 1200.0,
                "time/round_s": 1800.0,  # the whole, not one more part
            }
            commit(folder, store, RoundRecord(number=number, metrics=metrics, state={}, batches=(batch,)))
    text = Page(write_report(folder.path)).text
    assert "held-out success 0.25 → 0.75" in text
    assert "late mean p̂ 0.90" in text
    assert "round held-out mean p̂ seconds 1 0.25 0.20 1800.0" in text
    assert "round 3 of 8" in text


def test_held_out_success_has_its_interval(tmp_path: Path) -> None:
    """Of the 40 held-out tasks 20 are solved: Wilson's interval is 0.35 to 0.65."""
    synthetic = SyntheticRun(tmp_path / "demo")
    with PoolStore.open(synthetic.folder.pool, create=False) as store:
        store.put_base(synthetic.seeds, synthetic.held_out)
        solved = [
            Evaluation(task_id=task.id, success=n < 20, reward=0.0, replies=("x",), explanation="")
            for n, task in enumerate(synthetic.held_out)
        ]
        commit(synthetic.folder, store, RoundRecord(number=0, metrics={}, state={}, evaluations=solved))
    assert "0 0.50 0.35 to 0.65" in Page(write_report(synthetic.folder.path)).text


def test_the_last_lines_of_training_name_the_held_out_tasks_their_interval_and_a_reward_of_its_own(
    tmp_path: Path,
) -> None:
    """Wilson's interval of 10 of 40 is 14.2 to 40.2%."""
    synthetic = SyntheticRun(tmp_path / "demo")
    with PoolStore.open(synthetic.folder.pool, create=False) as store:
        store.put_base(synthetic.seeds, synthetic.held_out)
        for number, (right, reward) in enumerate([(0, 0.25), (10, 0.5)]):
            taken = [
                Evaluation(task_id=task.id, success=n < right, reward=reward, replies=(), explanation="")
                for n, task in enumerate(synthetic.held_out)
            ]
            metrics = evaluation_metrics(taken)
            commit(
                synthetic.folder,
                store,
                RoundRecord(number=number, metrics=metrics, state={}, evaluations=taken),
            )
    said = "held-out success: 0.0% -> 25.0% (95% CI 14% to 40%, 40 tasks), reward 0.25 -> 0.50"
    assert summarise(synthetic.folder.path)[0] == said


def test_the_last_lines_of_training_say_why_few_tasks_were_valid(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "demo", CONFIG)
    with PoolStore.open(folder.pool, create=False) as store:
        for number in (1, 2):
            metrics = {
                "simulator/valid_rate": 0.0,
                "simulator/rejected/leak": 3.0,
                "simulator/rejected/checks_disagree": 6.0 * number,
                "simulator/rejected/syntax": 0.0,
            }
            commit(folder, store, RoundRecord(number=number, metrics=metrics, state={}))
    said = "valid tasks of the simulator: 0.0% -> 0.0%"
    assert f"{said} (few; the gate refused the rest: 18 checks disagree, 6 leak)" in summarise(folder.path)


def test_the_report_and_the_last_lines_of_training_say_the_same_p_hat(tmp_path: Path) -> None:
    """Ten rounds with p_hat 0.1, 0.2, ...: the last third are rounds 7, 8, 9 and 10."""
    folder = RunFolder.create(tmp_path / "demo", CONFIG)
    with PoolStore.open(folder.pool, create=False) as store:
        for number in range(11):
            metrics = {"curriculum/p_hat_mean": number / 10, "tasks/mixed": 0.2} if number else {}
            commit(folder, store, RoundRecord(number=number, metrics=metrics, state={}))
    assert "late mean p̂ 0.85" in Page(write_report(folder.path)).text
    said = "mean p_hat in the last third of the rounds: 0.85 (target band 0.35 to 0.65)"
    assert said in summarise(folder.path)
    few = (
        "20% in the last third of the rounds (few: docs/guides/experiments.md says what finds more, and when)"
    )
    assert f"new tasks with mixed outcomes, the only ones with a GRPO signal: {few}" in summarise(folder.path)


def test_the_table_counts_what_was_lost_and_only_that(page: Page, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "demo", CONFIG)
    with PoolStore.open(folder.pool, create=False) as store:
        for number, halved in ((1, 0.0), (2, 3.0)):
            metrics = {"agent/skipped_updates": 0.0, "simulator/kl_retries": halved, "time/round_s": 60.0}
            commit(folder, store, RoundRecord(number=number, metrics=metrics, state={}))
    table = Page(write_report(folder.path)).text.partition("Numbers by round")[2]
    assert "round halved steps, simulator seconds" in table
    assert "1 0 60.0 2 3 60.0" in table
    nothing = "No skipped update, halved step or failed rollout was recorded."
    assert nothing not in table
    assert nothing in page.text


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("agent/skipped_updates", "skipped updates, agent"),
        ("simulator/skipped_updates", "skipped updates, simulator"),
        ("agent/failed_traces", "failed rollouts"),
    ],
)
def test_each_kind_of_lost_work_has_its_column(name: str, label: str, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "demo", CONFIG)
    with PoolStore.open(folder.pool, create=False) as store:
        commit(folder, store, RoundRecord(number=1, metrics={name: 2.0}, state={}))
    assert f"round {label} seconds 1 2 0.0" in Page(write_report(folder.path)).text


def test_a_run_of_scripts_is_not_said_to_be_of_a_model(tmp_path: Path) -> None:
    config = CONFIG.replace("[policy]", '[policy]\nbackend = "scripted"')
    page = Page(write_report(SyntheticRun(tmp_path / "demo", config=config).write(0)))
    assert "scripts, no model" in page.text.partition("Numbers by round")[0]


def test_the_page_asks_for_nothing_from_elsewhere(page: Page) -> None:
    assert not set(page.tags) & {"link", "img", "iframe", "object", "image", "base", "form", "button"}
    addresses = [value for name, value in page.attributes if name in {"href", "src", "xlink:href", "srcset"}]
    assert addresses
    ids = [value for name, value in page.attributes if name == "id"]
    assert {address.removeprefix("#") for address in addresses} <= set(ids)
    assert len(ids) == len(set(ids))
    assert all(address.startswith("#") for address in addresses)
    assert not [name for name, _ in page.attributes if name.startswith(("hx-", "on"))]
    assert "@import" not in page.source


def test_only_the_scripts_of_genenv_may_run(page: Page) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", page.source, re.DOTALL)
    hashes = [b64encode(sha256(unescape(one).encode()).digest()).decode() for one in scripts]
    (policy,) = [value for name, value in page.attributes if name == "content" and "script-src" in value]
    assert set(re.findall(r"'sha256-([^']+)'", policy)) == set(hashes)
    assert policy.startswith("default-src 'none'")


@pytest.mark.long
def test_the_same_run_gives_the_same_bytes(run: Path, page: Page) -> None:
    assert write_report(run).read_text(encoding="utf-8") == page.source


def test_verdicts_do_not_rely_on_colour(page: Page) -> None:
    assert "✓ solved" in page.text
    assert "✗ not solved" in page.text
    assert "cut off at the token limit" in page.text


def test_examples_are_early_and_late_tasks(page: Page) -> None:
    said = re.findall(r"<summary>round (\d) · solved (\d) of (\d) · (.*?)</summary>", page.source)
    order = [int(number) for number, *_ in said]
    assert len(order) == 10
    assert order[0] == 1
    assert order[-1] == 8
    assert order == sorted(order)
    assert all(tried == "8" for _, _, tried, _ in said)
    assert {unescape(asked).split(" Then")[0] for *_, asked in said} <= set(WISHES.values())


@pytest.mark.long
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_short_run_makes_a_page(tmp_path: Path, rounds: int) -> None:
    text = Page(write_report(SyntheticRun(tmp_path / "demo").write(rounds))).text
    assert f"round {rounds} of 8" in text


def test_a_run_without_a_round_says_so(tmp_path: Path) -> None:
    page = Page(write_report(SyntheticRun(tmp_path / "demo").write(0)))
    assert "No round has been committed yet" in page.text
    assert "task-0" not in page.source


def test_a_run_without_accepted_tasks_has_no_examples(tmp_path: Path) -> None:
    page = Page(write_report(SyntheticRun(tmp_path / "demo").write(2, accepting=False)))
    assert "Early tasks" not in page.text
    assert "because" in page.text, "the evidence of a refusal"


@pytest.mark.long
def test_a_run_can_be_reported_while_it_goes_on(tmp_path: Path) -> None:
    synthetic = SyntheticRun(tmp_path / "demo")
    path = synthetic.write(1)
    with synthetic.folder.lock(), PoolStore.open(synthetic.folder.pool, create=False) as store:
        running = Page(write_report(path))
        assert "● running" in running.text
        assert not [name for name, _ in running.attributes if name.startswith("hx-")]
        commit(synthetic.folder, store, RoundRecord(number=2, metrics={}, state={}))
    assert "round 2 of 8" in Page(write_report(path)).text


NASTY = (
    "<script>alert(1)</script><img src=x onerror=alert(1)> $\\frac{ & \x00\x1b[31m \ud83d \ufdd0 </pre> "
    "</main> 漢字"
)


def test_whatever_a_model_wrote_stays_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WISHES, "calendar", NASTY)
    synthetic = SyntheticRun(tmp_path / "demo")
    task = synthetic._task("t-0", "calendar", n_calls=1, lineage=Lineage(origin=Origin.GENERATED))
    nasty = Task(
        id=NASTY[:20],
        environment="d",
        skills=(NASTY[:24], NASTY[25:]),
        messages=task.messages,
        spec={NASTY[:8]: NASTY[:20]},
        payload={},
        oracle=(NASTY,),
        lineage=task.lineage,
    )
    trace = Trace(
        id="a", task_id=nasty.id, token_ids=(), sampled=(), logprobs=(), prompt_tokens=0,
        messages=said(NASTY), reward=0.0, success=False, explanation=NASTY, stop_reason=StopReason.DONE,
    )  # fmt: skip
    with PoolStore.open(synthetic.folder.pool, create=False) as store:
        groups = (Group(task=nasty, traces=(trace,)),)
        commit(synthetic.folder, store, RoundRecord(number=1, metrics={}, state={}, groups=groups))
    with closing(sqlite3.connect(synthetic.folder.pool)) as db:
        db.execute("UPDATE tasks SET round = 1")
        db.commit()
    page = Page(write_report(synthetic.folder.path))
    assert "solved 0 of 1" in page.text
    assert page.text.count("<script>alert(1)</script>") >= 4
    assert "img" not in page.tags
    assert page.tags.count("script") == 4, "the data, and three scripts of genenv"
    assert page.tags.count("main") == 1
    assert not re.search(r"[\x00-\x08\x0e-\x1f\ud800-\udfff\ufdd0]", page.source)


def test_words_of_a_text_that_look_like_attributes_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 'the attributes hx-get hx-swap="outerHTML" and data-tasks="#" of htmx'
    monkeypatch.setitem(WISHES, "calendar", asked)
    page = Page(write_report(SyntheticRun(tmp_path / "demo").write(1)))
    assert asked in page.text
    assert not {name for name, _ in page.attributes if name.startswith("hx-") or name == "data-tasks"}


def test_a_folder_that_is_no_run_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_damaged_settings_are_said_on_the_page(tmp_path: Path) -> None:
    path = SyntheticRun(tmp_path / "demo").write(1)
    (path / "config.toml").write_text("seed = = 7")
    assert "config.toml cannot be read" in Page(write_report(path)).text
