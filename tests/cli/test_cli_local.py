"""The commands on real, tiny models: what they cannot do is data, what they may not be is one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import scripted_genenv as fakes
from genenv.backends.local import trainer
from genenv.backends.local.cpu import packed_weights
from genenv.backends.local.losses import token_losses
from genenv.backends.settings import AUTOMATIC
from genenv.config.run import all_settings, load_config
from genenv.runs.store.store import PoolStore
from genenv.types import RejectReason, StopReason
from typed import refused, run

SETTINGS = """
[run]
rounds = 2
eval_tasks = 2
eval_every = 2

[curriculum]
base_share = 0.5

[simulator]
contexts = 2
variations = 1
max_new_tokens = 16

[simulator.warmup]
steps = 1
batch = 1

[agent]
rollouts = 2
max_new_tokens = 6
skip_zero_advantage = false

[agent.warmup]
steps = 1
batch = 1
check_tasks = 2

[policy]
model = "{model}"
device = "cpu"
threads = 1
lora_rank = 2
context_tokens = 1536
"""
WIDE = {"max_position_embeddings": 2048}


@pytest.fixture(autouse=True)
def few_base_data(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.few_base_data(monkeypatch, seeds=12, held_out=2, small=True)


@pytest.fixture
def config(tiny: Any, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(SETTINGS.format(model=tiny.folder(**WIDE)), encoding="utf-8")
    return path


def rounds(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def weights(path: Path, round_: int) -> bytes:
    return (path / f"checkpoints/round-{round_:04d}/agent/adapter_model.safetensors").read_bytes()


@pytest.mark.long
def test_a_model_that_writes_no_valid_task_runs_to_the_end(config: Path, tmp_path: Path) -> None:
    done = run("train", config, "--out", tmp_path / "run")
    assert done.exit_code == 0, (done.exception, done.stderr)
    assert "new tasks: 0" in done.stdout
    start, *played = rounds(tmp_path / "run")
    assert start["agent/warmup_steps"] == 1
    assert [line["simulator/valid_rate"] for line in played] == [0, 0]
    assert all(line["tokens/trained"] > 0 for line in played)  # base tasks
    with PoolStore.open(tmp_path / "run/pool.db", create=False) as store:
        assert store.overview()[1].rejected[RejectReason.UNFINISHED] == 2  # generations that never end
        refused_too = [p.generation.token_ids for b in store.batches(1) for p in b.proposals]
        assert played[0]["tokens/simulator_sampled"] == sum(map(len, refused_too)) > 0
        reasons = {t.stop_reason for n in (1, 2) for g in store.groups(n) for t in g.traces}
        assert StopReason.LENGTH in reasons  # replies that never end
    assert "none of 10 generations passed the gate" in refused("generate", config, "--run", tmp_path / "run")
    assert run("report", tmp_path / "run").exit_code == 0


@pytest.mark.long
def test_the_number_format_is_measured_once_in_a_run(config: Path, tmp_path: Path) -> None:
    stopped = ["--set", "run.rounds=1"]
    assert run("train", config, "--out", tmp_path / "run", *stopped).exit_code == 0
    saved = load_config(tmp_path / "run/config.toml").policy.dtype
    assert saved in ("float32", "bfloat16")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genenv.backends.local.hardware.choose_dtype", _as_named)
        longer = ["--set", "run.rounds=2"]
        assert run("train", config, "--out", tmp_path / "run", "--resume", *longer).exit_code == 0
    assert len(rounds(tmp_path / "run")) == 3


def _as_named(name: str, device: Any) -> Any:
    import torch

    assert name != "auto"
    return getattr(torch, name)


def no_number(kl: str) -> Any:
    """Losses, of which those of some updates are not finite: the agent's (`k3`), or all others."""

    def found(logprobs: Any, tokens: Any, objective: Any, *reference: Any) -> Any:
        loss, sums = token_losses(logprobs, tokens, objective, *reference)
        return (loss * float("nan") if objective.kl == kl else loss), sums

    return found


