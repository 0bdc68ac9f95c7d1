"""Update batches of the agent: GRPO from rollouts, and supervised learning from demonstrations.

    A_i = r_i - mean(r)              "centred"     (Dr. GRPO, arXiv:2503.20783)
    A_i = (r_i - mean(r)) / std(r)   "normalised"  (GRPO, arXiv:2402.03300)
    A_i = (r_i - mean(r)) / mean(r)  "max_rl"      (maximum-likelihood RL, arXiv:2602.02710)

Where agents play several seats of an episode, a group has the rollouts of one seat, and `team_weight` mixes
its own advantages with those of the team (`team_advantages`).

Every sampled token of rollout i has advantage A_i. All tokens of a step have the same weight ("token"), or
all rollouts have ("sequence"). "constant" is that of Dr. GRPO: no division by a rollout's length.

Chat templates drop the thoughts of earlier turns. Tokens sampled after such a drop have another context, so
one conversation may become several sequences (`readings`). Each sampled token counts only in the sequence in
which it was sampled.

Shapes: G = rollouts of a task.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, cast

from genenv.algorithms.datum import Datum, Objective, UpdateBatch, fault_of
from genenv.algorithms.settings import GrpoConfig
from genenv.errors import UsageError
from genenv.plugins import own_part
from genenv.types import Choices, Group, Trace


class AgentCredit(Protocol):
    """A function that builds the agent's update batch from a round's rollouts.

    `agent.algorithm` names it: one of `ALGORITHMS`, or a user-defined function.
    """

    def __call__(
        self,
        groups: Sequence[Group],
        solutions: Mapping[str, Trace],
        config: GrpoConfig,
        *,
        temperature: float,
    ) -> UpdateBatch:
        """Return the update batch. The arguments are those of `grpo_credit`."""
        ...


def agent_credit(config: GrpoConfig) -> AgentCredit:
    """Return the function that `agent.algorithm` names."""
    if config.algorithm in ALGORITHMS:
        return ALGORITHMS[config.algorithm]
    takes = ("groups", "solutions", "config", "*", "temperature")
    return cast(AgentCredit, own_credit("agent.algorithm", config.algorithm, takes))


def own_credit(setting: str, name: str, takes: Sequence[str]) -> Callable[..., UpdateBatch]:
    """Return the user-defined algorithm that `agent.algorithm` or `simulator.algorithm` names.

    Raises:
        UsageError: there is no such function. The returned function raises it for what is no update batch.
    """
    own = cast("Callable[..., object]", own_part(setting, name, takes=takes))

    def checked(*args: object, **named: object) -> UpdateBatch:
        gave = own(*args, **named)
        if fault := fault_of(gave):
            raise UsageError(f"{setting} is {name!r}, which gave {fault}; it returns an UpdateBatch")
        return cast(UpdateBatch, gave)

    return checked


def grpo_credit(
    groups: Sequence[Group],
    solutions: Mapping[str, Trace],
    config: GrpoConfig,
    *,
    temperature: float,
) -> UpdateBatch:
    """`grpo`: policy gradients from rollouts, optionally with demonstrations (DAPG, arXiv:1709.10087).

    Args:
        groups: rollouts. Those that ended in an error or a timeout do not count.
        solutions: demonstrations by task id, also of tasks without rollouts.
        config: advantage function, loss, weights and number of steps.
        temperature: sampling temperature of the rollouts.

    Returns:
        A batch with one unit per task, of its rollouts and its demonstration. A group without any advantage
        is left out if `skip_zero_advantage` is set.
    """
    left = dict(solutions)
    units: list[list[Datum]] = []
    for group in groups:
        advantages = _advantages(group, config)
        unit: list[Datum] = []
        if any(advantages) or (advantages and not config.skip_zero_advantage):
            pairs = zip(group.valid, advantages, strict=True)
            unit = [datum for trace, value in pairs for datum in _rollout(trace, value, config, temperature)]
        if (solution := left.pop(group.task.id, None)) is not None:
            unit += imitate(solution)
        units += [unit] if unit else []
    units += [imitate(solution) for solution in left.values()]
    return UpdateBatch(
        units=units,
        objective=Objective(
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            kl_coefficient=config.kl_coefficient,
            kl="k3",
            entropy_coefficient=config.entropy_coefficient,
        ),
        steps=steps_of(len(units), config),
        epochs=config.epochs,
        coefficients={config.loss: 1.0, "nll": config.guidance_coefficient},
        loss_tokens=config.loss_tokens if config.loss_average == "constant" else None,
        importance_cap=config.importance_cap or None,
    )


def ppo_credit(
    groups: Sequence[Group], solutions: Mapping[str, Trace], config: GrpoConfig, *, temperature: float
) -> UpdateBatch:
    """`ppo`: the batch of `grpo` with all groups, whose advantages the trainer's value function computes.

    Args:
        groups: rollouts.
        solutions: demonstrations by task id.
        config: loss, weights and number of steps.
        temperature: sampling temperature of the rollouts.
    """
    whole = config.model_copy(update={"skip_zero_advantage": False})
    batch = grpo_credit(groups, solutions, whole, temperature=temperature)
    units = [
        [replace(datum, advantages=None) if datum.is_policy_gradient else datum for datum in unit]
        for unit in batch.units
    ]
    return replace(batch, units=units)


Advantage = Callable[[Sequence[float]], Sequence[float]]
"""Maps the rewards of a group, [G >= 2], to the advantage of each rollout, [G]."""


def centred(rewards_G: Sequence[float]) -> list[float]:
    """A_i = r_i - mean(r), the advantage of Dr. GRPO (arXiv:2503.20783); all zero if all rewards agree."""
    mean = math.fsum(rewards_G) / len(rewards_G)
    found = [reward - mean for reward in rewards_G]
    return [0.0] * len(rewards_G) if max(map(abs, found)) < 1e-9 else found  # NaN: the update is skipped


def normalised(rewards_G: Sequence[float]) -> list[float]:
    """A_i = (r_i - mean(r)) / (std(r) + 1e-4), GRPO (arXiv:2402.03300).

    std is the sample standard deviation (G - 1). The 1e-4 is that of TRL and of the GRPO paper's code.
    """
    found = centred(rewards_G)
    if not any(found):
        return found
    spread = math.sqrt(math.fsum(c * c for c in found) / (len(found) - 1))
    return [c / (spread + 1e-4) for c in found]


def max_rl(rewards_G: Sequence[float]) -> list[float]:
    """A_i = (r_i - mean(r)) / mean(r), maximum-likelihood RL (arXiv:2602.02710). Rewards must be >= 0.

    For rewards of 0 and 1 and success rate p, the expected gradient approaches that of log p as G grows.
    """
    mean = math.fsum(rewards_G) / len(rewards_G)
    return [c / mean if c else 0.0 for c in centred(rewards_G)]


ADVANTAGES: Mapping[str, Advantage] = {"normalised": normalised, "centred": centred, "max_rl": max_rl}
"""The built-in functions of `agent.advantage` and `simulator.advantage`, by name."""


def group_advantages(
    rewards_G: Sequence[float], name: str, *, setting: str = "agent.advantage"
) -> list[float]:
    """Return the advantage of each member of a group from the rewards of the group, [G].

    Args:
        rewards_G: rewards of the rollouts of a task, or of the specs of a context; at least two.
        name: a function of `ADVANTAGES`, or a user-defined `module:function`.
        setting: the setting that names the function, for error messages.

    Raises:
        UsageError: the user-defined function cannot be found, or returns a wrong number of advantages or a
            number that is not finite.
    """
    if name in ADVANTAGES:
        return list(ADVANTAGES[name](rewards_G))
    gave = cast(Advantage, own_part(setting, name, takes=("rewards",)))(rewards_G)
    try:
        found = [float(one) for one in gave]
    except (TypeError, ValueError):
        found = []
    if len(found) != len(rewards_G) or not all(map(math.isfinite, found)):
        raise UsageError(
            f"{name} gave {gave!r} for {len(rewards_G)} rewards; an advantage is one finite number for each"
        )
    return found


def zero_advantage_rate(groups: Sequence[Group], config: GrpoConfig) -> float:
    """Return the share of groups whose advantages are all 0; 0 if there are no groups.

    Groups with fewer than two valid rollouts are left out.
    """
    compared = [row for group in groups if (row := _advantages(group, config))]
    return sum(not any(row) for row in compared) / len(compared) if compared else 0.0


def team_advantages(own_G: Sequence[float], team_G: Sequence[float], name: str, weight: float) -> list[float]:
    """Return hierarchical advantages of the rollouts of one seat: of its own reward and of the team's, [G].

    A_i = (1 - w) f(r)_i + w f(R)_i. f is the advantage function, r_i the seat's reward in episode i, and R_i
    the mean reward over all seats of the episode that agents play. Means and deviations are those of the G
    episodes of this task at this seat.

    The mixture is that of AT-GRPO, alpha r^team + r^local (arXiv:2510.11062), as a weighted mean, so that the
    scale of advantages does not depend on the weight. Each agent has statistics of its own (Dr. MAS,
    arXiv:2602.08847; M-GRPO, arXiv:2511.13288). Each reward is normalised before they are added, because
    different pairs (r, R) with equal sums would otherwise have equal advantages (GDPO, arXiv:2601.05242). At
    weight 0 every seat learns for itself. At 1 all seats learn for the team, and a game whose rewards always
    have the same sum teaches nothing.

    Args:
        own_G: rewards of the seat, at least two.
        team_G: rewards of the team in the same episodes.
        name: a function of `ADVANTAGES`, or a user-defined `module:function`.
        weight: w, in [0, 1].

    Raises:
        UsageError: as `group_advantages`.
    """
    own, team = group_advantages(own_G, name), group_advantages(team_G, name)
    return [(1 - weight) * mine + weight * ours for mine, ours in zip(own, team, strict=True)]


def has_signal(group: Group, config: GrpoConfig) -> bool:
    """Return whether the rollouts of a task differ: in advantages under `grpo`, otherwise in rewards."""
    if config.algorithm == "grpo":
        return any(_advantages(group, config))
    return len({trace.reward for trace in group.valid}) > 1


def _advantages(group: Group, config: GrpoConfig) -> list[float]:
    """Return one advantage per valid rollout; empty if there are fewer than two."""
    valid, of_success = group.valid, config.advantage_of == "success"
    if len(valid) < 2:
        return []
    own = [float(trace.success) if of_success else trace.reward for trace in valid]
    if not config.team_weight:
        return group_advantages(own, config.advantage)
    seats = [[float(one.success) if of_success else one.reward for one in trace.team] for trace in valid]
    team = [math.fsum(row) / len(row) if row else mine for row, mine in zip(seats, own, strict=True)]
    return team_advantages(own, team, config.advantage, config.team_weight)


def _rollout(trace: Trace, advantage: float, config: GrpoConfig, temperature: float) -> list[Datum]:
    weight = 1.0 / max(1, trace.response_tokens) if config.loss_average == "sequence" else 1.0
    found = list(readings(trace))
    return [
        Datum(
            prompt_ids=one.token_ids[: one.prompt_tokens],
            completion_ids=one.token_ids[own],
            weights=tuple(weight if flag else 0.0 for flag in one.sampled[own]),
            advantages=(advantage,) * (own.stop - own.start),
            old_logprobs=one.logprobs[own],
            loss=config.loss,
            temperature=temperature,
            choices=choices_of(one),
            share=1 / len(found),
        )
        for one in found
        for own in [_answered(one)]
    ]


def _answered(trace: Trace) -> slice:
    """Return the place of the tokens behind the prompt, up to the last sampled one.

    What the environment says after it, the agent has not answered. It may be longer than the context window.
    Of a reply that was constrained to a list all tokens stay, also those that the list left no choice of.
    """
    end = len(trace.sampled)
    while end > trace.prompt_tokens and not trace.sampled[end - 1]:
        end -= 1
    for one in trace.choices:
        ends = [one.start + len(reply) for reply in one.replies]
        taken = [
            e for e, reply in zip(ends, one.replies, strict=True) if trace.token_ids[one.start : e] == reply
        ]
        end = max([end, *taken])
    return slice(trace.prompt_tokens, end)


def imitate(solution: Trace) -> list[Datum]:
    """Return a demonstration as supervised data: the replies have weight 1, all other tokens 0.

    The temperature is 1, whatever the sampling temperature. Training at a lower temperature would flatten the
    logits until samples at that temperature are as random as the original model's at 1.
    """
    return [_imitated(one) for one in readings(solution)]


def _imitated(solution: Trace) -> Datum:
    own = _answered(solution)
    return Datum(
        prompt_ids=solution.token_ids[: own.start],
        completion_ids=solution.token_ids[own],
        weights=tuple(map(float, solution.sampled[own])),
        loss="nll",
        choices=choices_of(solution),
    )


def choices_of(trace: Trace) -> tuple[Choices, ...]:
    """Return the lists that constrained a trace's replies, with indices relative to the completion."""
    return tuple(replace(one, start=one.start - trace.prompt_tokens) for one in trace.choices)


