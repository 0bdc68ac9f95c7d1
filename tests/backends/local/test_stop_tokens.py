"""A reply ends at each of the model's stop tokens, and the one that was sampled is kept and learned."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.local import loading
from genenv.backends.local.cuda.decode import open_step
from genenv.backends.local.trainer import LocalTrainer
from genenv.backends.vllm.policy import VllmSampler
from genenv.chat.format import ChatFormat
from genenv.errors import UsageError
from genenv.rollout.driver import Sampling, roll_out
from genenv.sampling import SampleRequest
from genenv.servers.vllm import GenerateBody
from lessons import imitated
from torch_ops import TorchOps

GLM = (
    "{% for m in messages %}<|{{ 'observation' if m.role == 'tool' else m.role }}|>{{ m.content }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""As GLM: no token ends a reply but the one that begins the next message."""
ADDED = ["<|eot|>", "<|call|>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
PROMPT = (5, 9, 2, 44)


@pytest.fixture
def folder(tiny: Any, tmp_path: Path) -> Callable[..., Path]:
    """A tiny model with further special tokens, some of which end a reply."""

    def made(*stops: str, template: str | None = None, file: str = "generation_config.json") -> Path:
        place = shutil.copytree(tiny.folder(vocab_size=340), tmp_path / "model")
        tokenizer = tiny.tokenizer(*filter(None, [template]))
        tokenizer.add_tokens(ADDED, special_tokens=True)
        tokenizer.save_pretrained(place)
        if file != "generation_config.json":
            (place / "generation_config.json").unlink()
        config = json.loads((place / file).read_text())
        config["eos_token_id"] = [tokenizer.convert_tokens_to_ids(stop) for stop in stops]
        (place / file).write_text(json.dumps(config))
        return place

    return made


def likelier(policy: Any, monkeypatch: pytest.MonkeyPatch, *tokens: int, more: float = 6.0) -> None:
    plain = policy.model.scores

    def scores_of(hidden: Any) -> Any:
        scores = plain(hidden)
        scores[:, list(tokens)] += more
        return scores

    monkeypatch.setattr(policy.model, "scores", scores_of)


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_stop_tokens_are_those_of_template_tokenizer_and_files(folder: Any, tiny: Any, file: str) -> None:
    place = folder("<|call|>", "<|eot|>", file=file)
    chat = tiny.model(folder=place).chat
    named = {str(chat.tokenizer.convert_ids_to_tokens(one)) for one in chat.stop_ids}
    assert named == {"<|im_end|>", "<|call|>", "<|eot|>"}
    assert chat.tokenizer.convert_ids_to_tokens(chat.end_id) == "<|im_end|>"
    assert ChatFormat(chat.tokenizer, None, [40, 50]).stop_ids == {chat.end_id}, "40 and 50 are plain text"
    assert loading.stop_ids(str(place)) == tuple(
        chat.tokenizer.convert_tokens_to_ids(["<|call|>", "<|eot|>"])
    )


def test_models_with_one_stop_token_keep_it(tiny: Any) -> None:
    model = tiny.model()
    assert model.chat.stop_ids == {model.chat.end_id}
    assert loading.stop_ids(str(tiny.folder())) == (model.chat.end_id,)


@pytest.mark.parametrize("engine", ["plain", pytest.param("paged", marks=pytest.mark.long), "own"])
def test_a_completion_ends_at_any_of_them_and_is_scored_with_it(
    folder: Any, tiny: Any, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"attention": "own"} if engine == "own" else {}
    policy = tiny.player(folder=folder("<|call|>", "<|eot|>"), noise=0.05, max_batch_rows=4, **settings)
    model = policy.model
    if engine == "paged":
        model._decode_step_tried = True
        model._decode_step = open_step(
            model.causal, model.fused, model.config, model.context_tokens, TorchOps
        )
    stops = model.chat.stop_ids
    with monkeypatch.context() as patch:
        if engine != "paged":
            likelier(policy, patch, *stops, more=4.0)
        asked = [
            SampleRequest(prompt_ids=PROMPT, max_tokens=200, stream=i, temperature=2.0) for i in range(16)
        ]
        found = policy.sample_all(asked)
    ended = {one.token_ids[-1] for one in found if one.finished}
    assert ended == stops
    for one in found:
        assert one.finished == (one.token_ids[-1] in stops)
        assert stops.isdisjoint(one.token_ids[:-1])
    if engine == "paged":
        data = [imitated(PROMPT, tuple(one.token_ids), temperature=2.0) for one in found]
        scored = asyncio.run(LocalTrainer(policy.weights, OptimizerConfig()).logprobs(data))
        for one, own in zip(found, scored, strict=True):
            assert own == pytest.approx(one.logprobs, abs=1e-4)


def test_a_grammar_may_end_at_any_of_them_too(
    folder: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tiny.player(folder=folder("<|call|>", "<|eot|>"), noise=0.05)
    schema = {"type": "object", "properties": {"to": {"enum": ["a", "b"]}}, "required": ["to"]}
    asked = [
        SampleRequest(prompt_ids=PROMPT, max_tokens=30, stream=i, schema=schema, temperature=3.0)
        for i in range(12)
    ]
    found = policy.sample_all(asked)
    assert all(one.finished for one in found)
    assert {one.token_ids[-1] for one in found} == policy.model.chat.stop_ids
    for one in found:
        assert json.loads(one.text)["to"] in ("a", "b")
        policy.model.grammars.along(schema, one.token_ids)


def test_servers_are_asked_to_stop_at_all_and_accept_no_others(folder: Any, tiny: Any) -> None:
    chat = tiny.model(folder=folder("<|call|>", "<|eot|>")).chat
    sampler = VllmSampler(None, chat, context_tokens=64, max_thinking_tokens=None)  # type: ignore[arg-type]
    asked = sampler.parameters(SampleRequest(prompt_ids=PROMPT, max_tokens=4))
    assert asked["stop_token_ids"] == sorted(chat.stop_ids)
    body = {"model": "mine", "token_ids": list(PROMPT), "sampling_params": dict(asked)}
    base: Any = SimpleNamespace(chat=chat, context_tokens=64, vocabulary=340)
    assert GenerateBody.model_validate(body).request(base).max_tokens == 4
    body["sampling_params"]["stop_token_ids"] = [7, *chat.stop_ids]
    said = " or ".join(map(str, sorted(chat.stop_ids)))
    with pytest.raises(UsageError, match=f"a reply ends with token {said} alone here"):
        GenerateBody.model_validate(body).request(base)


class Ends:
    """A sampler whose replies are `3` and a given token."""

    def __init__(self, inner: Any, end: str) -> None:
        self.inner, self.prompts = inner, list[tuple[int, ...]]()
        self.end = inner.model.tokenizer.convert_tokens_to_ids(end)
        self.end_of_thought, self.context_tokens = inner.end_of_thought, inner.context_tokens
        self.render, self.encode_reply, self.left_out = inner.render, inner.encode_reply, inner.left_out

    async def sample(self, request: Any) -> Any:
        self.prompts.append(request.prompt_ids)
        ids = (*self.inner.model.chat.encode("3"), self.end)
        done = self.inner.sample_all([replace(request, max_tokens=1)])[0]
        return replace(
            done, token_ids=ids, logprobs=(-1.0,) * len(ids), text="3", finished=True, forced=range(0)
        )


def test_a_token_that_begins_the_next_message_ends_a_reply_and_is_there_once(
    toy: Any, folder: Any, tiny: Any
) -> None:
    policy = tiny.player(folder=folder("<|user|>", "<|observation|>", template=GLM))
    sampling = Sampling(temperature=1.0, max_new_tokens=12, timeout_s=60.0, seed=0)
    ends = Ends(policy, "<|observation|>")
    task = toy.task(1, 2, turns=3)
    played = asyncio.run(roll_out(toy.Environment(), ends, [task], rollouts=1, sampling=sampling))
    trace = played[0].traces[0]
    decode = policy.model.tokenizer.decode
    assert decode(trace.token_ids).count("3<|observation|>once more<|assistant|>3<|observation|>") == 1
    assert "<|observation|><|observation|>" not in decode(trace.token_ids)
    learned = [token for token, own in zip(trace.token_ids, trace.sampled, strict=True) if own]
    assert learned == [*policy.model.chat.encode("3"), ends.end] * 3
    said = [{"role": m.role, "content": m.content} for m in task.messages]
    for prompt in ends.prompts:
        assert decode(prompt) == decode(policy.model.chat.render_whole(said)[0])
        said += [{"role": "assistant", "content": "3"}, {"role": "tool", "content": "once more"}]


def test_a_damaged_list_of_stop_tokens_is_no_reason_to_stop(tmp_path: Path) -> None:
    assert loading.stop_ids(str(tmp_path)) == ()
    transformers.GenerationConfig(eos_token_id=[3, 4]).save_pretrained(tmp_path)
    assert loading.stop_ids(str(tmp_path)) == (3, 4)
