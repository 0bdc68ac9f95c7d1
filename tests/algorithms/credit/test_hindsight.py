"""The simulator in hindsight: each task an example of the success rate that it came to."""

from __future__ import annotations

from genenv.algorithms.datum import UpdateBatch
from genenv.algorithms.reward_weighting import simulator_credit
from genenv.algorithms.settings import SimulatorLearningConfig
from genenv.types import Generation, Scored


def written(name: str, rate: float | None, asked: tuple[int, ...] | None) -> Scored:
    generation = Generation(
        id=name,
        context_id="c",
        prompt_ids=(5, 6),
        token_ids=(8, 9, 1),
        logprobs=(0.0,) * 3,
        text="",
        finished=True,
    )
    return Scored(generation=generation, reward=0.3, rate=rate, prompt_ids=asked)


def credit(*scored: Scored, **config) -> UpdateBatch:
    settings = SimulatorLearningConfig(algorithm="hindsight", **config)
    schemas = {"c": {"type": "boolean"}}
    return simulator_credit(settings)((), schemas, settings, temperature=0.7, scored=scored)


def test_every_task_is_imitated_as_the_answer_to_what_asks_for_its_rate():
    no_task = written("no task", None, None)
    lesson = credit(written("a", 0.9, (5, 9)), no_task, written("b", 0.0, (5, 0)), batch=1)
    assert [datum.prompt_ids for datum in lesson.data] == [(5, 9), (5, 0)]
    learned = {(datum.completion_ids, datum.loss, datum.temperature) for datum in lesson.data}
    assert learned == {((8, 9, 1), "nll", 0.7)}
    assert all(datum.schema == {"type": "boolean"} for datum in lesson.data)
    assert lesson.steps == 2
    assert not credit(no_task).units
