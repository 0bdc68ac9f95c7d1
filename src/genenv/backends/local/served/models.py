# pyright: standard
"""One base model on this machine with many adapters, which clients train or load from folders.

Clients of the Tinker server sample with stop texts, top-k, and log-probabilities at temperature 1.

Shapes: R = live rows, V = vocabulary, N = tokens of a prompt, K = most probable tokens of a place.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from genenv.backends.local import hardware, loading
from genenv.backends.local.adapters import linear_layers, targets_in
from genenv.backends.local.attention import Layout
from genenv.backends.local.engine import Engine, Row, at_temperatures
from genenv.backends.local.model import LocalModel, settled_config
from genenv.backends.local.next_token import Odds, truncated
from genenv.backends.local.packing import Bundle, Packed, within_budget
from genenv.backends.local.policy_weights import PolicyWeights, ServedWeights
from genenv.backends.local.sampler import LocalSampler
from genenv.backends.local.served.learner import Learner
from genenv.backends.served import LORA_ALPHA, AdapterShape, Numbers, PromptRequest, PromptResult
from genenv.backends.settings import PolicyConfig
from genenv.chat.format import ChatFormat
from genenv.errors import DataError, UsageError
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

    def _engine(self, rows: int, prefill_tokens: int, share: float = 1.0) -> Engine:
        return replace(super()._engine(rows, prefill_tokens, share), head=self._own.scores)

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


_IDLE = "idle"
"""Name of an untrained adapter, which does not change the base."""
_COPIES = 7
"""Memory that must be free for a new adapter in training, relative to its weights: weights, gradient and two
moments, and during a step, of which one runs at a time, copies of weights and moments."""
_SLOTS = 4
"""Maximum number of saved adapters kept in memory for sampling."""
_MOST = 256
"""Maximum number of adapters loaded from folders at a time."""
_RANKS = range(1, 1025)


class _AdapterBase:
    """A base model on which adapters are attached and removed; base class of the two servers' models."""

    def __init__(self, source: str, config: PolicyConfig) -> None:
        """Load a model.

        Raises:
            UsageError: the model cannot be loaded or used on this machine.
        """
        self.model = LocalModel(source, config)
        self._numbers = itertools.count()

    @property
    def context_tokens(self) -> int:
        """The longest sequence, in tokens."""
        return self.model.context_tokens

    def _attach(self, lora: PolicyConfig, seed: int = 0) -> str:
        """Attach a fresh adapter; return its internal name, as clients may choose any names."""
        name = f"served{next(self._numbers)}"
        self.model.add_adapter(name, seed=seed, lora=lora)
        return name

    def _drop(self, name: str) -> None:
        self.model.drop_adapter(name, instead=_IDLE)
        hardware.release_memory(self.model.device)


class ServedBase(_AdapterBase):
    """A base model on which each client trains an adapter and samples with it (`genenv tinker-server`)."""

    def __init__(self, source: str, config: PolicyConfig) -> None:
        """Load a model.

        Raises:
            UsageError: the model cannot be loaded or used on this machine.
        """
        super().__init__(source, config)
        self._layers = linear_layers(self.model.causal)
        idle = AdapterShape(rank=1)
        self.model.add_adapter(_IDLE, seed=0, lora=self._lora(idle))
        self._bare = ServedWeights(self.model, _IDLE, idle, seed=0)
        self._slots: OrderedDict[Path, ServedWeights] = OrderedDict()
        self.settled = settled_config(config, self.model)
        """The settings, with every automatic choice that affects the last digits of results replaced by its
        value."""

    @property
    def tokenizer_place(self) -> str:
        """The folder or name of its tokenizer, for transformers."""
        return loading.resolve(self.model.source)

    def learner(self, shape: AdapterShape, seed: int | None) -> Learner:
        """Attach a fresh adapter and return its trainer.

        Raises:
            UsageError: the model has no such layers, or the memory is too small.
        """
        self._check_memory(shape, _COPIES)
        return Learner(self._adapter(shape, seed))

    def drop(self, learner: Learner) -> None:
        """Free an adapter and its optimizer."""
        self._drop(learner.name)

    def answer(
        self, folder: Path | None, shape: AdapterShape, prompts: Sequence[PromptRequest]
    ) -> list[PromptResult]:
        """Sample with a saved adapter, or with the base if `folder` is None.

        Raises:
            UsageError: a request cannot be answered.
            DataError: the folder is damaged, or of another model.
        """
        weights = self._bare if folder is None else self._slot(folder, shape)
        return ServedSampler(weights).answer(prompts)

    def check(self, request: PromptRequest) -> None:
        """Raise a UsageError with the reason if a request cannot be answered."""
        ServedSampler(self._bare).check(request)

    def forget(self, folder: Path) -> None:
        """Free the adapter that was loaded from a folder."""
        if folder in self._slots:
            self._drop(str(self._slots.pop(folder).adapter))

    def _slot(self, folder: Path, shape: AdapterShape) -> ServedWeights:
        if folder in self._slots:
            self._slots.move_to_end(folder)
            return self._slots[folder]
        weights: ServedWeights | None = None
        if len(self._slots) >= _SLOTS:
            _, oldest = self._slots.popitem(last=False)
            if oldest.shape == shape:
                weights = oldest
            else:
                self._drop(str(oldest.adapter))
        if weights is None:
            self._check_memory(shape, 1)
            weights = self._adapter(shape, 0)
        try:
            weights.load(folder)
        except BaseException:
            self._drop(str(weights.adapter))
            raise
        self._slots[folder] = weights
        return weights

    def _adapter(self, shape: AdapterShape, seed: int | None) -> ServedWeights:
        own = secrets.randbits(31) if seed is None else seed % 2**31
        return ServedWeights(self.model, self._attach(self._lora(shape), own), shape, own)

    def _lora(self, shape: AdapterShape) -> PolicyConfig:
        both = shape.train_mlp and shape.train_attn
        targets = "all-linear" if both else ",".join(self._paths(shape))
        if not targets:
            raise UsageError(
                f"{self.model.source} has no layers that are known to be "
                f"{'of attention' if shape.train_attn else 'of its MLPs'}; train both, or neither alone"
            )
        return self.model.config.model_copy(
            update={"lora_rank": shape.rank, "lora_alpha": LORA_ALPHA, "lora_targets": targets}
        )

    def _paths(self, shape: AdapterShape) -> list[str]:
        """Return the layers with an adapter: all of them if neither kind is left out."""
        return [
            path
            for path in self._layers
            if (shape.train_mlp and shape.train_attn)
            or (shape.train_mlp and _is_of(path, "mlp", "feed_forward", "ffn"))
            or (shape.train_attn and _is_of(path, "attn", "attention"))
        ]

    def _check_memory(self, shape: AdapterShape, copies: int) -> None:
        numbers = shape.rank * sum(self._layers[path] for path in self._paths(shape))
        numbers += shape.rank * sum(self.model.output.weight.shape) if shape.train_unembed else 0
        wanted, free = 4 * copies * numbers, hardware.free_bytes(self.model.device)
        if wanted > free:
            raise UsageError(
                f"an adapter of rank {shape.rank} takes {wanted / 2**30:.1f} GiB to learn, and "
                f"{free / 2**30:.1f} GiB are free; take a smaller rank, or end other clients"
            )