def imitation_credit(
    groups: Sequence[Group], solutions: Mapping[str, Trace], config: GrpoConfig, *, temperature: float
) -> UpdateBatch:
    """`sft`: only demonstrations. Rollouts are made and measured, but not trained on.

    Args:
        groups: rollouts; unused.
        solutions: demonstrations by task id.
        config: number of steps.
        temperature: sampling temperature; unused, because supervised data are at 1.
    """
    return _supervised_batch([imitate(solution) for solution in solutions.values()], config)


def rejection_credit(
    groups: Sequence[Group], solutions: Mapping[str, Trace], config: GrpoConfig, *, temperature: float
) -> UpdateBatch:
    """`rft`: the agent's successful rollouts, without duplicates within a task, and demonstrations if given.

    Rejection sampling fine-tuning (Yuan et al., arXiv:2308.01825; RAFT, arXiv:2304.06767).

    Args:
        groups: rollouts. Of successful rollouts with the same tokens only the first counts.
        solutions: demonstrations by task id.
        config: number of steps.
        temperature: sampling temperature; unused, because supervised data are at 1.
    """
    own = [
        trace
        for group in groups
        for trace in {trace.token_ids: trace for trace in reversed(group.valid) if trace.success}.values()
    ]
    return _supervised_batch([imitate(trace) for trace in [*own, *solutions.values()]], config)


