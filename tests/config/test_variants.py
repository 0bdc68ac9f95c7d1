"""Variants: settings by name, laid over a configuration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from genenv.agent.policy import AgentConfig, check_agents
from genenv.config.run import as_tables, load_config, parse_config
from genenv.config.tables import apply_override, flat, merged
from genenv.config.variants import VARIANTS, with_variant
from genenv.curriculum.replay import Replay
from genenv.curriculum.settings import PRESETS, STEPS
from genenv.errors import UsageError
from genenv.types import Json
from typed import refused, succeeds

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.toml"
THERE = "simulator.file=tasks.jsonl"


def settings(variant: str = "", *overrides: str) -> dict[str, Json]:
    return flat(as_tables(load_config(QUICKSTART, [THERE, *overrides], variant=variant)))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_differs_in_the_settings_it_names_and_no_other(name: str) -> None:
    plain, varied = settings(), settings(name)
    named = flat(merged(VARIANTS[name].settings, VARIANTS[name].kept))
    inherited = {key: re.sub(r"^agents\.[a-z]+\.", "agent.", key) for key in varied}  # by an agent of several
    changed = {key for key in varied if varied[key] != plain.get(inherited[key])}
    assert changed <= {*named, "variant"}
    assert {key: varied.get(key, {}) for key in named} == named  # of an agent without settings, nothing
    assert varied["variant"] == name


def test_no_variant_changes_how_long_steps_are() -> None:
    steps = {"agent.lr", "simulator.lr", "agent.warmup.lr", "simulator.warmup.lr", *flat(STEPS)}
    changed = {name: {*flat(one.settings), *flat(one.kept)} & steps for name, one in VARIANTS.items()}
    assert {name for name, keys in changed.items() if keys} == set()


def test_the_control_differs_from_the_trained_simulator_in_the_reward_alone() -> None:
    first, second = settings("robust"), settings("shuffled")
    assert {key for key in first if first[key] != second[key]} == {
        "variant",
        "curriculum.shuffle_rewards",
    }


def test_a_simulator_that_aims_is_not_begun_without_anything_to_compare(tmp_path: Path) -> None:
    found = settings("aim")
    assert (found["simulator.writes"], found["simulator.explore"]) == ("parameters", 0.25)
    small = ("--set", "policy.backend=scripted", "--set", "simulator.variations=1")
    words = ("train", QUICKSTART, "--variant", "aim", *small, "--out", tmp_path / "run")
    assert "set variations to 4, say, and simulator.contexts to a quarter" in refused(*words)
    assert not (tmp_path / "run").exists()


def test_an_agent_that_imitates_is_not_begun_without_anything_to_imitate(tmp_path: Path) -> None:
    small = ("--set", "policy.backend=scripted")
    for agent, others in (("agent", ()), ("agents.a", ("--set", "agents.b.train=false"))):
        words = ("train", "household", *small, *others, "--set", f"{agent}.algorithm=sft")
        sentence = refused(*words, "--out", tmp_path / "run")
        assert (
            f"{agent}.algorithm is 'sft', which trains on demonstrations alone, but {agent}.guid" in sentence
        )
        assert not (tmp_path / "run").exists()
    check_agents({"agent": AgentConfig(algorithm="sft", guidance="all")})
    check_agents({"agent": AgentConfig(algorithm="sft", replayed=4)})


def test_variants_are_joined_and_an_override_lies_on_top() -> None:
    found = settings("variation+rl", "agent.lr=1e-5", "simulator.source=grammar")
    assert found["variant"] == "variation+rl"
    assert (found["agent.guidance"], found["simulator.train"]) == ("none", False)
    assert (found["agent.lr"], found["simulator.source"]) == (1e-5, "grammar")


def test_a_part_of_a_variant_may_be_a_setting() -> None:
    found = settings("rl+agent.lr=3e-5+simulator.source=grammar")
    assert (found["agent.guidance"], found["agent.lr"], found["simulator.source"]) == (
        "none",
        3e-5,
        "grammar",
    )
    with pytest.raises(UsageError, match=r"did you mean 'agent\.lr'"):
        settings("rl+agent.lrr=3e-5")


MATCHED = ("curriculum.base_share", "curriculum.review_share", "curriculum.replay_share")
CONTROLS = ("paper", "paper+base", "paper+base+sft", "paper+random", "paper+static", "paper+offline")


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", [*CONTROLS, "matched+aim", "matched+bandit", "matched+variation+probe"])
def test_the_papers_method_and_what_it_is_compared_with_have_one_base_share_and_rounds_of_one_size(
    name: str, preset: str
) -> None:
    found = settings(name, f"preset={preset}")
    assert [found[key] for key in MATCHED] == [pytest.approx(1 / 6), 0.0, 0.2]
    plain = settings("", f"preset={preset}")
    same = ("simulator.contexts", "simulator.variations", "agent.rollouts", "agent.lr", "run.rounds")
    assert [found[key] for key in same] == [plain[key] for key in same]
    assert settings(f"{name}+curriculum.replay_share=0.1")["curriculum.replay_share"] == 0.1
    sizes = Replay(
        parse_config({"curriculum": {key.split(".")[1]: found[key] for key in MATCHED}}).curriculum
    )
    assert sum(sizes.sizes(64)) + 64 == sum(sizes.sizes(64, base_alone=True)) == 101


def test_the_papers_rule_is_the_printed_one() -> None:
    config = load_config(QUICKSTART, variant="paper")
    assert (config.curriculum.k_min, config.curriculum.alpha, config.curriculum.rwr_lambda) == (0.1, 0.5, 1.0)
    assert not config.curriculum.standardise_rewards
    assert not config.curriculum.posterior
    assert config.simulator.accumulate
    assert (config.curriculum.seed_trim, config.curriculum.replay_share) == (0.0, 0.2)
    frozen, trained = settings("paper+random"), settings("paper")
    assert {key for key in frozen if frozen[key] != trained[key]} == {"variant", "simulator.train"}


def test_tasks_written_once_are_as_many_as_said() -> None:
    found = settings("paper+offline+simulator.file_tasks=957")
    assert (found["simulator.source"], found["simulator.file_tasks"]) == ("file", 957)
    assert settings("paper+static")["simulator.per_seed"] == 5


def test_a_file_or_an_override_names_a_variant_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('variant = "base"\n')
    assert load_config(file).simulator.source == "none"
    assert load_config(file, ["variant=grammar"]).simulator.source == "grammar"
    named = load_config(file, variant="variation")
    assert (named.variant, named.simulator.source) == ("variation", "variation")
    with pytest.raises(UsageError, match="--variant variation and --set variant=grammar both name"):
        load_config(file, ["variant=grammar"], variant="variation")
    assert load_config(file, ["variant = grammar"]).simulator.source == "grammar"
    assert load_config(file, ["variant="]).simulator.source == "model"
    (tmp_path / "checkpoints").mkdir()
    run = file.rename(tmp_path / "config.toml")
    assert load_config(run).simulator.source == "model", "a run's own file has the settings of its variant"
    for again in (load_config(run, variant="static"), load_config(run, ["variant = static"])):
        assert (again.variant, again.simulator.per_seed) == ("static", 5)


@pytest.mark.long
def test_a_runs_own_file_is_read_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "run"
    small = ["--set", "run.rounds=1", "--set", "policy.backend=scripted", "--set", "simulator.contexts=2"]
    own = ["--variant", "variation", "--set", "simulator.source=grammar"]
    succeeds("train", QUICKSTART, *small, *own, "--out", out)
    config = load_config(out / "config.toml")
    assert (config.variant, config.simulator.source) == ("variation", "grammar")
    succeeds("train", "--resume", "--out", out, "--set", "run.rounds=2")
    assert "one that is continued has its settings" in refused(
        "train", "--resume", "--out", out, "--variant", "base"
    )
    assert "variant" in refused("train", "--resume", "--out", out, "--set", "variant=base")


def test_a_variant_that_there_is_not_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"did you mean .*random"):
        with_variant({}, "randon")
    assert "did you mean" in refused("train", QUICKSTART, "--variant", "statik", "--out", tmp_path / "run")


def test_every_variant_is_described() -> None:
    assert all(variant.about and not variant.about.endswith(".") for variant in VARIANTS.values())
    assert parse_config({"variant": "an older name"}).variant == "an older name"


def test_an_override_of_one_run_does_not_change_the_variant_of_the_next() -> None:
    before = parse_config(with_variant({}, "paper"))
    document = with_variant({}, "paper")
    apply_override(document, f"simulator.contexts={before.simulator.contexts + 1}")
    assert parse_config(with_variant({}, "paper")) == before
