# pyright: standard
"""Sampling in captured steps, several tokens at a time; a finished row frees its pages.

Shapes: R = rows, S = steps, V = vocabulary, W = width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from genenv.backends.local.cuda.decode import DecodeStep
from genenv.backends.local.cuda.kv_pages import STEPS, Seat, pages_for
from genenv.backends.local.next_token import is_forbidden, truncated
from genenv.backends.local.packing import Bundle, TokenTree, on_device, within_budget

if TYPE_CHECKING:
    from genenv.backends.local.engine import Engine, PrefillTree, Row


@dataclass(slots=True, eq=False)
class _Prompt:
    """A prompt whose keys and values are in pages."""

    ids: tuple[int, ...]
    pages: list[int]
    end_W: Tensor
    """The hidden state that predicts the first token after the prompt."""
    rows: int = 0
    """Number of rows that continue it."""


@dataclass(slots=True, eq=False)
class _Seated:
    """A row with the pages of its keys and values."""

    row: Row
    prompt: _Prompt
    pages: list[int]


class PagedBatch:
    """A batch of rows whose KV cache is in pages."""

    def __init__(self, engine: Engine, step: DecodeStep) -> None:
        self._engine, self._step = engine, step
        self._seated: list[_Seated] = []
        self._prompts: dict[tuple[int, ...], _Prompt] = {}
        self._fresh = 0
        """Number of rows, at the end of the list, that have no token yet."""
        self._moved = True
        """Whether the rows have changed since their state was copied to the device."""
        step.state.end_at(engine.stop_ids)

    @property
    def rows(self) -> list[Row]:
        """The rows being sampled."""
        return [seated.row for seated in self._seated]

    def room(self, waiting: Sequence[Row]) -> int:
        """Return how many of the waiting rows can be admitted now; 0 until a quarter of the batch is free."""
        most = min(self._engine.max_rows, self._step.rows)
        free, pages = most - len(self._seated), self._step.pool.free
        if free < max(1, most // 4):
            return 0
        count, new = 0, set[tuple[int, ...]]()
        for row in waiting:
            if count == free:
                break
            prompt = row.request.prompt_ids
            pages -= pages_for(row.request.max_tokens)
            if prompt not in self._prompts and prompt not in new:
                pages -= pages_for(len(prompt))
                new.add(prompt)
            if pages < 0:
                break
            count += 1
        if not count and waiting and not self._seated:
            raise RuntimeError(_TOO_LONG)  # sized for the longest sequence
        return count

    def admit(self, rows: Sequence[Row]) -> None:
        """Add rows, and prefill those prompts that are not in the batch yet."""
        new = self._engine.unread(rows, self._prompts)
        if self._engine.read is not None:
            self._read(self._engine.read, [ids for ids, known in new.items() if known is None])
            new = {ids: known for ids, known in new.items() if known is not None}
        pool = self._step.pool
        for own, cache, ends_BW in self._engine.prefill(new):
            pages = [pool.take(pages_for(len(ids))) for ids in own]
            pool.write(cache, pages)
            for ids, some, end_W in zip(own, pages, ends_BW, strict=True):
                self._prompts[ids] = _Prompt(ids, some, end_W)
        for row in rows:
            prompt = self._prompts[row.request.prompt_ids]
            prompt.rows += 1
            self._seated.append(_Seated(row, prompt, pool.take(pages_for(row.request.max_tokens))))
        self._fresh += len(rows)
        self._moved = True

    def _read(self, read: PrefillTree, prompts: Sequence[tuple[int, ...]]) -> None:
        """Prefill prompts as a tree: a shared beginning is processed once, and there is no padding."""
        pool = self._step.pool
        for piece in within_budget(prompts, self._engine.prefill_tokens, lambda ids: (ids, len(ids))):
            tree = TokenTree([Bundle(prompt_ids=ids) for ids in piece], self._engine.device)
            pages = [pool.take(pages_for(len(ids))) for ids in piece]
            places = [pool.places(own, len(ids)) for own, ids in zip(pages, piece, strict=True)]
            ends = [own[-1] for own in tree.prompts_at]
            at, places_T, ends_B = on_device(
                np.concatenate([*tree.prompts_at, *places, ends]), self._engine.device
            ).split([sum(map(len, piece)), sum(map(len, piece)), len(piece)])
            ends_BW = read(tree, ends_B, pool.keeper(at, places_T))
            for ids, own, end_W in zip(piece, pages, ends_BW, strict=True):
                self._prompts[ids] = _Prompt(ids, own, end_W)

    def step(self) -> tuple[list[Row], int]:
        """Sample tokens for each row; return the completed rows, which leave, and the token count."""
        rows = self.rows
        bound = any(row.matcher is not None for row in rows)
        cut = any(row.request.truncates for row in rows)
        step, size = self._step, self._step.bucket(len(rows))
        if self._moved:
            step.state.seat([_seat(seated) for seated in self._seated], size)
            self._moved = False
        first = len(rows) - self._fresh if self._fresh else 0
        taking = rows[first:]
        steps = (
            1
            if self._fresh or bound or cut
            else min(STEPS, max(r.request.max_tokens - len(r.ids) for r in rows))
        )
        step.state.put_uniform(_uniform(rows, steps))
        for at in range(steps):
            if self._fresh:
                scores = self._engine.head(torch.stack([one.prompt.end_W for one in self._seated[first:]]))
            else:
                scores = step.scores(len(rows))
            if bound or cut:
                self._hold(taking, scores, first)
            step.draw(scores, at, first=first, held=bound or cut)
        self._fresh = 0
        return self._collect(first, steps)

    def _hold(self, rows: Sequence[Row], scores: Tensor, first: int) -> None:
        """Copy masks and minimum logits of constrained rows to the device, while it computes the logits."""
        state, at = self._step.state, slice(first, first + len(rows))
        bound = [(i, row.matcher) for i, row in enumerate(rows) if row.matcher is not None]
        mask = torch.full((len(rows), state.mask_RV.shape[1]), -1, dtype=torch.int32)
        if bound:
            mask[[i for i, _ in bound]] = self._engine.grammars().allowed([matcher for _, matcher in bound])
        state.mask_RV[at].copy_(mask, non_blocking=True)
        state.least_R[at] = float("-inf")
        cut = [i for i, row in enumerate(rows) if row.request.truncates]
        if cut:
            own = scores[: len(rows)][cut].float()
            own = own.masked_fill(is_forbidden(state.mask_RV[at][cut], own.shape[1]), float("-inf"))
            kept = truncated(own / state.temperature_R[at][cut][:, None], [rows[i].request for i in cut])
            # before division by the temperature, so that rounding does not exclude the least probable token
            least = own.masked_fill(kept == float("-inf"), float("inf")).amin(-1)
            state.least_R[torch.tensor(cut, device=own.device) + first] = least

    def _collect(self, first: int, steps: int) -> tuple[list[Row], int]:
        """Read the drawn tokens, and remove rows that are done."""
        count = 0
        going: list[_Seated] = []
        left: list[Row] = []
        tokens, logprobs = self._step.state.drawn(len(self._seated), steps)
        for index, seated in enumerate(self._seated):
            row = seated.row
            if index >= first:
                new = [token for token in tokens[index] if token >= 0]
                count += len(new)
                row.ids += new
                row.logprobs += logprobs[index][: len(new)]
                row.finished = row.ids[-1] in self._engine.stop_ids
                for token in new if row.matcher is not None else ():
                    row.matcher.accept_token(token)  # type: ignore[union-attr]
            if not row.done:
                going.append(seated)
                continue
            own = (seated.prompt.pages, len(seated.prompt.ids)), (seated.pages, len(row.ids) - 1)
            self._engine.keep(row, self._step.pool.bytes_per_token, partial(self._step.pool.read, *own))
            left.append(row)
            self._leave(seated)
        if left:
            self._seated, self._moved = going, True
        return left, count

    def _leave(self, seated: _Seated) -> None:
        pool, prompt = self._step.pool, seated.prompt
        pool.give(seated.pages)
        prompt.rows -= 1
        if not prompt.rows:
            pool.give(prompt.pages)
            del self._prompts[prompt.ids]

    def close(self) -> None:
        """Return all pages to the pool, including those of an interrupted batch."""
        self._step.pool.clear()
        self._seated = []
        self._prompts = {}


_TOO_LONG = "a sequence is longer than the pages of keys and values"


def _seat(seated: _Seated) -> Seat:
    row, request = seated.row, seated.row.request
    return Seat(
        token=row.ids[-1] if row.ids else 0,
        drawn=len(row.ids),
        left=request.max_tokens - len(row.ids),
        prompt_tokens=len(request.prompt_ids),
        pages=[*seated.prompt.pages, *seated.pages],
        prompt=seated.prompt,
        temperature=request.temperature,
        choices=bool(request.choices),
    )


def _uniform(rows: Sequence[Row], steps: int) -> np.ndarray:
    """Return [R, S] the next random numbers of each row's stream."""
    found = np.zeros((len(rows), steps), dtype=np.float32)
    for index, row in enumerate(rows):
        own = row.uniform[len(row.ids) : len(row.ids) + steps]
        found[index, : len(own)] = own
    return found
