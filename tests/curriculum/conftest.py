"""Small nouns for the curriculum's tests: a seed, a task, a group of attempts, a batch of variations."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from genenv.types import (
    Context,
    Generation,
    Group,
    Lineage,
    Origin,
    Proposal,
    Rejection,
    RejectReason,
    Seed,
    StopReason,
    Task,
    Trace,
)
from talk import said


class Make:
    """Builds values; everything a test does not name has one fixed, harmless form."""

    def seed(self, name: str, *skills: str) -> Seed:
        return Seed(id=name, environment="toy", spec={}, skills=skills)

    def context(self, name: str = "c0") -> Context:
        return Context(id=name, round=0, seed=self.seed("s0"), messages=())

    def task(self, name: str, skills: Sequence[str] = ("add",), origin: Origin = Origin.GENERATED) -> Task:
        return Task(
            id=name,
            environment="toy",
            skills=tuple(skills),
            messages=(),
            spec={},
            payload={},
            oracle=("42",),
            lineage=Lineage(origin=origin),
        )

    def trace(self, task: Task, index: int, *, success: bool, stop: StopReason = StopReason.DONE) -> Trace:
        return Trace(
            id=f"{task.id}-{index}",
            task_id=task.id,
            token_ids=(1, 2),
            sampled=(False, True),
            logprobs=(0.0, -0.5),
            prompt_tokens=1,
            messages=said("42" if success else ""),
            reward=float(success),
            success=success,
            explanation="",
            stop_reason=stop,
        )

    def group(self, task: Task | str, successes: int, attempts: int = 8, *, broken: int = 0) -> Group:
        """`attempts` valid attempts, the first `successes` of them solved, and `broken` ones that timed
        out."""
        whole = self.task(task) if isinstance(task, str) else task
        valid = [self.trace(whole, index, success=index < successes) for index in range(attempts)]
        lost = [
            self.trace(whole, attempts + index, success=False, stop=StopReason.TIMEOUT)
            for index in range(broken)
        ]
        return Group(task=whole, traces=(*valid, *lost))

    def proposal(
        self, name: str, outcome: Task | None, *, context: str = "c0", novelty: float = 0.5
    ) -> Proposal:
        """A generation that became a task, or was rejected as a duplicate."""
        generation = Generation(
            id=name,
            context_id=context,
            prompt_ids=(1,),
            token_ids=(2,),
            logprobs=(-1.0,),
            text="{}",
            finished=True,
        )
        rejected = Rejection(reason=RejectReason.DUPLICATE, explanation="known")
        return Proposal(
            generation=generation, outcome=outcome or rejected, novelty=novelty if outcome else None
        )


@pytest.fixture(scope="session")
def make() -> Make:
    return Make()
