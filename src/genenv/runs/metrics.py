"""All metrics of a run, with units and meanings, and the functions that compute a round's metrics.

The list is closed: `check_names` refuses any other name, so every metric in a chart has an explanation.
`summarise` says in a few lines what a run came to.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import fmean

from genenv.environments.base import Environment
from genenv.environments.promises import SKILL
from genenv.progress import Reporter, staged
from genenv.runs.store.records import Evaluation
from genenv.sampling import Sampler
from genenv.types import (
    Generation,
    Group,
    Origin,
    RejectReason,
    StopReason,
    TaskBatch,
    Trace,
    accepted,
    leading,
)


def target_band(alpha: float) -> tuple[float, float]:
    """Return the range in which the mean p_hat of a round should be: at most 0.15 from alpha."""
    return max(0.0, alpha - 0.15), min(1.0, alpha + 0.15)


def late_p_hats(metrics: Mapping[int, Mapping[str, float]]) -> list[float]:
    """Return the mean p_hat of each round in the last third of the run, rounded up: three of eight.

    Args:
        metrics: the metrics of every round, in order. Round 0, the state before training, does not count.
            Rounds without rolled-out batches have no p_hat and are left out.
    """
    return late_values(metrics, "curriculum/p_hat_mean")


def late_values(metrics: Mapping[int, Mapping[str, float]], name: str) -> list[float]:
    """Return a metric in each round of the last third that has it; see `late_p_hats`."""
    played = [values for number, values in metrics.items() if number > 0]
    late = played[len(played) * 2 // 3 :]
    return [values[name] for values in late if name in values]


def held_out_rates(metrics: Mapping[int, Mapping[str, float]]) -> tuple[list[float], list[float], int | None]:
    """Return held-out success by evaluation, in the environment of the beginning and in that after a shift.

    Returns:
        The rates before the shift, or all; those after it, the first of them at the shift; and its round.
    """
    taken = {number: m["agent/eval_success"] for number, m in metrics.items() if "agent/eval_success" in m}
    shift = next((number for number, m in metrics.items() if "agent/eval_at_shift" in m), None)
    if shift is None:
        return list(taken.values()), [], None
    before, after = ([rate for n, rate in taken.items() if (n >= shift) is later] for later in (False, True))
    return before, [metrics[shift]["agent/eval_at_shift"], *after], shift


_REJECTED = "simulator/rejected/"


def refusals(metrics: Iterable[Mapping[str, float]]) -> Counter[str]:
    """Return how often the gate refused a generation in some rounds, by reason."""
    found = Counter[str]()
    for values in metrics:
        for name, count in values.items():
            if name.startswith(_REJECTED) and count:
                found[name.removeprefix(_REJECTED)] += round(count)
    return found


def refusals_said(counts: Mapping[str, int]) -> str:
    """Return reasons of refusal with their counts, the most frequent first, as `12 leak, 3 syntax`."""
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in ordered)


@dataclass(frozen=True, slots=True)
class Metric:
    """The name, unit and meaning of a metric."""

    name: str
    unit: str
    """`share` is in [0, 1]; `count` is a whole number."""
    about: str
    """One line about the metric's meaning."""


