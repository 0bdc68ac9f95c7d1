"""`genenv serve` without vLLM: the sampling routes of vLLM's server over the local engine.

Parameters that the engine does not support are refused, not ignored. Adapters are loaded only from folders
that were named at the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import math
import os
import secrets
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BaseModel, Field, JsonValue, field_validator, model_validator
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from genenv.backends.settings import ADAPTERS_PREFIX
from genenv.backends.vllm.launcher import adapters_places
from genenv.chat.sampler import parse_structural_tag
from genenv.errors import GenenvError, UsageError, first_line
from genenv.http.guard import Access
from genenv.http.parsing import AnyBody, Parser, read
from genenv.http.server import HttpServer, Service
from genenv.sampling import COLDEST, Completion, SampleRequest, SamplingFields, sampling_params
from genenv.servers.worker import Worker
from genenv.types import Json, JsonObject

if TYPE_CHECKING:
    from genenv.backends.local.served.models import LoadedBase


def _allowed(path: str, named: Sequence[Path]) -> Path:
    """Return an adapter's folder with symbolic links resolved.

    Args:
        path: the folder.
        named: adapters are loaded from these folders and all below. If empty, from the temporary folders that
            this user's runs on this machine create for their adapters.

    Raises:
        UsageError: the folder or a file in it is outside the allowed folders, or the folder does not exist.
    """
    try:
        folder = Path(path).resolve(strict=True)
        roots = named or _temporary(folder)
        within = any(folder.is_relative_to(root) for root in roots) and all(
            any(one.resolve().is_relative_to(root) for root in roots) for one in folder.rglob("*")
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"{path} is no folder of an adapter that this server can read") from error
    if not within:
        usual = (f"{place}/{ADAPTERS_PREFIX}*" for place in adapters_places())
        shown = ", ".join(map(str, named or usual))
        raise UsageError(
            f"{path} is in no folder that this server loads adapters from ({shown}); start it with "
            "--adapters FOLDER, where FOLDER is the run's policy.vllm.folder"
        )
    return folder


def _temporary(folder: Path) -> list[Path]:
    """Return the temporary run folder that contains `folder`; an empty list if it is not this user's."""
    for root in adapters_places():
        if folder.is_relative_to(root) and folder != root:
            own = root / folder.relative_to(root).parts[0]
            mine = own.name.startswith(ADAPTERS_PREFIX) and own.stat().st_uid == os.getuid()
            return [own] if mine else []
    return []


log = logging.getLogger(__name__)

Name = Annotated[str, Field(min_length=1, max_length=1000)]
_SCHEMA_CHARS = 262_144
Ids = Annotated[list[int], Field(fail_fast=True)]
"""Token ids."""


class LoadBody(BaseModel, extra="ignore"):
    """The body of `/v1/load_lora_adapter`."""

    lora_name: Name
    lora_path: str = Field(min_length=1, max_length=4096)
    load_inplace: bool = False


class UnloadBody(BaseModel, extra="ignore"):
    """The body of `/v1/unload_lora_adapter`."""

    lora_name: Name


class StructuredBody(BaseModel, extra="forbid"):
    """The constraint on a completion: a JSON schema, or a structural tag that lists allowed replies."""

    json_: dict[str, JsonValue] | None = Field(default=None, alias="json")
    structural_tag: str | None = None
    disable_any_whitespace: bool = False

    @field_validator("json_")
    @classmethod
    def _check_size(cls, schema: dict[str, JsonValue] | None) -> dict[str, JsonValue] | None:
        if schema is not None and len(json.dumps(schema)) > _SCHEMA_CHARS:
            raise ValueError(f"the schema has more than {_SCHEMA_CHARS} characters")
        return schema

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        """Refuse two constraints, of which one would be ignored, and none, which would ask for nothing."""
        if (self.json_ is None) == (self.structural_tag is None):
            raise ValueError("name one constraint, json or structural_tag, or leave structured_outputs out")
        return self