class LoadedBase(_AdapterBase):
    """A base model that samples with adapters from folders, which others train (`genenv serve`)."""

    def __init__(self, source: str, config: PolicyConfig) -> None:
        """Load a model.

        Raises:
            UsageError: the model cannot be loaded or used on this machine.
        """
        super().__init__(source, config)
        self.model.add_adapter(_IDLE, seed=0, lora=config.model_copy(update={"lora_rank": 1}))
        self._bare = PolicyWeights(self.model, _IDLE)
        self._by_name: dict[str, PolicyWeights] = {}

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the loaded adapters."""
        return tuple(self._by_name)

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary."""
        return self.model.vocabulary

    @property
    def chat(self) -> ChatFormat:
        """The chat format, which has the tokens that end a reply."""
        return self.model.chat

    def load(self, name: str, folder: Path) -> None:
        """Load an adapter in PEFT's format; it replaces one of the same name, unless it is refused.

        Raises:
            UsageError: the folder holds no adapter, it does not fit the base, or too many are loaded.
        """
        if name not in self._by_name and len(self._by_name) >= _MOST:
            raise UsageError(f"there are {_MOST} adapters, as many as there may be; unload some")
        inner = self._attach(self.model.config.model_copy(update=_settings(folder, self.model.causal)))
        weights = PolicyWeights(self.model, inner)
        try:
            weights.load(folder, reference=False)
        except DataError as error:
            self._drop(inner)
            raise UsageError(str(error)) from error
        before = self._by_name.get(name)
        self._by_name[name] = weights  # replaced in one step: another thread looks it up
        if before is not None:
            self._drop(str(before.adapter))

    def unload(self, name: str) -> bool:
        """Free an adapter; return whether it was loaded."""
        weights = self._by_name.pop(name, None)
        if weights is None:
            return False
        self._drop(str(weights.adapter))
        return True

    def sample(self, name: str | None, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Answer requests with an adapter, or with the base if `name` is None, as one batch.

        Raises:
            UsageError: no adapter of this name is loaded.
        """
        weights = self._bare if name is None else self._by_name.get(name)
        if weights is None:
            raise UsageError(f"there is no adapter {name!r}")
        return LocalSampler(weights).sample_all(requests)


def _is_of(path: str, *parts: str) -> bool:
    return any(part in piece for piece in path.split(".")[:-1] for part in parts)


_OTHER_KINDS = (
    *("use_rslora", "use_dora", "alpha_pattern", "rank_pattern", "modules_to_save"),
    *("bias", "lora_bias", "trainable_token_indices", "use_bdlora"),
)
"""Settings of PEFT with which an adapter computes something else than alpha / r times B A."""


def _settings(folder: Path, causal: Any) -> dict[str, object]:  # noqa: ANN401
    """Read an adapter's rank, alpha and targets from its settings file, as settings of the policies.

    Raises:
        UsageError: the file is missing or damaged, or the adapter is no LoRA adapter of this model.
    """
    file = folder / "adapter_config.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        rank, alpha = int(found["r"]), float(found["lora_alpha"])
        if rank not in _RANKS or not math.isfinite(alpha):
            raise ValueError(f"rank {rank} and lora_alpha {alpha}")
        if unknown := [name for name in _OTHER_KINDS if found.get(name) not in (None, False, {}, [], "none")]:
            raise ValueError(f"it has {', '.join(unknown)}, which genenv does not compute")
        return {"lora_rank": rank, "lora_alpha": alpha, "lora_targets": targets_in(causal, found)}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, re.error) as error:
        raise UsageError(f"{file} is no file of a LoRA adapter: {type(error).__name__}: {error}") from error
