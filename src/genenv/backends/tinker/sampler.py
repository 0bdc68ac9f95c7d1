# pyright: standard
"""A player on a Tinker server, as it answers: token ids there, token ids and log-probabilities back."""

from __future__ import annotations

from collections.abc import Sequence

import tinker

from genenv.backends.base import Completion, SampleRequest
from genenv.backends.chat.format import ChatFormat
from genenv.backends.chat.reasoning import CLOSING
from genenv.backends.chat.reasoning_limit import ThoughtLimit
from genenv.backends.settings import COLDEST
from genenv.backends.tinker.service import ServerError, Service
from genenv.errors import RolloutError, UsageError
from genenv.runs.progress import advance
from genenv.texts import clean
from genenv.types import JsonObject, Message

SEEDS = 2**31 - 1
"""Seeds of requests are below it: servers take 32 bits with a sign."""


class TinkerSampler:
    """Samples with the weights that its trainer published last.

    Nothing holds a completion to a schema there: a simulator that was warmed up writes freely, and the gate
    refuses. Log-probabilities are those at temperature 1, whatever the sampling's.
    """

    def __init__(
        self,
        service: Service,
        client: tinker.SamplingClient,
        chat: ChatFormat,
        *,
        context_tokens: int,
        max_thinking_tokens: int | None = None,
    ) -> None:
        """A sampler.

        Args:
            service: the server.
            client: the weights there.
            chat: the model's chat format.
            context_tokens: the longest sequence.
            max_thinking_tokens: closes thoughts after so many tokens; None: never.
        """
        self.service, self.chat, self.context_tokens = service, chat, context_tokens
        self.client, self.version = client, 0
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
            RolloutError: the prompt leaves no room in the context window.
            UsageError: the reply has to be one of some, which a server cannot be asked for.
            ServerError: the server does not answer.
        """
        if request.choices:
            raise UsageError(
                "a Tinker server cannot be held to a list of replies: set the domain so that the agent "
                'replies freely, or policy.backend to "local"'
            )
        if self._thinking is None or request.schema is not None:
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
        greedy = request.temperature < COLDEST
        answer = self.client.sample_async(
            prompt=tinker.ModelInput.from_ints(list(request.prompt_ids)),
            num_samples=1,
            sampling_params=tinker.SamplingParams(
                max_tokens=request.max_tokens,
                temperature=0.0 if greedy else request.temperature,
                top_p=request.top_p,
                seed=request.stream % SEEDS,
                stop=[self.chat.end_id],
            ),
        )
        found = await self.service.within(answer, "sample")
        (sequence,) = found.sequences
        ids = tuple(map(int, sequence.tokens))
        logprobs = tuple(map(float, sequence.logprobs or ()))
        if len(ids) != len(logprobs) or len(ids) > request.max_tokens:
            raise ServerError(
                f"the Tinker server at {self.service.address} answers {len(ids)} tokens with {len(logprobs)} "
                f"log-probabilities, where at most {request.max_tokens} were asked for"
            )
        advance(tokens=len(ids))
        return Completion(
            token_ids=ids,
            logprobs=logprobs,
            text=self.chat.decode(ids),
            finished=ids[-1:] == (self.chat.end_id,),
            version=version,
        )

    def end_round(self) -> None:
        """Nothing is kept here."""