def steps_of(units: int, config: GrpoConfig) -> int:
    """Return the number of optimizer steps of an epoch over this many units."""
    return -(-units // config.groups_per_step) if config.groups_per_step else config.updates_per_epoch


def _supervised_batch(units: Sequence[Sequence[Datum]], config: GrpoConfig) -> UpdateBatch:
    return UpdateBatch(
        units=units,
        objective=Objective(kl_coefficient=config.kl_coefficient, kl="k3"),
        steps=steps_of(len(units), config),
        epochs=config.epochs,
        coefficients={"nll": 1.0},
    )


def readings(trace: Trace) -> Iterator[Trace]:
    """Yield the sequences of a trace. This is the trace unchanged if no turn dropped earlier tokens."""
    if not trace.left_out:
        yield trace
        return
    bounds = [0, *sorted({span.since for span in trace.left_out}), len(trace.token_ids)]
    for start, end in itertools.pairwise(bounds):
        gone = {
            place for span in trace.left_out if span.since <= start for place in range(span.start, span.end)
        }
        places = [place for place in range(end) if place not in gone]
        sampled = tuple(place >= start and trace.sampled[place] for place in places)
        if any(sampled):
            yield replace(
                trace,
                token_ids=tuple(trace.token_ids[place] for place in places),
                sampled=sampled,
                logprobs=tuple(trace.logprobs[place] for place in places),
                prompt_tokens=bisect.bisect_left(places, trace.prompt_tokens),
                choices=tuple(
                    replace(one, start=bisect.bisect_left(places, one.start))
                    for one in trace.choices
                    if start <= one.start < end
                ),
                left_out=(),
            )


ALGORITHMS: Mapping[str, AgentCredit] = {
    "grpo": grpo_credit,
    "ppo": ppo_credit,
    "sft": imitation_credit,
    "rft": rejection_credit,
}
"""The built-in algorithms of `agent.algorithm`, by name."""
