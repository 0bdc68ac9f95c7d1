# pyright: standard
"""A model on this machine as an assistant in evaluations: own chat template and tool format, batched.

The whole conversation is rendered for every reply, so that the model sees what its template produces. If it
begins with tokens in the KV cache of the last turn, only the rest is prefilled.
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
"""Concurrent single-turn conversations, in batches: the next ones replace finished rows at once."""


class LocalAssistant:
    """A local model that answers conversations; creates a `LocalTalk` for each."""

    def __init__(
        self, sampler: LocalSampler, sampling: SamplingConfig, *, name: str, weights: JsonObject
    ) -> None:
        """Wrap a sampler.

        Args:
            sampler: of the model; it is not trained.
            sampling: how replies are sampled.
            name: of the model in results.
            weights: describes the weights in the summary.
        """
        self.sampler, self.sampling, self.name = sampler, sampling, name
        self._weights = weights
        self.native_tools = sampler.model.chat.tool_format.is_readable

    def concurrency(self, *, many_turns: bool) -> int:
        """Return how many conversations to run at once: one batch if they have several turns, else more."""
        rows = self.sampler.model.max_batch_rows
        return rows if many_turns else _BATCHES * rows

    def talk(self, seed: int, *, many_turns: bool = False) -> LocalTalk:
        """Start a new conversation."""
        return LocalTalk(self, seed, keep=many_turns)

    def spending(self) -> JsonObject:
        """Return an empty summary: local models cost nothing."""
        return {}

    def describe(self) -> JsonObject:
        """Return weights, number format, context window and template settings for the summary."""
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
        """Return the token ids of a conversation up to the reply, and whether they open a thought.

        Raises:
            RolloutError: the chat template rejects the messages.
        """
        return self.sampler.model.chat.render_whole(messages, tools)


class LocalTalk:
    """One conversation with a local model (implements `Talk`)."""

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
        """Answer the messages; see `Talk`. The reply is shorter if the context window leaves less room."""
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
