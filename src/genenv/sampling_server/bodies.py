"""What clients send, by vLLM's names; what is not served is refused, not left unread."""

from __future__ import annotations

from pydantic import BaseModel, Field, JsonValue

from genenv.backends.base import SampleRequest
from genenv.backends.chat.choices import tagged
from genenv.errors import UsageError


class LoadBody(BaseModel, extra="ignore"):
    """`/v1/load_lora_adapter`."""

    lora_name: str = Field(min_length=1)
    lora_path: str = Field(min_length=1)
    load_inplace: bool = False


class UnloadBody(BaseModel, extra="ignore"):
    """`/v1/unload_lora_adapter`."""

    lora_name: str = Field(min_length=1)


class StructuredBody(BaseModel, extra="forbid"):
    """What a completion is held to."""

    json_: dict[str, JsonValue] | None = Field(default=None, alias="json")
    structural_tag: str | None = None
    disable_any_whitespace: bool = False


class SamplingBody(BaseModel, extra="forbid"):
    """`sampling_params`."""

    n: int = Field(default=1, ge=1, le=1)
    max_tokens: int = Field(ge=1)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int = 0
    logprobs: int | None = Field(default=None, ge=0, le=0)
    stop_token_ids: list[int] = []
    skip_special_tokens: bool = True
    detokenize: bool = True
    structured_outputs: StructuredBody | None = None


class GenerateBody(BaseModel, extra="ignore"):
    """`/inference/v1/generate`."""

    model: str
    token_ids: list[int] = Field(min_length=1)
    sampling_params: SamplingBody

    def request(self, end_id: int) -> SampleRequest:
        """As the engine has it.

        Args:
            end_id: the token that ends a reply.

        Raises:
            UsageError: it asks for what the engine does not do.
        """
        asked = self.sampling_params
        if [one for one in asked.stop_token_ids if one != end_id]:
            raise UsageError(f"a reply ends with token {end_id} alone here")
        held = asked.structured_outputs
        tag = None if held is None else held.structural_tag
        try:
            choices = () if tag is None else tagged(tag, end_id)
        except ValueError as error:
            raise UsageError(str(error)) from error
        return SampleRequest(
            prompt_ids=tuple(self.token_ids),
            max_tokens=asked.max_tokens,
            temperature=asked.temperature,
            top_p=asked.top_p,
            stream=asked.seed,
            schema=None if held is None else held.json_,
            choices=choices,
        )
