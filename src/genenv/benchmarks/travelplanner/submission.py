"""Plans in the form in which the authors' evaluator and leaderboard read them.

One line a query of the split, in its order: `{"idx": 1, "query": "...", "plan": [...]}`, `null` for a plan
that was not delivered; `evaluation/eval.py` of OSU-NLP-Group/TravelPlanner takes the lines by their position.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from genenv.benchmarks.travelplanner.loading import Question
from genenv.benchmarks.travelplanner.replies import Reading, as_submitted, read_reply
from genenv.environments.travel.query import Plan
from genenv.types import Json


def plan_of(question: Question, answer: Json) -> Plan:
    """The plan in an answer: read out of a reply, or given as such; empty for none."""
    return reading_of(question, answer).plan


def reading_of(question: Question, answer: Json) -> Reading:
    """The plan in an answer, and what of it cannot be read."""
    if isinstance(answer, Mapping) and "reply" in answer:  # of the two-stage mode
        answer = str(answer["reply"])
    if isinstance(answer, str):
        return read_reply(answer, question.split.places)
    return Reading(plan=as_submitted(answer))


def submission(answers: Sequence[tuple[Question, Json]]) -> str:
    """The lines of a split's queries; those that were not asked have no plan.

    Args:
        answers: questions of one split, each with what was answered, None for nothing.

    Returns:
        As many lines as the split has queries; empty without questions.
    """
    if not answers:
        return ""
    plans = {question.number: plan_of(question, answer) for question, answer in answers}
    return "".join(
        json.dumps({"idx": number, "query": text, "plan": list(plans.get(number, ())) or None}) + "\n"
        for number, text in enumerate(answers[0][0].split.texts, 1)
    )
