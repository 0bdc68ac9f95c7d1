# pyright: standard
"""The sampler of a policy on this machine, which batches all requests that wait at the same time.

`LocalAssistant` answers the conversations of evaluations with it, in the model's own chat template and tool
format. It renders the whole conversation for every reply, so that the model sees what its template produces.
If it begins with tokens in the KV cache of the last turn, only the rest is prefilled.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import Tensor

from genenv.backends.local import hardware
from genenv.backends.local.attention import AnyLayout
from genenv.backends.local.engine import Engine, PrefillTree
from genenv.backends.local.model import LocalModel
from genenv.backends.local.packing import TokenTree
from genenv.backends.local.policy_weights import PolicyWeights
from genenv.backends.settings import SamplingConfig
from genenv.chat.assistant import ChatMessage, Reply
from genenv.chat.reasoning import answer_of
from genenv.chat.sampler import ChatSampler, encode_choices
from genenv.chat.tool_calls import read_calls, with_call_ids
from genenv.errors import ContextOverflow, out_of_memory
from genenv.sampling import (
    COLDEST,
    Completion,
    Conversation,
    SampleRequest,
    WaitingRequests,
    sampling_params,
)
from genenv.seeding import stream
from genenv.texts import clean
from genenv.types import JsonObject

log = logging.getLogger(__name__)


class LocalSampler(ChatSampler):
    """Samples with the weights of one policy (implements `Sampler`)."""

    _kind: ClassVar[type[Engine]] = Engine
    """The engine class that turns requests into completions."""
    _captured: ClassVar[bool] = True
    """Whether captured CUDA graphs may sample; they draw as `Engine.choose` does, from unmodified logits."""

    def __init__(self, weights: PolicyWeights) -> None:
        model = weights.model
        super().__init__(
            model.chat,
            context_tokens=model.context_tokens,
            max_thinking_tokens=model.config.max_thinking_tokens,
        )
        self.weights = weights
        self._waiting = WaitingRequests(lambda requests: self.sample_all(requests))

    @property
    def model(self) -> LocalModel:
        """The model that the weights belong to."""
        return self.weights.model

    async def _sample(self, request: SampleRequest) -> Completion:
        return await self._waiting.sample(request)

    def sample_all(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Sample completions; if memory runs out, drop all KV caches and try again with half as many rows."""
        rows, prefill = self.model.max_batch_rows, self.model.prefill_tokens
        try:
            return self._engine(rows, prefill).run(requests)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        # Outside the handler: while it runs, the error's traceback keeps the tensors that did not fit.
        rows = max(1, min(rows, len(requests)) // 2)
        log.warning("sampling ran out of memory; again with %d rows at a time", rows)
        self.model.kept_caches.clear()
        hardware.release_memory(self.model.device)
        return self._engine(rows, prefill // 2, share=0.5).run(requests)

    def _engine(self, rows: int, prefill_tokens: int, share: float = 1.0) -> Engine:
        def hidden(ids: Tensor, positions: Tensor, layout: AnyLayout) -> Tensor:
            with self.weights.active():
                return self.model.hidden(ids, positions, layout)

        weights = (self.weights.adapter, *(p._version for _, p in self.weights.parameters()))
        return self._kind(
            hidden=hidden,
            head=self.model.scores,
            decode=self.model.chat.decode,
            grammars=lambda: self.model.grammars,
            stop_ids=self.model.chat.stop_ids,
            device=self.model.device,
            max_rows=rows,
            batch_tokens=math.inf if self.model.own_forward else share * self.model.batch_tokens,
            kernels=self.model.kernels,
            own_forward=self.model.own_forward,
            prefill_tokens=prefill_tokens,
            weights=weights,
            read=self._reader(),
            decode_step=self.model.decode_step(self.weights.adapter, weights) if self._captured else None,
            version=self.weights.version,
            kept_caches=self.model.kept_caches,
            memory_bytes=self.model.config.cache_gib * 2**30,
        )

    def _reader(self) -> PrefillTree | None:
        """Return a function that prefills prompts as a tree; None if that is slower or failed its check."""
        tree, adapter = self.model.tree, self.weights.adapter
        if tree is None or not self._captured or not tree.works(adapter, learning=False):
            return None

        def read(prompts: TokenTree, at: Tensor, keep: Callable[[int, Tensor, Tensor], None]) -> Tensor:
            with self.weights.active():
                return tree.hidden(prompts, adapter, at=at, keep=keep)

        return read

    def end_round(self) -> None:
        """Free compiled grammars and cached memory."""
        self.model.end_round()


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
            **({} if model.config.quantize == "none" else {"quantize": model.config.quantize}),
            "context_tokens": self.sampler.context_tokens,
            "native_tools": self.native_tools,
            **({"chat_template_kwargs": given} if given else {}),
            **({} if limit is None else {"max_thinking_tokens": limit}),
        }


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
        prompt, thinks = sampler.model.chat.render_whole(messages, tools)
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
