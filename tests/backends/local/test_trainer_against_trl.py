"""The agent's loss and its gradients equal those of TRL's `GRPOTrainer`, run on the same tokens."""

from __future__ import annotations

import pytest
import torch

from genenv.agent.policy import AgentConfig
from genenv.algorithms.advantages import group_advantages
from genenv.algorithms.datum import Objective
from genenv.algorithms.losses import LOSSES
from genenv.backends.local.losses import Tokens, token_losses
from genenv.types import Group
from learners import AgentLearner

pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("ignore")  # other people's deprecations

BETA, LOW, HIGH = 0.1, 0.2, 0.3
AVERAGES = {"bnpo": "token", "dapo": "token", "grpo": "sequence"}
PROMPTS = [(5, 6, 7), (11, 12, 13)]
TURNS = [  # of each prompt's attempts: sampled, environment, sampled
    [[(8, 9, 1), (30, 31), (4, 1)], [(8, 2)], [(9, 9, 9, 9, 9)]],
    [[(13, 1)], [(14, 15, 1), (40,), (3,)], [(60, 61, 62, 63)]],
]
REWARDS = [[1.0, 0.0, 0.25], [0.0, 1.0, 1.0]]


@pytest.fixture(scope="module")
def trainer_of(tiny, tmp_path_factory):
    """A function that puts TRL's trainer around a model."""
    import datasets
    import trl

    def make(model, loss_type: str):
        config = trl.GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("trl")),
            loss_type=loss_type,
            beta=BETA,
            epsilon=LOW,
            epsilon_high=HIGH,
            num_generations=3,
            per_device_train_batch_size=6,
            use_bias_correction_kl=False,  # GenEnv and the GRPO paper have the plain k3 term
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to=[],
        )
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=datasets.Dataset.from_list([{"prompt": "x"}] * 6),
            processing_class=tiny.tokenizer(),
        )
        trainer.current_gradient_accumulation_steps = 1
        return trainer

    return make


def flat(turns: list[tuple[int, ...]]) -> tuple[list[int], list[bool]]:
    return [t for turn in turns for t in turn], [i % 2 == 0 for i, turn in enumerate(turns) for _ in turn]


