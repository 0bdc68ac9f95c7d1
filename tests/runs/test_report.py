"""The report of a run: complete, self-contained, reproducible, and safe whatever a model wrote."""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean

import pytest

from genenv.errors import DataError, UsageError
from genenv.report.charts import skills_chart
from genenv.report.facts import RunFacts, read_facts, summarise
from genenv.report.page import write_report
from genenv.runs.folder import RunFolder
from genenv.runs.store.records import Evaluation, RoundOverview, RoundRecord
from genenv.runs.store.store import PoolStore
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
                store.commit_round(self._start(evaluating))
            for number in range(1, rounds + 1):
                progress = number / max(rounds, 8)
                store.commit_round(self._round(number, progress, accepting, evaluating))
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
        if self.tags[-1:] != ["style"]:
            self.words.append(data)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SyntheticRun(tmp_path_factory.mktemp("runs") / "demo").write(8)


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page(write_report(run))


def test_the_page_names_the_run_and_shows_every_picture(page: Page) -> None:
    assert "smollm2-135m · 8 rounds · seed 7" in page.text
    assert page.tags.count("h1") == 1
    assert page.tags.count("svg") == 6
    assert page.tags.count("figcaption") == 6
    assert page.tags.count("article") == 10
    assert "spent in the rounds" in page.text
    assert "10 min 0 s" in page.text, "10 s of warm-up and 8 rounds of 73.75 s"


@pytest.mark.long
def test_the_bands_are_the_target_and_where_it_is_on_the_filter(page: Page, tmp_path: Path) -> None:
    assert "target band 0.35 to 0.65" in page.text
    assert "band of the filter 0.4 to 0.6" in page.text
    config = CONFIG.replace("alpha = 0.5\nband_filter = true", "alpha = 0.3\nband_filter = false")
    unfiltered = Page(write_report(SyntheticRun(tmp_path / "demo", config=config).write(1)))
    assert "target band 0.15 to 0.45" in unfiltered.text
    assert "band of the filter" not in unfiltered.text


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
                "time/eval_s": 200.0,
                "time/round_s": 1800.0,  # the whole, not one more part
            }
            store.commit_round(RoundRecord(number=number, metrics=metrics, state={}, batches=(batch,)))
    text = Page(write_report(folder.path)).text
    assert "held-out success, first to last 0.25 → 0.75" in text
    assert "mean p̂ in the last third of the rounds 0.90" in text
    assert "generations that became tasks 0 of 0" in text
    assert "spent in the rounds 1 h 30 min" in text
    assert "3 of 8 rounds" in text


def test_the_report_and_the_last_lines_of_training_say_the_same_p_hat(tmp_path: Path) -> None:
    """Ten rounds with p_hat 0.1, 0.2, ...: the last third are rounds 7, 8, 9 and 10."""
    folder = RunFolder.create(tmp_path / "demo", CONFIG)
    with PoolStore.open(folder.pool, create=False) as store:
        for number in range(11):
            metrics = {"curriculum/p_hat_mean": number / 10, "tasks/mixed": 0.2} if number else {}
            store.commit_round(RoundRecord(number=number, metrics=metrics, state={}))
    assert "mean p̂ in the last third of the rounds 0.85" in Page(write_report(folder.path)).text
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
            store.commit_round(RoundRecord(number=number, metrics=metrics, state={}))
    table = Page(write_report(folder.path)).text.partition("The numbers")[2]
    assert "simulator KL halved steps, simulator seconds" in table
    assert "1 – – – – 0 0 – – 0 60.0 2 – – – – 0 0 – – 3 60.0" in table
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
        store.commit_round(RoundRecord(number=1, metrics={name: 2.0}, state={}))
    assert f"simulator KL {label} seconds 1 – – – – 0 0 – – 2 0.0" in Page(write_report(folder.path)).text


def kl_picture(folder: Path, agent: Sequence[float], simulator: Sequence[float]) -> str:
    """What is written in the picture, of a run with these values in rounds 1, 2, ..."""
    run = RunFolder.create(folder, CONFIG)
    with PoolStore.open(run.pool, create=False) as store:
        for place, value in enumerate(agent):
            metrics = {"agent/kl": value, **({"simulator/kl": simulator[place]} if simulator else {})}
            store.commit_round(RoundRecord(number=place + 1, metrics=metrics, state={}))
    text = Page(write_report(run.path)).text
    return text[text.index("How far did both players move?") : text.index("What do the tasks exercise?")]


