"""`examples/one_file.py`: its equations on numbers worked by hand, its length, and what it imports."""

import ast
import importlib.util
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

FILE = Path(__file__).parent.parent / "examples" / "one_file.py"
ENVIRONMENT = {
    "genenv.environments",
    "genenv.environments.base",
    "genenv.environments.wrappers",
    "genenv.tools.settings",
    "genenv.types",
}


@pytest.fixture(scope="module")
def one_file():
    spec = importlib.util.spec_from_file_location("one_file", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["one_file"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["one_file"]


def test_it_is_under_300_lines():
    assert len(FILE.read_text(encoding="utf-8").splitlines()) < 300


def test_of_genenv_it_imports_the_environment_alone():
    tree = ast.parse(FILE.read_text(encoding="utf-8"))
    found = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    found |= {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    assert {name for name in found if name.partition(".")[0] == "genenv"} == ENVIRONMENT


def test_advantages_are_centered_and_scaled(one_file):
    found = one_file.advantages(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    assert found.tolist() == pytest.approx([0.75 / 0.5001, *[-0.25 / 0.5001] * 3])  # std: 0.5


@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0])
def test_advantages_are_zero_where_rewards_agree(one_file, reward):
    assert not one_file.advantages(torch.full((7,), reward)).any()


def test_the_loss_is_clipped_on_the_side_that_gains_and_masked(one_file):
    ratio_GT = torch.tensor([[1.5, 1.1, 9.0], [0.5, 1.5, 9.0]])
    sampled_GT = torch.tensor([[True, True, False], [True, True, False]])
    loss = one_file.policy_loss(ratio_GT.log(), torch.zeros(2, 3), torch.tensor([1.0, -2.0]), sampled_GT)
    # row 1: min(1.5, 1.2) + 1.1; row 2: min(-1.0, -1.6) + min(-3.0, -2.4)
    assert loss.item() == pytest.approx(-(1.2 + 1.1 - 1.6 - 3.0))


def test_on_policy_the_gradient_is_the_advantage(one_file):
    logprob_GT = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], requires_grad=True)
    mask_GT = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    one_file.policy_loss(logprob_GT, logprob_GT.detach(), torch.tensor([1.5, -0.5]), mask_GT).backward()
    assert logprob_GT.grad.tolist() == [[-1.5, -1.5], [0.5, 0.0]]


def test_where_a_ratio_is_clipped_there_is_no_gradient(one_file):
    logprob_GT = torch.tensor([[1.5, 0.5]]).log().requires_grad_()
    one_file.policy_loss(logprob_GT, torch.zeros(1, 2), torch.tensor([1.0]), torch.ones(1, 2)).backward()
    assert logprob_GT.grad[0].tolist() == pytest.approx([0.0, -0.5])


def test_the_bandit_predicts_one_half_of_what_it_has_not_seen(one_file):
    assert one_file.predict([], [{"bias", "refund"}]).tolist() == [0.5]


def test_the_bandit_solves_its_penalized_regression(one_file):
    # one skill in all tasks: sum of weights * (p - rate) + w = 0 with p = sigmoid(w)
    seen = [({"bias"}, 1.0, 2.0), ({"bias"}, 0.0, 1.0)]
    p = one_file.predict(seen, [{"bias"}]).item()
    assert 3 * p - 2 + math.log(p / (1 - p)) == pytest.approx(0, abs=1e-5)
    assert 0.5 < p < 2 / 3


def test_the_bandit_tells_skills_apart(one_file):
    seen = [({"bias", "easy"}, 1.0, 1.0), ({"bias", "hard"}, 0.0, 1.0)] * 8
    easy, hard = one_file.predict(seen, [{"bias", "easy"}, {"bias", "hard"}]).tolist()
    assert easy == pytest.approx(1 - hard)
    assert easy > 0.8


def test_it_chooses_different_tasks_and_rather_those_half_solved(one_file):
    torch.manual_seed(0)
    p_N = torch.tensor([0.0, 0.5, 1.0, 0.5])
    assert sorted(one_file.choose(p_N, 4)) == [0, 1, 2, 3]
    # exp(12) : 1, so that neither 0 nor 1 is among the first two but once in 80,000 draws
    assert all(sorted(one_file.choose(p_N, 2)) == [1, 3] for _ in range(50))


def test_lora_begins_as_the_base_and_adds_a_scaled_product(one_file):
    lora = one_file.LoRA(torch.zeros(3, 4))
    weight = torch.randn(3, 4)
    assert torch.equal(lora(weight), weight)
    lora.B.data.fill_(1.0)
    assert torch.allclose(lora(weight) - weight, 2 * lora.A.sum(0).expand(3, 4), atol=1e-5)


def test_a_trajectory_knows_what_was_sampled(one_file):
    one = one_file.Trajectory()
    one.add([5, 6])
    one.add([7, 8], [-0.5, -1.0])
    assert (one.tokens, one.sampled) == ([5, 6, 7, 8], [False, False, True, True])
    assert one.logprobs == [0.0, 0.0, -0.5, -1.0]


def padded(batch, padding_side):
    assert padding_side == "left"
    width = max(map(len, batch["input_ids"]))
    return {
        "input_ids": [[9] * (width - len(one)) + one for one in batch["input_ids"]],
        "attention_mask": [[0] * (width - len(one)) + [1] * len(one) for one in batch["input_ids"]],
    }


@pytest.fixture
def agent(one_file):
    """An agent on a tiny random model, in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"vocab_size": 12, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.5}
    made = one_file.Agent.__new__(one_file.Agent)
    made.model, made.end = LlamaForCausalLM(LlamaConfig(**shape, **heads)).eval(), 0
    made.tokenizer = SimpleNamespace(pad=padded)
    return made


def plainly(agent, tokens, temperature):
    """[T - 1] log-probabilities of all tokens but the first, without padding or a cache."""
    logit_TV = agent.model(torch.tensor([tokens])).logits[0, :-1]
    logprob_TV = (logit_TV / temperature).log_softmax(-1)
    return logprob_TV.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].detach()


def test_samples_have_the_logprobs_that_the_model_gives_them(agent):
    prompts = [[3, 4, 5, 6, 7], [8, 3], [3, 4, 5, 6, 7], [8, 3]]
    replies = agent.sample(prompts, 0.7)
    assert len({len(tokens) for tokens, _ in replies}) > 1  # so rows left the batch
    for prompt, (tokens, logprobs) in zip(prompts, replies, strict=True):
        assert 0 not in tokens[:-1]
        expected = plainly(agent, prompt + tokens, 0.7)[len(prompt) - 1 :]
        assert logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_the_learner_computes_what_the_sampler_did_and_masks_the_rest(agent, one_file):
    prompt, group = [3, 4, 5, 6, 7], []
    for tokens, logprobs in agent.sample([prompt] * 4, 0.7):
        group.append(one_file.Trajectory(prompt=len(prompt)))
        group[-1].add(prompt)
        group[-1].add(tokens, logprobs)
    logprob_GT, old_GT, sampled_GT = agent.logprobs(group, 0.7)
    assert torch.allclose(logprob_GT[sampled_GT], old_GT[sampled_GT], atol=1e-4)
    assert sampled_GT.sum(1).tolist() == [len(one.tokens) - len(prompt) for one in group]
    assert torch.isfinite(logprob_GT).all()


def test_at_temperature_zero_it_takes_the_likeliest_tokens(agent):
    tokens, _ = agent.sample([[3, 4, 5]], 0.0)[0]
    assert tokens[0] == agent.model(torch.tensor([[3, 4, 5]])).logits[0, -1].argmax().item()