_METRICS = (
    Metric("agent/success_rate", "share", "Rollouts of this round that succeeded, on all its tasks."),
    Metric("agent/base_success", "share", "Rollouts of this round that succeeded, on base tasks."),
    Metric("agent/new_success", "share", "Rollouts of this round that succeeded, on newly generated tasks."),
    Metric(
        "agent/review_success", "share", "Rollouts of this round that succeeded, on tasks that came back."
    ),
    Metric("agent/readable_rate", "share", "Rollouts that parse and can be carried out, right or wrong."),
    Metric("agent/reward", "share", "Mean reward of this round's rollouts."),
    Metric("agent/eval_success", "share", "Held-out tasks solved at temperature 0."),
    Metric(
        "agent/eval_at_shift",
        "share",
        "Held-out tasks of the other world solved before the first round in it, at temperature 0.",
    ),
    Metric("agent/eval_reward", "share", "Mean reward on held-out tasks at temperature 0."),
    Metric("agent/loss", "nats", "Mean loss of the update."),
    Metric("agent/staleness", "count", "Updates between the weights that sampled and those that train."),
    Metric(
        "agent/mismatch_kl",
        "nats/token",
        "KL(sampling weights || training weights), k3 estimate over the first step, at most 10 a token.",
    ),
    Metric("agent/importance_ratio", "ratio", "Mean importance ratio of trained tokens, after its cap."),
    Metric("agent/importance_capped", "share", "Trained tokens whose importance ratio is above its cap."),
    Metric("agent/kl", "nats/token", "Distance from the initial agent, k3 estimate, at most 10 a token."),
    Metric("agent/entropy", "nats/token", "Entropy of its choices in the update; where it has a bonus."),
    Metric("agent/clip_rate", "share", "Trained tokens whose probability ratio was clipped."),
    Metric("agent/grad_norm", "norm", "Length of the gradient before it is clipped; mean over steps."),
    Metric("agent/attempts", "count", "All rollouts of this round."),
    Metric("agent/imitated", "count", "Demonstrations trained on, whoever found them; warm-up included."),
    Metric("agent/steps", "count", "Optimizer steps applied."),
    Metric("agent/skipped_updates", "count", "Updates not applied: not finite, or nothing to learn from."),
    Metric("agent/warmup_steps", "count", "Supervised steps before the first round."),
    Metric("agent/warmup_success", "share", "Base tasks solved at temperature 0 when the warm-up stopped."),
    Metric("agent/response_tokens", "tokens", "Mean length of a rollout, sampled tokens only."),
    Metric("agent/guided_rate", "share", "Groups whose demonstration was trained on as well."),
    Metric("agent/replayed", "count", "Demonstrations of other tasks of the pool that were trained on."),
    Metric("agent/zero_advantage_rate", "share", "Groups whose rewards all agree and that carry no signal."),
    Metric("agent/failed_traces", "count", "Rollouts that ended in an error or a timeout and do not count."),
    Metric("agent/truncated_rate", "share", "Rollouts cut off by a limit on tokens, context or turns."),
    Metric("simulator/valid_rate", "share", "Generations that became tasks."),
    Metric(
        "simulator/in_band_rate",
        "share",
        "Batches whose p_hat is within k_min of alpha, of those whose rollouts allow both answers.",
    ),
    Metric(
        "simulator/in_band_rate_task",
        "share",
        "Tasks whose own p_hat is within k_min of alpha, of those whose rollouts allow both answers.",
    ),
    Metric("simulator/env_reward", "share", "Mean R_env over batches; a batch without a task earns 0."),
    Metric("simulator/loss", "nats", "Mean weighted loss of the update."),
    Metric("simulator/kl", "nats/token", "Distance from the initial simulator, of what both would sample."),
    Metric("simulator/warmup_loss", "nats/token", "Supervised loss of the last warm-up step."),
    Metric("simulator/clip_rate", "share", "Tokens of its update whose probability ratio was clipped."),
    Metric("simulator/kl_step", "nats/token", "How far the whole update moved what the simulator samples."),
    Metric("simulator/kl_retries", "count", "How often the step was halved to stay under the KL cap."),
    Metric("simulator/grad_norm", "norm", "Length of the gradient before it is clipped; mean over steps."),
    Metric("simulator/steps", "count", "Optimizer steps applied."),
    Metric(
        "simulator/skipped_updates",
        "count",
        "Updates not applied: nothing selected, not finite, over the KL cap.",
    ),
    Metric(
        "simulator/selected",
        "count",
        "Generations that reward-weighted regression learns from, or would, in place of another algorithm.",
    ),
    Metric("simulator/dropped", "count", "Batches (or tasks) outside the band or without any rollout."),
    Metric(
        "simulator/weight_contrast", "ratio", "Largest weight over smallest; near 1 rewards do not matter."
    ),
    Metric("simulator/effective_samples", "count", "Kish's effective number of weighted generations."),
    Metric("simulator/novelty", "share", "Mean distance of new tasks to their nearest in the archive."),
    Metric("simulator/decision_entropy", "nats/token", "Entropy of its choices under the grammar."),
    Metric("simulator/decision_kl", "nats/token", "Distance of those choices from the initial simulator's."),
    Metric("simulator/response_tokens", "tokens", "Mean length of what was written in this round."),
    *(
        Metric(f"{_REJECTED}{reason}", "count", f"Generations rejected as `{reason}`.")
        for reason in RejectReason
    ),
    Metric("curriculum/p_hat_mean", "share", "Mean success rate of the batches."),
    Metric("curriculum/p_hat_spread", "share", "Standard deviation of the success rate between batches."),
    Metric("curriculum/p_hat_task_spread", "share", "Standard deviation of the success rate between tasks."),
    Metric("curriculum/p_hat_task_agree", "share", "New tasks whose rollouts all agree."),
    Metric(
        "curriculum/regret",
        "share",
        "Mean success of the strong agent minus that of the weak one, over new tasks that both attempted.",
    ),
    Metric("curriculum/p_hat_batches", "count", "Batches that have a success rate."),
    Metric("curriculum/skill_share_max", "share", "Share of new tasks that exercise the commonest skill."),
    Metric("tasks/checked", "count", "Specs that the gate examined."),
    Metric("tasks/new", "count", "Newly generated tasks."),
    Metric("tasks/base", "count", "Base tasks."),
    Metric("tasks/review", "count", "Generated tasks of earlier rounds that came back."),
    Metric(
        "tasks/steps_mean",
        "steps",
        "Mean length of the new tasks' solutions, in the environment's own steps.",
    ),
    Metric("tasks/scored_only", "count", "New tasks whose rollouts only score them; nobody trains on these."),
    Metric("tasks/mixed", "share", "New tasks that some rollouts solved, and some did not."),
    Metric("tasks/solved", "share", "New tasks that all rollouts solved."),
    Metric("tasks/unsolved", "share", "New tasks that no rollout solved."),
    *(
        Metric(
            f"tasks/p_hat/{low}-{low + 20}",
            "share",
            f"New tasks with mixed outcomes whose success rate is {low}% or more and below {low + 20}%.",
        )
        for low in range(0, 100, 20)
    ),
    Metric("tasks/text_tokens", "tokens", "Mean length of the last message of new tasks: what they ask."),
    Metric("tasks/required_response_tokens", "tokens", "Mean length of the new tasks' oracle solutions."),
    Metric("time/warmup_s", "s", "Supervised warm-up of both policies."),
    Metric("time/propose_s", "s", "Writing tasks."),
    Metric("time/gate_s", "s", "Checking what was written."),
    Metric("time/probe_s", "s", "Predicting the success rates of candidates."),
    Metric("time/rollout_s", "s", "Rollouts."),
    Metric("time/agent_update_s", "s", "The agent's update."),
    Metric("time/simulator_update_s", "s", "The simulator's update."),
    Metric("time/publish_s", "s", "Letting samplers see what was learned."),
    Metric("time/sampling_waited_s", "s", "Sampling of a later round was over, learning went on."),
    Metric("time/learning_waited_s", "s", "Learning was over, sampling of a later round went on."),
    Metric("time/eval_s", "s", "Measuring on held-out tasks."),
    Metric(
        "time/round_s",
        "s",
        "From the end of the round before to its commit, without work that was done ahead for it.",
    ),
    Metric("probe/candidates", "count", "Tasks whose success rate was predicted."),
    Metric("probe/foretold", "share", "Mean predicted success rate of the candidates that were rolled out."),
    Metric("probe/foretold_new", "share", "Mean predicted success rate of all new tasks."),
    Metric("probe/frontier", "share", "New tasks whose predicted success rate lies in [0.25, 0.75]."),
    Metric(
        "probe/progress", "share", "Mean rise of predicted success, of the candidates that were rolled out."
    ),
    Metric(
        "probe/progress_new",
        "share",
        "Mean rise of predicted success since the older version, all new tasks.",
    ),
    Metric("probe/error", "share", "Mean distance between predicted and measured success rates."),
    Metric("probe/offset", "nats", "a of the calibration logit p = a + b logit exp(L)."),
    Metric("probe/slope", "ratio", "b of the calibration."),
    Metric(
        "tokens/agent_probed",
        "tokens",
        "Tokens of known solutions whose likelihood was taken, under each version; prompts not counted.",
    ),
    Metric("tokens/agent_read", "tokens", "Tokens that were read for it, prompts included."),
    Metric("tokens/agent_sampled", "tokens", "Tokens the agent sampled."),
    Metric("tokens/simulator_sampled", "tokens", "Tokens sampled for tasks, rejected ones included."),
    Metric("tokens/agent_trained", "tokens", "Tokens the agent's updates learned from, warm-up included."),
    Metric("tokens/simulator_trained", "tokens", "Tokens the simulator's updates learned from, as above."),
    Metric("tokens/sampled", "tokens", "Tokens sampled by both policies."),
    Metric("tokens/trained", "tokens", "Tokens both updates learned from."),
)

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _METRICS}
"""All metrics with fixed names."""

