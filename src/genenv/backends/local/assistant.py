# pyright: standard
"""A model on this machine as an assistant: its own chat template, its own form of tool calls, batched.

A conversation is rendered whole for every reply, so that the model reads what its template makes of it; where
that begins with what the sampler remembers, only the rest is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from genenv.backends.local.sampler import LocalSampler
from genenv.backends.settings import SamplingConfig
from genenv.chat.assistant import ChatMessage, Reply
from genenv.chat.reasoning import answer_of
from genenv.chat.sampler import encode_choices
from genenv.chat.tool_calls import read_calls, with_call_ids
from genenv.errors import ContextOverflow
from genenv.sampling import COLDEST, Conversation, SampleRequest, sampling_params
from genenv.seeding import stream
from genenv.texts import clean
from genenv.types import JsonObject

_BATCHES = 3
"""Of single questions so many batches are given at a time: rows that end are replaced at once."""


class LocalAssistant:
    """A local model that answers conversations."""

    def __init__(
        self, sampler: LocalSampler, sampling: SamplingConfig, *, name: str, weights: JsonObject
    ) -> None:
        """Wrap a sampler.

        Args:
            sampler: nothing is trained.
            sampling: how.
            name: what results call it.
            weights: says which weights these are, for the summary.
        """
        self.sampler, self.sampling, self.name = sampler, sampling, name
        self._weights = weights
        self.native_tools = sampler.model.chat.tool_format.is_readable

    def concurrency(self, *, many_turns: bool) -> int:
        """A batch of conversations that have to be remembered, or some batches of others."""
        rows = self.sampler.model.max_batch_rows
        return rows if many_turns else _BATCHES * rows

    def talk(self, seed: int, *, many_turns: bool = False) -> LocalTalk:
        """A fresh conversation."""
        return LocalTalk(self, seed, keep=many_turns)

    def spending(self) -> JsonObject:
        """Nothing."""
        return {}

    def describe(self) -> JsonObject:
        """Weights, number format, context window; what the chat template is given, the limit of thoughts."""
        model = self.sampler.model
        given, limit = dict(model.config.chat_template_kwargs), model.config.max_thinking_tokens
        return {
            "kind": "local",
            **self._weights,
            "dtype": str(model.dtype).removeprefix("torch."),
            "context_tokens": self.sampler.context_tokens,
            "native_tools": self.native_tools,
            **({"chat_template_kwargs": given} if given else {}),
            **({} if limit is None else {"max_thinking_tokens": limit}),
        }

    def render(
        self, messages: Sequence[ChatMessage], tools: Sequence[JsonObject]
    ) -> tuple[tuple[int, ...], bool]:
        """Token ids of a conversation, ready for the assistant's reply, and whether they begin its thought.

        Raises:
            RolloutError: the chat template does not take it.
        """
        return self.sampler.model.chat.render_whole(messages, tools)


class LocalTalk:
    """One conversation with a local model."""

    def __init__(self, assistant: LocalAssistant, seed: int, *, keep: bool) -> None:
        self.native_tools = assistant.native_tools
        self._assistant, self._seed = assistant, seed
        self._turns = itertools.count()
        self._conversation = Conversation() if keep else None

    async def __call__(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[JsonObject] = (),
        choices: Sequence[str] = (),
        max_tokens: int | None = None,
    ) -> Reply:
        """Answer; see `Talk`. Where the window leaves less room than asked for, the reply is that short."""
        sampler, sampling = self._assistant.sampler, self._assistant.sampling
        prompt, thinks = self._assistant.render(messages, tools)
        room = sampler.context_tokens - len(prompt)
        if room < 1:
            raise ContextOverflow(
                f"the conversation has {len(prompt)} tokens, the context window {sampler.context_tokens}"
            )
        completion = await sampler.sample(
            SampleRequest(
                prompt_ids=prompt,
                choices=encode_choices(choices, sampler, thinks=thinks),
                max_tokens=min(sampling.reply_limit(max_tokens), room),
                stream=stream(self._seed, "talk", next(self._turns)),
                conversation=self._conversation,
                survives_cut=True,
                **sampling_params(sampling, greedy_below=COLDEST),
            )
        )
        answer = answer_of(clean(completion.text), opened=thinks, finished=completion.finished)
        words, calls = read_calls(answer, tools) if tools else (answer, ())
        return Reply(
            text=words,
            calls=with_call_ids(calls),
            finished=completion.finished,
            prompt_tokens=len(prompt),
            tokens=len(completion.token_ids),
        )
