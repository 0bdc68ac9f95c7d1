# pyright: standard
"""A player as it answers on servers: every completion names the version of the weights that wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from genenv.backends.base import Completion, SampleRequest
from genenv.backends.chat.choices import forced_places
from genenv.backends.chat.format import ChatFormat
from genenv.backends.chat.reasoning import CLOSING
from genenv.backends.chat.reasoning_limit import ThoughtLimit
from genenv.backends.settings import COLDEST
from genenv.backends.vllm.fleet import Fleet
from genenv.errors import GenenvError, RolloutError
from genenv.runs.progress import advance
from genenv.texts import clean
from genenv.types import JsonObject, Message


class VllmSampler:
    """Samples with the version that was published last."""

    def __init__(
        self, fleet: Fleet, chat: ChatFormat, *, context_tokens: int, max_thinking_tokens: int | None
    ) -> None:
        self.fleet, self.chat, self.context_tokens = fleet, chat, context_tokens
        self.adapter, self.version = "", 0
        """What servers call the weights, and their version."""
        self._thinking = max_thinking_tokens

    @property
    def closing(self) -> tuple[int, ...]:
        """What ends the thought that the chat template begins; nothing where it begins none."""
        return self.chat.encode(CLOSING) if self.chat.opens_thought else ()

    def render(
        self,
        messages: Sequence[Message],
        *,
        first: bool,
        tools: Sequence[JsonObject] = (),
        after: str = "",
    ) -> tuple[int, ...]:
        """Token ids of messages, ready for the assistant's reply."""
        return self.chat.render(messages, first=first, tools=tools, after=after)

    def encode_reply(self, text: str, tools: Sequence[JsonObject] = ()) -> tuple[int, ...]:
        """Token ids of an assistant's reply, end-of-turn token included."""
        return self.chat.encode_reply(clean(text), tools)

    async def sample(self, request: SampleRequest) -> Completion:
        """Sample one completion.

        Raises:
            RolloutError: the prompt leaves no room in the context window, or the request was lost too often.
            GenenvError: no server answers.
        """
        if self._thinking is None or request.schema is not None or request.choices:
            return await self._sample(request)
        chat = self.chat
        thoughts = ThoughtLimit(
            tokens=self._thinking, opened=chat.opens_thought, encode=chat.encode, decode=chat.decode
        )
        return await thoughts.sample(request, self._sample)

    async def _sample(self, request: SampleRequest) -> Completion:
        if len(request.prompt_ids) + request.max_tokens > self.context_tokens:
            raise RolloutError(
                f"{len(request.prompt_ids)} prompt tokens and {request.max_tokens} new ones pass the context "
                f"window of {self.context_tokens}"
            )
        version = self.version
        choice = await self.fleet.generate(self.adapter, request.prompt_ids, self._parameters(request))
        try:
            ids = tuple(map(int, choice["token_ids"]))
            logprobs = tuple(float(one["logprob"]) for one in choice["logprobs"]["content"])
        except (KeyError, TypeError, ValueError) as error:
            raise GenenvError(
                "a server answers without token ids or log-probabilities: it is no vLLM of 0.32 or newer"
            ) from error
        if len(ids) != len(logprobs):
            raise GenenvError(f"a server answers {len(ids)} tokens with {len(logprobs)} log-probabilities")
        advance(tokens=len(ids))
        return Completion(
            token_ids=ids,
            logprobs=logprobs,
            text=self.chat.decode(ids),
            finished=ids[-1:] == (self.chat.end_id,),
            forced=forced_places(ids, request.choices),
            version=version,
        )

    def _parameters(self, request: SampleRequest) -> Mapping[str, Any]:
        """The request by vLLM's names."""
        parameters: dict[str, Any] = {
            "max_tokens": request.max_tokens,
            "temperature": 0.0 if request.temperature < COLDEST else request.temperature,
            "top_p": request.top_p,
            "seed": request.stream % 2**63,
            "logprobs": 0,
            "stop_token_ids": [self.chat.end_id],
            "skip_special_tokens": False,
            "detokenize": False,
        }
        if request.schema is not None:
            parameters["structured_outputs"] = {"json": request.schema, "disable_any_whitespace": True}
        elif request.choices:
            texts = [self.chat.decode(ids) for ids in request.choices]
            parameters["structured_outputs"] = {"choice": texts}
        return parameters

    def end_round(self) -> None:
        """Nothing is kept here."""