FAMILIES: Mapping[str, Metric] = {
    family.name: family
    for family in (
        Metric("tasks/share/", "share", "New tasks that exercise a skill; the skill's name follows."),
        Metric("agent/skill/", "share", "Posterior mean of the success rate at a skill; its name follows."),
        Metric(
            "agent/eval_success/",
            "share",
            "Held-out tasks of a mixture's member solved at temperature 0; the member's name follows.",
        ),
    )
}
"""Metrics whose names end in a name that the environment chose, by prefix."""

_OF_AGENT = re.compile(r"agents/(?P<agent>[a-z][a-z0-9-]*)/(?P<rest>.+)")
"""Metrics of one of several agents."""


def describe(name: str) -> Metric:
    """Return the description of a metric.

    Raises:
        ValueError: there is no such metric. The message suggests the nearest name.
    """
    if name in METRICS:
        return METRICS[name]
    if (of_one := _OF_AGENT.fullmatch(name)) is not None:
        tokens, rest = of_one["rest"].startswith("tokens_"), of_one["rest"].removeprefix("tokens_")
        whole = describe(f"tokens/agent_{rest}" if tokens else f"agent/{rest}")
        return Metric(name, whole.unit, f"{whole.about} Of the agent {of_one['agent']}.")
    for prefix, family in FAMILIES.items():
        if name.startswith(prefix) and SKILL.fullmatch(name.removeprefix(prefix)):
            return Metric(name, family.unit, family.about)
    close = difflib.get_close_matches(name, METRICS, n=1)
    raise ValueError(
        f"unknown metric {name!r}{f'; did you mean {close[0]!r}?' if close else ''}; add it to metrics.py"
    )


