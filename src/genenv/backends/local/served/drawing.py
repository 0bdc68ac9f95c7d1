# pyright: standard
"""Completions as clients of a training service ask for them: stops, top-k, likelihoods at temperature 1.

Shapes: R = live rows, V = vocabulary, N = tokens of a prompt, K = likeliest tokens of a place.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from genenv.backends.local.categorical import Odds, truncated
from genenv.backends.local.engine import Engine, Row
from genenv.backends.local.layouts import Layout
from genenv.backends.local.packing import Bundle, Packed, within_budget
from genenv.backends.local.sampler import LocalSampler
from genenv.backends.local.served.weights import ServedWeights
from genenv.backends.served import Answered, Asked, Numbers, Sampled
from genenv.errors import UsageError
from genenv.sampling import COLDEST, Completion, SampleRequest, sampling_params
from genenv.seeding import stream

NOT_SCORED = -99999.0
"""What the protocol says of a likeliest token that is not there."""
_HEAD_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn(SampleRequest):
    """One completion wanted by a client."""

    top_k: int = -1
    """Draw among so many tokens; -1: among all."""
    stops: Callable[[Sequence[int]], bool] = lambda ids: False
    """Whether a completion ends with its last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawingEngine(Engine):
    """Draws at any temperature and says log-probabilities at 1."""

    def choose(self, live: list[Row], scores_RV: Tensor) -> Tensor:
        """Draw the next token of each row and note its log-probability at temperature 1, among all tokens."""
        requests = [cast(Drawn, row.request) for row in live]
        plain = Odds(scores_RV, kernels=self.kernels)
        among_RV = _among(scores_RV, requests)
        greedy = [request.temperature == 0.0 for request in requests]
        if all(greedy):
            tokens_R = among_RV.argmax(-1)
        else:
            odds = plain if among_RV is scores_RV else Odds(among_RV, kernels=self.kernels)
            uniform = torch.tensor([float(row.uniform[len(row.ids)]) for row in live], dtype=torch.float64)
            tokens_R = odds.draw(uniform.to(scores_RV.device))
            if any(greedy):
                cold = torch.tensor(greedy, device=tokens_R.device)
                tokens_R = torch.where(cold, among_RV.argmax(-1), tokens_R)
        logprobs_R = scores_RV.gather(1, tokens_R[:, None])[:, 0].float() - plain.norm_R
        for row, request, token, logprob in zip(
            live, requests, tokens_R.tolist(), logprobs_R.tolist(), strict=True
        ):
            row.ids.append(token)
            row.logprobs.append(logprob)
            row.finished = token == self.stop_id or request.stops(row.ids)
        return tokens_R


def _among(scores_RV: Tensor, requests: Sequence[Drawn]) -> Tensor:
    """The scores that tokens are drawn by: divided by temperatures, cut to the likeliest."""
    temperatures = [request.temperature or 1.0 for request in requests]
    if any(temperature != 1.0 for temperature in temperatures):
        scores_RV = scores_RV.float() / torch.tensor(temperatures, device=scores_RV.device)[:, None]
    vocabulary = scores_RV.shape[1]
    most = [request.top_k if 0 < request.top_k < vocabulary else vocabulary for request in requests]
    if min(most) < vocabulary:
        places_R1 = torch.tensor(most, device=scores_RV.device)[:, None] - 1
        least_R1 = scores_RV.sort(-1, descending=True).values.gather(1, places_R1)
        scores_RV = scores_RV.float().masked_fill(scores_RV < least_R1, float("-inf"))
    return truncated(scores_RV, requests)


