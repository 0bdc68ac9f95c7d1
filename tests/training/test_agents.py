"""Several agents and one simulator: whose tasks, whose updates, whose rows; kills; bad input."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from equal_runs import contents, groups_of, killed, metrics
from genenv.config.run import load_config, parse_config
from genenv.errors import UsageError
from genenv.runs.store.store import PoolStore
from genenv.types import TaskBatch
from genenv.viewer import rounds, tasks
from genenv.viewer.curves import charts, numbers
from genenv.viewer.folders import Runs, reading
from typed import refused, succeeds

ROOT = Path(__file__).parents[2]
TWO = """
[run]
rounds = 3
eval_tasks = 6
eval_every = 1

[environment]
name = "programs"
depths = [1, 2]
lengths = [2, 3]

[curriculum]
base_share = 0.4
band_filter = false
novelty_threshold = 0.0
env_reward = "learnability"
agents_reward = "regret"
regret_agents = ["strong", "weak"]

[simulator]
contexts = 5
variations = 2
max_new_tokens = 400

[agent]
rollouts = 4
max_new_tokens = 40
replayed = 2

[agents.strong]
lr = 1e-3

[agents.weak]

[policy]
backend = "scripted"
context_tokens = 4096
"""
"""Both learn, and each attempts each task."""


def train(out: Path, *more: str, text: str = TWO, resume: bool = False) -> str:
    file = out.parent / f"{out.name}.toml"
    file.write_text(text, encoding="utf-8")
    words = [word for one in more for word in ("--set", one)]
    return succeeds("train", file, *words, "--out", out, *(["--resume"] if resume else [])).stderr


def batches_of(path: Path, number: int) -> tuple[TaskBatch, ...]:
    with PoolStore.open(path / "pool.db", create=False) as store:
        return store.batches(number)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "whole"
    train(path)
    return path


def test_every_agent_attempts_every_task_and_each_row_says_whose_it_is(whole: Path) -> None:
    for number in (1, 2, 3):
        groups = groups_of(whole, number)
        own = {name: [one for one in groups if one.agent == name] for name in ("strong", "weak")}
        assert sum(map(len, own.values())) == len(groups)
        assert [one.task.id for one in own["strong"]] == [one.task.id for one in own["weak"]]
        assert len({trace.id for one in groups for trace in one.traces}) == 4 * len(groups)
        for batch in batches_of(whole, number):
            valid = [trace for one in batch.groups for trace in one.valid]
            assert batch.p_hat == (sum(t.success for t in valid) / len(valid) if valid else None)
            assert {one.agent for one in batch.groups} in ({"strong", "weak"}, set())
    with PoolStore.open(whole / "pool.db", create=False) as store:
        evaluations = store.evaluations(3)
        assert Counter(one.agent for one in evaluations) == {"strong": 6, "weak": 6}
        assert store.overview()[3].held_out == (sum(one.success for one in evaluations) / 2, 6)


def test_contexts_are_dealt_to_the_agents_in_turn(whole: Path) -> None:
    dealt = [Counter(batch.context.agent for batch in batches_of(whole, number)) for number in (1, 2, 3)]
    assert dealt[0] != dealt[1]
    assert dealt[0] == dealt[2]
    assert all(sorted(counts.values()) == [2, 3] for counts in dealt)


@pytest.mark.long
def test_the_simulator_is_given_the_rates_of_the_agent_for_whom_it_writes(
    whole: Path, tmp_path: Path
) -> None:
    train(tmp_path / "all", "curriculum.profile_of=all")
    given = {
        path: {
            agent: {
                batch.context.messages[-1].content.rsplit(" ", 1)[0]  # without the seed
                for batch in batches_of(path, 3)
                if batch.context.agent == agent
            }
            for agent in ("strong", "weak")
        }
        for path in (whole, tmp_path / "all")
    }
    assert given[whole]["strong"].isdisjoint(given[whole]["weak"])
    assert given[tmp_path / "all"]["strong"] == given[tmp_path / "all"]["weak"]


def test_metrics_are_of_each_agent_and_of_all(whole: Path) -> None:
    for line in metrics(whole)[1:]:
        own = [line[f"agents/{name}/success_rate"] for name in ("strong", "weak")]
        assert line["agent/success_rate"] == pytest.approx(sum(own) / 2)
        assert line["agent/attempts"] == sum(line[f"agents/{name}/attempts"] for name in ("strong", "weak"))
        assert line["agent/eval_success"] == pytest.approx(
            (line["agents/strong/eval_success"] + line["agents/weak/eval_success"]) / 2
        )
        assert line["agent/steps"] == line["agents/strong/steps"] + line["agents/weak/steps"]
        assert line["tokens/agent_sampled"] == sum(
            line[f"agents/{name}/tokens_sampled"] for name in ("strong", "weak")
        )
        assert -1 <= line["curriculum/regret"] <= 1
        new = {one.task.id for batch in batches_of(whole, int(line["round"])) for one in batch.groups}
        assert line["tasks/new"] == len(new)
        assert any(name.startswith("agents/weak/skill/") for name in line)


def test_the_reward_is_the_regret(whole: Path) -> None:
    config = load_config(whole / "config.toml").curriculum
    rewarded = 0
    for batch in batches_of(whole, 2):
        rates = []
        for name in config.regret_agents:
            valid = [trace for one in batch.groups if one.agent == name for trace in one.valid]
            rates.append((1 + sum(trace.success for trace in valid)) / (2 + len(valid)))  # the posterior mean
        if batch.groups:
            rewarded += 1
            assert batch.env_reward == pytest.approx((1 + rates[0] - rates[1]) / 2)
    assert rewarded


def test_each_agent_has_a_folder_in_the_checkpoints(whole: Path) -> None:
    counts = {
        path.parent.name: json.loads(path.read_text())["count"]
        for path in (whole / "checkpoints" / "round-0003").glob("*/scripted.json")
    }
    assert counts.keys() == {"strong", "weak", "simulator"}
    assert min(counts.values()) > 0


def test_pages_of_the_viewer_name_the_agents(whole: Path) -> None:
    group = groups_of(whole, 3)[-1]
    assert group.agent == "weak"
    run = Runs(whole).find("whole")
    assert run.agents == ["strong", "weak"]
    found = reading(run, lambda db: tasks.task_page(db, group.task.id, 3, family=None))
    assert {row["agent"] for row in found.group} == {"strong", "weak"}
    trace = reading(run, lambda db: tasks.trace_page(db, group.traces[0].id, _no_texts, run.advantage_of))
    assert (trace.trace["agent"], trace.group) == ("weak", 4)
    both = reading(run, lambda db: tasks.elsewhere(db, "whole", found.task))
    assert [one.agent for one in both] == ["strong", "weak"]
    (held_out,) = (chart for chart in charts(run) if chart["title"] == "Held-out success")
    assert "success, weak" in held_out["said"]
    (regret,) = (chart for chart in charts(run) if chart["title"] == "Regret")
    assert regret["section"] == "Are the tasks at the agent's level?"
    assert run.band is None  # half of the rollouts need not succeed for a regret
    first, last = metrics(whole)[0], metrics(whole)[-1]
    assert numbers(run)["held-out success"] == "; ".join(
        f"{name} {first[f'agents/{name}/eval_success']:.2f} → {last[f'agents/{name}/eval_success']:.2f}"
        for name in ("strong", "weak")
    )
    held_out_tasks = reading(run, lambda db: rounds.evaluated(db, (1, 3))).after
    assert {task.tried for task in held_out_tasks} == {2}


def _no_texts(agent: str) -> tasks.Texts:
    return lambda ids: [""] * len(ids)


INSTANTS = {
    "rollouts of the second agent": ("genenv.agent.policy:Agent.roll_out", 4),
    "update of the second agent": ("genenv.agent.policy:Agent.learn", 4),
    "checkpoint of the second agent": ("genenv.backends.scripted:ScriptedTrainer.save", 8),
    "before the commit": ("genenv.runs.store.store:PoolStore.commit_round", 3),
    "after the commit": ("genenv.runs.folder:mark_committed", 3),
}
"""In round 2: a function, and the call of it in which the process ends."""


@pytest.mark.slow
@pytest.mark.parametrize("instant", INSTANTS)
def test_a_run_killed_at_any_instant_goes_on_to_the_same_end(
    whole: Path, tmp_path: Path, instant: str
) -> None:
    (tmp_path / "two.toml").write_text(TWO, encoding="utf-8")
    killed(tmp_path / "two.toml", tmp_path / "run", *INSTANTS[instant])
    with PoolStore.open(tmp_path / "run" / "pool.db", create=False) as store:
        assert store.last_round() == (2 if instant == "after the commit" else 1)
    succeeds("train", "--resume", "--out", tmp_path / "run")
    assert contents(tmp_path / "run") == contents(whole)


def test_a_frozen_agent_stays_as_it_is_and_no_task_is_written_for_it(tmp_path: Path) -> None:
    train(tmp_path / "run", "agents.weak.train=false", "run.rounds=2")
    saved = tmp_path / "run" / "checkpoints" / "round-0002"
    assert json.loads((saved / "weak" / "scripted.json").read_text())["count"] == 0
    assert json.loads((saved / "strong" / "scripted.json").read_text())["count"] == 2
    assert {batch.context.agent for batch in batches_of(tmp_path / "run", 2)} == {"strong"}
    assert {one.agent for one in groups_of(tmp_path / "run", 2)} == {"strong", "weak"}
    last = metrics(tmp_path / "run")[-1]
    assert "agents/weak/steps" not in last
    assert last["agent/steps"] == last["agents/strong/steps"] > 0


def test_tasks_that_are_not_shared_have_one_agent_each(tmp_path: Path) -> None:
    train(tmp_path / "run", "curriculum.share_tasks=false", "curriculum.agents_reward=mean")
    for number in (1, 2, 3):
        groups = groups_of(tmp_path / "run", number)
        assert len({one.task.id for one in groups}) == len(groups)
        assert {one.agent for one in groups} == {"strong", "weak"}
        for batch in batches_of(tmp_path / "run", number):
            assert {one.agent for one in batch.groups} <= {batch.context.agent}


def test_an_older_checkpoint_of_an_agent_may_be_another_one(whole: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", f"agents.weak.checkpoint={whole}@2:strong", "agents.weak.train=false")
    saved = {
        number: (tmp_path / "run" / "checkpoints" / f"round-{number:04d}" / "weak" / "scripted.json")
        for number in (2, 3)
    }
    origin = whole / "checkpoints" / "round-0002" / "strong" / "scripted.json"
    assert {path.read_text() for path in saved.values()} == {origin.read_text()}
    assert json.loads(origin.read_text())["count"] == 2


def test_first_weights_are_those_of_the_round_that_was_the_newest_at_the_start(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(whole.parent)
    train(tmp_path / "run", f"agents.weak.checkpoint={whole.name}:strong", "agents.weak.train=false")
    kept = load_config(tmp_path / "run" / "config.toml").agents["weak"].checkpoint
    assert kept == f"{whole.resolve()}@3:strong"
    again = f"agents.weak.checkpoint={whole.name}:strong"
    train(tmp_path / "run", again, "agents.weak.train=false", resume=True)  # the same command goes on
    other = ["--set", f"{again.removesuffix(':strong')}@2:strong"]
    assert "agents.weak.checkpoint" in refused("train", "--resume", "--out", tmp_path / "run", *other)


LOCAL = (
    *("policy.backend=local", "policy.model=tiny", "policy.tuning=lora", "policy.dtype=float32"),
    *("policy.device=cpu", "policy.threads=1", "policy.context_tokens=128", "simulator.source=variation"),
    *("run.rounds=1", "run.eval_every=0", "agent.kl_coefficient=0.01", "agent.replayed=0"),
    *("curriculum.agents_reward=mean", "curriculum.regret_agents=[]"),
)


@pytest.mark.long
def test_the_adapter_of_another_agent_is_a_first_one_without_its_moments(tmp_path: Path) -> None:
    one = TWO.replace("[agents.strong]\nlr = 1e-3\n\n[agents.weak]\n", "[agents.solo]\n")
    learning = (*LOCAL, "agent.algorithm=sft", "agent.guidance=all")
    train(tmp_path / "one", *learning, text=one)
    begun = (*learning, f"agents.weak.checkpoint={tmp_path / 'one'}@1:solo")
    train(tmp_path / "two", *begun)
    origin = tmp_path / "one" / "checkpoints" / "round-0001" / "solo"
    first = tmp_path / "two" / "checkpoints" / "round-0000" / "weak"
    learned, taken, anchor = (
        load_file(folder / "adapter_model.safetensors") for folder in (origin, first, first / "reference")
    )
    assert any(value.any() for name, value in learned.items() if "lora_B" in name)
    for found in (taken, anchor):
        assert found.keys() == learned.keys()
        assert all(torch.equal(found[name], value) for name, value in learned.items())
    moments = load_file(first / "optimizer.safetensors")
    assert not any(value.any() for value in moments.values())
    assert any(value.any() for value in load_file(origin / "optimizer.safetensors").values())
    train(tmp_path / "whole", *begun, "run.rounds=2")
    train(tmp_path / "two", "run.rounds=2", resume=True)
    last = [
        load_file(tmp_path / name / "checkpoints" / "round-0002" / "weak" / "adapter_model.safetensors")
        for name in ("whole", "two")
    ]
    assert all(torch.equal(last[1][name], value) for name, value in last[0].items())
    assert not all(torch.equal(taken[name], value) for name, value in last[0].items())


@pytest.mark.long
def test_one_agent_with_a_name_is_the_run_without_one_but_for_its_random_streams(tmp_path: Path) -> None:
    one = TWO.replace("[agents.strong]\nlr = 1e-3\n\n[agents.weak]\n", "[agents.solo]\n")
    train(tmp_path / "run", "curriculum.agents_reward=mean", "curriculum.regret_agents=[]", text=one)
    assert {group.agent for group in groups_of(tmp_path / "run", 1)} == {"solo"}
    assert not [name for line in metrics(tmp_path / "run") for name in line if name.startswith("agents/")]
    assert (tmp_path / "run" / "checkpoints" / "round-0003" / "solo").is_dir()


@pytest.mark.long
def test_a_name_of_the_only_agent_changes_nothing_if_it_is_agent(tmp_path: Path) -> None:
    more = ("curriculum.agents_reward=mean", "curriculum.regret_agents=[]", "run.rounds=2")
    train(tmp_path / "named", *more, text=TWO.replace("strong]", "agent]").replace("[agents.weak]\n", ""))
    plain = TWO.replace("[agents.weak]\n", "").replace("[agents.strong]\nlr = 1e-3\n", "")
    train(tmp_path / "plain", "agent.lr=1e-3", *more, text=plain)
    assert contents(tmp_path / "named") == contents(tmp_path / "plain")


APART = TWO.replace('agents_reward = "regret"\nregret_agents = ["strong", "weak"]', "share_tasks = false")


@pytest.mark.parametrize(
    "predicted",
    [
        ("curriculum.foretold_attempts=4",),
        *(
            pytest.param(("curriculum.candidates=3", *more), marks=pytest.mark.long)
            for more in (
                ("curriculum.foretold_by=likelihoods",),
                ("curriculum.foretold_by=attempts", "simulator.source=variation"),
                ("curriculum.candidate_choice=attempted",),
            )
        ),
    ],
)
def test_success_is_predicted_for_each_agent_by_its_own_rollouts(
    tmp_path: Path, predicted: Sequence[str]
) -> None:
    """A run in pieces equals one that was never interrupted, so each agent's predictor is restored."""
    train(tmp_path / "whole", *predicted, text=APART)
    train(tmp_path / "pieces", *predicted, "run.rounds=2", text=APART)
    train(tmp_path / "pieces", *predicted, "run.rounds=3", text=APART, resume=True)
    assert contents(tmp_path / "pieces") == contents(tmp_path / "whole")
    whose = Counter[str]()
    for number in (1, 2, 3):
        batches, groups = batches_of(tmp_path / "whole", number), groups_of(tmp_path / "whole", number)
        assert len({group.task.id for group in groups}) == len(groups)
        assert all(group.agent == batch.context.agent for batch in batches for group in batch.groups)
        whose.update(group.agent for group in groups)
    assert abs(whose["strong"] - whose["weak"]) <= (6 if "candidate_choice" in predicted[-1] else 3)
    with PoolStore.open(tmp_path / "whole" / "pool.db", create=False) as store:
        states = [value for name, value in store.state(3).items() if name in ("history", "probe")]
    if not predicted[-1].endswith("=attempted"):
        (state,) = states
        assert isinstance(state, dict)
        assert state.keys() == {"strong", "weak"}
        assert state["strong"] != state["weak"]
        assert metrics(tmp_path / "whole")[3]["probe/error"] >= 0


