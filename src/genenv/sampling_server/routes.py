"""HTTP: the routes, and vLLM's form of an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from genenv.backends.base import Completion
from genenv.errors import GenenvError, UsageError, first_line
from genenv.sampling_server.bodies import GenerateBody, LoadBody, UnloadBody
from genenv.sampling_server.worker import Worker
from genenv.types import Json, JsonObject

if TYPE_CHECKING:
    from genenv.backends.local.served.loaded import LoadedBase

Body = TypeVar("Body", bound=BaseModel)


class Routes:
    """The endpoints of a server."""

    def __init__(self, base: LoadedBase, worker: Worker, name: str) -> None:
        """Endpoints.

        Args:
            base: what is served.
            worker: samples with it.
            name: what clients call it.
        """
        self._base, self._worker, self._name = base, worker, name

    def application(self) -> Starlette:
        """All of them."""
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/models", self._models),
                Route("/v1/load_lora_adapter", self._load, methods=["POST"]),
                Route("/v1/unload_lora_adapter", self._unload, methods=["POST"]),
                Route("/inference/v1/generate", self._generate, methods=["POST"]),
            ]
        )

    async def _health(self, request: Request) -> Response:
        del request
        return Response(status_code=200)

    async def _models(self, request: Request) -> Response:
        del request
        card = {"id": self._name, "object": "model", "max_model_len": self._base.context_tokens}
        adapters = [{"id": one, "object": "model", "parent": self._name} for one in self._base.adapters]
        return JSONResponse({"object": "list", "data": [card, *adapters]})

    async def _load(self, request: Request) -> Response:
        try:
            body = await _read(request, LoadBody)
            if body.lora_name in self._base.adapters and not body.load_inplace:
                return _refusal(400, f"The lora adapter '{body.lora_name}' has already been loaded.")
            await self._worker.aside(lambda: self._load_once(body))
        except GenenvError as error:
            return _refusal(400, str(error))
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    def _load_once(self, body: LoadBody) -> None:
        """Load an adapter, unless another who asked meanwhile had it loaded: that one samples with it."""
        if body.load_inplace or body.lora_name not in self._base.adapters:
            self._base.load(body.lora_name, Path(body.lora_path))

    async def _unload(self, request: Request) -> Response:
        try:
            body = await _read(request, UnloadBody)
        except GenenvError as error:
            return _refusal(400, str(error))
        if not await self._worker.aside(lambda: self._base.unload(body.lora_name)):
            return _refusal(404, f"The lora adapter '{body.lora_name}' cannot be found.")
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    async def _generate(self, request: Request) -> Response:
        try:
            body = await _read(request, GenerateBody)
            if body.model not in self._base.adapters:
                return _refusal(404, f"The model `{body.model}` does not exist.")
            asked = body.request(self._base.end_id)
            if len(asked.prompt_ids) + asked.max_tokens > self._base.context_tokens:
                return _refusal(400, f"the longest sequence here has {self._base.context_tokens} tokens")
            return JSONResponse(_answer(await self._worker.sample(body.model, asked), body.model))
        except GenenvError as error:
            return _refusal(400, str(error))


def _answer(done: Completion, model: str) -> JsonObject:
    """A completion in vLLM's form."""
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


async def _read(request: Request, kind: type[Body]) -> Body:
    """A body, as it should be.

    Raises:
        UsageError: it is not.
    """
    try:
        return kind.model_validate(json.loads(await request.body()))
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise UsageError(f"{where}: {error.errors()[0]['msg']}") from error
    except ValueError as error:
        raise UsageError(f"the body is no JSON: {first_line(error)}") from error


def _refusal(status: int, said: str) -> Response:
    return JSONResponse({"error": {"message": said, "code": status}}, status)
