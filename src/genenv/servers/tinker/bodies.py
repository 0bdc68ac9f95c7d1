"""What clients send in JSON; `data` reads what they want learned."""

from __future__ import annotations

from typing import Annotated, cast

from pydantic import BaseModel, Field, field_validator

from genenv.errors import UsageError

Name = Annotated[str, Field(max_length=1000)]
Number = Annotated[int, Field(ge=0, lt=2**63)]
"""Of a request, a model or a sampler, as its client counts them."""
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Seconds = Annotated[int, Field(ge=1, le=3_000_000_000)]
Ids = Annotated[list[int], Field(fail_fast=True)]
Metadata = Annotated[dict[Name, object], Field(max_length=1000)]


_MOST_CHUNKS = 4096
_MOST_STOPS, _STOP_CHARS = 256, 200


class Body(BaseModel, extra="ignore", protected_namespaces=()):
    """A JSON body; what newer clients add is left unread."""


class Addressed(Body):
    """A request to one model, in the order of `seq_id`."""

    model_id: Name
    seq_id: Number | None = None


class AdamBody(Body, allow_inf_nan=False):
    """A step of AdamW."""

    learning_rate: float = Field(default=1e-4, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-12, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    grad_clip_norm: float = Field(default=0.0, ge=0)


class StepBody(Addressed):
    """optim_step."""

    adam_params: AdamBody


class LoraBody(Body):
    """The adapter that create_model asks for."""

    rank: int = Field(ge=1, le=1024)
    seed: Seed | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class SessionBody(Body):
    """create_session."""

    tags: Annotated[list[Name], Field(fail_fast=True, max_length=1000)] = []
    user_metadata: Metadata | None = None
    sdk_version: Name = ""


class BeatBody(Body):
    """session_heartbeat."""

    session_id: Name


class ModelBody(Body):
    """create_model."""

    session_id: Name
    model_seq_id: Number
    base_model: Name
    lora_config: LoraBody | None = None
    user_metadata: Metadata | None = None


class OfModelBody(Body):
    """get_info and unload_model."""

    model_id: Name


class SaveBody(Addressed):
    """save_weights and save_weights_for_sampler."""

    path: Name | None = None
    ttl_seconds: Seconds | None = None
    overwrite: bool = False
    sampling_session_seq_id: Number | None = None


class LoadBody(Body):
    """load_weights: into a model, or into one that is made for it."""

    model_id: Name | None = None
    seq_id: Number | None = None
    session_id: Name | None = None
    model_seq_id: Number | None = None
    base_model: Name | None = None
    user_metadata: Metadata | None = None
    path: Name
    optimizer: bool = False


class SamplerBody(Body):
    """create_sampling_session."""

    session_id: Name
    sampling_session_seq_id: Number
    base_model: Name | None = None
    model_path: Name | None = None


class ChunkBody(Body):
    """A piece of a model's input."""

    type: Name = "encoded_text"
    tokens: Ids = []


class InputBody(Body):
    """A model's input."""

    chunks: Annotated[list[ChunkBody], Field(fail_fast=True, max_length=_MOST_CHUNKS)]

    def ids(self) -> tuple[int, ...]:
        """Its tokens. Raises a UsageError where it is not text alone."""
        for chunk in self.chunks:
            if chunk.type != "encoded_text":
                raise not_text(chunk.type)
        return tuple(token for chunk in self.chunks for token in chunk.tokens)


class DrawBody(Body, allow_inf_nan=False):
    """How completions are drawn."""

    max_tokens: int | None = Field(default=None, ge=0)
    seed: Seed | None = None
    stop: str | list[int] | list[str] | None = None
    temperature: float = Field(default=1.0, ge=0, le=1e6)
    top_k: int = Field(default=-1, ge=-1)
    top_p: float = Field(default=1.0, gt=0, le=1)

    @field_validator("stop", mode="before")
    @classmethod
    def _check_stops(cls, stop: object) -> object:
        """Each token of a completion is held against all of them."""
        several = cast("list[object]", stop if isinstance(stop, list) else [stop])
        if len(several) > _MOST_STOPS:
            raise ValueError(f"there are more than {_MOST_STOPS} stops")
        texts = [one for one in several if isinstance(one, str)]
        if any(len(text) > _STOP_CHARS for text in texts):
            raise ValueError(f"a stop has more than {_STOP_CHARS} characters")
        return cast(object, stop)


class SampleBody(Body):
    """asample."""

    num_samples: int = Field(default=1, ge=1, le=4096)
    prompt: InputBody
    sampling_params: DrawBody
    base_model: Name | None = None
    model_path: Name | None = None
    sampling_session_id: Name | None = None
    seq_id: Number | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = Field(default=0, ge=0, le=1000)


class FetchBody(Body):
    """retrieve_future."""

    request_id: Name
    allow_metadata_only: bool = False


class PathBody(Body):
    """weights_info."""

    tinker_path: Name


class LifeBody(Body):
    """How long a checkpoint stays; null: for good."""

    ttl_seconds: Seconds | None = None


def not_text(kind: str) -> UsageError:
    """The error for an input that is not text."""
    return UsageError(f"an input holds a chunk of type {kind!r}; this server takes text alone (encoded_text)")
