# pyright: standard
"""Sampling: many requests at once, each prompt through the model once, finished rows out of the batch.

Shapes: R = live rows, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from genenv.policies.base import Advance, Completion, SampleRequest
from genenv.policies.grammar import Grammars, sample_inverse_cdf
from genenv.policies.packing import (
    Bundle,
    DecodeLayout,
    Layout,
    Packed,
    PromptCache,
    Slots,
    prompt_mask,
    within_budget,
)

Hidden = Callable[[Tensor, Tensor, "Layout | DecodeLayout"], Tensor]
"""(ids [1, N], positions [1, N], layout) -> last hidden states [N, width]."""
Head = Callable[[Tensor], Tensor]
"""Hidden states [M, width] -> scores [M, V] in float32."""


@dataclass(slots=True)
class _Row:
    """A request on its way."""

    request: SampleRequest
    index: int
    uniform: np.ndarray
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finished: bool = False
    matcher: object | None = None


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

    @torch.no_grad()
    def run(self, requests: Sequence[SampleRequest], progress: Advance | None = None) -> list[Completion]:
        """Answer requests, in the order given. What a request draws depends on its own stream alone."""
        done: list[Completion | None] = [None] * len(requests)
        for batch in self._batches(requests):
            for row in self._sample(batch, progress):
                done[row.index] = Completion(
                    token_ids=tuple(row.ids),
                    logprobs=tuple(row.logprobs),
                    text=self.decode(row.ids),
                    finished=row.finished,
                )
        return [completion for completion in done if completion is not None]

    def _batches(self, requests: Sequence[SampleRequest]) -> list[list[_Row]]:
        """Rows sorted so that equal prompts stand together and lengths are alike, cut at `max_rows`."""
        order = sorted(
            range(len(requests)), key=lambda i: (len(requests[i].prompt_ids), requests[i].prompt_ids, i)
        )
        rows = [
            _Row(
                requests[i],
                i,
                np.random.Generator(np.random.Philox(requests[i].stream)).random(requests[i].max_tokens),
            )
            for i in order
        ]
        count = -(-len(rows) // self.max_rows)
        size = -(-len(rows) // count) if rows else 1
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def _sample(self, rows: list[_Row], progress: Advance | None) -> list[_Row]:
        bundle_of_R: list[int] = []
        prompts: list[tuple[int, ...]] = []
        for row in rows:
            if not prompts or prompts[-1] != row.request.prompt_ids:
                prompts.append(row.request.prompt_ids)
            bundle_of_R.append(len(prompts) - 1)
            if row.request.schema is not None:
                row.matcher = self.grammars().matcher(row.request.schema)
        cache = PromptCache(max(row.request.max_tokens for row in rows))
        state_BW, real_BP = self._prefill(prompts, cache)
        bundles = torch.tensor(bundle_of_R, device=self.device)
        lengths_R = real_BP.sum(1)[bundles]
        state_RW, live = state_BW[bundles], list(rows)
        mask_R = prompt_mask(real_BP, bundles, state_BW.dtype)
        slots = Slots(bundle_of_R, len(prompts), self.device)
        while True:
            tokens_R = self._choose(live, self.head(state_RW))
            going = [
                i for i, row in enumerate(live) if not row.finished and len(row.ids) < row.request.max_tokens
            ]
            if progress is not None:
                progress(len(live), len(live) - len(going))
            if not going:
                return rows
            if len(going) < len(live):
                keep = torch.tensor(going, device=self.device)
                live = [live[i] for i in going]
                cache.keep(keep)
                bundles, lengths_R, mask_R, tokens_R = (
                    x[keep] for x in (bundles, lengths_R, mask_R, tokens_R)
                )
                slots = Slots(bundles.tolist(), len(prompts), self.device)
            layout = DecodeLayout(cache=cache, slots=slots, prompt_mask_R1P=mask_R)
            state_RW = self.hidden(tokens_R[None], (lengths_R + cache.length)[None], layout)
            cache.length += 1

    def _prefill(self, prompts: list[tuple[int, ...]], cache: PromptCache) -> tuple[Tensor, Tensor]:
        """All prompts through the model in pieces of bounded size; their keys and values into the cache."""
        pieces = within_budget(prompts, self.prefill_tokens, lambda prompt: (prompt, len(prompt)))
        width = max(map(len, prompts))
        states, reals, keys, values = [], [], [], []
        for piece in pieces:
            packed = Packed([Bundle(prompt_ids=prompt) for prompt in piece], self.device)
            part = PromptCache()
            hidden = self.hidden(packed.ids_1N, packed.positions_1N, Layout(packed=packed, cache=part))
            states.append(hidden[packed.last_of_prompt_B])
            short = width - packed.prompt_real_BP.shape[1]
            reals.append(torch.nn.functional.pad(packed.prompt_real_BP, (0, short)))
            keys.append({i: torch.nn.functional.pad(k, (0, 0, 0, short)) for i, k in part.keys.items()})
            values.append({i: torch.nn.functional.pad(v, (0, 0, 0, short)) for i, v in part.values.items()})
        for layer in list(keys[0]):
            cache.keys[layer] = torch.cat([part.pop(layer) for part in keys])
            cache.values[layer] = torch.cat([part.pop(layer) for part in values])
        return torch.cat(states), torch.cat(reals)

    def _choose(self, live: list[_Row], scores_RV: Tensor) -> Tensor:
        """Draw the next token of each row and note its log-probability."""
        temperature_R = torch.tensor(
            [row.request.temperature or 1.0 for row in live], device=scores_RV.device
        )
        scores_RV = scores_RV / temperature_R[:, None] if (temperature_R != 1.0).any() else scores_RV
        norm_R = scores_RV.logsumexp(-1)
        bound = [i for i, row in enumerate(live) if row.matcher is not None]
        allowed_RV = scores_RV
        if bound:
            allowed_RV = scores_RV.clone()
            mask = self.grammars().allowed([live[i].matcher for i in bound])  # type: ignore[misc]
            part = allowed_RV[bound]
            self.grammars().forbid(part, mask)
            allowed_RV[bound] = part
        greedy = [row.request.temperature == 0.0 for row in live]
        if all(greedy):
            tokens_R = allowed_RV.argmax(-1)
        else:
            uniform = torch.tensor([float(row.uniform[len(row.ids)]) for row in live], dtype=torch.float64)
            tokens_R = sample_inverse_cdf(allowed_RV, uniform.to(scores_RV.device))
            if any(greedy):
                tokens_R = torch.where(
                    torch.tensor(greedy, device=tokens_R.device), allowed_RV.argmax(-1), tokens_R
                )
        logprobs_R = scores_RV.gather(1, tokens_R[:, None])[:, 0] - norm_R
        for row, token, logprob in zip(live, tokens_R.tolist(), logprobs_R.tolist(), strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
            if row.matcher is not None:
                row.matcher.accept_token(token)  # type: ignore[attr-defined]
            row.finished = token == self.stop_id
        return tokens_R
