"""On a CUDA device a local player scores, learns and samples as it does on the CPU."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from genenv.algorithms.datum import Objective
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.local.packing import Bundle, Packed
from genenv.backends.local.trainer import LocalTrainer
from genenv.sampling import SampleRequest
from learners import gradients_of
from lessons import weighted

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]

PROMPTS = [(5, 9, 2), (7, 7, 7, 7, 8, 1, 30), (5, 9, 2, 44), (5, 9, 2)]
SCHEMA = {"type": "object", "properties": {"to": {"enum": ["a", "bc"]}}, "required": ["to"]}
REQUESTS = [
    SampleRequest(prompt_ids=prompt, max_tokens=4 + 3 * (stream % 3), stream=stream)
    for stream, prompt in enumerate(4 * PROMPTS)
]


@pytest.fixture(params=["llama", "qwen2", "qwen3"])
def players(request: pytest.FixtureRequest, tiny: Any, tmp_path: Path) -> tuple[Any, Any]:
    """The same player on the CPU and on the GPU."""
    on_cpu = tiny.player(request.param, noise=0.05)
    on_gpu = tiny.player(request.param, device="cuda")
    on_cpu.weights.save(tmp_path / "weights")
    on_gpu.weights.load(tmp_path / "weights")
    return on_cpu, on_gpu


def logprobs(player: Any, prompt: tuple[int, ...], ids: tuple[int, ...]) -> list[float]:
    packed = Packed([Bundle(prompt_ids=prompt, completions=[ids])], player.weights.model.device)
    with torch.no_grad(), player.weights.active():
        return player.weights.logprobs(packed).tolist()


def gradients(player: Any) -> dict[str, torch.Tensor]:
    trainer = LocalTrainer(player.weights, OptimizerConfig())
    objective = Objective(kl_coefficient=0.05, kl="exact")
    asyncio.run(trainer.forward_backward(weighted(1.0, 0.5, 0.2), objective))
    return {name: grad.cpu() for name, grad in gradients_of(trainer.optimizer).items()}


def test_log_probabilities_are_those_of_the_cpu(players: tuple[Any, Any]) -> None:
    on_cpu, on_gpu = players
    for prompt in PROMPTS:
        ids = (*prompt, 50, 3)
        assert logprobs(on_gpu, prompt, ids) == pytest.approx(logprobs(on_cpu, prompt, ids), abs=1e-4)


def test_gradients_are_those_of_the_cpu(players: tuple[Any, Any]) -> None:
    expected, found = map(gradients, players)
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, atol=1e-4, rtol=1e-4, msg=name)


def test_what_is_sampled_is_recorded_with_the_log_probabilities_of_the_cpu(players: tuple[Any, Any]) -> None:
    on_cpu, on_gpu = players
    for request, done in zip(REQUESTS, on_gpu.sample_all(REQUESTS), strict=True):
        expected = logprobs(on_cpu, request.prompt_ids, done.token_ids)
        assert done.logprobs == pytest.approx(expected, abs=1e-4)


def test_greedy_replies_are_those_of_the_cpu(players: tuple[Any, Any]) -> None:
    asked = [SampleRequest(prompt_ids=prompt, max_tokens=12, temperature=0.0) for prompt in PROMPTS]
    expected, found = ([done.token_ids for done in player.sample_all(asked)] for player in players)
    assert found == expected
    assert players[1].model._decode_step is not None  # not the slower path


def test_what_was_learned_is_what_is_sampled_next(players: tuple[Any, Any]) -> None:
    _, on_gpu = players
    on_gpu.sample_all(REQUESTS)
    trainer = LocalTrainer(on_gpu.weights, OptimizerConfig())
    asyncio.run(trainer.forward_backward(weighted(1.0, 0.5, 0.2), Objective()))
    asyncio.run(trainer.step(0.05))
    for request, done in zip(REQUESTS, on_gpu.sample_all(REQUESTS), strict=True):
        assert done.logprobs == pytest.approx(logprobs(on_gpu, request.prompt_ids, done.token_ids), abs=1e-3)


def test_replies_held_to_a_grammar_are_those_of_the_cpu(players: tuple[Any, Any]) -> None:
    asked = [
        SampleRequest(prompt_ids=PROMPTS[0], max_tokens=30, temperature=0.0, schema=SCHEMA),
        SampleRequest(prompt_ids=PROMPTS[1], max_tokens=12, temperature=0.0),
    ]
    expected, found = ([done.token_ids for done in player.sample_all(asked)] for player in players)
    assert found == expected


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_in_bfloat16_sampler_and_trainer_agree(tiny: Any, kind: str) -> None:
    player = tiny.player(kind, noise=0.05, dtype="bfloat16", device="cuda")
    differences = [
        abs(said - scored)
        for request, done in zip(REQUESTS, player.sample_all(REQUESTS), strict=True)
        for said, scored in zip(
            done.logprobs, logprobs(player, request.prompt_ids, done.token_ids), strict=True
        )
    ]
    assert sum(differences) / len(differences) < 0.02
