# pyright: standard
"""Sampling: many requests at once, each prompt through the model once, finished rows out of the batch.

Shapes: R = live rows, V = vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from genenv.backends.local.attention import prompt_mask
from genenv.backends.local.categorical import Odds, truncated
from genenv.backends.local.choices import OneOf
from genenv.backends.local.cpu.kernels import Kernels, Tasks
from genenv.backends.local.cuda.batch import PagedBatch
from genenv.backends.local.cuda.decode import DecodeStep
from genenv.backends.local.grammar import Grammars, Matcher
from genenv.backends.local.kv_cache import OwnTokens, PromptCache, Remembered
from genenv.backends.local.layouts import AnyLayout, CompiledDecode, DecodeLayout, Layout, TurnLayout
from genenv.backends.local.model_forward import OwnBatch
from genenv.backends.local.packing import Bundle, Packed, Slots, within_budget
from genenv.backends.local.token_tree import TokenTree
from genenv.chat.sampler import forced_places
from genenv.progress import advance
from genenv.sampling import Completion, Conversation, SampleRequest

Hidden = Callable[[Tensor, Tensor, AnyLayout], Tensor]
"""(ids [1, N], positions [1, N], layout) -> last hidden states [N, width]; with an `OwnLayout` of R rows
(ids [R, T], positions [R, T], layout) -> [R, width], those of the last tokens."""
Head = Callable[[Tensor], Tensor]
"""Hidden states [M, width] -> scores [M, V]."""
ReadTree = Callable[[TokenTree, Tensor, Callable[[int, Tensor, Tensor], None]], Tensor]
"""(prompts, which of their tokens [M], who takes each layer's index, keys and values) -> [M, width] last
hidden states of these tokens; see `cuda.learning.TreeDecoder.hidden`."""


@dataclass(slots=True)
class Row:
    """A request on its way."""

    request: SampleRequest
    index: int
    uniform: np.ndarray
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finished: bool = False
    matcher: Matcher | None = None
    memory: Remembered | None = None
    """Of the whole conversation, once it is over here."""

    @property
    def done(self) -> bool:
        """Whether it has said all that it may say."""
        return self.finished or len(self.ids) == self.request.max_tokens

    @property
    def goes_on(self) -> bool:
        """Whether a further turn of its conversation may follow."""
        request = self.request
        return (
            request.conversation is not None and not request.last and (self.finished or request.survives_cut)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Turns requests into completions with a model given as two functions."""

    hidden: Hidden
    head: Head
    decode: Callable[[Sequence[int]], str]
    grammars: Callable[[], Grammars]
    stop_id: int
    device: torch.device
    max_rows: int
    prefill_tokens: int
    kernels: Kernels | None = None
    """Compiled code for attention and for drawing."""
    own_forward: bool = False
    """Whether `hidden` is the model's own forward pass."""
    weights: Hashable = None
    """Names the present weights: what other weights remember of a conversation is not used."""
    version: int = 0
    """Of the weights, for the completions."""
    remembered: MutableMapping[Conversation, Remembered] = field(default_factory=dict)
    """What is known of conversations; those that go on are added."""
    memory_bytes: float = float("inf")
    """At most so much is remembered of the conversations of one call."""
    read: ReadTree | None = None
    """None: prompts go through `hidden`."""
    decode_step: DecodeStep | None = None
    """One token for all rows as a captured step, with the present weights in place; None: in `hidden`."""

    @torch.no_grad()
    def run(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Answer requests, in the order given. What a request draws depends on its own stream alone."""
        done: list[Completion | None] = [None] * len(requests)
        waiting = self._sorted(requests)
        batch = self._batch()
        try:
            while waiting or batch.rows:
                rows = [waiting.popleft() for _ in range(batch.room(waiting))]
                if rows:
                    for row in rows:
                        row.matcher = self._matcher(row.request)
                    batch.admit(rows)
                finished, tokens = batch.step()
                for row in finished:
                    self._keep(row)
                    done[row.index] = Completion(
                        token_ids=tuple(row.ids),
                        logprobs=tuple(row.logprobs),
                        text=self.decode(row.ids),
                        finished=row.finished,
                        forced=forced_places(row.ids, row.request.choices),
                        version=self.version,
                    )
                advance(tokens=tokens)
        finally:
            batch.close()
        return [completion for completion in done if completion is not None]

    def _batch(self) -> Batch:
        if self.own_forward:
            return OwnBatch(self)
        return _Batch(self) if self.decode_step is None else PagedBatch(self, self.decode_step)

    def _matcher(self, request: SampleRequest) -> Matcher | None:
        """What the completion is held to; None: nothing."""
        if request.choices:
            return OneOf(request.choices)
        return None if request.schema is None else self.grammars().matcher(request.schema)

    def unread(
        self, rows: Sequence[Row], here: Container[tuple[int, ...]]
    ) -> dict[tuple[int, ...], Remembered | None]:
        """Prompts of rows that are not here yet, and what is remembered of the beginning of each."""
        new: dict[tuple[int, ...], Remembered | None] = {}
        for row in rows:
            prompt = row.request.prompt_ids
            if prompt not in here:
                new[prompt] = new.get(prompt) or self._known(row.request)
        return new

    def _known(self, request: SampleRequest) -> Remembered | None:
        if request.conversation is None:
            return None
        memory = self.remembered.get(request.conversation)
        return None if memory is None else memory.shared(request.prompt_ids, self.weights)

    def _keep(self, row: Row) -> None:
        """Remember what a row has left of its conversation; what was known before is of no use now."""
        conversation = row.request.conversation
        if conversation is not None:
            self.remembered.pop(conversation, None)
            if row.memory is not None:
                self.remembered[conversation] = row.memory

    def _sorted(self, requests: Sequence[SampleRequest]) -> deque[Row]:
        """Rows sorted so that equal prompts stand together and lengths are alike."""
        order = sorted(
            range(len(requests)), key=lambda i: (len(requests[i].prompt_ids), requests[i].prompt_ids, i)
        )
        return deque(
            Row(
                requests[i],
                i,
                np.random.Generator(np.random.Philox(requests[i].stream)).random(requests[i].max_tokens),
            )
            for i in order
        )

    def prefill(self, prompts: Mapping[tuple[int, ...], Remembered | None]) -> _Prefilled:
        """Prompts through the model in pieces of bounded size; of those that are remembered what is new."""
        fresh = [prompt for prompt, known in prompts.items() if known is None]
        later = [(prompt, known) for prompt, known in prompts.items() if known is not None]
        done = _Prefilled(prompts=[*fresh, *(prompt for prompt, _ in later)])
        for piece in within_budget(fresh, self.prefill_tokens, lambda prompt: (prompt, len(prompt))):
            packed = Packed([Bundle(prompt_ids=prompt) for prompt in piece], self.device)
            cache = PromptCache()
            layout = Layout(packed=packed, cache=cache, kernels=self.kernels)
            hidden = self.hidden(packed.ids_1N, packed.positions_1N, layout)
            done.add(cache, hidden[packed.last_of_prompt_B])
        for turns in within_budget(
            later, self.prefill_tokens, lambda turn: ((), len(turn[0]) - len(turn[1].token_ids))
        ):
            layout = TurnLayout(turns, PromptCache(), self.kernels)
            hidden = self.hidden(layout.ids_1N, layout.positions_1N, layout)
            done.add(layout.cache, hidden[layout.last_of_prompt_B])
        return done

    def choose(self, live: list[Row], scores_RV: Tensor) -> Tensor:
        """Draw the next token of each row and note its log-probability."""
        temperature_R = torch.tensor(
            [row.request.temperature or 1.0 for row in live], device=scores_RV.device
        )
        if (temperature_R != 1.0).any():
            scores_RV = scores_RV.float() / temperature_R[:, None]
        odds = Odds(scores_RV, kernels=self.kernels)
        bound = [i for i, row in enumerate(live) if row.matcher is not None]
        allowed_RV = scores_RV
        if bound:
            allowed_RV = scores_RV.to(torch.float32, copy=True)
            mask = self.grammars().allowed([m for row in live if (m := row.matcher) is not None])
            part = allowed_RV[bound]
            self.grammars().forbid(part, mask)
            allowed_RV[bound] = part
        norm_R = odds.norm_R
        if among := [i for i in bound if live[i].request.choices]:
            norm_R = norm_R.clone()
            norm_R[among] = allowed_RV[among].logsumexp(-1).to(norm_R)
        allowed_RV = truncated(allowed_RV, [row.request for row in live])
        greedy = [row.request.temperature == 0.0 for row in live]
        if all(greedy):
            tokens_R = allowed_RV.argmax(-1)
        else:
            uniform = torch.tensor([float(row.uniform[len(row.ids)]) for row in live], dtype=torch.float64)
            allowed = odds if allowed_RV is scores_RV else Odds(allowed_RV, kernels=self.kernels)
            tokens_R = allowed.draw(uniform.to(scores_RV.device))
            if any(greedy):
                tokens_R = torch.where(
                    torch.tensor(greedy, device=tokens_R.device), allowed_RV.argmax(-1), tokens_R
                )
        logprobs_R = scores_RV.gather(1, tokens_R[:, None])[:, 0].float() - norm_R
        for row, token, logprob in zip(live, tokens_R.tolist(), logprobs_R.tolist(), strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
            if row.matcher is not None:
                row.matcher.accept_token(token)
            row.finished = token == self.stop_id
        return tokens_R


@dataclass(slots=True)
class _Prefilled:
    """Prompts that went through the model."""

    prompts: list[tuple[int, ...]]
    caches: list[PromptCache] = field(default_factory=list)
    ends: list[Tensor] = field(default_factory=list)
    """[B, width] in pieces: what predicts the first token after each prompt."""

    def add(self, cache: PromptCache, ends: Tensor) -> None:
        self.caches.append(cache)
        self.ends.append(ends)


class Batch(Protocol):
    """Rows on their way."""

    @property
    def rows(self) -> Sequence[Row]:
        """Those on their way."""
        ...

    def room(self, waiting: Sequence[Row]) -> int:
        """How many of the waiting rows may come now."""
        ...

    def admit(self, rows: Sequence[Row]) -> None:
        """Take in rows, and read their prompts."""
        ...

    def step(self) -> tuple[list[Row], int]:
        """A token or more for each row; returns those that are done, which leave, and how many were drawn."""
        ...

    def close(self) -> None:
        """Let go of what rows still hold that were broken off."""
        ...


class _Batch:
    """Rows on their way, and what the model remembers of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._remembered_bytes = 0
        self._clear()

    def _clear(self) -> None:
        self.rows: list[Row] = []
        self._cache = PromptCache()
        self._prompts: list[tuple[int, ...]] = []
        self._ends = torch.empty(0)
        """[B, width] what predicts the first token after each prompt."""
        self._of_row: list[int] = []
        """[R] which prompt each row continues."""
        self._states = torch.empty(0)
        """[R, width] what predicts each row's next token."""

    def room(self, waiting: Sequence[Row]) -> int:
        """How many of the waiting rows may come now; none until a quarter of the places is free."""
        free = self._engine.max_rows - len(self.rows)
        return min(free, len(waiting)) if free >= max(1, self._engine.max_rows // 4) else 0

    def admit(self, rows: Sequence[Row]) -> None:
        """Take in requests: their prompts go through the model, unless they are here already."""
        arrived = self._engine.prefill(self._engine.unread(rows, self._prompts))
        self._ends = _after(self._ends, *arrived.ends)
        self._prompts += arrived.prompts
        self._cache.extend(arrived.caches, rows=len(rows))
        place = {prompt: b for b, prompt in enumerate(self._prompts)}
        of_row = [place[row.request.prompt_ids] for row in rows]
        self._states = _after(self._states, self._ends[self._tensor(of_row)])
        self.rows += rows
        self._of_row += of_row
        self._arrange()

    def _remember(self, index: int) -> Remembered | None:
        """What the next turn of a row's conversation need not read again, where there is room for it."""
        row, prompt = self.rows[index], self._of_row[index]
        ids = (*row.request.prompt_ids, *row.ids[:-1])  # the last one was drawn and not read
        kept_bytes = len(ids) * self._cache.bytes_per_token
        if self._remembered_bytes + kept_bytes > self._engine.memory_bytes:
            return None
        self._remembered_bytes += kept_bytes
        kept = self._cache.conversation(prompt, len(row.request.prompt_ids), index, len(row.ids) - 1)
        return Remembered(weights=self._engine.weights, token_ids=ids, kept=kept)

    def close(self) -> None:
        """Nothing is held beyond the batch."""

    def step(self) -> tuple[list[Row], int]:
        """One token for each row; those that are done leave and are returned, with how many were drawn."""
        count = len(self.rows)
        tokens_R = self._engine.choose(self.rows, self._engine.head(self._states))
        left = [row for row in self.rows if row.done]
        for index, row in enumerate(self.rows):
            if row.done and row.goes_on:
                row.memory = self._remember(index)
        if len(left) == len(self.rows):
            self._clear()
            return left, count
        if left:
            going = [i for i, row in enumerate(self.rows) if not row.done]
            tokens_R = tokens_R[self._tensor(going)]
            self._keep(going)
        own = OwnTokens([len(row.ids) - 1 for row in self.rows], self._states.dtype, self._engine.device)
        layout = DecodeLayout(
            cache=self._cache, slots=self._slots, own=own, prompt_mask_R1P=self._mask, compiled=self._compiled
        )
        places = [len(row.request.prompt_ids) + len(row.ids) - 1 for row in self.rows]
        self._states = self._engine.hidden(tokens_R[None], self._tensor([places]), layout)
        return left, count

    def _keep(self, going: Sequence[int]) -> None:
        """Keep rows, and the prompts they continue."""
        used = sorted({self._of_row[i] for i in going})
        self.rows = [self.rows[i] for i in going]
        self._of_row = [used.index(self._of_row[i]) for i in going]
        self._prompts = [self._prompts[b] for b in used]
        self._ends = self._ends[self._tensor(used)]
        self._cache.keep(self._tensor(going), self._tensor(used))
        self._arrange()

    def _arrange(self) -> None:
        """What attention must know, as long as the rows stay the same."""
        width = next(iter(self._cache.keys.values())).shape[2]
        lengths_B = self._tensor([len(prompt) for prompt in self._prompts])
        real_BP = torch.arange(width, device=self._engine.device) < lengths_B[:, None]
        self._mask = prompt_mask(real_BP, self._tensor(self._of_row), self._ends.dtype)
        self._slots = Slots(self._of_row, len(self._prompts), self._engine.device)
        kernels, self._compiled = self._engine.kernels, None
        if kernels is not None:
            tasks = Tasks(self._of_row)
            self._compiled = CompiledDecode(kernels=kernels, tasks=tasks, prompt_lengths_B=lengths_B)

    def _tensor(self, numbers: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._engine.device)


def _after(before: Tensor, *more: Tensor) -> Tensor:
    return torch.cat([before, *more] if len(before) else more)
