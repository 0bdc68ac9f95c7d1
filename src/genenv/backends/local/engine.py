# pyright: standard
"""Batched sampling: each distinct prompt is prefilled once, and finished rows leave the batch.

Shapes: R = live rows, V = vocabulary.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Container, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from genenv.backends.local.attention import (
    AnyLayout,
    CompiledDecode,
    DecodeLayout,
    KeptCache,
    Layout,
    OwnTokens,
    PromptCache,
    TurnLayout,
    prompt_mask,
)
from genenv.backends.local.cpu.kernels import Kernels, Tasks
from genenv.backends.local.cuda.batch import PagedBatch
from genenv.backends.local.cuda.decode import DecodeStep
from genenv.backends.local.model_forward import OwnBatch
from genenv.backends.local.next_token import Grammars, Matcher, Odds, OneOf, truncated
from genenv.backends.local.packing import Bundle, Packed, Slots, TokenTree, within_budget
from genenv.chat.sampler import forced_places
from genenv.progress import advance
from genenv.sampling import Completion, Conversation, SampleRequest

Hidden = Callable[[Tensor, Tensor, AnyLayout], Tensor]
"""(ids [1, N], positions [1, N], layout) -> last hidden states [N, width]. With an `OwnLayout` of R rows:
(ids [R, T], positions [R, T], layout) -> [R, width], the states of the last tokens."""
Head = Callable[[Tensor], Tensor]
"""Hidden states [M, width] -> logits [M, V]."""
PrefillTree = Callable[[TokenTree, Tensor, Callable[[int, Tensor, Tensor], None]], Tensor]
"""(prompts, indices of tokens [M], callback for each layer's index, keys and values) -> [M, width] last
hidden states of these tokens; see `cuda.learning.TreeDecoder.hidden`."""
Prefilled = tuple[list[tuple[int, ...]], PromptCache, Tensor]
"""Prompts, their KV cache, and [B, width] their last hidden states, which predict the tokens after them."""


@dataclass(slots=True)
class Row:
    """One request while it is being sampled."""

    request: SampleRequest
    index: int
    uniform: np.ndarray
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finished: bool = False
    matcher: Matcher | None = None

    @property
    def done(self) -> bool:
        """Whether the row is complete."""
        return self.finished or len(self.ids) == self.request.max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Turns requests into completions, with a model given as functions for hidden states and logits."""

    hidden: Hidden
    head: Head
    decode: Callable[[Sequence[int]], str]
    grammars: Callable[[], Grammars]
    stop_ids: Collection[int]
    """The tokens that end a completion; the one that was sampled is its last token."""
    device: torch.device
    max_rows: int
    prefill_tokens: int
    batch_tokens: float = float("inf")
    """Tokens of all rows together, prompts included, above which no further row is admitted."""
    kernels: Kernels | None = None
    """Compiled code for attention and sampling; None: torch."""
    own_forward: bool = False
    """Whether `hidden` is the model's original forward pass."""
    weights: Hashable = None
    """Identifies the present weights; KV caches computed with other weights are not used."""
    version: int = 0
    """Version of the weights, noted in completions."""
    kept_caches: MutableMapping[Conversation, KeptCache] = field(default_factory=dict)
    """KV caches of conversations; `run` adds those of conversations that may go on."""
    memory_bytes: float = float("inf")
    """Limit of all `kept_caches` together."""
    read: PrefillTree | None = None
    """Prefills prompts as a tree; None: `hidden` prefills them."""
    decode_step: DecodeStep | None = None
    """Decodes one token for all rows in a captured CUDA graph, with the present weights; None: `hidden`
    does."""

    @torch.no_grad()
    def run(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return a completion for each request, in order; each draws only from its own random stream."""
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

    def _batch(self) -> OwnBatch | _Batch | PagedBatch:
        if self.own_forward:
            return OwnBatch(self)
        return _Batch(self) if self.decode_step is None else PagedBatch(self, self.decode_step)

    def _matcher(self, request: SampleRequest) -> Matcher | None:
        """Return the constraint on a completion: a list of choices or a grammar; None if there is none."""
        if request.choices:
            return OneOf(request.choices)
        return None if request.schema is None else self.grammars().matcher(request.schema)

    def unread(
        self, rows: Sequence[Row], here: Container[tuple[int, ...]]
    ) -> dict[tuple[int, ...], KeptCache | None]:
        """Return the prompts that still need a prefill, each with the KV cache of its beginning if any."""
        new: dict[tuple[int, ...], KeptCache | None] = {}
        for row in rows:
            prompt = row.request.prompt_ids
            if prompt not in here:
                new[prompt] = new.get(prompt) or self._known(row.request)
        return new

    def _known(self, request: SampleRequest) -> KeptCache | None:
        if request.conversation is None:
            return None
        memory = self.kept_caches.get(request.conversation)
        return None if memory is None else memory.shared(request.prompt_ids, self.weights)

    def keep(self, row: Row, bytes_per_token: int, read: Callable[[], Tensor]) -> None:
        """Replace the KV cache of a complete row's conversation, if that may go on and memory suffices.

        Args:
            row: the row.
            bytes_per_token: size of the keys and values of a token.
            read: returns a copy of the row's keys and values, prompt included.
        """
        request = row.request
        if request.conversation is None:
            return
        self.kept_caches.pop(request.conversation, None)
        if request.last or not (row.finished or request.survives_cut):
            return
        ids = (*request.prompt_ids, *row.ids[:-1])  # the last token was drawn but has no KV yet
        held = sum(one.kept.nbytes for one in self.kept_caches.values())
        if held + len(ids) * bytes_per_token <= self.memory_bytes:
            cache = KeptCache(weights=self.weights, token_ids=ids, kept=read())
            self.kept_caches[request.conversation] = cache

    def _sorted(self, requests: Sequence[SampleRequest]) -> deque[Row]:
        """Return rows sorted by prompt length and prompt, so that equal prompts are adjacent."""
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

    def prefill(self, prompts: Mapping[tuple[int, ...], KeptCache | None]) -> list[Prefilled]:
        """Prefill prompts in pieces of bounded size; of prompts with a KV cache, only the new tokens."""
        fresh = [prompt for prompt, known in prompts.items() if known is None]
        later = [(prompt, known) for prompt, known in prompts.items() if known is not None]
        done = list[Prefilled]()
        for piece in within_budget(fresh, self.prefill_tokens, lambda prompt: (prompt, len(prompt))):
            packed = Packed([Bundle(prompt_ids=prompt) for prompt in piece], self.device)
            cache = PromptCache()
            layout = Layout(packed=packed, cache=cache, kernels=self.kernels)
            hidden = self.hidden(packed.ids_1N, packed.positions_1N, layout)
            done.append((piece, cache, hidden[packed.last_of_prompt_B]))
        for turns in within_budget(
            later, self.prefill_tokens, lambda turn: ((), len(turn[0]) - len(turn[1].token_ids))
        ):
            layout = TurnLayout(turns, PromptCache(), self.kernels)
            hidden = self.hidden(layout.ids_1N, layout.positions_1N, layout)
            own = [prompt for prompt, _ in turns]
            done.append((own, layout.cache, hidden[layout.last_of_prompt_B]))
        return done

    def choose(self, live: list[Row], scores_RV: Tensor) -> Tensor:
        """Draw the next token of each row, and record it with its log-probability."""
        scores_RV = at_temperatures(scores_RV, live)
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
        tokens_R = self.draw(live, allowed_RV, odds if allowed_RV is scores_RV else None)
        self.record(live, tokens_R, scores_RV, norm_R)
        return tokens_R

    def draw(self, live: list[Row], scores_RV: Tensor, odds: Odds | None) -> Tensor:
        """Draw the next token of each row, [R], from the row's random numbers; greedy rows take the argmax.

        Args:
            live: the rows.
            scores_RV: logits at the rows' temperatures; -inf is never drawn.
            odds: the distributions of these logits, if already computed.
        """
        greedy = [row.request.temperature == 0.0 for row in live]
        if all(greedy):
            return scores_RV.argmax(-1)
        uniform = torch.tensor([float(row.uniform[len(row.ids)]) for row in live], dtype=torch.float64)
        tokens_R = (odds or Odds(scores_RV, kernels=self.kernels)).draw(uniform.to(scores_RV.device))
        if any(greedy):
            cold = torch.tensor(greedy, device=tokens_R.device)
            tokens_R = torch.where(cold, scores_RV.argmax(-1), tokens_R)
        return tokens_R

    def record(self, live: list[Row], tokens_R: Tensor, scores_RV: Tensor, norm_R: Tensor) -> None:
        """Append the drawn tokens to their rows, with log-probabilities: logits minus `norm_R`."""
        logprobs_R = scores_RV.gather(1, tokens_R[:, None])[:, 0].float() - norm_R
        for row, token, logprob in zip(live, tokens_R.tolist(), logprobs_R.tolist(), strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
            if row.matcher is not None:
                row.matcher.accept_token(token)
            row.finished = token in self.stop_ids


def at_temperatures(scores_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    """Return logits divided by the temperature of each row; a greedy row counts as 1."""
    temperatures = [row.request.temperature or 1.0 for row in rows]
    if all(temperature == 1.0 for temperature in temperatures):
        return scores_RV
    return scores_RV.float() / torch.tensor(temperatures, device=scores_RV.device)[:, None]


_USUAL_TOKENS = 1024
"""Length that a longer reply is taken to have, as few are as long as they may be."""


def _own_tokens(row: Row) -> int:
    return max(len(row.ids), min(row.request.max_tokens, _USUAL_TOKENS))


class _Batch:
    """A batch of rows in the standard decode path, with their KV cache."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._clear()

    def _clear(self) -> None:
        self.rows: list[Row] = []
        self._cache = PromptCache()
        self._prompts: list[tuple[int, ...]] = []
        self._ends = torch.empty(0)
        """[B, width] the last hidden state of each prompt, which predicts the first token after it."""
        self._of_row: list[int] = []
        """[R] index of the prompt that each row continues."""
        self._states = torch.empty(0)
        """[R, width] the hidden state that predicts each row's next token."""

    def room(self, waiting: Sequence[Row]) -> int:
        """Return how many of the waiting rows can be admitted now; 0 until a quarter of the batch is free.

        No more are admitted than there is memory for (`batch_tokens`).
        """
        free = self._engine.max_rows - len(self.rows)
        if not waiting or free < max(1, self._engine.max_rows // 4):
            return 0
        prompts, count = {*self._prompts}, 0
        longest, own = max(map(len, prompts), default=0), max(map(_own_tokens, self.rows), default=0)
        for row in itertools.islice(waiting, free):
            prompts.add(row.request.prompt_ids)
            longest, own = max(longest, len(row.request.prompt_ids)), max(own, _own_tokens(row))
            tokens = len(prompts) * longest + (len(self.rows) + count + 1) * own  # shorter ones are padded
            if tokens > self._engine.batch_tokens and (self.rows or count):
                break
            count += 1
        few = count < min(len(waiting), max(1, len(self.rows) // 4))
        return 0 if self.rows and few else count

    def admit(self, rows: Sequence[Row]) -> None:
        """Add rows, and prefill those prompts that are not in the batch yet."""
        arrived = self._engine.prefill(self._engine.unread(rows, self._prompts))
        self._ends = _after(self._ends, *(ends for _, _, ends in arrived))
        self._prompts += [prompt for prompts, _, _ in arrived for prompt in prompts]
        self._cache.extend([cache for _, cache, _ in arrived], rows=len(rows))
        place = {prompt: b for b, prompt in enumerate(self._prompts)}
        of_row = [place[row.request.prompt_ids] for row in rows]
        self._states = _after(self._states, self._ends[self._tensor(of_row)])
        self.rows += rows
        self._of_row += of_row
        self._arrange()

    def close(self) -> None:
        """Do nothing: the batch holds no other resources."""

    def step(self) -> tuple[list[Row], int]:
        """Sample one token for each row; return the completed rows, which leave, and the token count."""
        count = len(self.rows)
        tokens_R = self._engine.choose(self.rows, self._engine.head(self._states))
        left = [row for row in self.rows if row.done]
        for index, row in enumerate(self.rows):
            if row.done:
                own = self._of_row[index], len(row.request.prompt_ids), index, len(row.ids) - 1
                self._engine.keep(row, self._cache.bytes_per_token, partial(self._cache.conversation, *own))
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
        """Drop all rows but these, and the prompts that no remaining row continues."""
        used = sorted({self._of_row[i] for i in going})
        self.rows = [self.rows[i] for i in going]
        self._of_row = [used.index(self._of_row[i]) for i in going]
        self._prompts = [self._prompts[b] for b in used]
        self._ends = self._ends[self._tensor(used)]
        self._cache.keep(self._tensor(going), self._tensor(used))
        self._arrange()

    def _arrange(self) -> None:
        """Compute the masks and index tensors of attention, which stay valid until rows change."""
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
