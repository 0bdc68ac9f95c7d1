# pyright: standard
"""Sampling for clients of the Tinker server: stop texts, top-k, and log-probabilities at temperature 1.

Shapes: R = live rows, V = vocabulary, N = tokens of a prompt, K = most probable tokens of a place.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from genenv.backends.local.attention import Layout
from genenv.backends.local.engine import Engine, Row, at_temperatures
from genenv.backends.local.next_token import Odds, truncated
from genenv.backends.local.packing import Bundle, Packed, within_budget
from genenv.backends.local.policy_weights import ServedWeights
from genenv.backends.local.sampler import LocalSampler
from genenv.backends.served import Numbers, PromptRequest, PromptResult
from genenv.errors import UsageError
from genenv.sampling import COLDEST, Completion, SampleRequest, sampling_params
from genenv.seeding import stream

NOT_SCORED = -99999.0
"""Log-probability in the protocol for a place without a prediction, such as the first."""
_HEAD_ROWS = 256
_EMPTY = Completion(token_ids=(), logprobs=(), text="", finished=False)
"""The completion if the prompt leaves no room for a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest(SampleRequest):
    """A client's request for one completion."""

    top_k: int = -1
    """Draw among this many most probable tokens; -1: among all."""
    stops: Callable[[Sequence[int]], bool] = lambda ids: False
    """Function that returns whether a completion ends with its last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedEngine(Engine):
    """An engine that samples at any temperature and records log-probabilities at temperature 1."""

    def choose(self, live: list[Row], scores_RV: Tensor) -> Tensor:
        """Draw the next token of each row; record its log-probability at temperature 1 over all tokens."""
        requests = [cast(ServedRequest, row.request) for row in live]
        odds = Odds(scores_RV, kernels=self.kernels)
        among_RV = truncated(_in_top_k(at_temperatures(scores_RV, live), requests), requests)
        tokens_R = self.draw(live, among_RV, odds if among_RV is scores_RV else None)
        self.record(live, tokens_R, scores_RV, odds.norm_R)
        for row, request in zip(live, requests, strict=True):
            row.finished = row.finished or request.stops(row.ids)
        return tokens_R


def _in_top_k(scores_RV: Tensor, requests: Sequence[ServedRequest]) -> Tensor:
    """Return scores in which all but the `top_k` most probable tokens of each row are -inf."""
    vocabulary = scores_RV.shape[1]
    most = [request.top_k if 0 < request.top_k < vocabulary else vocabulary for request in requests]
    if min(most) == vocabulary:
        return scores_RV
    places_R1 = torch.tensor(most, device=scores_RV.device)[:, None] - 1
    least_R1 = scores_RV.sort(-1, descending=True).values.gather(1, places_R1)
    return scores_RV.float().masked_fill(scores_RV < least_R1, float("-inf"))


class ServedSampler(LocalSampler):
    """Samples with an adapter as clients of the Tinker server request."""

    _kind: ClassVar[type[Engine]] = ServedEngine
    _captured = False

    def __init__(self, weights: ServedWeights) -> None:
        super().__init__(weights)
        self._own = weights

    def answer(self, prompts: Sequence[PromptRequest]) -> list[PromptResult]:
        """Answer requests; all their completions run as one batch.

        Raises:
            UsageError: a request cannot be answered; see `check`.
        """
        requests = [drawn for one in prompts for drawn in self._requests(one)]
        sampled = iter(self.sample_all(requests) if requests else ())
        scored = self._scored([one for one in prompts if one.prompt_logprobs or one.top_prompt_logprobs])
        answers: list[PromptResult] = []
        for one in prompts:
            sequences = [next(sampled) if self._room(one) else _EMPTY for _ in range(one.samples)]
            prompt, top = scored.get(id(one), (None, None))
            answers.append(PromptResult(sequences=sequences, prompt_logprobs=prompt, top_prompt_logprobs=top))
        return answers

    def check(self, request: PromptRequest) -> None:
        """Check that a request can be answered.

        Raises:
            UsageError: it cannot; the message says why.
        """
        size, vocabulary = len(request.prompt_ids), self.model.vocabulary
        if not size:
            raise UsageError("the prompt is empty: nothing would predict the first token")
        if max(request.prompt_ids) >= vocabulary or min(request.prompt_ids) < 0:
            raise UsageError(f"the prompt holds a token outside of the vocabulary, 0 to {vocabulary - 1}")
        scores_only = request.prompt_logprobs or request.top_prompt_logprobs
        if size > self.context_tokens or (size == self.context_tokens and not scores_only):
            raise UsageError(
                f"the prompt has {size} tokens and leaves no room in the context window of "
                f"{self.context_tokens}"
            )

    def _engine(self, rows: int, prefill_tokens: int) -> Engine:
        return replace(super()._engine(rows, prefill_tokens), head=self._own.scores)

    def _room(self, request: PromptRequest) -> int:
        room = self.context_tokens - len(request.prompt_ids)
        return room if request.max_tokens is None else min(room, request.max_tokens)

    def _requests(self, request: PromptRequest) -> list[ServedRequest]:
        self.check(request)
        room = self._room(request)
        if not room:
            return []
        seed = secrets.randbits(62) if request.seed is None else request.seed
        ends = frozenset({self.model.tokenizer.eos_token_id, *request.stop_ids})

        def stops(ids: Sequence[int]) -> bool:
            if ids[-1] in ends:
                return True
            return any(wanted in self.chat.raw(ids[-4 * len(wanted) - 8 :]) for wanted in request.stop_texts)

        return [
            ServedRequest(
                prompt_ids=request.prompt_ids,
                max_tokens=room,
                **sampling_params(request, greedy_below=COLDEST),
                top_k=request.top_k,
                stream=stream(seed, "served", index),
                stops=stops,
            )
            for index in range(request.samples)
        ]

    @torch.no_grad()
    def _scored(
        self, prompts: Sequence[PromptRequest]
    ) -> dict[int, tuple[Numbers | None, tuple[np.ndarray, Numbers] | None]]:
        """Return log-probabilities and most probable tokens of prompts, by `id` of the request."""
        found: dict[int, tuple[Numbers | None, tuple[np.ndarray, Numbers] | None]] = {}
        order = sorted(prompts, key=lambda one: len(one.prompt_ids))
        most = self.model.prefill_tokens
        for part in within_budget(order, most, lambda one: (one.prompt_ids, len(one.prompt_ids))):
            packed = Packed([Bundle(prompt_ids=one.prompt_ids) for one in part], self.model.device)
            with self.weights.active():
                hidden = self.model.hidden(packed.ids_1N, packed.positions_1N, Layout(packed=packed))
                for b, one in enumerate(part):
                    states = hidden[packed.prompt_at_BP[b, : len(one.prompt_ids) - 1]]
                    prompt = _of_prompt(self._own, states, one) if one.prompt_logprobs else None
                    top = self._top(states, one.top_prompt_logprobs) if one.top_prompt_logprobs else None
                    found[id(one)] = prompt, top
        return found

    def _top(self, states: Tensor, most: int) -> tuple[np.ndarray, Numbers]:
        most = min(most, self.model.vocabulary)
        ids = np.zeros((len(states) + 1, most), np.int32)
        logprobs = np.full((len(states) + 1, most), NOT_SCORED, np.float32)
        for start in range(0, len(states), _HEAD_ROWS):
            scores = self._own.scores(states[start : start + _HEAD_ROWS]).float()
            best = scores.log_softmax(-1).topk(most)
            rows = slice(start + 1, start + 1 + len(best.values))
            ids[rows], logprobs[rows] = best.indices.cpu().numpy(), best.values.cpu().numpy()
        return ids, logprobs


def _of_prompt(weights: ServedWeights, states: Tensor, request: PromptRequest) -> Numbers:
    targets = torch.tensor(request.prompt_ids[1:], dtype=torch.long, device=states.device)
    own = weights.token_scores(states, targets).logprobs_M.float().cpu().numpy()
    return np.concatenate([np.array([np.nan], np.float32), own])
