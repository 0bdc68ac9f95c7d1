"""What a round's attempts say: the metrics of the agent and of the tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from statistics import fmean

from genenv.environments.base import Environment
from genenv.runs.store.records import Evaluation
from genenv.sampling import Sampler
from genenv.types import Group, Origin, StopReason, Task, TaskBatch, Trace

_TRUNCATED = (StopReason.LENGTH, StopReason.CONTEXT, StopReason.MAX_TURNS)


def attempt_metrics(
    groups: Sequence[Group],
    batches: Sequence[TaskBatch],
    sampler: Sampler,
    env: Environment,
    *,
    elsewhere: int = 0,
) -> Mapping[str, float]:
    """Success, reward and lengths over a round's attempts; required length and steps over its new tasks.

    Args:
        groups: all attempts of the round.
        batches: what the simulator wrote, for the number of sampled tokens.
        sampler: the agent's, whose tokens measure how long a solution must be.
        env: counts the steps of a solution.
        elsewhere: tokens that an endpoint sampled to write the tasks.
    """
    traces = [trace for group in groups for trace in group.valid]
    everything = [trace for group in groups for trace in group.traces]
    written = [p for batch in batches for p in batch.proposals]
    new = [p.outcome for p in written if isinstance(p.outcome, Task)]
    new_ids = {task.id for task in new}
    answered = sum(trace.response_tokens for trace in everything)
    wrote = sum(len(p.generation.token_ids) for p in written if not p.generation.drawn) + elsewhere
    metrics = {
        "agent/attempts": float(len(everything)),
        "agent/failed_traces": float(len(everything) - len(traces)),
        "tokens/agent_sampled": float(answered),
        "tokens/simulator_sampled": float(wrote),
        "tokens/sampled": float(answered + wrote),
        **_outcomes([group for group in groups if group.task.id in new_ids]),
    }
    for kind, chosen in _kinds(groups, new_ids).items():
        metrics[f"tasks/{kind}"] = float(len(chosen))
        if tried := [trace.success for group in chosen for trace in group.valid]:
            metrics[f"agent/{kind}_success"] = fmean(tried)
    if written:
        metrics["simulator/response_tokens"] = fmean(len(p.generation.token_ids) for p in written)
    if traces:
        metrics["agent/truncated_rate"] = fmean(trace.stop_reason in _TRUNCATED for trace in traces)
        metrics["agent/success_rate"] = fmean(trace.success for trace in traces)
        metrics["agent/readable_rate"] = fmean(bool(trace.readable) for trace in traces)
        metrics["agent/reward"] = fmean(trace.reward for trace in traces)
        metrics["agent/response_tokens"] = fmean(trace.response_tokens for trace in traces)
    if new:
        lengths = [sum(len(sampler.encode_reply(reply)) for reply in task.oracle) for task in new]
        metrics["tasks/required_response_tokens"] = fmean(lengths)
        asked = [len(sampler.encode_reply(task.messages[-1].content)) for task in new]
        metrics["tasks/text_tokens"] = fmean(asked)
        metrics["tasks/steps_mean"] = fmean(env.steps(task) for task in new)
    return metrics


def _outcomes(groups: Sequence[Group]) -> Mapping[str, float]:
    """The shares of tasks whose attempts are mixed, all right and all wrong."""
    tried = [(group.successes, len(group.valid)) for group in groups if group.valid]
    if not tried:
        return {}
    return {
        "tasks/mixed": fmean(0 < k < n for k, n in tried),
        "tasks/solved": fmean(k == n for k, n in tried),
        "tasks/unsolved": fmean(k == 0 for k, _ in tried),
    }


def _kinds(groups: Sequence[Group], new_ids: Set[str]) -> Mapping[str, list[Group]]:
    """Groups of new tasks, of base tasks, and of generated tasks that came back."""
    kinds: dict[str, list[Group]] = {"new": [], "base": [], "review": []}
    for group in groups:
        generated = group.task.lineage.origin is Origin.GENERATED
        kinds["new" if group.task.id in new_ids else "review" if generated else "base"].append(group)
    return kinds


def evaluation_metrics(evaluations: Sequence[Evaluation | Trace]) -> Mapping[str, float]:
    """Held-out success and reward: every task counts, also where the attempt failed."""
    if not evaluations:
        return {}
    return {
        "agent/eval_success": fmean(one.success for one in evaluations),
        "agent/eval_reward": fmean(one.reward for one in evaluations),
    }
