"""The whole loop on scripted players: real environment, real store, real checkpoints, no model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from genenv.agent.policy import Agent
from genenv.backends.scripted import ScriptedSampler, ScriptedTrainer
from genenv.config.run import RunConfig, dump_toml, parse_config
from genenv.environments import load_environment
from genenv.environments.base import Environment
from genenv.errors import DataError, GenenvError, RolloutError
from genenv.progress import Silent
from genenv.runs.folder import RunFolder
from genenv.runs.store.store import PoolStore
from genenv.simulator.policy import Simulator, simulator_prompt
from genenv.training.loop import CoEvolution
from genenv.training.opening import go_on
from genenv.training.rounds import Policies
from genenv.types import Origin, Profile, StopReason, Task
from typed import succeeds

SETTINGS = {
    "run": {"rounds": 3, "eval_every": 2, "eval_tasks": 6, "seed": 5},
    "simulator": {"contexts": 3, "variations": 2, "max_new_tokens": 2000},
    "agent": {"rollouts": 4, "max_new_tokens": 2000, "replayed": 5},
}


class FewSeeds:
    """An environment with few seeds and held-out tasks: the loop is measured, not task building."""

    def __init__(self, env: Environment) -> None:
        self._env, self._seeds, self._held_out = env, env.seeds()[:40], env.held_out()[:10]

    def seeds(self):
        return self._seeds

    def held_out(self):
        return self._held_out

    def __getattr__(self, name: str):
        return getattr(self._env, name)


class Script:
    """Knows the oracle of every task it may meet, and plays it ever more often."""

    def __init__(self, env: Environment) -> None:
        self.env, self.skill = env, 0.2
        self.oracle: dict[str, tuple[str, ...]] = {}
        self.by_context = {env.simulator_messages(s, Profile(), 0.5)[-1].content: s for s in env.seeds()}

    def learn(self, task: Task) -> None:
        self.oracle[task.messages[-1].content] = task.oracle

    def agent(self, prompt: str, rng: random.Random) -> str:
        found = next((replies for text, replies in self.oracle.items() if text in prompt), None)
        if found is None or rng.random() > self.skill:
            return "I do not know."
        return found[min(prompt.count("[assistant]") - 1, len(found) - 1)]

    def simulator(self, prompt: str, rng: random.Random) -> str:
        if rng.random() < 0.2:
            return '{"n_calls":'
        seed = next(
            seed for text, seed in self.by_context.items() if text.split("Example:")[1].strip() in prompt
        )
        return json.dumps(self.env.variation(seed, rng))


def build(config: RunConfig, path: Path, *, resume: bool = False) -> CoEvolution:
    env = FewSeeds(load_environment(config.environment.name, config.environment.settings))
    script = Script(env)

    def learned(count: int) -> None:
        script.skill = min(0.9, 0.2 + 0.2 * count)

    agent = Agent(ScriptedSampler(script.agent), ScriptedTrainer(learned), config.agent, seed=config.run.seed)
    simulator = Simulator(
        ScriptedSampler(script.simulator), ScriptedTrainer(), config.simulator, seed=config.run.seed
    )
    folder = RunFolder.open(path) if resume else RunFolder.create(path, dump_toml(config))
    loop = CoEvolution(config, env, Policies(agent=agent, simulator=simulator), folder)
    for task in [*loop.pool.base.values(), *loop.pool.held_out]:
        script.learn(task)
    if resume:
        with PoolStore.open(folder.pool, create=False) as store:
            for task in store.tasks(origin=Origin.GENERATED):
                script.learn(task)
    admit = loop.pool.gate.admit

    def admit_and_learn(contexts, generations):
        proposals = admit(contexts, generations)
        for proposal in proposals:
            if isinstance(proposal.outcome, Task):
                script.learn(proposal.outcome)
        return proposals

    loop.pool.gate.admit = admit_and_learn  # the script must be told the oracle of new tasks
    return loop


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Path]:
    config, path = parse_config(SETTINGS), tmp_path_factory.mktemp("run") / "a"
    assert build(config, path).run() == 3
    return config, path


def test_a_run_leaves_metrics_tasks_traces_and_checkpoints(
    finished: tuple[RunConfig, Path], design_metrics: frozenset[str]
) -> None:
    _, path = finished
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2, 3]
    assert "agent/eval_success" in lines[0]
    assert "agent/eval_success" in lines[2]
    assert "agent/eval_success" in lines[3]
    assert [line.get("agent/replayed") for line in lines] == [None, 5, 5, 5]
    assert 0 < lines[1]["simulator/valid_rate"] < 1
    of_learners = {"agent/kl", "agent/grad_norm", "agent/zero_advantage_rate", "simulator/kl"}
    assert lines[1].keys() > design_metrics - of_learners - {"agent/eval_success"} | {"agent/skill/calls:1"}
    with PoolStore.open(path / "pool.db", create=False) as store:
        groups = store.groups(1)
        assert all(len(group.traces) == 4 for group in groups)
        assert all(t.stop_reason is StopReason.DONE for group in groups for t in group.traces)
        assert store.tasks(origin=Origin.GENERATED)
        first = store.tasks(origin=Origin.GENERATED, rounds=range(1, 2))
        assert store.overview()[1].rejected.total() + len(first) == 6


def test_both_players_are_told_when_a_round_is_committed(tmp_path: Path) -> None:
    loop, ended = build(parse_config(SETTINGS), tmp_path / "a"), []
    for name in ("agent", "simulator"):
        policy = getattr(loop.policies, name).sampler
        policy.end_round = lambda name=name: ended.append((name, loop.folder.metrics.read_text().count("\n")))
    loop.run()
    assert ended == [(name, rounds) for rounds in (1, 2, 3, 4) for name in ("agent", "simulator")]


@pytest.mark.long
def test_an_equal_run_is_equal_to_the_last_bit(finished: tuple[RunConfig, Path], tmp_path: Path) -> None:
    config, path = finished
    build(config, tmp_path / "b").run()
    with (
        PoolStore.open(path / "pool.db", create=False) as a,
        PoolStore.open(tmp_path / "b/pool.db", create=False) as b,
    ):
        assert a.digest() == b.digest()


@pytest.mark.long
def test_a_run_stopped_in_any_round_continues_to_the_same_end(
    finished: tuple[RunConfig, Path], tmp_path: Path
) -> None:
    config, path = finished
    for stop_in in (0, 1, 3):
        broken = build(config, tmp_path / f"c{stop_in}")
        _fail_in_round(broken, stop_in)
        with pytest.raises(ZeroDivisionError):
            broken.run()
        build(config, tmp_path / f"c{stop_in}", resume=True).run()
        with (
            PoolStore.open(path / "pool.db", create=False) as a,
            PoolStore.open(tmp_path / f"c{stop_in}/pool.db", create=False) as b,
        ):
            assert a.digest() == b.digest()


@pytest.mark.long
def test_tasks_of_valid_traces_are_attempted_anew_and_are_no_new_tasks(tmp_path: Path) -> None:
    config = parse_config({**SETTINGS, "curriculum": {"review_share": 0.0, "replay_share": 0.3}})
    build(config, tmp_path / "a").run()
    broken = build(config, tmp_path / "b")
    _fail_in_round(broken, 3)
    with pytest.raises(ZeroDivisionError):
        broken.run()
    build(config, tmp_path / "b", resume=True).run()
    with (
        PoolStore.open(tmp_path / "a/pool.db", create=False) as store,
        PoolStore.open(tmp_path / "b/pool.db", create=False) as other,
    ):
        assert store.digest() == other.digest()
        came_back, valid = 0, set[str]()
        for number in (1, 2, 3):
            groups = store.groups(number)
            own = {p.generation.id for batch in store.batches(number) for p in batch.proposals}
            for group in groups:
                lineage = group.task.lineage
                if lineage.generation_id is not None and lineage.generation_id not in own:
                    assert group.task.id in valid
                    assert all(group not in batch.groups for batch in store.batches(number))
                    came_back += 1
            valid |= {group.task.id for group in groups if any(trace.readable for trace in group.traces)}
        assert came_back
        assert store.metrics(3)["tasks/review"] > 0
        assert {*store.valid_tasks()} == {t.id for t in store.tasks(origin=Origin.GENERATED) if t.id in valid}


@pytest.mark.long
def test_of_candidates_those_are_attempted_that_are_worth_most(tmp_path: Path) -> None:
    settings = {**SETTINGS, "curriculum": {"candidates": 3, "base_share": 0.5, "review_share": 0.0}}
    config = parse_config(settings)
    with _played_whole_and_in_two_goes(config, tmp_path) as store:
        for number in (1, 2, 3):
            groups, metrics = store.groups(number), store.metrics(number)
            written = [
                p.outcome for b in store.batches(number) for p in b.proposals if isinstance(p.outcome, Task)
            ]
            new = [group for group in groups if group.task.lineage.origin is Origin.GENERATED]
            assert len(new) == 6 == len(groups) - 6
            assert len(written) > 6
            assert metrics["probe/candidates"] == len(written) + 18
            assert 0 < metrics["tokens/agent_probed"] < metrics["tokens/agent_read"]
        first = store.metrics(1)  # the script is certain, and nothing has told the probe better yet
        assert first["probe/error"] == pytest.approx(1 - first["agent/success_rate"], abs=1e-4)


@pytest.mark.long
def test_earlier_attempts_foretell_without_a_token(tmp_path: Path) -> None:
    settings = {"candidates": 3, "foretold_by": "attempts", "base_share": 0.5, "review_share": 0.0}
    config = parse_config({**SETTINGS, "curriculum": settings})
    with _played_whole_and_in_two_goes(config, tmp_path) as store:
        first, *later = (store.metrics(number) for number in (1, 2, 3))
        assert first["probe/foretold"] == first["probe/foretold_new"] == 0.5  # nothing is known yet
        assert first["probe/frontier"] == 1
        for metrics in (first, *later):
            assert metrics["tokens/agent_probed"] == metrics["tokens/agent_read"] == 0
            assert metrics["probe/candidates"] > 12
            assert "time/probe_s" not in metrics
        assert all(0 < metrics["probe/foretold"] != 0.5 for metrics in later)
        assert all("history" in store.state(number) for number in (1, 2, 3))


@pytest.mark.long
def test_a_bandit_over_drawn_tasks_chooses_before_the_gate_and_goes_on_where_it_stopped(
    tmp_path: Path,
) -> None:
    small = ["policy.backend=scripted", "simulator.contexts=2", "simulator.variations=2", "run.eval_every=0"]
    words = [word for text in [*small, "agent.rollouts=2"] for word in ("--set", text)]
    words += ["--variant", "variation+history", "--set", "curriculum.candidates=20"]
    tiny = Path(__file__).parents[2] / "configs" / "tiny-rare.toml"
    for name, rounds in (("whole", 2), ("parts", 1)):
        succeeds("train", tiny, *words, "--set", f"run.rounds={rounds}", "--out", tmp_path / name)
    succeeds("train", "--resume", "--out", tmp_path / "parts", "--set", "run.rounds=2")
    found = dict[str, list[str]]()
    for name in ("whole", "parts"):
        with PoolStore.open(RunFolder.open(tmp_path / name).pool, create=False) as store:
            for number in (1, 2):
                metrics = store.metrics(number)
                assert metrics["tasks/new"] == 4
                assert metrics["probe/candidates"] == 80
                assert 4 <= metrics["tasks/checked"] < 10
            found[name] = [task.id for task in store.tasks(origin=Origin.GENERATED)]
    assert found["whole"] == found["parts"]
    assert len(found["whole"]) == 8


@pytest.mark.parametrize(("per_seed", "candidates"), [(0, 24), (4, 4)])
def test_there_are_as_many_candidates_as_asked_for_though_seeds_are_fewer(
    tmp_path: Path, per_seed: int, candidates: int
) -> None:
    """Specs that are written once for each seed are no more than the seeds of a round."""
    small = ["environment.base_tasks=4", "environment.held_out_tasks=2", "simulator.contexts=4"]
    small += ["curriculum.candidates=6", "run.rounds=1", "run.eval_every=0", "agent.rollouts=2"]
    small += [f"simulator.per_seed={per_seed}"] if per_seed else []
    words = [word for text in small for word in ("--set", text)]
    succeeds("train", "pendulum", "--variant", "variation+history", *words, "--out", tmp_path / "run")
    with PoolStore.open(RunFolder.open(tmp_path / "run").pool, create=False) as store:
        metrics = store.metrics(1)
    assert metrics["tasks/new"] <= 4
    assert candidates // 2 < metrics["probe/candidates"] <= candidates  # some no controller solves


@pytest.mark.long
def test_tasks_whose_attempts_agree_are_replaced_while_there_are_candidates(tmp_path: Path) -> None:
    settings = {"candidates": 3, "candidate_choice": "attempted", "base_share": 0.5, "review_share": 0.0}
    config = parse_config({**SETTINGS, "curriculum": settings})
    with _played_whole_and_in_two_goes(config, tmp_path) as store:
        for number in (1, 2, 3):
            groups, metrics = store.groups(number), store.metrics(number)
            written = [
                p.outcome for b in store.batches(number) for p in b.proposals if isinstance(p.outcome, Task)
            ]
            new = [group for group in groups if group.task.lineage.origin is Origin.GENERATED]
            base = [group for group in groups if group.task.lineage.origin is Origin.SEED]
            for own, candidates in ((new, len(written)), (base, 18)):
                differ = sum(len({trace.reward for trace in group.traces}) > 1 for group in own)
                assert differ == 6 or len(own) == candidates
                assert 6 <= len(own) <= candidates
            assert "probe/candidates" not in metrics
            assert metrics["agent/attempts"] == sum(len(group.traces) for group in groups)


@pytest.mark.long
def test_specs_drawn_at_random_are_tasks_that_cost_no_token(tmp_path: Path) -> None:
    simulator = {**SETTINGS["simulator"], "explore": 0.5, "variations": 4}
    config = parse_config({**SETTINGS, "simulator": simulator})
    with _played_whole_and_in_two_goes(config, tmp_path) as store:
        proposals = [p for n in (1, 2, 3) for batch in store.batches(n) for p in batch.proposals]
        drawn = [one for one in proposals if one.generation.drawn]
        assert 6 < len(drawn) < 30 < 36 == len(proposals)
        assert all(one.generation.token_ids and one.generation.finished for one in drawn)
        assert sum(isinstance(one.outcome, Task) for one in drawn) > 0.7 * len(drawn)
        sampled = sum(len(one.generation.token_ids) for one in proposals if not one.generation.drawn)
        assert sum(store.metrics(n)["tokens/simulator_sampled"] for n in (1, 2, 3)) == sampled


@pytest.mark.long
def test_an_agent_may_stand_still_while_the_simulator_learns(tmp_path: Path) -> None:
    still = {"agent": {**SETTINGS["agent"], "train": False}, "curriculum": {"band_filter": False}}
    config = parse_config({**SETTINGS, **still})
    build(config, tmp_path / "run").run()
    with PoolStore.open(tmp_path / "run" / "pool.db", create=False) as store:
        rounds = [store.metrics(number) for number in (1, 2, 3)]
        assert not any(metrics.get("tokens/agent_trained") for metrics in rounds)
        assert all("agent/zero_advantage_rate" in metrics for metrics in rounds)
        assert sum(metrics["simulator/steps"] for metrics in rounds) > 0


@pytest.mark.long
def test_in_hindsight_a_spec_answers_the_request_for_the_rate_it_came_to(tmp_path: Path) -> None:
    simulator = {**SETTINGS["simulator"], "algorithm": "hindsight"}
    loop = build(parse_config({**SETTINGS, "run": {"rounds": 2}, "simulator": simulator}), tmp_path / "a")
    player, trained, profiles = loop.policies.simulator, [], []
    assert isinstance(player, Simulator)
    step, learn, contexts = player.trainer.forward_backward, player.learn, loop.pool.contexts

    async def recorded(data, objective):
        trained[-1] += [(datum.prompt_ids, datum.completion_ids) for datum in data]
        return await step(data, objective)

    async def begun(*feedback, **how):
        trained.append([])
        return await learn(*feedback, **how)

    def asked_for(number):
        profiles.append(loop.pool.profile)
        return contexts(number)

    player.trainer.forward_backward, player.learn, loop.pool.contexts = recorded, begun, asked_for
    loop.run()
    assert profiles[0] == Profile() != profiles[1]
    with PoolStore.open(tmp_path / "a/pool.db", create=False) as store:
        for number, profile, found in zip((1, 2), profiles, trained, strict=True):
            expected = []
            for batch in store.batches(number):
                rates = {g.task.id: round(g.successes / len(g.traces), 1) for g in batch.groups}
                for proposal in batch.proposals:
                    if isinstance(proposal.outcome, Task):
                        rate = rates[proposal.outcome.id]
                        messages = loop.env.simulator_messages(batch.context.seed, profile, rate)
                        expected.append(
                            (simulator_prompt(player.sampler, messages), proposal.generation.token_ids)
                        )
            assert sorted(found) == sorted(expected) != []


@contextlib.contextmanager
def _played_whole_and_in_two_goes(config: RunConfig, folder: Path) -> Iterator[PoolStore]:
    """The store of a run of three rounds, which is that of a run that failed in the last and went on."""
    build(config, folder / "a").run()
    broken = build(config, folder / "b")
    _fail_in_round(broken, 3)
    with pytest.raises(ZeroDivisionError):
        broken.run()
    build(config, folder / "b", resume=True).run()
    with (
        PoolStore.open(folder / "a/pool.db", create=False) as store,
        PoolStore.open(folder / "b/pool.db", create=False) as other,
    ):
        assert store.digest() == other.digest()
        yield store


def _fail_in_round(loop: CoEvolution, number: int) -> None:
    if number == 0:
        loop.policies.agent.solve = lambda *a, **k: 1 / 0
        return
    observe = loop.pool.replay.observe

    def failing(round_, groups, **more):
        return 1 / 0 if round_ == number else observe(round_, groups, **more)

    loop.pool.replay.observe = failing


def test_the_time_of_a_round_is_the_whole_round_and_not_only_its_stages(tmp_path: Path) -> None:
    loop = build(parse_config({**SETTINGS, "run": {"rounds": 1, "eval_every": 0}}), tmp_path / "g")
    draw = loop.pool.replay.draw
    loop.pool.replay.draw = lambda *a, **k: time.sleep(0.3) or draw(*a, **k)
    loop.run()
    line = json.loads((tmp_path / "g/metrics.jsonl").read_text().splitlines()[-1])
    stages = sum(value for name, value in line.items() if name.startswith("time/") and name != "time/round_s")
    assert line["time/round_s"] >= stages + 0.3


@pytest.mark.long
def test_the_progress_of_an_update_counts_its_epochs(tmp_path: Path) -> None:
    class Told(Silent):
        def stage(self, name, *, items, unit):
            stages[name] = items
            return super().stage(name, items=items, unit=unit)

    stages: dict[str, int] = {}
    settings = {
        **SETTINGS,
        "simulator": {**SETTINGS["simulator"], "epochs": 3},
        "agent": {**SETTINGS["agent"], "epochs": 2},
    }
    loop = build(parse_config(settings), tmp_path / "h")
    loop.reporter.reporter = Told()
    loop.run()
    with PoolStore.open(tmp_path / "h/pool.db", create=False) as store:
        specs = [len(store.samples(number)) for number in (1, 2, 3)]
        told = [  # groups without an advantage are left out; five demonstrations are replayed
            [one for one in store.groups(number) if len({trace.reward for trace in one.traces}) > 1]
            for number in (1, 2, 3)
        ]
        sequences = [5 + sum(len(group.traces) for group in groups) for groups in told]
    assert any(specs)
    assert [stages[f"round {n}/3: update of the simulator"] for n in (1, 2, 3)] == [3 * n for n in specs]
    assert [stages[f"round {n}/3: update of the agent"] for n in (1, 2, 3)] == [2 * n for n in sequences]


class Charts:
    """A sink that remembers the rounds, and fails at one of them."""

    def __init__(self, failing: int | None = None, error: BaseException | None = None) -> None:
        self.failing, self.error = failing, error
        self.rounds: list[int] = []
        self.written: dict[int, dict[str, float]] = {}

    def write(self, round_, metrics):
        if round_ == self.failing:
            raise self.error
        self.rounds.append(round_)
        self.written[round_] = dict(metrics)

    def close(self):
        pass


def test_a_round_that_a_kill_kept_from_the_sinks_is_handed_to_them_on_resuming(tmp_path: Path) -> None:
    config = parse_config(SETTINGS)
    killed, charts = build(config, tmp_path / "e"), Charts()
    killed.sinks = [Charts(failing=2, error=KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt):
        killed.run()
    resumed = build(config, tmp_path / "e", resume=True)
    resumed.sinks = [charts]
    resumed.run()
    assert charts.rounds == [2, 3]
    lines = map(json.loads, (tmp_path / "e/metrics.jsonl").read_text().splitlines())
    assert [{"round": n, **charts.written[n]} for n in (2, 3)] == list(lines)[2:]


def test_a_sink_that_fails_costs_a_warning_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop, charts = build(parse_config(SETTINGS), tmp_path / "f"), Charts()
    failing = Charts(failing=1, error=OSError("the network is down"))
    loop.sinks = [failing, charts]
    assert loop.run() == 3
    assert caplog.messages == ["Charts: round 1 was not written: the network is down"]
    assert (failing.rounds, charts.rounds) == ([0, 2, 3], [0, 1, 2, 3])


def test_a_damaged_checkpoint_is_named(finished: tuple[RunConfig, Path], tmp_path: Path) -> None:
    config = parse_config({**SETTINGS, "run": {**SETTINGS["run"], "rounds": 1}})
    build(config, tmp_path / "d").run()
    victim = tmp_path / "d/checkpoints/round-0001/agent/scripted.json"
    victim.write_text("{}", encoding="utf-8")
    longer = parse_config({**SETTINGS, "run": {**SETTINGS["run"], "rounds": 2}})
    with pytest.raises(DataError, match=r"scripted\.json is damaged"):
        build(longer, tmp_path / "d", resume=True).run()


@pytest.mark.long
def test_the_loop_takes_under_a_second_and_no_torch(tmp_path: Path) -> None:
    code = textwrap.dedent(f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        import training.test_loop as t
        from pathlib import Path
        loop = t.build(t.parse_config(t.SETTINGS), Path(sys.argv[1]))
        start = time.process_time()
        loop.run()
        print(time.process_time() - start, "torch" in sys.modules, "transformers" in sys.modules)
    """)
    seconds = []
    for roll_out in range(3):
        command = [sys.executable, "-c", code, str(tmp_path / str(roll_out))]
        took, *loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert loaded == ["False", "False"]
        seconds.append(float(took))
        if seconds[-1] < 1.0:
            break
    assert min(seconds) < 1.0


