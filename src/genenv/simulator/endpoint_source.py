"""`endpoint`: any OpenAI-compatible model writes the specs, by structured output where it has that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from genenv.backends.settings import EndpointConfig, SamplingConfig
from genenv.chat.assistant import ChatMessage
from genenv.environments.base import Environment
from genenv.errors import GenenvError, RolloutError
from genenv.progress import advance
from genenv.seeding import stream
from genenv.simulator.settings import SimulatorConfig
from genenv.simulator.source import Unlearning, names, without_tokens
from genenv.types import Context, Generation, JsonObject

_MOST_SCHEMA_CHARS = 30_000
"""Of a schema that is sent along; longer ones are refused by every server there is."""

_NO_SCHEMA = {400, 404, 422, 501}
_REFUSALS = 3
"""After so many refused schemas and none taken, a server is asked freely."""


class EndpointSource(Unlearning):
    """A model behind an endpoint. It is told what the simulator is told, and its specs pass the same gate."""

    def __init__(self, config: SimulatorConfig, *, seed: int) -> None:
        """Connect.

        Args:
            config: the address, how it may be asked, and how specs are written.
            seed: of the requests.

        Raises:
            UsageError: the server cannot be asked.
        """
        from genenv.clients.endpoint import EndpointAssistant  # needs the extra `api`

        self._config, self._seed = config, seed
        endpoint = EndpointConfig.model_validate(config.endpoint.model_dump() | {"tools": "text"})
        sampling = SamplingConfig(temperature=config.temperature, max_new_tokens=config.max_new_tokens)
        self._assistant = EndpointAssistant(config.address, endpoint, sampling)
        self._slots = endpoint.concurrency
        self._counted = self._held = self._refused = 0

    async def propose(self, env: Environment, contexts: Sequence[Context]) -> list[Generation]:
        """Ask for each spec; one that is not answered is an unfinished generation.

        Raises:
            GenenvError: none was answered.
        """
        slots = asyncio.Semaphore(self._slots)
        schemas = {context.id: env.spec_schema(context.seed) for context in contexts}
        problems: list[RolloutError] = []

        async def write(context: Context, name: str) -> Generation:
            async with slots:
                try:
                    text, finished = await self._ask(context, schemas[context.id], name)
                except RolloutError as problem:
                    problems.append(problem)
                    text, finished = "", False
            advance(items=1)
            return without_tokens(context, name, text, finished=finished)

        try:
            written = await asyncio.gather(
                *(write(context, name) for context, name in names(contexts, self._config.variations))
            )
        finally:
            await self._assistant.close()
        if written and len(problems) == len(written):
            raise GenenvError(
                f"{self._assistant.address.shown} answered none of {len(written)} requests for tasks: "
                f"{problems[0]}; committed rounds are kept, continue with --resume when it answers"
            )
        return written

    async def _ask(self, context: Context, schema: JsonObject, name: str) -> tuple[str, bool]:
        """A spec's text, and whether it came to its end.

        Raises:
            RolloutError: there was no answer.
        """
        from genenv.clients.endpoint import Refused

        messages: list[ChatMessage] = [{"role": m.role, "content": m.content} for m in context.messages]
        body = self._assistant.body(messages, (), stream(self._seed, "endpoint", name) % 2**31)
        held: JsonObject = _as_response_format(schema) if self._holds_schemas() else {}
        try:
            reply = await self._assistant.ask({**body, **held}, self._config.max_new_tokens)
            self._held += bool(held)
        except Refused as refusal:
            if not held or refusal.status not in _NO_SCHEMA:
                raise
            self._refused += 1  # what its structured output cannot hold is asked for freely
            reply = await self._assistant.ask(body, self._config.max_new_tokens)
        return _bare(reply.text), reply.finished

    def _holds_schemas(self) -> bool:
        """Whether structured output is worth asking for: a server that only ever refused it has none."""
        return self._held > 0 or self._refused < _REFUSALS

    def sampled_elsewhere(self) -> int:
        """Tokens that the server says it has sampled."""
        before, self._counted = self._counted, self._assistant.spent.tokens
        return self._counted - before


def _as_response_format(schema: JsonObject) -> JsonObject:
    """A schema as a request for structured output; nothing for one that is too long to be sent."""
    if len(str(schema)) > _MOST_SCHEMA_CHARS:
        return {}
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "spec", "schema": dict(schema), "strict": False},
        }
    }


def _bare(text: str) -> str:
    """A spec without the fence and the words that models put around JSON."""
    start, end = text.find("{"), text.rfind("}")
    return text[start : end + 1] if 0 <= start < end else text
