"""What clients send, by vLLM's names; what is not served is refused, not left unread."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import BaseModel, Field, JsonValue, field_validator

from genenv.backends.settings import COLDEST
from genenv.chat.choices import tagged
from genenv.errors import UsageError
from genenv.sampling import SampleRequest

Name = Annotated[str, Field(min_length=1, max_length=1000)]
_SCHEMA_CHARS = 262_144
Ids = Annotated[list[int], Field(fail_fast=True)]
"""Token ids."""


class LoadBody(BaseModel, extra="ignore"):
    """`/v1/load_lora_adapter`."""

    lora_name: Name
    lora_path: str = Field(min_length=1, max_length=4096)
    load_inplace: bool = False


class UnloadBody(BaseModel, extra="ignore"):
    """`/v1/unload_lora_adapter`."""

    lora_name: Name


class StructuredBody(BaseModel, extra="forbid"):
    """What a completion is held to."""

    json_: dict[str, JsonValue] | None = Field(default=None, alias="json")
    structural_tag: str | None = None
    disable_any_whitespace: bool = False

    @field_validator("json_")
    @classmethod
    def _check_size(cls, schema: dict[str, JsonValue] | None) -> dict[str, JsonValue] | None:
        if schema is not None and len(json.dumps(schema)) > _SCHEMA_CHARS:
            raise ValueError(f"the schema has more than {_SCHEMA_CHARS} characters")
        return schema


class SamplingBody(BaseModel, extra="forbid", allow_inf_nan=False):
    """`sampling_params`."""

    n: int = Field(default=1, ge=1, le=1)
    max_tokens: int = Field(ge=1)
    temperature: float = Field(default=1.0, ge=0, le=1e6)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)
    logprobs: int | None = Field(default=None, ge=0, le=0)
    stop_token_ids: Ids = []
    skip_special_tokens: bool = True
    detokenize: bool = True
    structured_outputs: StructuredBody | None = None


class GenerateBody(BaseModel, extra="ignore"):
    """`/inference/v1/generate`."""

    model: Name
    token_ids: Ids = Field(min_length=1)
    sampling_params: SamplingBody

    def request(self, *, end_id: int, context_tokens: int, vocabulary: int) -> SampleRequest:
        """As the engine has it.

        Args:
            end_id: the token that ends a reply.
            context_tokens: the longest sequence.
            vocabulary: how many tokens there are.

        Raises:
            UsageError: it asks for what the engine does not do, or the model does not have.
        """
        asked = self.sampling_params
        if [one for one in asked.stop_token_ids if one != end_id]:
            raise UsageError(f"a reply ends with token {end_id} alone here")
        if len(self.token_ids) + asked.max_tokens > context_tokens:
            raise UsageError(f"the longest sequence here has {context_tokens} tokens")
        _check_tokens("token_ids", self.token_ids, vocabulary)
        held = asked.structured_outputs
        return SampleRequest(
            prompt_ids=tuple(self.token_ids),
            max_tokens=asked.max_tokens,
            temperature=0.0 if asked.temperature < COLDEST else asked.temperature,
            top_p=asked.top_p,
            stream=asked.seed % 2**64,
            schema=None if held is None else held.json_,
            choices=() if held is None else _choices(held.structural_tag, end_id, vocabulary),
        )


def _choices(tag: str | None, end_id: int, vocabulary: int) -> tuple[tuple[int, ...], ...]:
    """The replies that a structural tag names; none without one.

    Raises:
        UsageError: it is another kind of tag.
    """
    if tag is None:
        return ()
    try:
        replies = tagged(tag, end_id)
    except ValueError as error:
        raise UsageError(str(error)) from error
    for reply in replies:
        _check_tokens("structural_tag", reply, vocabulary)
    return replies


def _check_tokens(where: str, ids: list[int] | tuple[int, ...], vocabulary: int) -> None:
    """Hold token ids to the vocabulary.

    Raises:
        UsageError: one is outside.
    """
    if min(ids) < 0 or max(ids) >= vocabulary:
        raise UsageError(f"{where} holds a token outside of the vocabulary, 0 to {vocabulary - 1}")