def test_a_run_in_which_no_task_fits_the_context_ends_with_what_to_change(tmp_path: Path) -> None:
    loop = build(parse_config(SETTINGS), tmp_path / "agent")
    loop.policies.agent.sampler.context_tokens = 100
    with pytest.raises(
        GenenvError,
        match=r"the agent could reply to none of 6 tasks.*no room for a reply.*"
        r"The window has 100 tokens here: raise policy\.context_tokens, choose a model with a longer context "
        r"if its own is no longer, or lower agent\.max_new_tokens \(2000\)",
    ):
        loop.run()
    assert (tmp_path / "agent" / "metrics.jsonl").read_text() == ""
    loop = build(parse_config(SETTINGS), tmp_path / "simulator")
    loop.policies.simulator.sampler.context_tokens = 100
    with pytest.raises(
        GenenvError, match=r"the simulator could not write any of 6 tasks; 6: .*raise policy\."
    ):
        loop.run()
    assert len((tmp_path / "simulator" / "metrics.jsonl").read_text().splitlines()) == 1


def test_a_simulator_some_of_whose_specs_cannot_be_sampled_is_said_so_once_a_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = build(parse_config(SETTINGS), tmp_path / "a")
    sampler = loop.policies.simulator.sampler
    sample, calls = sampler.sample, []

    async def failing(request):
        calls.append(request)
        if len(calls) % 3 == 0:
            raise RolloutError("no answer")
        return await sample(request)

    sampler.sample = failing
    loop.run()
    profiles = [one for one in caplog.messages if "could not write" in one]
    assert profiles == ["the simulator could not write 2 of 6 tasks; 2: no answer"] * 3


