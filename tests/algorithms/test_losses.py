"""Losses and advantages by hand (GSPO, CISPO, DRO, Dr. GRPO, Max-RL), and those of a user's own."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from genenv.algorithms.advantages import group_advantages, grpo_credit
from genenv.algorithms.datum import averaged
from genenv.algorithms.losses import LOSSES, WIRE_LOSSES, LossTerms, find_loss
from genenv.algorithms.settings import GrpoConfig
from genenv.backends.local.losses import Tokens, token_losses
from genenv.config.run import load_config
from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.simulator_rewards import find_env_reward
from genenv.errors import UsageError
from genenv.training.opening import check_own_parts
from lessons import imitated, make_groups

HALF, TWICE = math.log(0.5), math.log(2.0)


def terms(
    log_ratios: list[float],
    advantages: list[float],
    *,
    lengths: tuple[int, ...] | None = None,
    beta: float = 0,
) -> tuple[LossTerms, torch.Tensor]:
    """Tokens whose old log-probability is -1, and the leaf of their present ones."""
    logprob = torch.tensor([-1 + one for one in log_ratios], dtype=torch.float64, requires_grad=True)

    def mean(values_M: torch.Tensor) -> torch.Tensor:
        parts = values_M.split(lengths or (len(values_M),))
        return torch.cat([part.mean().expand_as(part) for part in parts])

    return LossTerms(
        logprob=logprob,
        old=torch.full_like(logprob, -1.0).detach(),
        advantage=torch.tensor(advantages, dtype=torch.float64),
        low=0.8,
        high=1.2,
        sequence_mean=mean,
        beta=beta,
    ), logprob


def losses(name: str, found: LossTerms, logprob: torch.Tensor) -> tuple[list[float], list[float]]:
    """Of each token: the loss, and the gradient of their sum."""
    loss_M = LOSSES[name].function(found)
    (gradient_M,) = torch.autograd.grad(loss_M.sum(), logprob)
    return loss_M.tolist(), gradient_M.tolist()


def test_ppo_clips_a_ratio_where_its_advantage_wants_more() -> None:
    # ratios 2 and 0.5; 1.2 * 1 < 2 * 1 is taken, which has no gradient; 0.5 * 1 < 0.8 * 1 is free
    found, gradient = losses("ppo", *terms([TWICE, HALF], [1.0, 1.0]))
    assert found == pytest.approx([-1.2, -0.5])
    assert gradient == pytest.approx([0.0, -0.5])


def test_gspo_has_one_ratio_for_a_sequence_and_clips_it_whole() -> None:
    # first sequence: s = exp((log 2 + log 0.5) / 2) = 1; second: s = exp(log 2) = 2, clipped at 1.2
    values = terms([TWICE, HALF, TWICE, TWICE], [1.0, 1.0, 3.0, 3.0], lengths=(2, 2))
    found, gradient = losses("gspo", *values)
    assert found == pytest.approx([-1.0, -1.0, -3.6, -3.6])
    # d(s)/d(log pi_t) = s / T: two terms of -1 / 2 each fall on each token of the first
    assert gradient == pytest.approx([-1.0, -1.0, 0.0, 0.0])
    assert LOSSES["gspo"].clipped(values[0]).tolist() == [False, False, True, True]


def test_cispo_clips_the_weight_and_keeps_the_gradient() -> None:
    # weights 1.2 and 0.8 stay outside the gradient, which is weight * A on each token
    found, gradient = losses("cispo", *terms([TWICE, HALF], [1.0, -2.0]))
    logprobs = (-1 + TWICE, -1 + HALF)
    assert found == pytest.approx([-1.2 * logprobs[0], 0.8 * 2 * logprobs[1]])
    assert gradient == pytest.approx([-1.2, 1.6])


@pytest.mark.parametrize(
    ("loss", "clipped"),
    [
        ("ppo", [True, False, False, True, False]),
        ("cispo", [True, True, True, True, False]),  # weights of 1.2 and 0.8 on both sides
        ("importance_sampling", [False] * 5),
        ("dro", [False] * 5),
    ],
)
def test_the_clip_rate_counts_what_the_loss_clips(loss: str, clipped: list[bool]) -> None:
    ratios, advantages = [TWICE, TWICE, HALF, HALF, 0.0], [1.0, -1.0, 1.0, -1.0, 1.0]
    assert LOSSES[loss].clipped(terms(ratios, advantages)[0]).tolist() == clipped


def test_importance_sampling_never_clips_and_dro_pulls_back() -> None:
    found, gradient = losses("importance_sampling", *terms([TWICE], [3.0]))
    assert (found, gradient) == (pytest.approx([-6.0]), pytest.approx([-6.0]))
    # -(A log pi - beta / 2 (log 2)^2), whose gradient is -(A - beta log 2)
    found, gradient = losses("dro", *terms([TWICE], [3.0], beta=0.5))
    assert found == pytest.approx([-(3 * (-1 + TWICE) - 0.25 * TWICE**2)])
    assert gradient == pytest.approx([-(3 - 0.5 * TWICE)])


def test_the_local_trainer_takes_the_mean_of_each_sequence_and_counts_what_is_clipped() -> None:
    def attempt(old: float) -> Any:
        return imitated(
            (1,), (2, 3), 0.5, loss="gspo", advantages=(1.0, 1.0), old_logprobs=(old, old), temperature=1.0
        )

    data = [attempt(-1.0), attempt(-1.0 - TWICE)]
    tokens = Tokens.of(data, torch.device("cpu"))
    from genenv.algorithms.datum import Objective

    loss, sums = token_losses(torch.full((4,), -1.0), tokens, Objective())
    assert loss.item() == pytest.approx(-(1.0 + 1.2))  # ratios 1 and 2, two tokens of weight one half each
    assert sums["clip_rate"].item() == pytest.approx(1.0)


def test_one_step_has_one_policy_gradient() -> None:
    data = [
        imitated((1,), (2,), loss=name, advantages=(1.0,), old_logprobs=(-1.0,)) for name in ("ppo", "cispo")
    ]
    with pytest.raises(ValueError, match="one policy gradient, not cispo, ppo"):
        Tokens.of(data, torch.device("cpu"))


def test_names_of_the_wire_are_those_of_the_protocol() -> None:
    assert set(WIRE_LOSSES) == {"cross_entropy", "importance_sampling", "ppo", "cispo", "dro"}


def test_max_rl_divides_by_the_mean_success_rate() -> None:
    # one success of four: mean 0.25, (1 - 0.25) / 0.25 = 3 and (0 - 0.25) / 0.25 = -1
    assert group_advantages([1, 0, 0, 0], "max_rl") == [3.0, -1.0, -1.0, -1.0]
    # three of four: mean 0.75
    assert group_advantages([1, 1, 1, 0], "max_rl") == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1.0])
    assert group_advantages([0, 0], "max_rl") == [0.0, 0.0]


def test_dr_grpo_divides_by_a_constant_and_not_by_the_length(toy) -> None:
    config = GrpoConfig(advantage="centred", loss_average="constant", loss_tokens=10)
    batch = grpo_credit(make_groups(toy)[:1], {}, config, temperature=1.0)
    assert (batch.loss_tokens, batch.coefficients) == (10, {"ppo": 1.0, "nll": 1.0})
    step = averaged(batch.data, batch.coefficients, batch.loss_tokens)
    for before, after in zip(batch.data, step, strict=True):
        # every sampled token weighs 1 / (10 tokens * rollouts of the step), however long its rollout is
        share = 1 / (10 * len(step))
        assert after.weights == pytest.approx([share if weight else 0.0 for weight in before.weights])


def test_the_loss_that_the_settings_name_is_that_of_the_data(toy) -> None:
    batch = grpo_credit(make_groups(toy), {}, GrpoConfig(loss="cispo"), temperature=1.0)
    assert {datum.loss for datum in batch.data} == {"cispo"}
    assert batch.coefficients == {"cispo": 1.0, "nll": 1.0}


OWN = """
def truncated(terms):
    return -terms.ratio.clamp(0.0, 2.0) * terms.advantage

