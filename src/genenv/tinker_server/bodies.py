"""What clients send in JSON; `data` reads what they want learned."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

from genenv.errors import UsageError

AnyBody = TypeVar("AnyBody", bound=BaseModel)


class Body(BaseModel, extra="ignore", protected_namespaces=()):
    """A JSON body; what newer clients add is left unread."""


class Addressed(Body):
    """A request to one model, in the order of `seq_id`."""

    model_id: str
    seq_id: int | None = Field(default=None, ge=0)


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
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class SessionBody(Body):
    """create_session."""

    tags: list[str] = []
    user_metadata: dict[str, object] | None = None
    sdk_version: str = ""


class BeatBody(Body):
    """session_heartbeat."""

    session_id: str


class ModelBody(Body):
    """create_model."""

    session_id: str
    model_seq_id: int = Field(ge=0)
    base_model: str
    lora_config: LoraBody | None = None
    user_metadata: dict[str, object] | None = None


class OfModelBody(Body):
    """get_info and unload_model."""

    model_id: str


class SaveBody(Addressed):
    """save_weights and save_weights_for_sampler."""

    path: str | None = None
    ttl_seconds: int | None = Field(default=None, ge=1)
    overwrite: bool = False
    sampling_session_seq_id: int | None = Field(default=None, ge=0)


class LoadBody(Body):
    """load_weights: into a model, or into one that is made for it."""

    model_id: str | None = None
    seq_id: int | None = Field(default=None, ge=0)
    session_id: str | None = None
    model_seq_id: int | None = Field(default=None, ge=0)
    base_model: str | None = None
    user_metadata: dict[str, object] | None = None
    path: str
    optimizer: bool = False


class SamplerBody(Body):
    """create_sampling_session."""

    session_id: str
    sampling_session_seq_id: int = Field(ge=0)
    base_model: str | None = None
    model_path: str | None = None


class ChunkBody(Body):
    """A piece of a model's input."""

    type: str = "encoded_text"
    tokens: list[int] = []


class InputBody(Body):
    """A model's input."""

    chunks: list[ChunkBody]

    def ids(self) -> tuple[int, ...]:
        """Its tokens. Raises a UsageError where it is not text alone."""
        for chunk in self.chunks:
            if chunk.type != "encoded_text":
                raise not_text(chunk.type)
        return tuple(token for chunk in self.chunks for token in chunk.tokens)


class DrawBody(Body, allow_inf_nan=False):
    """How completions are drawn."""

    max_tokens: int | None = Field(default=None, ge=0)
    seed: int | None = None
    stop: str | list[int] | list[str] | None = None
    temperature: float = Field(default=1.0, ge=0)
    top_k: int = Field(default=-1, ge=-1)
    top_p: float = Field(default=1.0, gt=0, le=1)


class SampleBody(Body):
    """asample."""

    num_samples: int = Field(default=1, ge=1, le=4096)
    prompt: InputBody
    sampling_params: DrawBody
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: int | None = Field(default=None, ge=0)
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = Field(default=0, ge=0, le=1000)


class FetchBody(Body):
    """retrieve_future."""

    request_id: str
    allow_metadata_only: bool = False


class PathBody(Body):
    """weights_info."""

    tinker_path: str


class LifeBody(Body):
    """How long a checkpoint stays; null: for good."""

    ttl_seconds: int | None = Field(default=None, ge=1)


def read(body: type[AnyBody], data: bytes) -> AnyBody:
    """A JSON body.

    Raises:
        UsageError: it is none, or does not say what it must.
    """
    try:
        return body.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the body"
        raise UsageError(f"{place}: {first['msg'].lower().rstrip('.')}") from error


def not_text(kind: str) -> UsageError:
    """The error for an input that is not text."""
    return UsageError(f"an input holds a chunk of type {kind!r}; this server takes text alone (encoded_text)")