def check_names(names: Iterable[str]) -> None:
    """Refuse metrics that are not in the list.

    Raises:
        ValueError: a name is not in the list.
    """
    for name in names:
        describe(name)


def by_agent(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics of several agents' updates, each by its own name and together.

    Together, counts and tokens are sums, and other values means. With one agent its metrics are unchanged.

    Args:
        found: metrics by agent, as those of the only agent of a run: `agent/loss`, `tokens/agent_trained`.

    Returns:
        `agents/NAME/loss` and `agents/NAME/tokens_trained` of each, and `agent/loss` and
        `tokens/agent_trained` of all.
    """
    if len(found) == 1:
        return dict(*found.values())
    together: dict[str, list[float]] = {}
    for metrics in found.values():
        for name, value in metrics.items():
            together.setdefault(name, []).append(value)
    summed = {name for name in together if describe(name).unit in ("count", "tokens")}
    return {
        **{name: math.fsum(own) if name in summed else fmean(own) for name, own in together.items()},
        **named_by_agent(found),
    }


def named_by_agent(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return each agent's own metrics by its name; those that no agent has are left out."""
    return {
        f"agents/{agent}/{name.replace('tokens/agent_', 'tokens_').removeprefix('agent/')}": value
        for agent, metrics in found.items()
        for name, value in metrics.items()
        if name.startswith(("agent/", "tokens/agent_"))
    }


def sampled(generations: Iterable[Generation]) -> int:
    """Return the number of tokens that the simulator sampled for specs; those drawn at random have none."""
    return sum(len(one.token_ids) for one in generations if not one.drawn)


_TRUNCATED = (StopReason.LENGTH, StopReason.CONTEXT, StopReason.MAX_TURNS)


def rollout_metrics(
    groups: Sequence[Group],
    batches: Sequence[TaskBatch],
    sampler: Sampler,
    env: Environment,
    *,
    elsewhere: int = 0,
) -> Mapping[str, float]:
    """Return success, reward and lengths of a round's rollouts, and length and steps of its new tasks.

    Args:
        groups: all rollouts of the round. With seats, rates and means are those of the leading seat.
        batches: the round's generations, to count their tokens.
        sampler: the agent's sampler, whose tokenizer measures the length of demonstrations.
        env: counts the steps of a demonstration.
        elsewhere: tokens that an endpoint, or the writer of a file, sampled to write the tasks.
    """
    written = [p for batch in batches for p in batch.proposals]
    new = accepted(written)
    new_ids = {task.id for task in new}
    wrote = sampled(p.generation for p in written) + elsewhere
    agents = list(dict.fromkeys(group.agent for group in groups))
    own = {name: [group for group in groups if group.agent == name] for name in agents}
    counted = leading(groups)
    of_all = _agents_rollouts(counted, new_ids) | _amounts(groups)
    metrics = {
        **{name: of_all.pop(name) for name in ("agent/attempts", "agent/failed_traces")},
        "tokens/agent_sampled": (answered := of_all.pop("tokens/agent_sampled")),
        "tokens/simulator_sampled": float(wrote),
        "tokens/sampled": answered + wrote,
        **_outcomes([group for group in counted if group.task.id in new_ids]),
    }
    for kind, chosen in _kinds(groups, new_ids).items():
        metrics[f"tasks/{kind}"] = float(len({group.task.id for group in chosen}))
        if (success := of_all.pop(f"agent/{kind}_success", None)) is not None:
            metrics[f"agent/{kind}_success"] = success
    if lengths := [len(one.generation.token_ids) for one in written if one.generation.token_ids]:
        metrics["simulator/response_tokens"] = fmean(lengths)
    metrics |= of_all
    if len(own) > 1:
        metrics |= named_by_agent({name: _agents_rollouts(some, new_ids) for name, some in own.items()})
    if new:
        lengths = [sum(len(sampler.encode_reply(reply)) for reply in task.oracle) for task in new]
        metrics["tasks/required_response_tokens"] = fmean(lengths)
        asked = [len(sampler.encode_reply(task.messages[-1].content)) for task in new]
        metrics["tasks/text_tokens"] = fmean(asked)
        metrics["tasks/steps_mean"] = fmean(env.steps(task) for task in new)
    return metrics


def _agents_rollouts(groups: Sequence[Group], new_ids: Set[str]) -> dict[str, float]:
    """Return the metrics of rollouts that belong to the agent: of one of several agents, or of all."""
    traces, metrics = [trace for group in groups for trace in group.valid], _amounts(groups)
    for kind, chosen in _kinds(groups, new_ids).items():
        if tried := [trace.success for group in chosen for trace in group.valid]:
            metrics[f"agent/{kind}_success"] = fmean(tried)
    if traces:
        metrics["agent/truncated_rate"] = fmean(trace.stop_reason in _TRUNCATED for trace in traces)
        metrics["agent/success_rate"] = fmean(trace.success for trace in traces)
        metrics["agent/readable_rate"] = fmean(bool(trace.readable) for trace in traces)
        metrics["agent/reward"] = fmean(trace.reward for trace in traces)
        metrics["agent/response_tokens"] = fmean(trace.response_tokens for trace in traces)
    return metrics


def _amounts(groups: Sequence[Group]) -> dict[str, float]:
    """Return the metrics that are sums: rollouts, failed ones, and sampled tokens."""
    everything = [trace for group in groups for trace in group.traces]
    return {
        "agent/attempts": float(len(everything)),
        "agent/failed_traces": float(len(everything) - sum(len(group.valid) for group in groups)),
        "tokens/agent_sampled": float(sum(trace.response_tokens for trace in everything)),
    }


def _outcomes(groups: Sequence[Group]) -> Mapping[str, float]:
    """Return the shares of tasks whose rollouts are mixed, all successful, and all unsuccessful.

    With several agents a task is mixed if the rollouts of one of them are.
    """
    by_task: dict[str, list[tuple[int, int]]] = {}
    for group in groups:
        if group.valid:
            by_task.setdefault(group.task.id, []).append((group.successes, len(group.valid)))
    if not by_task:
        return {}
    tried = [
        (sum(k for k, _ in one), sum(n for _, n in one), any(0 < k < n for k, n in one))
        for one in by_task.values()
    ]
    return {
        "tasks/mixed": fmean(is_mixed for _, _, is_mixed in tried),
        "tasks/solved": fmean(k == n for k, n, _ in tried),
        "tasks/unsolved": fmean(k == 0 for k, _, _ in tried),
        **{
            f"tasks/p_hat/{low}-{low + 20}": fmean(
                is_mixed and 100 * k // (20 * n) * 20 == low for k, n, is_mixed in tried
            )
            for low in range(0, 100, 20)
        },
    }


def _kinds(groups: Sequence[Group], new_ids: Set[str]) -> Mapping[str, list[Group]]:
    """Return the groups of new tasks, of base tasks, and of repeated generated tasks."""
    kinds: dict[str, list[Group]] = {"new": [], "base": [], "review": []}
    for group in groups:
        generated = group.task.lineage.origin is Origin.GENERATED
        kinds["new" if group.task.id in new_ids else "review" if generated else "base"].append(group)
    return kinds


def evaluation_metrics(
    evaluations: Sequence[Evaluation | Trace], columns: Mapping[str, str] | None = None
) -> Mapping[str, float]:
    """Return held-out success and reward. Every task counts, even if its rollout ended in an error.

    Args:
        evaluations: the results.
        columns: by task id, the member of a mixture that the task is of; success is returned for each.
    """
    if not evaluations:
        return {}
    by_column: dict[str, list[bool]] = {}
    for one in evaluations if columns else ():
        by_column.setdefault((columns or {})[one.task_id], []).append(one.success)
    return {
        **{f"agent/eval_success/{column}": fmean(found) for column, found in by_column.items()},
        "agent/eval_success": fmean(one.success for one in evaluations),
        "agent/eval_reward": fmean(one.reward for one in evaluations),
    }


class Stages:
    """Times the stages of a round and reports their progress."""

    def __init__(
        self, reporter: Reporter, number: int, rounds: int, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Start the clock of a round.

        Args:
            reporter: shows the progress.
            number: number of the round; 0 for the warm-up.
            rounds: number of rounds of the run.
            clock: returns monotonic seconds.
        """
        self._reporter, self._label = reporter, f"round {number}/{rounds}: " if number else ""
        self._clock, self._start = clock, clock()
        self.seconds = dict[str, float]()
        """Seconds of each stage so far, by metric name."""

    @contextlib.contextmanager
    def __call__(
        self, timer: str, shown: str = "", *, items: int | None = None, unit: str = ""
    ) -> Generator[None]:
        """Time one stage for the duration of the block.

        Args:
            timer: name in the metric `time/TIMER_s`. Seconds of stages with the same name add up.
            shown: description for people; empty for stages too short to show.
            items: number of items; None if unknown.
            unit: plural name of the items.
        """
        start = self._clock()
        told = staged(self._reporter, self._label + shown, items=items, unit=unit)
        with told if shown else contextlib.nullcontext():
            yield
        self.add({f"time/{timer}_s": self._clock() - start})

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add seconds of stages that were timed elsewhere."""
        for name, value in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value

    def metrics(self) -> dict[str, float]:
        """Return the seconds of each stage, and of the round so far."""
        return {**self.seconds, "time/round_s": self._clock() - self._start}