@pytest.mark.long
def test_updates_that_are_not_finite_are_skipped_and_counted(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trainer, "token_losses", no_number("k3"))
    done = run("train", config, "--out", tmp_path / "run")
    assert done.exit_code == 0, (done.exception, done.stderr)
    assert [line["agent/skipped_updates"] for line in rounds(tmp_path / "run")] == [0, 1, 1]
    assert "an update of the agent was skipped: the loss is not finite" in caplog.text
    assert weights(tmp_path / "run", 1) == weights(tmp_path / "run", 2)


@pytest.mark.long
def test_warm_up_steps_that_are_not_finite_are_skipped_and_counted(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trainer, "token_losses", no_number("exact"))
    done = run("train", config, "--out", tmp_path / "run", "--set", "run.rounds=1")
    assert done.exit_code == 0, (done.exception, done.stderr)
    start = rounds(tmp_path / "run")[0]
    assert start["agent/skipped_updates"] == 1
    assert start["simulator/skipped_updates"] == 1
    assert "a warm-up step was skipped: the loss is not finite" in caplog.text


def test_a_model_must_be_a_causal_language_model_with_a_chat_template(
    config: Path, tiny: Any, tmp_path: Path
) -> None:
    out = tmp_path / "run"

    def complaint(model: object) -> str:
        sentence = refused("train", config, "--out", out, "--set", f"policy.model={model}")
        assert not out.exists()
        return sentence

    assert "not a causal language model" in complaint(tiny.folder("bert"))
    assert "has no chat template: choose an instruction-tuned model" in complaint(tiny.folder(template=None))
    assert "there is no model folder" in complaint(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "holds no config.json" in complaint(tmp_path / "empty")


@pytest.mark.long
def test_the_warm_up_needs_base_tasks_to_learn_from(config: Path, tmp_path: Path) -> None:
    words = ["train", config, "--out", tmp_path / "run", "--set", "agent.warmup.check_tasks=12"]
    assert "agent.warmup.check_tasks is 12, but the environment has 12 base tasks" in refused(*words)
    words[-1] = "agent.warmup.check_tasks=11"
    assert run(*words, "--set", "run.rounds=1").exit_code == 0


def test_the_warm_up_needs_a_context_that_its_demonstrations_fit_into(config: Path, tmp_path: Path) -> None:
    words = ["train", config, "--out", tmp_path / "run", "--set", "policy.context_tokens=32"]
    assert "fits into its context of 32 tokens; raise policy.context_tokens" in refused(*words)


@pytest.mark.long
def test_a_damaged_adapter_is_named(config: Path, tmp_path: Path) -> None:
    assert run("train", config, "--out", tmp_path / "run", "--set", "run.rounds=1").exit_code == 0
    adapter = tmp_path / "run/checkpoints/round-0001/simulator/adapter_model.safetensors"
    adapter.write_bytes(adapter.read_bytes()[:-1])
    longer = ["--set", "run.rounds=2"]
    sentence = refused("train", config, "--out", tmp_path / "run", "--resume", *longer)
    assert "simulator/adapter_model.safetensors is damaged" in sentence
    assert len(rounds(tmp_path / "run")) == 2


@pytest.mark.long
def test_a_run_with_tools_in_the_models_own_form_imitates_known_solutions_and_limits_thoughts(
    tiny: Any, templates: dict[str, str], config: Path, tmp_path: Path
) -> None:
    model = tiny.folder(template=templates["thinking"], max_position_embeddings=12_000)
    settings = [
        *("environment.style=native", f"policy.model={model}", "policy.context_tokens=12000", "run.rounds=1"),
        *("policy.chat_template_kwargs.enable_thinking=false", "policy.max_thinking_tokens=2"),
        *("agent.guidance=all", "agent.replayed=1", "simulator.train=false", "run.eval_every=0"),
    ]
    done = run("train", config, "--out", tmp_path / "run", *(word for s in settings for word in ("--set", s)))
    assert done.exit_code == 0, (done.exception, done.stderr)
    start, played = rounds(tmp_path / "run")
    assert start["agent/warmup_steps"] == 1
    assert (played["agent/guided_rate"], played["agent/replayed"]) == (1.0, 1.0)
    with PoolStore.open(tmp_path / "run/pool.db", create=False) as store:
        group = store.groups(1)[0]
        prompt = group.traces[0].token_ids[: group.traces[0].prompt_tokens]
    text = tiny.tokenizer(templates["thinking"]).decode(prompt)
    assert "Functions, called in <tool_call></tool_call>:\n" in text
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_a_model_whose_template_has_no_tools_cannot_use_its_own_form(config: Path, tmp_path: Path) -> None:
    sentence = refused("train", config, "--out", tmp_path / "run", "--set", "environment.style=native")
    assert "the model's chat template has no form of its own for tools" in sentence
    assert not (tmp_path / "run").exists()


# extreme settings


def fractions() -> dict[str, tuple[float, float]]:
    """The fractions among the settings of players and policies, with the ends of their ranges."""
    found: dict[str, tuple[float, float]] = {}
    for key, field in all_settings("tool_calling"):
        ends = [
            getattr(rule, sign) for sign in ("ge", "le") for rule in field.metadata if hasattr(rule, sign)
        ]
        if field.annotation is float and not key.startswith(("curriculum.", "agent.warmup.target")):
            found[key] = (float(ends[0]), float(ends[1]))
    return found


@pytest.mark.parametrize("end", [0, 1], ids=["lowest", "highest"])
@pytest.mark.parametrize("key", [pytest.param(key, marks=pytest.mark.slow) for key in sorted(fractions())])
def test_a_run_goes_through_with_a_setting_at_either_end_of_its_range(
    key: str, end: int, config: Path, tmp_path: Path
) -> None:
    result = run("train", config, "--out", tmp_path / "run", "--set", f"{key}={fractions()[key][end]!r}")
    assert result.exit_code == 0, result.stderr


def arithmetic(path: Path) -> dict[str, object]:
    policy = load_config(path / "config.toml").policy
    return {name: getattr(policy, name) for name in AUTOMATIC}


def nothing_is_measured(patch: pytest.MonkeyPatch) -> None:
    """Every stopwatch and every look around stops the test."""

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("a choice was made again")

    packed_weights.MEASURED.clear()
    for place in ("hardware.cpu_seconds", "cpu.packed_weights.cpu_seconds", "hardware.choose_threads"):
        patch.setattr(f"genenv.backends.local.{place}", asked)


@pytest.mark.long
@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_all_that_decides_the_last_digits_is_settled_when_a_run_starts(
    tuning: str, config: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    automatic = [f"policy.{name}={json.dumps(value)}" for name, value in AUTOMATIC.items()]
    said = [word for one in [*automatic, f"policy.tuning={tuning}"] for word in ("--set", one)]
    one = ["--set", "run.rounds=1", "--set", "run.eval_every=0", "--set", "agent.warmup.steps=0"]
    assert run("train", config, "--out", out, *said, *one).exit_code == 0
    settled = arithmetic(out)
    assert not [name for name, value in settled.items() if value == AUTOMATIC[name]]
    assert settled["decoder"] == ("fused" if tuning == "lora" else "transformers")
    assert settled["attention"] == "packed"
    with pytest.MonkeyPatch.context() as patch:
        nothing_is_measured(patch)
        done = run("train", "--out", out, "--resume", "--set", "run.rounds=2")
        assert done.exit_code == 0, (done.exception, done.stderr)
    assert arithmetic(out) == settled


@pytest.mark.long
def test_a_run_computed_with_compiled_code_is_not_continued_without_it_by_chance(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from genenv.backends.local.cpu import build

    if build.load() is None:
        pytest.skip("there is no C++ compiler")
    out, more = tmp_path / "run", ["--resume", "--set", "run.rounds=2"]
    assert run("train", config, "--out", out, "--set", "run.rounds=1").exit_code == 0
    assert arithmetic(out)["compiled"] is True
    monkeypatch.setenv("CXX", str(tmp_path / "nowhere"))
    build.load.cache_clear()
    try:
        sentence = refused("train", "--out", out, *more)
        assert "was computed with what is not here (policy.compiled: there is no " in sentence
        assert run("train", "--out", out, *more, "--allow-other-arithmetic").exit_code == 0
    finally:
        build.load.cache_clear()
    assert arithmetic(out)["compiled"] is False
    note = (out / "config.toml").read_text(encoding="utf-8").splitlines()[0]
    assert "# from round 2 on: policy.compiled = false (was true), " in note
