"""What servers answer, held to its form before anything is made of it: a server may say anything.

Shapes: T = sampled tokens.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, StrictFloat, StrictInt, StrictStr, ValidationError

from genenv.backends.sampled import wrong_in
from genenv.backends.vllm.asking import Answer
from genenv.errors import UsageError, first_line
from genenv.texts import inert

_BYTES_A_TOKEN, _BYTES = 4096, 2**20
_MOST_SAID = 300


class Unfit(Exception):
    """A server does not do what sampling for a run needs. The message goes on after its address."""


class _Token(BaseModel):
    logprob: StrictFloat | StrictInt


class _Logprobs(BaseModel):
    content: list[_Token]


class _Choice(BaseModel):
    token_ids: list[StrictInt]
    logprobs: _Logprobs


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1, max_length=1)


class Card(BaseModel):
    """What a server says of a model that it serves."""

    id: StrictStr
    max_model_len: Annotated[StrictInt, Field(ge=1)] | None = None


class _Cards(BaseModel):
    data: list[Card] = Field(min_length=1)


def most_bytes(max_tokens: int) -> int:
    """The largest answer that a completion of so many tokens can be."""
    return _BYTES + _BYTES_A_TOKEN * max_tokens


def completion_in(
    answer: Answer, *, max_tokens: int, vocabulary: int
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """[T] sampled tokens, and [T] their log-probabilities. Nats.

    Args:
        answer: to a request for one completion.
        max_tokens: that it was to have at most.
        vocabulary: how many tokens the model knows.

    Raises:
        Unfit: it is no such completion.
    """
    try:
        (choice,) = _Completion.model_validate(answer.json()).choices
    except ValueError as error:
        raise Unfit(
            f"answers with what is no completion ({_problem(error)}); vLLM does from 0.32 on"
        ) from error
    ids, logprobs = choice.token_ids, [float(one.logprob) for one in choice.logprobs.content]
    if (wrong := wrong_in(ids, logprobs, max_tokens=max_tokens, vocabulary=vocabulary)) is not None:
        raise Unfit(f"answers {wrong}")
    return tuple(ids), tuple(logprobs)


def cards_in(address: str, answer: Answer) -> list[Card]:
    """What a server says of its models.

    Raises:
        UsageError: it serves none, or is no server of models.
    """
    problem = f"/v1/models says status {answer.status}, {said(answer)}"
    if answer.status == 200:
        try:
            return _Cards.model_validate(answer.json()).data
        except ValueError as error:
            problem = _problem(error)
    raise UsageError(f"what answers at {address} is no vLLM server, or serves nothing: {problem}")


def said(answer: Answer) -> str:
    """What a server says of a request that it refuses, in one short line."""
    text: Any = answer.text
    try:
        body = answer.json()
        text = body["error"]["message"] if "error" in body else body.get("detail", body)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return inert(" ".join(str(text)[: 4 * _MOST_SAID].split()))[:_MOST_SAID]


def _problem(error: ValueError) -> str:
    """What is wrong with a body, in a few words."""
    if not isinstance(error, ValidationError):
        return f"no JSON: {first_line(error)}"
    first = error.errors(include_input=False, include_url=False)[0]
    return inert(f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}")