def leave_one_out(rewards):
    return [r - (sum(rewards) - r) / (len(rewards) - 1) for r in rewards]

def short(rewards):
    return rewards[:1]

def mean(terms):
    return (terms.ratio * terms.advantage).mean()

def detached(terms):
    return -terms.ratio.detach() * terms.advantage

def none(of):
    return None

def fails(of):
    return of["missing"]

def no_reward(successes, rollouts, rewards, config):
    return None

def nothing():
    return 1

number = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_losses.py").write_text(OWN, encoding="utf-8")
    (tmp_path / "broken_losses.py").write_text("1 / 0", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "own_losses", raising=False)
    return "own_losses"


def test_a_loss_and_an_advantage_of_ones_own(own: str) -> None:
    found, logprob = terms([TWICE, math.log(4.0)], [1.0, 1.0])
    loss_M = find_loss(f"{own}:truncated").function(found)
    assert loss_M.tolist() == pytest.approx([-2.0, -2.0])
    assert torch.autograd.grad(loss_M.sum(), logprob)[0].tolist() == pytest.approx([-2.0, 0.0])
    assert group_advantages([1, 0, 0], f"{own}:leave_one_out") == [1.0, -0.5, -0.5]
    with pytest.raises(UsageError, match=r"gave \[1\] for 2 rewards; an advantage is one finite number"):
        group_advantages([1, 0], f"{own}:short")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mean", r"must return one number for each token, here shape \(2,\), and gave shape \(\); genenv w"),
        ("none", "here shape .2,., and gave a NoneType"),
        ("detached", "gave numbers without a gradient"),
        (
            "fails",
            r"agent.loss is 'own_losses:fails', which raised TypeError: .* \(own_losses.py, line \d+\)",
        ),
    ],
)
def test_a_loss_of_ones_own_that_cannot_be_trained_on_is_one_sentence(
    own: str, name: str, sentence: str
) -> None:
    found, _ = terms([TWICE, math.log(4.0)], [1.0, 1.0])
    with pytest.raises(UsageError, match=sentence):
        find_loss(f"{own}:{name}").function(found)