def test_an_outlier_of_one_player_flattens_no_line_of_the_kl_picture(tmp_path: Path) -> None:
    text = kl_picture(tmp_path / "demo", agent=(0.3, 12625, 0.4), simulator=(0.0, 0.02, 0.04))
    agent, _, simulator = text.partition("agent KL")
    assert "0 0.1 1 10 100 1000 10000" in agent, "powers of ten"
    assert "0.000 0.015 0.030 0.045" in simulator
    assert "simulator KL" in simulator


def test_a_kl_that_was_not_recorded_is_said_in_words(tmp_path: Path) -> None:
    text = kl_picture(tmp_path / "demo", agent=(0.1, 0.2), simulator=())
    assert "No KL divergence of the simulator was recorded." in text
    assert "No KL divergence of the agent" not in text


def test_a_kl_of_nothing_has_a_picture_too(tmp_path: Path) -> None:
    assert "agent KL" in kl_picture(tmp_path / "demo", agent=(0.0,), simulator=(0.0,))


@pytest.mark.parametrize(("skills", "others"), [(14, False), (16, True)])
def test_skills_beyond_the_fourteenth_are_one_row(skills: int, others: bool) -> None:
    """Two of four tasks have the skills 0 to 13; where there are more, one has 14 and 15, and one has 15."""
    names = [f"skill-{number:02}" for number in range(skills)]
    facts = RoundOverview(
        number=1,
        batches=(),
        generated=4,
        rejected=Counter(),
        held_out=None,
        task_skills=tuple(map(frozenset, (names[:14], names[:14], names[14:], names[15:]))),
        metrics={},
    )
    run = RunFacts(
        name="demo",
        model=None,
        seed=None,
        planned_rounds=None,
        target_band=None,
        filter_band=None,
        rounds=(facts,),
    )
    picture = str(skills_chart(run))
    assert ("other skills" in picture) is others
    assert picture.count(">50%<") == 14 + others, "of the others not 75%, the sum of 14 and 15"
    assert "skill-13" in picture
    assert "skill-14" not in picture


def test_a_run_of_scripts_is_not_said_to_be_of_a_model(run: Path, tmp_path: Path) -> None:
    scripted = shutil.copytree(run, tmp_path / "scripted")
    config = scripted / "config.toml"
    text = config.read_text(encoding="utf-8")
    assert "[policy]" in text
    config.write_text(text.replace("[policy]", '[policy]\nbackend = "scripted"'), encoding="utf-8")
    with PoolStore.open(scripted / "pool.db", create=False) as store:
        assert read_facts(RunFolder(scripted), store).model == "scripts, no model"


def test_the_page_asks_for_nothing_from_elsewhere(page: Page) -> None:
    assert not set(page.tags) & {"script", "link", "img", "iframe", "object", "image", "base", "form"}
    addresses = [value for name, value in page.attributes if name in {"href", "src", "xlink:href", "srcset"}]
    assert addresses, "the markers of the charts refer to their own definitions"
    assert all(address.startswith("#") for address in addresses)
    assert "@import" not in page.source
    assert "http" not in re.sub(r"http-equiv", "", page.source)


def test_references_inside_the_charts_have_their_definitions(page: Page) -> None:
    ids = [value for name, value in page.attributes if name == "id"]
    wanted = {value[1:] for name, value in page.attributes if name == "href"}
    wanted |= set(re.findall(r"url\(#([^)]+)\)", page.source))
    assert wanted <= set(ids)
    assert len(ids) == len(set(ids)), "no two charts share an id"


def test_the_charts_use_the_colours_of_the_page_only(page: Page) -> None:
    drawings = "".join(re.findall(r"<svg.*?</svg>", page.source, flags=re.DOTALL))
    assert "var(--c0)" in drawings
    assert re.findall(r"#[0-9a-f]{6}\b", drawings) == []
    used = set(re.findall(r"var\((--\w+)\)", drawings))
    assert all(f"{name}:" in page.source for name in used)


@pytest.mark.long
def test_the_same_run_gives_the_same_bytes(run: Path, page: Page) -> None:
    assert write_report(run).read_text(encoding="utf-8") == page.source


def test_verdicts_do_not_rely_on_colour(page: Page) -> None:
    assert "✓ solved" in page.text
    assert "✗ failed" in page.text
    assert "(reached the token limit)" in page.text


def test_examples_show_difficulty_but_not_the_rest_of_the_spec(page: Page) -> None:
    first = page.text.index("Early tasks")
    assert "n calls 1 dependent no n tools 4 phrasing indirect gap none" in page.text[first:]
    assert page.text.index("Early tasks") < page.text.index("Late tasks")
    order = [int(number) for number in re.findall(r"<span>round (\d+)</span>", page.source)]
    assert order[0] == 1
    assert order[-1] == 8
    assert order == sorted(order)


