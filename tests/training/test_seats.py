"""Several seats in one episode: whose messages, rewards and updates; frozen seats; kills; bad input."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equal_runs import contents, groups_of, killed, metrics
from genenv.algorithms.advantages import grpo_credit
from genenv.algorithms.settings import GrpoConfig
from genenv.backends.scripted import ScriptedSampler
from genenv.config.run import load_config
from genenv.environments.base import Environment, SeatView
from genenv.environments.guard import guarded
from genenv.environments.guess_who import GuessWho, GuessWhoConfig
from genenv.errors import RolloutError
from genenv.rollout.driver import Player, Sampling, roll_out_seats
from genenv.runs.store.store import PoolStore
from genenv.types import Group, StopReason, Task, leading, seat_of
from genenv.viewer import tasks
from genenv.viewer.folders import Runs, reading
from typed import refused, succeeds

GAME = GuessWhoConfig(brief=True, persons=(4, 4), features=(2, 2), turns=(4, 4))


def told(text: str) -> str:
    """The last message that a policy was given."""
    return text.removesuffix("\n[assistant] ").rpartition("[user] ")[2]


def answers(text: str, rng: random.Random) -> str:
    """True answers, read from the answerer's own prompt."""
    row = text.partition("[user] ")[2].partition(" ")[0]
    return row[row.index(told(text)[-1]) + 1]


def asks(text: str, rng: random.Random) -> str:
    """Both features, then a person by chance among those that the answers leave."""
    prompt, *said = [
        part.partition("[user] ")[2].partition("\n")[0] for part in text.split("[assistant] ")[:-1]
    ]
    if len(said) < 2:
        return str(len(said) + 1)
    persons = prompt.split()[1:]
    left = [one for one in persons if all(answer in one for answer in said)]
    return rng.choice(left or persons)[0]


def sampled(
    scripts: Mapping[str, Any], *, rollouts: int = 4, env: Environment | None = None, tokens: int = 2
) -> list[Group]:
    world = env or GuessWho(GAME)
    given = Sampling(temperature=1.0, max_new_tokens=tokens, timeout_s=60, seed=1)
    players = {
        seat: Player(sampler=ScriptedSampler(script), sampling=given, agent=f"of-{seat}")
        for seat, script in scripts.items()
    }
    return asyncio.run(roll_out_seats(world, players, world.held_out()[:3], rollouts=rollouts))


def test_each_seat_has_a_trace_of_its_own_view_and_its_own_reward() -> None:
    groups = sampled({"asker": asks, "answerer": answers})
    assert [(one.seat, one.agent, len(one.traces)) for one in groups] == [
        *[("asker", "of-asker", 4)] * 3,
        *[("answerer", "of-answerer", 4)] * 3,
    ]
    asker, answerer = groups[0].traces[1], groups[3].traces[1]
    assert groups[0].task == groups[3].task
    assert [message.role for message in asker.messages] == ["assistant", "user"] * 2 + ["assistant"]
    assert [message.role for message in answerer.messages] == ["user", "assistant"] * 2
    row = str(groups[0].task.spec["p"]).split(",")[int(str(groups[0].task.spec["s"]))]
    first, second = row.translate(str.maketrans("10", "yn"))
    told_ = [one.content for one in answerer.messages]
    assert told_ == [f"1{first}2{second} 1", first, "2", second]
    assert asker.replies[:2] == ("1", "2")
    assert [one.content for one in asker.messages if one.role == "user"] == [f"1{first}", f"2{second}"]
    assert (asker.success, asker.reward) == (True, 1 - 2 / 8)
    assert (answerer.success, answerer.reward) == (True, 1.0)
    for trace in (asker, answerer):
        own = bytes(i for i, flag in zip(trace.token_ids, trace.sampled, strict=True) if flag and i < 256)
        assert own.decode() == "".join(trace.replies)
    ids = [trace.id for group in groups for trace in group.traces]
    assert len(set(ids)) == len(ids)
    assert "/answerer@" in answerer.id


