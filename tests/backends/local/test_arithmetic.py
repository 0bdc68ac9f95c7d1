"""Choices that change the last digits: steady when made, kept afterwards, refused where they cannot be."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from genenv.backends.local import hardware
from genenv.backends.local.cpu import build
from genenv.backends.local.cpu.threads import FEWEST_TURNS, cpu_seconds
from genenv.backends.local.hardware import lacking
from genenv.backends.local.model import resolve_settings, settled_config
from genenv.backends.settings import AUTOMATIC, PolicyConfig
from genenv.config.run import RunConfig
from genenv.errors import UsageError
from genenv.threads import cores
from genenv.training.resuming import _without


def test_a_work_is_timed_by_what_it_does_and_not_by_what_it_waits_for() -> None:
    def busy(seconds: float) -> None:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    found = cpu_seconds({"short": lambda: busy(0.002), "waits": lambda: time.sleep(0.004)}, budget_s=0.0)
    assert found["waits"] < 0.001 < found["short"]


def test_works_take_turns_and_each_begins_as_often_as_the_other() -> None:
    order: list[str] = []
    cpu_seconds({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, budget_s=0.0)
    assert "".join(order) == "ab" + ("abba" * FEWEST_TURNS)[: 2 * FEWEST_TURNS]


@pytest.mark.parametrize(
    ("together", "taken"),
    [
        ({1: 1.0, 2: 1.25, 4: 2.0}, 4),  # 1.0, 0.625, 0.5 s by the clock
        ({1: 1.0, 2: 1.25, 4: 2.7}, 4),  # 0.675: hardly slower, and more are taken
        ({1: 1.0, 2: 1.25, 4: 2.8}, 2),  # 0.7: clearly slower
        ({1: 1.0, 2: 2.3, 4: 6.0}, 1),  # cores that share all they have
    ],
)
def test_rather_more_threads_are_taken_unless_they_are_clearly_slower(monkeypatch, together, taken) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(hardware, "cores", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    monkeypatch.setattr(hardware, "cpu_seconds", lambda works, budget_s: {n: together[n] for n in works})
    assert hardware.choose_threads() == taken


def test_what_is_automatic_is_chosen_and_what_is_said_stays() -> None:
    here = resolve_settings(PolicyConfig(device="cpu"))
    assert here.dtype in ("float32", "bfloat16")
    assert here.threads >= 1
    assert here.compiled is (build.load() is not None)
    said = PolicyConfig(device="cpu", dtype="float32", compiled=False, threads=3)
    assert resolve_settings(said) == said


def test_what_models_decide_is_settled(tiny) -> None:
    llama, window = tiny.model(), tiny.model("gpt_neox")
    llama.fuse()
    window.fuse()
    assert choices(settled_config(llama.config, llama)) == ("packed", "fused", llama.fused.packed)
    assert choices(settled_config(window.config, window)) == ("packed", "transformers", False)
    both = settled_config(llama.config, llama, window)  # by their nature they differ, and will again
    assert choices(both)[:2] == ("packed", "auto")


def choices(policy: PolicyConfig) -> tuple[object, object, object]:
    return policy.attention, policy.decoder, policy.packed_weights


def test_weights_are_packed_in_both_models_or_in_none(tiny) -> None:
    first, second = tiny.model(), tiny.model(packed_weights=False)
    first.fuse()
    second.fuse()
    if not first.fused.pack():
        pytest.skip("this torch cannot pack weights")
    assert settled_config(first.config, first).packed_weights is True
    assert settled_config(first.config, first, second).packed_weights is False
    assert not first.fused.packed


@pytest.mark.parametrize("setting", ["attention", "decoder", "packed_weights"])
def test_settled_choices_lead_to_the_same_again(tiny, setting) -> None:
    first = tiny.model()
    first.fuse()
    policy = settled_config(first.config, first)
    again = tiny.model(**{setting: getattr(policy, setting)})
    again.fuse()
    assert getattr(settled_config(again.config, again), setting) == getattr(policy, setting)


def test_the_own_forward_pass_can_be_asked_for(tiny) -> None:
    model = tiny.model(attention="own")
    model.fuse()
    assert model.own_forward
    assert choices(settled_config(model.config, model)) == ("own", "transformers", False)


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        ("gpt_neox", {"decoder": "fused"}, "policy.decoder is 'fused', and that is not for .*GPTNeoX"),
        ("llama", {"decoder": "fused", "attention": "own"}, "needs policy.attention = 'packed'"),
        ("gpt_neox", {"packed_weights": True}, "policy.packed_weights is true, and the weights cannot be"),
    ],
)
def test_a_choice_that_a_model_cannot_follow_is_refused(tiny, kind, settings, sentence) -> None:
    with pytest.raises(UsageError, match=sentence):
        tiny.model(kind, **settings).fuse()


def test_packed_attention_that_is_not_for_a_model_is_refused(tiny) -> None:
    folder = tiny.folder("mistral", sliding_window=64)
    with pytest.raises(
        UsageError, match=r"policy\.attention is 'packed', and that is not for .* last 64 tokens"
    ):
        tiny.model(folder=folder, attention="packed")


def test_compiled_code_that_is_asked_for_must_be_had(tiny, monkeypatch) -> None:
    monkeypatch.setattr(build, "load", lambda: None)
    monkeypatch.setattr(build, "find", lambda: "there is no C++ compiler")
    with pytest.raises(
        UsageError, match=r"policy\.compiled is true, and there is no compiled code: there is no C"
    ):
        tiny.model(compiled=True)
    assert tiny.model(compiled="auto").kernels is None
    assert build.wanted(setting=True, device=torch.device("cuda")) is None


@pytest.mark.parametrize("compiled", ["auto", True, False])
def test_on_a_gpu_compiled_code_stays_as_it_was_asked_for(monkeypatch, compiled) -> None:
    monkeypatch.setattr(hardware, "choose_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(hardware, "choose_dtype", lambda *_: torch.bfloat16)
    assert resolve_settings(PolicyConfig(compiled=compiled)).compiled == compiled


def test_what_a_machine_lacks_is_said_by_the_name_of_the_setting(monkeypatch) -> None:
    monkeypatch.setattr(build, "load", lambda: None)
    monkeypatch.setattr(build, "find", lambda: "there is no C++ compiler")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    policy = PolicyConfig(device="cpu", threads=cores() + 1, compiled=True, packed_weights=True)
    found = lacking(policy)
    assert found["threads"].startswith(f"{cores() + 1} threads, but this process has {cores()} core")
    assert found["compiled"] == "there is no compiled code: there is no C++ compiler"
    assert found["packed_weights"] == "this torch has no oneDNN"
    again = _without(RunConfig(policy=policy), found).policy
    assert (again.device, again.threads, again.compiled, again.packed_weights) == ("cpu", 0, "auto", "auto")
    assert lacking(again) == {}


def test_without_its_device_a_run_has_no_choice_left(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    policy = PolicyConfig(device="cuda", dtype="bfloat16", threads=4, attention="packed")
    assert lacking(policy) == {"device": "torch finds no CUDA device here"}
    again = _without(RunConfig(policy=policy), lacking(policy)).policy
    assert {name: getattr(again, name) for name in AUTOMATIC} == AUTOMATIC


@pytest.mark.parametrize("wrong", [1, "yes", None])
def test_a_choice_is_a_word_or_true_or_false(wrong: Any) -> None:
    for value in (True, False, "auto"):
        assert PolicyConfig(compiled=value).compiled is value or value == "auto"
    with pytest.raises(ValidationError):
        PolicyConfig(compiled=wrong)