@pytest.mark.long
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_short_run_makes_a_page(tmp_path: Path, rounds: int) -> None:
    text = Page(write_report(SyntheticRun(tmp_path / "demo").write(rounds))).text
    assert f"{rounds} of 8 rounds" in text


def test_a_run_without_a_round_says_so(tmp_path: Path) -> None:
    page = Page(write_report(SyntheticRun(tmp_path / "demo").write(0)))
    assert "No round has been committed yet" in page.text
    assert "svg" not in page.tags


def test_a_run_without_accepted_tasks_says_so(tmp_path: Path) -> None:
    page = Page(write_report(SyntheticRun(tmp_path / "demo").write(2, accepting=False)))
    assert "No batch of generated tasks was rolled out." in page.text
    assert "No generation became a task." in page.text
    assert "article" not in page.tags


@pytest.mark.long
def test_a_run_without_evaluations_says_so(tmp_path: Path) -> None:
    text = Page(write_report(SyntheticRun(tmp_path / "demo").write(2, evaluating=False))).text
    assert "No held-out evaluation was recorded." in text
    assert "held-out success, first to last –" in text


@pytest.mark.long
def test_a_run_can_be_reported_while_it_goes_on(tmp_path: Path) -> None:
    synthetic = SyntheticRun(tmp_path / "demo")
    path = synthetic.write(1)
    with synthetic.folder.lock(), PoolStore.open(synthetic.folder.pool, create=False) as store:
        write_report(path)
        store.commit_round(RoundRecord(number=2, metrics={}, state={}))
    assert "2 of 8 rounds" in Page(write_report(path)).text


@pytest.mark.long
def test_settings_that_say_nothing_make_a_page_without_them(tmp_path: Path) -> None:
    text = Page(write_report(SyntheticRun(tmp_path / "demo", config="").write(1))).text
    assert "unknown model · 1 round" in text
    assert "target band 0" not in text


NASTY = "<script>alert(1)</script><img src=x onerror=alert(1)> $\\frac{ & \x00\x1b[31m \ud83d </pre> 漢字"


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
        messages=said(NASTY), reward=0.0, success=False, explanation=NASTY, stop_reason=StopReason.ERROR,
    )  # fmt: skip
    with PoolStore.open(synthetic.folder.pool, create=False) as store:
        groups = (Group(task=nasty, traces=(trace,)),)
        store.commit_round(RoundRecord(number=1, metrics={}, state={}, groups=groups))
    page = Page(write_report(synthetic.folder.path))
    assert "No rollout ran to a verdict" in page.text
    assert page.text.count("<script>alert(1)</script>") >= 4
    assert not set(page.tags) & {"script", "img"}
    assert not re.search(r"[\x00-\x08\x0e-\x1f\ud800-\udfff]", page.source)


def test_a_conversation_is_read_from_top_to_bottom_with_what_the_environment_said(tmp_path: Path) -> None:
    """Of attempts of several turns the first is open; of one turn there is nothing to fold."""
    synthetic = SyntheticRun(tmp_path / "demo")
    task = synthetic._task("t-0", "calendar", n_calls=1, lineage=Lineage(origin=Origin.GENERATED))
    heard = Message(role="user", content="Nothing <happens>.")
    conversations = [(*said("look"), heard, *said(command)) for command in ("take mug", "open fridge")]
    traces = tuple(
        Trace(
            id=f"a-{n}", task_id=task.id, token_ids=(), sampled=(), logprobs=(), prompt_tokens=0,
            messages=messages, reward=0.0, success=False, explanation="no", stop_reason=StopReason.DONE,
        )
        for n, messages in enumerate([*conversations, said("stop")])
    )  # fmt: skip
    with PoolStore.open(synthetic.folder.pool, create=False) as store:
        groups = (Group(task=task, traces=traces),)
        store.commit_round(RoundRecord(number=1, metrics={}, state={}, groups=groups))
    page = Page(write_report(synthetic.folder.path))
    assert "2 turns look environment: Nothing <happens>. take mug" in page.text
    assert "2 turns look environment: Nothing <happens>. open fridge" in page.text
    assert "no stop" in page.text
    assert page.tags.count("details") == 3, "one of them is the table"
    assert page.source.count("<details open>") == 1
    assert page.source.startswith("<!DOCTYPE html>")


def test_a_folder_that_is_no_run_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_damaged_settings_are_one_sentence(tmp_path: Path) -> None:
    path = SyntheticRun(tmp_path / "demo").write(1)
    (path / "config.toml").write_text("seed = = 7")
    with pytest.raises(DataError, match=r"config\.toml is damaged"):
        write_report(path)