def test_code_plays_a_seat_that_no_policy_has() -> None:
    (alone, *_), (both, *_) = sampled({"asker": asks}), sampled({"asker": asks, "answerer": answers})
    assert [one.messages for one in alone.traces] == [one.messages for one in both.traces]
    (answerer, *_) = sampled({"answerer": answers})
    assert (answerer.seat, answerer.traces[0].success, answerer.traces[0].reward) == ("answerer", True, 1.0)
    assert leading([answerer]) == [answerer]


def test_lies_cost_the_one_who_tells_them_more() -> None:
    groups = sampled({"asker": asks, "answerer": lambda text, rng: "n"})
    rows = [str(one.task.spec["p"]).split(",")[int(str(one.task.spec["s"]))] for one in groups[:3]]
    for row, asker, answerer in zip(rows, groups[:3], groups[3:], strict=True):
        found = [trace.success for trace in asker.traces]
        assert [one.reward for one in answerer.traces] == [
            (row.count("0") / 2 + right) / 2 for right in found
        ]
        assert {one.success for one in answerer.traces} == {row == "00"}
        assert all(found) is (row == "00")


def test_advantages_are_within_a_seat() -> None:
    groups = sampled(
        {"asker": lambda text, rng: rng.choice("12abcd"), "answerer": lambda text, rng: rng.choice("yn")}
    )
    config = GrpoConfig(advantage="centred")
    for group in groups:
        batch = grpo_credit([group], {}, config, temperature=1.0)
        valid = group.valid
        mean = sum(trace.reward for trace in valid) / max(1, len(valid))
        given = [datum.advantages[0] for datum in batch.data if datum.advantages]
        assert given == pytest.approx([one.reward - mean for one in valid] if given else [])
    assert len({round(sum(t.reward for t in one.valid), 6) for one in groups}) > 1


def test_the_verdicts_on_all_seats_of_agents_come_with_each_trajectory() -> None:
    """Also that on a seat that was never asked; not that on a seat of code, or where the episode broke."""
    groups = sampled({"asker": lambda text, rng: rng.choice("1a"), "answerer": answers}, rollouts=8)
    for group in groups:
        place = ["asker", "answerer"].index(group.seat)
        for trace in group.traces:
            own, (asker, answerer) = trace.team[place], trace.team
            assert (own.reward, own.success) == (trace.reward, trace.success)
            if trace.id.split("/asker@")[0] != trace.id and trace.replies[0] == "a":  # the answerer waits
                assert (answerer.success, answerer.reward) == (False, asker.success / 2)
    (alone, *_) = sampled({"asker": asks})
    assert [[one.reward for one in trace.team] for trace in alone.traces] == [
        [trace.reward] for trace in alone.traces
    ]
    cut = sampled({"asker": asks, "answerer": lambda text, rng: "yes, of course"}, tokens=4)
    assert {one.reward for group in cut for trace in group.traces for one in trace.team} == {0.0}


def test_the_advantages_of_a_seat_mix_its_own_reward_with_the_mean_of_all_seats() -> None:
    """Askers name a person at once: 1 for them if it is right and 1/2 for the answerer, who is not asked."""
    groups = sampled({"asker": lambda text, rng: rng.choice("abcd"), "answerer": answers}, rollouts=16)
    config = GrpoConfig(advantage="centred", team_weight=0.5)
    asker = next(one for one in groups if one.seat == "asker" and 0 < one.successes < 16)
    batch = grpo_credit([asker], {}, config, temperature=1.0)
    p = asker.successes / 16  # own: right - p; team: (right + right / 2) / 2 = 0.75 right, less 0.75 p
    given = [datum.advantages[0] for datum in batch.data if datum.advantages]
    assert given == pytest.approx([0.875 * (one.success - p) for one in asker.traces])