@pytest.mark.long
def test_how_much_tasks_differ_by_agent_is_printed_in_bits(tmp_path: Path) -> None:
    train(tmp_path / "run", "run.seed=3", text=APART)
    done = subprocess.run(
        [sys.executable, ROOT / "bench/agents.py", tmp_path / "run", "--rounds", "2"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "| variant | seeds | bits (95% CI) |" in done.stdout
    spec = importlib.util.spec_from_file_location("agents", ROOT / "bench/agents.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(bench := importlib.util.module_from_spec(spec))
    assert bench.entropy("aabb" * 1000) == pytest.approx(1, abs=1e-3)
    assert bench.entropy("a" * 9) == 0


@pytest.mark.long
def test_a_sweep_keeps_agents_without_settings_of_their_own(tmp_path: Path) -> None:
    one, other = "[agents.strong]\nlr = 1e-3\n", "[agents.weak]\n"
    (tmp_path / "two.toml").write_text(TWO.replace(f"{one}\n{other}", f"{other}\n{one}"), encoding="utf-8")
    words = ["--variants", "variation", "--seeds", "1", "--set", "run.rounds=1", "--out", tmp_path / "sweep"]
    succeeds("sweep", tmp_path / "two.toml", *words)
    config = load_config(tmp_path / "sweep" / "variation" / "seed-0" / "config.toml")
    assert list(config.agents) == ["weak", "strong"]


def test_agents_inherit_the_settings_of_agent_and_are_written_whole(whole: Path) -> None:
    config = load_config(whole / "config.toml")
    assert list(config.agents) == ["strong", "weak"]
    assert (config.agents["strong"].lr, config.agents["weak"].lr) == (1e-3, config.agent.lr)
    assert {one.rollouts for one in config.agents.values()} == {4}
    assert config == load_config(whole.parent / "whole.toml").model_copy(update={"policy": config.policy})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (TWO + "\n[agents.weak]\n", "is not valid TOML"),
        (TWO + "\n[agents.Third]\n", "an agent cannot be called 'Third'; a name has lower-case letters"),
        (TWO + "\n[agents.simulator]\n", "and is not 'simulator'"),
        (TWO + "\n[agents.third]\nlearning_rate = 1\n", "did you mean 'agents.third.lr'?"),
        (TWO + "\n[agents.third]\nlr = -1\n", "setting 'agents.third.lr' is -1; allowed: number, >= 1e-12"),
        (TWO + "\n[agents.third]\nreplayed = 3\n", "set agent.replayed to 3"),
        (TWO.replace('"weak"]', '"week"]'), "regret_agents names 'week', but the agents are strong, weak"),
        (TWO.replace('regret_agents = ["strong", "weak"]', ""), "must name two different agents"),
        (
            TWO.replace("[simulator]", "share_tasks = false\n[simulator]"),
            "set curriculum.share_tasks to true",
        ),
        (TWO.replace("[simulator]", "candidates = 4\n[simulator]"), "only if each task is for one of them"),
        ("agents = 3\n", "'agents' is a section, not a value"),
        ("[agents]\nstrong = 3\n", "'agents.strong' is a value"),
        ('[curriculum]\nagents_reward = "minimum"\n', "which compares several agents"),
    ],
)
def test_bad_input_is_one_sentence_and_no_folder(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "bad.toml").write_text(text, encoding="utf-8")
    assert sentence in refused("train", tmp_path / "bad.toml", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ("{runs}/none@1", "none is not a folder"),
        ("{runs}/whole@7", "keeps no checkpoint of round 7"),
        ("{runs}/whole@3:other", "has no agent 'other'; its agents are strong, weak"),
    ],
)
def test_first_weights_that_are_not_there_are_one_sentence(
    whole: Path, tmp_path: Path, named: str, sentence: str
) -> None:
    (tmp_path / "two.toml").write_text(TWO, encoding="utf-8")
    named = named.format(runs=whole.parent)
    words = ["--set", f"agents.weak.checkpoint={named}", "--out", tmp_path / "run"]
    assert sentence in refused("train", tmp_path / "two.toml", *words)
    assert not (tmp_path / "run").exists()


def test_other_agents_than_a_run_has_are_refused_and_nothing_is_lost(whole: Path, tmp_path: Path) -> None:
    before = contents(whole)
    said = refused(
        "train", "--resume", "--out", whole, "--set", "agents.third.lr=1e-3", "--set", "run.rounds=4"
    )
    assert "was started with other settings: agents.third.lr" in said
    (tmp_path / "more.toml").write_text(TWO.replace("rounds = 3", "rounds = 4") + "[agents.third]\n")
    said = refused("train", tmp_path / "more.toml", "--from", f"{whole}@3", "--out", tmp_path / "run")
    assert "the agents are strong, weak, third, but strong, weak in" in said
    assert contents(whole) == before


def test_agents_of_python_settings_inherit_too() -> None:
    with pytest.raises(UsageError, match=r"agents\.a\.rollouts"):
        parse_config({"agents": {"a": {"rollouts": 1}}})
    agents = parse_config({"agent": {"lr": 0.5}, "agents": {"a": {}, "b": {"lr": 0.25}}}).agents
    assert {name: one.lr for name, one in agents.items()} == {"a": 0.5, "b": 0.25}
