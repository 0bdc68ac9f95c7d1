"""HTTP: the routes, and vLLM's form of an error."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from genenv.errors import GenenvError
from genenv.http.parsing import AnyBody, Parser, read
from genenv.sampling import Completion
from genenv.servers.vllm.bodies import GenerateBody, LoadBody, UnloadBody
from genenv.servers.vllm.folders import Folders
from genenv.servers.vllm.worker import Fault, Worker
from genenv.types import Json, JsonObject

if TYPE_CHECKING:
    from genenv.backends.local.served.models import LoadedBase


class Routes:
    """The endpoints of a server."""

    def __init__(
        self, base: LoadedBase, worker: Worker, name: str, *, folders: Folders, parser: Parser
    ) -> None:
        """Endpoints.

        Args:
            base: what is served.
            worker: samples with it.
            name: what clients call it.
            folders: where adapters are loaded from.
            parser: reads bodies.
        """
        self._base, self._worker, self._name = base, worker, name
        self._folders, self._parser = folders, parser

    def application(self) -> Starlette:
        """All of them."""
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/models", self._models),
                Route("/v1/load_lora_adapter", self._load, methods=["POST"]),
                Route("/v1/unload_lora_adapter", self._unload, methods=["POST"]),
                Route("/inference/v1/generate", self._generate, methods=["POST"]),
            ],
            exception_handlers={GenenvError: _refused},
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
        body = await self._read(request, LoadBody)
        folder = self._folders.checked(body.lora_path)
        if body.lora_name in self._base.adapters and not body.load_inplace:
            return _refusal(400, f"The lora adapter '{body.lora_name}' has already been loaded.")

        def load() -> None:
            """Load an adapter, unless another who asked meanwhile had it loaded: that one samples with it."""
            if body.load_inplace or body.lora_name not in self._base.adapters:
                self._base.load(body.lora_name, folder)

        await self._worker.aside(load)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def _unload(self, request: Request) -> Response:
        body = await self._read(request, UnloadBody)
        if not await self._worker.aside(lambda: self._base.unload(body.lora_name)):
            return _refusal(404, f"The lora adapter '{body.lora_name}' cannot be found.")
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    async def _generate(self, request: Request) -> Response:
        body = await self._read(request, GenerateBody)
        if body.model not in self._base.adapters:
            return _refusal(404, f"The model `{body.model}` does not exist.")
        asked = body.request(
            end_id=self._base.end_id,
            context_tokens=self._base.context_tokens,
            vocabulary=self._base.vocabulary,
        )
        done = await self._worker.sample(body.model, asked)
        if not all(map(math.isfinite, done.logprobs)):
            return _refusal(400, "no token follows the schema, or the adapter's numbers are not finite")
        return JSONResponse(_answer(done, body.model))

    async def _read(self, request: Request, kind: type[AnyBody]) -> AnyBody:
        """A body, as it should be.

        Raises:
            UsageError: it is not.
        """
        return await self._parser(functools.partial(read, kind), await request.body())


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


def form(status: int, sentence: str) -> JsonObject:
    """An error in vLLM's form."""
    return {"error": {"message": sentence, "code": status}}


def _refused(_: Request, error: Exception) -> Response:
    return _refusal(500 if isinstance(error, Fault) else 400, str(error))


def _refusal(status: int, said: str) -> Response:
    return JSONResponse(form(status, said), status)