def test_a_seat_whose_reply_is_cut_off_has_failed_and_the_others_do_not_count() -> None:
    groups = sampled({"asker": asks, "answerer": lambda text, rng: "yes, of course"}, tokens=4)
    assert {one.stop_reason for one in groups[0].traces} == {StopReason.ERROR}
    assert groups[0].valid == ()
    assert {one.stop_reason for one in groups[3].traces} == {StopReason.LENGTH}
    assert {one.reward for one in groups[3].traces} == {0.0}
    assert groups[0].traces[0].explanation == "The answerer's reply was cut off."


def test_a_seat_that_was_never_asked_has_no_trace() -> None:
    groups = sampled({"asker": lambda text, rng: rng.choice("1a"), "answerer": answers}, rollouts=8)
    for asker, answerer in zip(groups[:3], groups[3:], strict=True):
        asked = [one.id.split("/asker@")[0] for one in asker.traces if one.replies[0] == "1"]
        assert [one.id.split("/answerer@")[0] for one in answerer.traces] == asked
        assert len(asker.traces) == len(asker.valid) == 8
    assert len(groups[3].traces) not in (0, 8)


def test_a_view_has_the_prompt_and_the_demonstration_of_its_seat() -> None:
    world = GuessWho(GAME)
    view = SeatView(world, "answerer")
    for task in world.held_out()[:20]:
        seen = asyncio.run(view.seen(task))
        assert len(seen.oracle) == len(task.oracle) - 1
        assert view.check(task, seen.oracle).reward == 1.0
        lie = tuple("n" if one == "y" else "y" for one in seen.oracle)
        assert not view.check(task, lie).success
        assert asyncio.run(SeatView(world, "asker").seen(task)) == task


def test_a_rollout_that_cannot_go_on_fails_in_a_view_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: Any) -> None:
        raise RolloutError("the server is gone")

    view = SeatView(GuessWho(GAME), "asker")
    task = view.held_out()[0]
    monkeypatch.setattr(type(GuessWho(GAME).episode(task)), "play_seats", lost)
    verdict = view.check(task, task.oracle)
    assert (verdict.success, verdict.explanation) == (False, "the server is gone")


def test_a_guard_lets_seats_through_and_names_their_faults() -> None:
    plain = sampled({"asker": asks, "answerer": answers})
    assert sampled({"asker": asks, "answerer": answers}, env=guarded(GuessWho(GAME))) == plain

    class Broken(GuessWho):
        def episode(self, task: Task) -> Any:
            found = super().episode(task)
            found.coded = lambda seat, messages: 1 / 0  # type: ignore[method-assign]
            return found

    with pytest.raises(Exception, match="episode raised ZeroDivisionError"):
        sampled({"asker": asks}, env=guarded(Broken(GAME)))


# runs

TWO = """
[run]
rounds = 3
eval_tasks = 6
eval_every = 1

[environment]
name = "guess_who"
persons = [3, 4]
turns = [3, 4]
brief = true
choices = true
seats = { answerer = "truth", asker = "seeker" }

[curriculum]
base_share = 0.4
band_filter = false
novelty_threshold = 0.0

[simulator]
contexts = 5
variations = 2
max_new_tokens = 400

[agent]
rollouts = 4
max_new_tokens = 4

[agents.truth]
lr = 1e-3

[agents.seeker]

[policy]
backend = "scripted"
context_tokens = 4096
"""
"""Both learn. The scripts that stand in for models answer by chance."""

TINY = (
    *("policy.backend=local", "policy.model=tiny", "policy.tuning=full", "policy.dtype=float32"),
    *("policy.device=cpu", "policy.threads=1", "policy.context_tokens=128", "simulator.source=variation"),
    *("run.rounds=2", "run.eval_every=2", "run.keep_checkpoints=3", "environment.features=[2,3]"),
)


def train(out: Path, *more: str, text: str = TWO) -> str:
    file = out.parent / f"{out.name}.toml"
    file.write_text(text, encoding="utf-8")
    words = [word for one in more for word in ("--set", one)]
    return succeeds("train", file, *words, "--out", out).stderr