class DrawingSampler(LocalSampler):
    """Samples with an adapter as clients ask."""

    _kind: ClassVar[type[Engine]] = DrawingEngine
    _captured = False

    def __init__(self, weights: ServedWeights) -> None:
        super().__init__(weights)
        self._own = weights

    def answer(self, asked: Sequence[Asked]) -> list[Answered]:
        """Answer requests; all their completions run as one batch.

        Raises:
            UsageError: one cannot be answered; see `check`.
        """
        requests = [drawn for one in asked for drawn in self._requests(one)]
        sampled = iter(self.sample_all(requests) if requests else ())
        scored = self._scored([one for one in asked if one.prompt_logprobs or one.top_prompt_logprobs])
        answers: list[Answered] = []
        for one in asked:
            count = one.samples if self._room(one) else 0
            sequences = [_sampled(next(sampled)) for _ in range(count)]
            sequences += [_sampled(None)] * (one.samples - count)
            prompt, top = scored.get(id(one), (None, None))
            answers.append(Answered(sequences=sequences, prompt_logprobs=prompt, top_prompt_logprobs=top))
        return answers

    def check(self, asked: Asked) -> None:
        """Whether a request can be answered.

        Raises:
            UsageError: it cannot; says why.
        """
        size, vocabulary = len(asked.prompt_ids), self.model.vocabulary
        if not size:
            raise UsageError("the prompt is empty: nothing would predict the first token")
        if max(asked.prompt_ids) >= vocabulary or min(asked.prompt_ids) < 0:
            raise UsageError(f"the prompt holds a token outside of the vocabulary, 0 to {vocabulary - 1}")
        scores_only = asked.prompt_logprobs or asked.top_prompt_logprobs
        if size > self.context_tokens or (size == self.context_tokens and not scores_only):
            raise UsageError(
                f"the prompt has {size} tokens and leaves no room in the context window of "
                f"{self.context_tokens}"
            )

    def _engine(self, rows: int, prefill_tokens: int) -> Engine:
        return replace(super()._engine(rows, prefill_tokens), head=self._own.scores)

    def _room(self, asked: Asked) -> int:
        room = self.context_tokens - len(asked.prompt_ids)
        return room if asked.max_tokens is None else min(room, asked.max_tokens)

    def _requests(self, asked: Asked) -> list[Drawn]:
        self.check(asked)
        room = self._room(asked)
        if not room:
            return []
        seed = secrets.randbits(62) if asked.seed is None else asked.seed
        tokenizer = self.model.tokenizer
        ends = frozenset({tokenizer.eos_token_id, *asked.stop_ids})

        def text(ids: Sequence[int]) -> str:
            return str(
                tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
            )

        def stops(ids: Sequence[int]) -> bool:
            if ids[-1] in ends:
                return True
            return any(wanted in text(ids[-4 * len(wanted) - 8 :]) for wanted in asked.stop_texts)

        return [
            Drawn(
                prompt_ids=asked.prompt_ids,
                max_tokens=room,
                top_k=asked.top_k,
                stream=stream(seed, "served", index),
                stops=stops,
                **sampling_params(asked, greedy_below=COLDEST),
            )
            for index in range(asked.samples)
        ]

    @torch.no_grad()
    def _scored(
        self, asked: Sequence[Asked]
    ) -> dict[int, tuple[Numbers | None, tuple[np.ndarray, Numbers] | None]]:
        """Log-probabilities of prompts, and the likeliest tokens of each place, by the request's identity."""
        found: dict[int, tuple[Numbers | None, tuple[np.ndarray, Numbers] | None]] = {}
        order = sorted(asked, key=lambda one: len(one.prompt_ids))
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


def _of_prompt(weights: ServedWeights, states: Tensor, asked: Asked) -> Numbers:
    targets = torch.tensor(asked.prompt_ids[1:], dtype=torch.long, device=states.device)
    own = weights.token_logprobs(states, targets).float().cpu().numpy()
    return np.concatenate([np.array([np.nan], np.float32), own])


def _sampled(completion: Completion | None) -> Sampled:
    if completion is None:
        return Sampled(ids=(), logprobs=np.empty(0, np.float32), stopped=False)
    return Sampled(
        ids=completion.token_ids,
        logprobs=np.array(completion.logprobs, np.float32),
        stopped=completion.finished,
    )