def test_a_run_in_which_nothing_was_attempted_is_not_done(tmp_path: Path) -> None:
    settings = {**SETTINGS, "curriculum": {"base_share": 0.0, "review_share": 0.0, "replay_share": 0.0}}
    loop = build(parse_config(settings), tmp_path / "a")
    loop.policies.simulator.sampler.script = lambda prompt, rng: "no spec"
    with pytest.raises(
        GenenvError,
        match=r"no task was attempted in any of 3 rounds: .*\(refused: 18 syntax\).*curriculum\.base_share",
    ):
        loop.run()
    with pytest.raises(GenenvError, match="no task was attempted"):  # nor is it done the second time
        go_on(tmp_path / "a", Silent())


def test_one_task_that_does_not_fit_ends_no_round_in_which_others_were_attempted(tmp_path: Path) -> None:
    loop = build(parse_config(SETTINGS), tmp_path / "run")
    agent, env = loop.policies.agent, loop.env
    assert isinstance(agent, Agent)
    tasks = env.held_out()[:2]
    asyncio.run(agent.roll_out(env, tasks, round_=1))
    agent.sampler.context_tokens = 100
    assert len(asyncio.run(agent.roll_out(env, tasks[:1], round_=1))) == 1
    with pytest.raises(GenenvError, match="could reply to none of 1 tasks"):
        asyncio.run(agent.roll_out(env, tasks[:1], round_=2))