@pytest.mark.parametrize("more", [[], ["shift.round=2", "shift.environment={persons=[4,4]}"]])
def test_the_first_seat_alone_is_offered_tools(tmp_path: Path, more: list[str]) -> None:
    file = tmp_path / "two.toml"
    file.write_text(TWO, encoding="utf-8")
    assert load_config(file, more).offered_tools == ["seeker"]
    by_code = TWO.replace('"seeker"', '"code"').replace("[agents.seeker]", "")
    file.write_text(by_code, encoding="utf-8")
    assert load_config(file, more).offered_tools == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "whole"
    train(path)
    return path


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GENENV_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def test_the_success_of_a_task_is_that_of_the_leading_seat(whole: Path) -> None:
    for line in metrics(whole)[1:]:
        number = int(line["round"])
        groups = groups_of(whole, number)
        own = {name: [one for one in groups if one.agent == name] for name in ("seeker", "truth")}
        assert [one.task.id for one in own["seeker"]] == [one.task.id for one in own["truth"]]
        for mine, other in zip(own["seeker"], own["truth"], strict=True):
            asked = {one.id.split("/answerer@")[0]: one for one in other.traces}
            for trace in mine.traces:
                of_other = asked.pop(trace.id.split("/asker@")[0], replace(trace, messages=()))
                told_ = [one.content for one in trace.messages if one.role == "user"]
                assert [one[-1] for one in told_ if one != "?"] == list(of_other.replies)
            assert not asked
        for name, some in own.items():
            valid = [trace for one in some for trace in one.valid]
            assert line[f"agents/{name}/success_rate"] == sum(t.success for t in valid) / len(valid)
            assert line[f"agents/{name}/attempts"] == sum(len(one.traces) for one in some)
        assert line["agent/success_rate"] == line["agents/seeker/success_rate"]
        assert line["agent/eval_success"] == line["agents/seeker/eval_success"]
        assert line["agents/seeker/attempts"] == 4 * len(own["seeker"])
        assert line["agent/attempts"] == sum(len(one.traces) for one in groups)
        with PoolStore.open(whole / "pool.db", create=False) as store:
            batches = store.batches(number)
        assert {batch.context.agent for batch in batches} == {"seeker"}
        for batch in batches:
            valid = [t for one in batch.groups for t in one.valid]
            assert {one.agent for one in batch.groups} <= {"seeker"}
            assert batch.p_hat == (sum(t.success for t in valid) / len(valid) if valid else None)