def trl_inputs(old: list[list[float]], reference: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same attempts as TRL pads them; the two prompts are of one length here."""
    rows = [(prompt, *flat(turns)) for prompt, group in zip(PROMPTS, TURNS, strict=True) for turns in group]
    width = max(len(ids) for _, ids, _ in rows)
    advantages = [a for row in REWARDS for a in group_advantages(row, "normalised")]

    def pad(values: list[list], fill: float) -> torch.Tensor:
        return torch.tensor([[*row, *[fill] * (width - len(row))] for row in values])

    tool_mask = pad([[int(flag) for flag in flags] for _, _, flags in rows], 0)
    return {
        "prompt_ids": torch.tensor([prompt for prompt, _, _ in rows]),
        "prompt_mask": torch.ones(len(rows), 3, dtype=torch.long),
        "completion_ids": pad([ids for _, ids, _ in rows], 0),
        "completion_mask": pad([[1] * len(ids) for _, ids, _ in rows], 0),
        "tool_mask": tool_mask,
        "advantages": torch.tensor(advantages),
        "old_per_token_logps": pad(old, 0.0),
        "ref_per_token_logps": reference,
        "num_items_in_batch": tool_mask.sum(),
    }


def groups_of(toy, old: list[list[float]]) -> list[Group]:
    rows = iter(old)
    groups = []
    for prompt, attempts, rewards in zip(PROMPTS, TURNS, REWARDS, strict=True):
        traces = [
            toy.trace(prompt, turns, logprobs=(0.0,) * 3 + tuple(next(rows)), reward=r, success=r == 1.0)
            for turns, r in zip(attempts, rewards, strict=True)
        ]
        groups.append(Group(task=toy.task(), traces=tuple(traces)))
    return groups


def completion_logprobs(model) -> torch.Tensor:
    """[rows, width] of transformers' own forward pass on TRL's padded batch."""
    inputs = trl_inputs([[]] * 6, torch.zeros(0))
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    with torch.no_grad():
        scores = model(input_ids=ids, attention_mask=mask).logits[:, 2:-1].log_softmax(-1)
    return scores.gather(2, inputs["completion_ids"][..., None])[..., 0]


def old_logprobs(now: torch.Tensor) -> list[list[float]]:
    """As if the attempts were sampled by another policy: ratios on both sides of both bounds."""
    generator = torch.Generator().manual_seed(2)
    rows = [flat(turns) for group in TURNS for turns in group]
    shifts = [0.4 * torch.randn(len(ids), generator=generator) for ids, _ in rows]
    return [
        [float(v) if flag else 0.0 for v, flag in zip(now[i, : len(ids)] + shifts[i], flags, strict=True)]
        for i, (ids, flags) in enumerate(rows)
    ]


@pytest.mark.long
@pytest.mark.parametrize("loss_type", AVERAGES)
def test_the_loss_and_its_gradient_for_each_token_equal_trls(tiny, trainer_of, monkeypatch, loss_type):
    model = tiny.plain()
    trainer = trainer_of(model, loss_type)
    now = completion_logprobs(model)
    reference = now + 0.3 * torch.randn(now.shape, generator=torch.Generator().manual_seed(1))
    inputs = trl_inputs(old_logprobs(now), reference)
    leaf = now.clone().requires_grad_()
    scored = (leaf, torch.zeros_like(now), None)
    monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", lambda *_, **__: scored)
    expected = trainer._compute_loss(model, inputs)
    expected.backward()

    chosen = inputs["tool_mask"].bool()
    lengths = chosen.sum(1, keepdim=True).expand_as(chosen)
    by_sequence = AVERAGES[loss_type] == "sequence"
    weights = (
        1 / (len(chosen) * lengths[chosen]) if by_sequence else torch.full((chosen.sum(),), 1 / chosen.sum())
    )
    tokens = Tokens(
        old_M=inputs["old_per_token_logps"][chosen],
        advantage_M=inputs["advantages"][:, None].expand_as(chosen)[chosen],
        weight_M=weights,
        nll_M=torch.zeros(len(weights), dtype=torch.bool),
        loss=LOSSES["ppo"],
        lengths=tuple(chosen.sum(1).tolist()),
    )
    objective = Objective(clip_low=LOW, clip_high=HIGH, kl_coefficient=BETA, kl="k3")
    own = now[chosen].requires_grad_()
    loss, sums = token_losses(own, tokens, objective, reference[chosen])
    loss.backward()
    assert 0.1 < sums["clip_rate"] < 0.9
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(own.grad, leaf.grad[chosen], atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("budget", [16, 4096])
@pytest.mark.parametrize("loss_type", AVERAGES)
@pytest.mark.parametrize("adapter", ["agent", None])
@pytest.mark.long
def test_the_gradient_of_the_parameters_equals_trls(
    tiny, toy, trainer_of, tmp_path, adapter, loss_type, budget
):
    import peft

    sampler = tiny.player(adapter=adapter, tokens_per_microbatch=budget)
    tiny.disturb(sampler, 0.03)  # away from the reference
    sampler.weights.save(tmp_path)
    model = tiny.plain()
    reference = completion_logprobs(model)
    if adapter:
        model = peft.PeftModel.from_pretrained(model, tmp_path, is_trainable=True)
    else:
        model.load_state_dict(sampler.model.causal.state_dict())
    now = completion_logprobs(model)
    old = old_logprobs(now)
    trainer = trainer_of(model, loss_type)
    loss = trainer._compute_loss(model, trl_inputs(old, reference))
    loss.backward()
    expected = {
        name.removeprefix("base_model.model.").replace(".default.", ".agent."): p.grad
        for name, p in model.named_parameters()
        if p.grad is not None
    }

    config = AgentConfig(
        kl_coefficient=BETA,
        clip_low=LOW,
        clip_high=HIGH,
        loss_average=AVERAGES[loss_type],
        advantage="normalised",
    )
    learner = AgentLearner(sampler, config)
    found, metrics = learner.gradients(learner.lesson(groups_of(toy, old)))
    assert metrics["agent/kl"] > 0
    assert metrics["agent/clip_rate"] > 0
    assert found.keys() == expected.keys() != set()
    assert max(grad.abs().max() for grad in expected.values()) > 1e-3
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, atol=1e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