def test_an_advantage_and_a_reward_of_ones_own_that_give_nothing_are_one_sentence(own: str) -> None:
    with pytest.raises(UsageError, match="gave None for 2 rewards; an advantage is one finite number"):
        group_advantages([1, 0], f"{own}:none")
    with pytest.raises(UsageError, match=r"which raised TypeError: .* \(own_losses.py, line \d+\)"):
        group_advantages([1, 0], f"{own}:fails")
    with pytest.raises(UsageError, match="gave None for 1 successes in 2 rollouts"):
        find_env_reward(f"{own}:no_reward")(1.0, 2, [1.0, 0.0], CurriculumConfig())


@pytest.mark.parametrize(
    ("setting", "name", "sentence"),
    [
        ("agent.loss", "own_losses:nowhere", "has no function or class 'nowhere'"),
        ("agent.loss", "own_losses:number", "has no function or class 'number'"),
        ("agent.loss", "own_losses:nothing", r"nothing must take \(terms\): too many positional arguments"),
        ("agent.loss", "no_such_module:f", "there is no module 'no_such_module'; is it on PYTHONPATH"),
        ("agent.loss", "broken_losses:f", "cannot be loaded: ZeroDivisionError"),
        (
            "agent.algorithm",
            "own_losses:nothing",
            r"must take \(groups, solutions, config, \*, temperature\)",
        ),
        ("simulator.algorithm", "own_losses:nothing", r"must take \(samples, schemas, config, \*, "),
        ("agent.advantage", "own_losses:nothing", r"must take \(rewards\)"),
        (
            "curriculum.env_reward",
            "own_losses:nothing",
            r"must take \(successes, rollouts, rewards, config\)",
        ),
        ("curriculum.candidate_reward", "own_losses:nothing", r"must take \(successes, rollouts, "),
        ("curriculum.seed_choice", "own_losses:nothing", "nothing lacks choose, observe, state_dict, load"),
        ("curriculum.gate", "own_losses:nothing", r"must take \(env, task, rng\)"),
    ],
)
def test_a_part_of_ones_own_that_is_wrong_is_one_sentence_before_a_run_begins(
    own: str, setting: str, name: str, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence) as refused:
        check_own_parts(load_config(None, [f"{setting}={name}"]))
    assert str(refused.value).startswith(f"{setting} is '{name}'")


@pytest.mark.parametrize(
    "setting", ["agent.loss", "agent.advantage", "curriculum.gate", "curriculum.seed_choice"]
)
def test_a_name_that_is_neither_known_nor_a_module_is_refused_with_what_there_is(setting: str) -> None:
    with pytest.raises(
        UsageError,
        match=rf"'{setting}' is \"nonsense\"; allowed: .* or module:name or FILE.py:name of your own",
    ):
        load_config(None, [f"{setting}=nonsense"])
