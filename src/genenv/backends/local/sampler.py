# pyright: standard
"""The sampler of a policy on this machine: it batches all requests that wait at the same time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, MutableMapping, Sequence
from typing import ClassVar
from weakref import WeakKeyDictionary

from torch import Tensor

from genenv.backends.local import hardware
from genenv.backends.local.attention import AnyLayout, KeptCache
from genenv.backends.local.engine import Engine, PrefillTree
from genenv.backends.local.model import LocalModel
from genenv.backends.local.packing import TokenTree
from genenv.backends.local.policy_weights import PolicyWeights
from genenv.chat.sampler import ChatSampler
from genenv.errors import out_of_memory
from genenv.sampling import Completion, Conversation, SampleRequest, blocking

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
        self._pending: list[tuple[SampleRequest, asyncio.Future[Completion]]] = []
        self._kept_caches: MutableMapping[Conversation, KeptCache] = WeakKeyDictionary()

    @property
    def model(self) -> LocalModel:
        """The model that the weights belong to."""
        return self.weights.model

    async def _sample(self, request: SampleRequest) -> Completion:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        self._pending.append((request, future))
        if len(self._pending) == 1:
            loop.call_soon(self._flush_when_quiet, 0, loop)
        try:
            return await future
        finally:  # a cancelled request must not wait in the queue of an event loop that is gone
            self._pending = [waiting for waiting in self._pending if waiting[1] is not future]

    def sample_all(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Sample completions; if memory runs out, try once more with half as many rows at a time."""
        rows, prefill = self.model.max_batch_rows, self.model.prefill_tokens
        try:
            return self._engine(rows, prefill).run(requests)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        # Outside the handler: while it runs, the error's traceback keeps the tensors that did not fit.
        rows = max(1, min(rows, len(requests)) // 2)
        log.warning("sampling ran out of memory; again with %d rows at a time", rows)
        hardware.release_memory(self.model.device)
        return self._engine(rows, prefill // 2).run(requests)

    def _flush_when_quiet(self, seen: int, loop: asyncio.AbstractEventLoop) -> None:
        """Run the batch once a full iteration of the event loop has brought no further request."""
        if len(self._pending) != seen:
            loop.call_soon(self._flush_when_quiet, len(self._pending), loop)
            return
        pending, self._pending = self._pending, []
        try:
            with blocking():
                completions = self.sample_all([request for request, _ in pending])
        except (KeyboardInterrupt, SystemExit):
            raise  # these end the event loop, and with it all waiting coroutines
        except BaseException as error:  # noqa: BLE001 - handed on to every waiting coroutine
            for _, future in pending:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), completion in zip(pending, completions, strict=True):
            if not future.done():
                future.set_result(completion)

    def _engine(self, rows: int, prefill_tokens: int) -> Engine:
        def hidden(ids: Tensor, positions: Tensor, layout: AnyLayout) -> Tensor:
            with self.weights.active():
                return self.model.hidden(ids, positions, layout)

        weights = (self.weights.adapter, *(p._version for _, p in self.weights.parameters()))
        return self._kind(
            hidden=hidden,
            head=self.model.scores,
            decode=self.model.chat.decode,
            grammars=lambda: self.model.grammars,
            stop_id=self.model.chat.end_id,
            device=self.model.device,
            max_rows=rows,
            kernels=self.model.kernels,
            own_forward=self.model.own_forward,
            prefill_tokens=prefill_tokens,
            weights=weights,
            read=self._reader(),
            decode_step=self.model.decode_step(self.weights.adapter, weights) if self._captured else None,
            version=self.weights.version,
            kept_caches=self._kept_caches,
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