class SamplingBody(SamplingFields, extra="forbid"):
    """The field `sampling_params` of a request to generate."""

    n: int = Field(default=1, ge=1, le=1)
    max_tokens: int = Field(ge=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    """Equal seeds draw equal tokens; None: a random seed."""
    logprobs: int | None = Field(default=None, ge=0, le=0)
    stop_token_ids: Ids = Field(default=[])
    skip_special_tokens: bool = True
    detokenize: bool = True
    structured_outputs: StructuredBody | None = None


class GenerateBody(BaseModel, extra="forbid"):
    """The body of `/inference/v1/generate`."""

    model: Name
    token_ids: Ids = Field(min_length=1)
    sampling_params: SamplingBody
    stream: Literal[False] | None = None
    features: None = None
    stream_options: None = None
    kv_transfer_params: None = None
    request_id: str | None = None
    """This field and the next ones do not change the answer, so they are not read."""
    cache_salt: str | None = None
    priority: int = 0

    def request(self, base: LoadedBase) -> SampleRequest:
        """Return the request in the form of the local engine.

        Args:
            base: the model that is to sample.

        Raises:
            UsageError: the engine does not support a parameter, or a token is not in the vocabulary.
        """
        asked, stop_ids = self.sampling_params, base.chat.stop_ids
        seed = secrets.randbits(64) if asked.seed is None else asked.seed
        if not stop_ids >= set(asked.stop_token_ids):
            known = " or ".join(map(str, sorted(stop_ids)))
            raise UsageError(f"a reply ends with token {known} alone here")
        if len(self.token_ids) + asked.max_tokens > base.context_tokens:
            raise UsageError(f"the longest sequence here has {base.context_tokens} tokens")
        _check_tokens("token_ids", self.token_ids, base.vocabulary)
        held = asked.structured_outputs
        return SampleRequest(
            prompt_ids=tuple(self.token_ids),
            max_tokens=asked.max_tokens,
            stream=seed % 2**64,
            schema=None if held is None else held.json_,
            choices=() if held is None else _choices(held.structural_tag, base),
            **sampling_params(asked, greedy_below=COLDEST),
        )


def _choices(tag: str | None, base: LoadedBase) -> tuple[tuple[int, ...], ...]:
    """Return the replies listed by a structural tag, as token ids; empty if there is no tag.

    Raises:
        UsageError: the tag is of an unsupported kind.
    """
    if tag is None:
        return ()
    try:
        replies = parse_structural_tag(tag, base.chat.end_id)
    except ValueError as error:
        raise UsageError(str(error)) from error
    for reply in replies:
        _check_tokens("structural_tag", reply, base.vocabulary)
    return replies


def _check_tokens(where: str, ids: list[int] | tuple[int, ...], vocabulary: int) -> None:
    """Check that token ids are in the vocabulary.

    Raises:
        UsageError: a token id is outside.
    """
    if min(ids) < 0 or max(ids) >= vocabulary:
        raise UsageError(f"{where} holds a token outside of the vocabulary, 0 to {vocabulary - 1}")


class Fault(GenenvError):
    """Raised if the server failed, not the request: status 500."""


def _failure(error: BaseException) -> GenenvError:
    """Return the error to send to the client; log it if the server caused it."""
    if isinstance(error, GenenvError):
        return error
    log.error("a request failed", exc_info=error)
    return Fault(f"a fault of the server: {type(error).__name__}: {first_line(error)}")


def _answer(done: Completion, model: str) -> JsonObject:
    """Return a completion in the format of vLLM's response."""
    content: list[Json] = [
        {"token_id": token, "logprob": logprob, "top_logprobs": []}
        for token, logprob in zip(done.token_ids, done.logprobs, strict=True)
    ]
    choice: JsonObject = {
        "index": 0,
        "finish_reason": "stop" if done.finished else "length",
        "token_ids": list(done.token_ids),
        "logprobs": {"content": content},
    }
    return {"model": model, "choices": [choice]}


def _refused(_: Request, error: Exception) -> Response:
    return _refusal(500 if isinstance(error, Fault) else 400, str(error))


def _refusal(status: int, said: str) -> Response:
    return JSONResponse(SamplingServer.form(status, said), status)


class SamplingServer(HttpServer):
    """An HTTP server that samples from one base and its adapters, over vLLM's routes."""

    keyless = ("/health",)

    def __init__(
        self,
        base: LoadedBase,
        name: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        access: Access = Access(),  # noqa: B008 - frozen
        adapters: Sequence[Path] = (),
    ) -> None:
        """Bind an address; requests are answered once the server runs.

        Args:
            base: the model to serve.
            name: the model's name for clients.
            host: the address.
            port: the port; 0 takes a free one.
            access: the API key, allowed host names, and limits on requests.
            adapters: folders from which adapters may be loaded; if empty, see `_allowed`.

        Raises:
            UsageError: the address is not available.
        """
        super().__init__(host, port, access)
        self._base, self._name = base, name
        self._adapters = [folder.expanduser().resolve() for folder in adapters]

    @staticmethod
    def form(status: int, sentence: str) -> JsonObject:
        """Return an error in the format of vLLM's response."""
        return {"error": {"message": sentence, "code": status}}

    @contextlib.asynccontextmanager
    async def _service(self) -> AsyncGenerator[Service]:
        self._worker, self._parser = Worker("genenv-serve", _failure), Parser()
        application = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/models", self._models),
                Route("/v1/load_lora_adapter", self._load, methods=["POST"]),
                Route("/v1/unload_lora_adapter", self._unload, methods=["POST"]),
                Route("/inference/v1/generate", self._generate, methods=["POST"]),
            ],
            exception_handlers={GenenvError: _refused},
        )
        try:
            yield Service(application, self._worker.run())
        finally:
            self._parser.close()
            self._worker.close()

    async def _health(self, request: Request) -> Response:
        del request
        return Response(status_code=200)

    async def _models(self, request: Request) -> Response:
        del request
        card = {"id": self._name, "object": "model", "max_model_len": self._base.context_tokens}
        adapters = [{"id": one, "object": "model", "parent": self._name} for one in self._base.adapters]
        return JSONResponse({"object": "list", "data": [card, *adapters]})

    async def _load(self, request: Request) -> Response:
        body = await self._read(request, LoadBody)
        if body.lora_name == self._name:
            return _refusal(400, f"'{body.lora_name}' is the base model; name the adapter otherwise.")
        folder = _allowed(body.lora_path, self._adapters)
        if body.lora_name in self._base.adapters and not body.load_inplace:
            return _refusal(400, f"The lora adapter '{body.lora_name}' has already been loaded.")

        def load() -> None:
            """Load the adapter unless a concurrent request has loaded it already."""
            if body.load_inplace or body.lora_name not in self._base.adapters:
                self._base.load(body.lora_name, folder)

        await self._worker.do(load)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def _unload(self, request: Request) -> Response:
        body = await self._read(request, UnloadBody)
        if not await self._worker.do(lambda: self._base.unload(body.lora_name)):
            return _refusal(404, f"The lora adapter '{body.lora_name}' cannot be found.")
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    async def _generate(self, request: Request) -> Response:
        body = await self._read(request, GenerateBody)
        adapter = None if body.model == self._name else body.model
        if adapter is not None and adapter not in self._base.adapters:
            return _refusal(404, f"The model `{body.model}` does not exist.")
        asked = body.request(self._base)
        found: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._worker.sample(body.model, functools.partial(self._base.sample, adapter), asked, found)
        done = await found
        if not all(map(math.isfinite, done.logprobs)):
            return _refusal(400, "no token follows the schema, or the adapter's numbers are not finite")
        return JSONResponse(_answer(done, body.model))

    async def _read(self, request: Request, kind: type[AnyBody]) -> AnyBody:
        """Parse a body.

        Raises:
            UsageError: the body is malformed.
        """
        return await self._parser(functools.partial(read, kind), await request.body())
