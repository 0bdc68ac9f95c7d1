"""Each noun as a row of its table, and back: `X_row` and `X_of` are inverse to each other."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import cast

from genenv.runs.store.encode import (
    SqlValue,
    finite,
    from_json,
    from_text,
    object_from_json,
    pack_flags,
    pack_floats,
    pack_ids,
    strings_from_json,
    to_json,
    to_text,
    unpack_flags,
    unpack_floats,
    unpack_ids,
)
from genenv.runs.store.records import BatchRate, Evaluation
from genenv.types import (
    Context,
    Generation,
    Lineage,
    Message,
    Origin,
    Rejection,
    RejectReason,
    Role,
    Seed,
    StopReason,
    Task,
    Trace,
)

Row = Mapping[str, SqlValue]


def seed_row(seed: Seed) -> Row:
    """A row of `seeds`."""
    return {
        "id": seed.id,
        "domain": seed.domain,
        "spec": to_json(seed.spec),
        "skills": to_json(seed.skills),
    }


def seed_of(row: sqlite3.Row) -> Seed:
    """The seed of a row."""
    return Seed(
        id=row["id"],
        domain=row["domain"],
        spec=object_from_json(row["spec"]),
        skills=strings_from_json(row["skills"]),
    )


def context_row(context: Context) -> Row:
    """A row of `contexts`."""
    return {
        "id": context.id,
        "round": context.round,
        "seed_id": context.seed.id,
        "messages": _messages_json(context.messages),
    }


def context_of(row: sqlite3.Row, seed: Seed) -> Context:
    """The context of a row."""
    return Context(id=row["id"], round=row["round"], seed=seed, messages=_messages_of(row["messages"]))


def generation_row(generation: Generation, novelty: float | None) -> Row:
    """A row of `generations`."""
    return {
        "id": generation.id,
        "context_id": generation.context_id,
        "prompt_ids": pack_ids(generation.prompt_ids),
        "token_ids": pack_ids(generation.token_ids),
        "logprobs": pack_floats(generation.logprobs),
        "text": to_text(generation.text),
        "finished": int(generation.finished),
        "novelty": None if novelty is None else finite(novelty, "novelty"),
    }


def generation_of(row: sqlite3.Row) -> Generation:
    """The generation of a row; its novelty is `row["novelty"]`."""
    return Generation(
        id=row["id"],
        context_id=row["context_id"],
        prompt_ids=unpack_ids(row["prompt_ids"]),
        token_ids=unpack_ids(row["token_ids"]),
        logprobs=unpack_floats(row["logprobs"]),
        text=from_text(row["text"]),
        finished=bool(row["finished"]),
    )


def rejection_row(rejection: Rejection, generation_id: str) -> Row:
    """A row of `rejections`."""
    return {
        "generation_id": generation_id,
        "reason": rejection.reason.value,
        "explanation": to_text(rejection.explanation),
    }


def rejection_of(row: sqlite3.Row) -> Rejection:
    """The rejection of a row."""
    return Rejection(reason=RejectReason(row["reason"]), explanation=from_text(row["explanation"]))


def task_row(task: Task) -> Row:
    """A row of `tasks`, without the round and the surface."""
    return {
        "id": task.id,
        "domain": task.domain,
        "skills": to_json(task.skills),
        "messages": _messages_json(task.messages),
        "spec": to_json(task.spec),
        "payload": to_json(task.payload),
        "oracle": to_json(task.oracle),
        "origin": task.lineage.origin.value,
        "seed_id": task.lineage.seed_id,
        "context_id": task.lineage.context_id,
        "generation_id": task.lineage.generation_id,
    }


def task_of(row: sqlite3.Row) -> Task:
    """The task of a row."""
    return Task(
        id=row["id"],
        domain=row["domain"],
        skills=strings_from_json(row["skills"]),
        messages=_messages_of(row["messages"]),
        spec=object_from_json(row["spec"]),
        payload=object_from_json(row["payload"]),
        oracle=strings_from_json(row["oracle"]),
        lineage=Lineage(
            origin=Origin(row["origin"]),
            seed_id=row["seed_id"],
            context_id=row["context_id"],
            generation_id=row["generation_id"],
        ),
    )


def trace_row(trace: Trace, *, round_: int, group_position: int) -> Row:
    """A row of `traces`."""
    return {
        "id": trace.id,
        "round": round_,
        "group_position": group_position,
        "task_id": trace.task_id,
        "token_ids": pack_ids(trace.token_ids),
        "sampled": pack_flags(trace.sampled),
        "logprobs": pack_floats(trace.logprobs),
        "prompt_tokens": trace.prompt_tokens,
        "replies": to_json(trace.replies),
        "reward": finite(trace.reward, "reward"),
        "success": int(trace.success),
        "explanation": to_text(trace.explanation),
        "stop_reason": trace.stop_reason.value,
    }


def trace_of(row: sqlite3.Row) -> Trace:
    """The trace of a row."""
    return Trace(
        id=row["id"],
        task_id=row["task_id"],
        token_ids=unpack_ids(row["token_ids"]),
        sampled=unpack_flags(row["sampled"]),
        logprobs=unpack_floats(row["logprobs"]),
        prompt_tokens=row["prompt_tokens"],
        replies=strings_from_json(row["replies"]),
        reward=row["reward"],
        success=bool(row["success"]),
        explanation=from_text(row["explanation"]),
        stop_reason=StopReason(row["stop_reason"]),
    )


def evaluation_row(evaluation: Evaluation, *, round_: int, position: int) -> Row:
    """A row of `evaluations`."""
    return {
        "round": round_,
        "position": position,
        "task_id": evaluation.task_id,
        "success": int(evaluation.success),
        "reward": finite(evaluation.reward, "reward"),
        "replies": to_json(evaluation.replies),
        "explanation": to_text(evaluation.explanation),
    }


def evaluation_of(row: sqlite3.Row) -> Evaluation:
    """The evaluation of a row."""
    return Evaluation(
        task_id=row["task_id"],
        success=bool(row["success"]),
        reward=row["reward"],
        replies=strings_from_json(row["replies"]),
        explanation=from_text(row["explanation"]),
    )


def batch_rate_of(row: sqlite3.Row) -> BatchRate:
    """How the batch of a row did."""
    return BatchRate(
        context_id=row["context_id"],
        p_hat=row["p_hat"],
        env_reward=row["env_reward"],
        selected=bool(row["selected"]),
    )


def _messages_json(messages: Sequence[Message]) -> str:
    return to_json([{"role": message.role, "content": message.content} for message in messages])


def _messages_of(text: str) -> tuple[Message, ...]:
    items = cast("list[dict[str, str]]", from_json(text))
    return tuple(Message(role=cast("Role", item["role"]), content=item["content"]) for item in items)
