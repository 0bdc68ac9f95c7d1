"""What the simulator writes for a multi-hop question: difficulty, then the chain, then the words.

The chain comes before the question, so that the words describe an answer that is already fixed.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from genenv.environments.multihop_qa.wording import MAX_QUESTION, MIN_QUESTION

Name = Annotated[str, Field(min_length=1, max_length=120)]


class QuestionSpec(BaseModel, frozen=True, extra="forbid", strict=True):
    """A chain of facts and the question that asks for its end."""

    hops: int = Field(ge=2, le=4)
    """How many facts it takes."""
    answer: Name
    """What kind of thing the answer is, e.g. `city` or `code`."""
    start: Name
    """The thing that the question names."""
    relations: Annotated[list[Name], Field(min_length=2, max_length=4)]
    """The hops from the start on; `capital` goes from a country to a city, `capital of` back."""
    question: str = Field(min_length=MIN_QUESTION, max_length=MAX_QUESTION)
    """What the agent is asked. `<start>` stands for the start's name."""