def test_the_page_of_a_trajectory_shows_its_seat_and_its_own_prompt(whole: Path, tmp_path: Path) -> None:
    run = Runs(whole).find("whole")
    traces = [(one.agent, trace) for one in groups_of(whole, 3) for trace in one.traces if trace.messages]
    for agent, of_seat in (traces[0], traces[-1]):
        page = reading(
            run,
            lambda db, id_=of_seat.id: tasks.trace_page(
                db, id_, lambda agent: lambda ids: [""] * len(ids), run.advantage_of
            ),
        )
        seat = {"seeker": "asker", "truth": "answerer"}[agent]
        assert page.seat == seat
        assert bool(page.asked) is (seat == "asker")
    succeeds("export-data", whole, "--format", "openai", "--out", tmp_path / "data")
    lines = [
        json.loads(line)
        for file in (tmp_path / "data").rglob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    prompts = {line["messages"][0]["content"] for line in lines}
    assert any(len(one.split()[0]) > 1 for one in prompts)  # of the answerer, "yny 2"
    assert all(
        len([m for m in line["messages"] if m["role"] == "user"])
        == len([m for m in line["messages"] if m["role"] == "assistant"])
        for line in lines
    )


INSTANTS = {
    "rollouts of both agents": ("genenv.training.rounds:roll_out_seats", 4),
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


@pytest.mark.slow
def test_two_seats_learn_and_a_run_killed_between_their_updates_ends_alike(tmp_path: Path) -> None:
    train(tmp_path / "run", *TINY)
    first, last = (weights(tmp_path / "run", number) for number in (0, 2))
    assert {name: first[name] != last[name] for name in first} == {"truth": True, "seeker": True}
    line = metrics(tmp_path / "run")[-1]
    assert line["agents/truth/steps"] > 0 < line["agents/seeker/steps"]
    (tmp_path / "two.toml").write_text(TWO, encoding="utf-8")
    killed(tmp_path / "two.toml", tmp_path / "other", "genenv.agent.policy:Agent.learn", 4, *TINY)
    succeeds("train", "--resume", "--out", tmp_path / "other")
    assert contents(tmp_path / "other") == contents(tmp_path / "run")


@pytest.mark.slow
def test_a_frozen_seat_keeps_its_weights_and_the_other_one_learns(tmp_path: Path) -> None:
    train(tmp_path / "run", *TINY, "agents.truth.train=false")
    first, last = (weights(tmp_path / "run", number) for number in (0, 2))
    assert {name: first[name] != last[name] for name in first} == {"truth": False, "seeker": True}
    assert "agents/truth/steps" not in metrics(tmp_path / "run")[-1]
    assert {one.agent for one in groups_of(tmp_path / "run", 2)} == {"seeker", "truth"}


def weights(path: Path, number: int) -> dict[str, bytes]:
    folder = path / "checkpoints" / f"round-{number:04d}"
    return {name: (folder / name / "model.safetensors").read_bytes() for name in ("truth", "seeker")}


@pytest.mark.long
def test_the_leading_seat_is_one_that_is_trained(tmp_path: Path) -> None:
    train(tmp_path / "run", "agents.seeker.train=false", "run.rounds=1")
    saved = tmp_path / "run" / "checkpoints" / "round-0001"
    counts = {
        name: json.loads((saved / name / "scripted.json").read_text())["count"]
        for name in ("truth", "seeker")
    }
    assert counts == {"truth": 1, "seeker": 0}
    line = metrics(tmp_path / "run")[-1]
    assert line["agent/success_rate"] == line["agents/truth/success_rate"]
    assert groups_of(tmp_path / "run", 1)[0].agent == "truth"


ONE = TWO.replace('seats = { answerer = "truth", asker = "seeker" }\n', "")
ONE = ONE.replace("[agents.truth]\nlr = 1e-3\n\n[agents.seeker]\n", "")


@pytest.mark.long
def test_without_seats_and_with_code_at_the_other_seat_the_same_is_played(tmp_path: Path) -> None:
    """Only the names of rollouts differ, and with them the random streams."""
    train(tmp_path / "plain", "run.rounds=1", text=ONE)
    seats = 'environment.seats={asker="agent",answerer="code"}'
    train(tmp_path / "code", "run.rounds=1", seats, text=ONE)
    plain, code = (metrics(tmp_path / name)[-1] for name in ("plain", "code"))
    assert plain.keys() == code.keys()
    assert {one.agent for one in groups_of(tmp_path / "code", 1)} == {"agent"}
    assert not [name for name in code if name.startswith("agents/")]


@pytest.mark.long
def test_one_agent_may_have_both_seats(tmp_path: Path) -> None:
    train(tmp_path / "run", 'environment.seats={asker="agent",answerer="agent"}', "run.rounds=2", text=ONE)
    groups = groups_of(tmp_path / "run", 2)
    half = len(groups) // 2
    assert {seat_of(one.id) for group in groups[:half] for one in group.traces} == {"asker"}
    assert {seat_of(one.id) for group in groups[half:] for one in group.traces} == {"answerer"}
    assert {one.agent for one in groups} == {"agent"}
    line = metrics(tmp_path / "run")[-1]
    asked = [trace.success for one in groups[:half] for trace in one.valid]
    assert line["agent/success_rate"] == sum(asked) / len(asked)


def test_settings_are_written_and_read_again(whole: Path) -> None:
    config = load_config(whole / "config.toml")
    assert config.environment.seats == {"asker": "seeker", "answerer": "truth"}
    assert dict(config.seated) == {"asker": "seeker", "answerer": "truth"}
    given = load_config(whole.parent / "whole.toml")
    assert config == given.model_copy(update={"policy": config.policy})
    frozen = replace_agent(config, "seeker", train=False)
    assert list(frozen.seated) == ["answerer", "asker"]


def replace_agent(config: Any, name: str, **changes: object) -> Any:
    agents = {**config.agents, name: config.agents[name].model_copy(update=changes)}
    return config.model_copy(update={"agents": agents})


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            ', asker = "seeker"',
            "",
            "the seat 'asker' of guess_who has no agent: set environment.seats.asker to",
        ),
        ('"seeker" }', '"sleeper" }', "the agent 'sleeper', but the agents are truth, seeker; add a section"),
        ("asker =", "judge =", "names 'judge', but the seats of guess_who are asker, answerer"),
        ('asker = "seeker"', 'asker = "code"', "the agent 'seeker' has no seat"),
        ('asker = "seeker"', 'asker = "truth"', "the agent 'seeker' has no seat"),
        ("[agents.seeker]", "[agents.truth]", "is not valid TOML"),
        ("[agents.seeker]", "[agents.code]\n[agents.seeker]", "an agent is called 'code'"),
        ("[agents.seeker]", "[agents.seeker]\nrollouts = 2", "rollouts each, not truth 4, seeker 2"),
        ("[curriculum]", "[curriculum]\nshare_tasks = false", "are not compared with each other"),
        (
            "[agents.seeker]",
            '[agents.seeker]\nteam_weight = 0.5\nalgorithm = "rft"',
            "agents.seeker.team_weight is 0.5, but the algorithm rft has no advantages of groups",
        ),
        (
            "lr = 1e-3",
            "team_weight = 1.5",
            "setting 'agents.truth.team_weight' is 1.5; allowed: number, >= 0, <= 1",
        ),
        ("seats = {", "seats = 3 #", "setting 'environment.seats' is 3; allowed: table"),
        ('name = "guess_who"', 'name = "programs"', "unknown setting"),
        ("persons = [3, 4]", "persons = [4, 3]", "persons must be a least and a most, not [4, 3]"),
    ],
)
def test_bad_input_is_one_sentence_and_no_folder(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert old in TWO
    (tmp_path / "bad.toml").write_text(TWO.replace(old, new, 1), encoding="utf-8")
    assert sentence in refused("train", tmp_path / "bad.toml", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_environment_without_seats_says_so(tmp_path: Path) -> None:
    text = '[environment]\nname = "programs"\nseats = { asker = "agent" }\n'
    (tmp_path / "bad.toml").write_text(text, encoding="utf-8")
    assert "the environment programs has no seats" in refused(
        "train", tmp_path / "bad.toml", "--out", tmp_path / "run"
    )


@pytest.mark.parametrize("seats", ["", 'seats = { asker = "agent", answerer = "code" }\n'])
def test_a_weight_of_the_team_without_a_team_is_refused(tmp_path: Path, seats: str) -> None:
    text = ONE.replace('name = "guess_who"\n', 'name = "guess_who"\n' + seats)
    (tmp_path / "bad.toml").write_text(text, encoding="utf-8")
    said = refused(
        "train", tmp_path / "bad.toml", "--out", tmp_path / "run", "--set", "agent.team_weight=0.5"
    )
    assert "agent.team_weight is 0.5, but there is no team: give two or more seats to agents" in said
    assert not (tmp_path / "run").exists()


def test_other_seats_than_a_run_has_are_refused_and_nothing_is_lost(whole: Path) -> None:
    before = contents(whole)
    said = refused(
        "train", "--resume", "--out", whole, "--set", "environment.seats.asker=truth",
        "--set", "environment.seats.answerer=seeker",
    )  # fmt: skip
    assert "was started with other settings: environment.seats.answerer, environment.seats.asker" in said
    assert contents(whole) == before
