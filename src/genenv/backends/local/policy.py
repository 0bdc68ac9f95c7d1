# pyright: standard
"""Models on this machine: one base in memory, a LoRA adapter per player, sampled and trained with torch.

Both players and both references are one set of weights: the agent is the base with the `agent` adapter, the
simulator the base with the `simulator` adapter; the reference of both is the base with adapters off, or a
frozen adapter that `anchor` makes.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import peft
import safetensors.torch
import torch
import transformers
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from genenv.backends.base import Advance, Completion, SampleRequest
from genenv.backends.chat.format import ChatFormat
from genenv.backends.chat.reasoning import CLOSING
from genenv.backends.chat.reasoning_limit import ThoughtLimit
from genenv.backends.local import loading, weights
from genenv.backends.local.cpu import kernels as native
from genenv.backends.local.engine import Engine
from genenv.backends.local.fused_decoder import FusedDecoder
from genenv.backends.local.grammar import Grammars, is_forbidden
from genenv.backends.local.model_forward import own_hidden
from genenv.backends.local.packing import AnyLayout, Layout, Packed
from genenv.backends.local.selfcheck import fused_decoder, use_packed_attention
from genenv.backends.local.token_logprobs import frozen_logprobs
from genenv.backends.settings import PolicyConfig
from genenv.errors import DataError, RolloutError, UsageError, out_of_memory
from genenv.texts import clean
from genenv.types import JsonObject, Message

log = logging.getLogger(__name__)

ADAPTER = "adapter_model.safetensors"
REFERENCE = "reference"
"""Folder, inside a player's checkpoint, of the weights that its KL term holds on to."""
PREFILL_ON_CPU = 2048
"""Beyond so many tokens activations are slower to read again than the products are to start."""
HEAD_ROWS = 512
"""Positions scored at a time: bounds the [positions, vocabulary] tensor."""


class LocalModel:
    """One causal language model in memory, and its tokenizer."""

    def __init__(self, source: str, config: PolicyConfig) -> None:
        """Load a model and hold it to its own forward pass.

        Raises:
            UsageError: the model cannot be used here; the sentence says why.
        """
        self.source, self.config = source, config
        if config.threads:
            torch.set_num_threads(config.threads)
        transformers.utils.logging.disable_progress_bar()
        resolved = loading.resolve(source)
        self.device = loading.choose_device(config.device)
        if self.device.type == "cpu":
            loading.keep_freed_memory()
        if config.tuning == "full" and config.dtype == "bfloat16":
            raise UsageError(
                "policy.tuning is 'full' and policy.dtype 'bfloat16': steps of usual size vanish in bfloat16 "
                "weights; use policy.dtype='float32', or policy.tuning='lora'"
            )
        full = config.tuning == "full"
        self.dtype = torch.float32 if full else loading.choose_dtype(config.dtype, self.device)
        self.tokenizer = loading.load_tokenizer(resolved)
        self.chat = ChatFormat(self.tokenizer, config.chat_template_kwargs)
        causal = loading.load_causal_lm(resolved, dtype=self.dtype, device=self.device)
        loading.check_vocabulary(source, self.tokenizer, causal)
        shape = causal.config.get_text_config()
        limit = int(getattr(shape, "max_position_embeddings", None) or config.context_tokens)
        self.context_tokens = min(config.context_tokens, limit)
        self.vocabulary = int(shape.vocab_size)
        self.causal = causal.requires_grad_(requires_grad=False)
        self.peft: Any = None
        self._grammars: Grammars | None = None
        packed = use_packed_attention(causal, source, self.context_tokens, config.attention)
        self.own_forward = not packed
        """Whether the model runs in its own forward pass: packed attention is not for it."""
        self.kernels = native.wanted(config.compiled, self.device)
        self.adapter: str | None = None
        """The adapter in use; None for the bare base."""
        self.fused: FusedDecoder | None = None

    def fuse(self) -> None:
        """Let genenv's own decoder run the layers, where it knows them: the base is to stay as it is.

        Raises:
            UsageError: the settings ask for it, or for packed weights, and it cannot be.
        """
        config = self.config
        if self.peft is not None or self.fused is not None:
            return
        must = config.decoder == "fused"
        if must and self.own_forward:
            raise UsageError("policy.decoder is 'fused', which needs policy.attention = 'packed'")
        if config.decoder != "transformers" and not self.own_forward:
            limit = config.activation_gib * 2**30 or loading.memory_bytes(self.device) / 4
            tried = config.packed_weights == "auto" and self.kernels is not None
            packed = loading.memory_bytes(self.device) / 16 if tried else 0.0
            self.fused = fused_decoder(self.causal, self.source, limit, self.kernels, packed, must)
        if config.packed_weights is True and not (self.fused is not None and self.fused.pack()):
            raise UsageError(
                "policy.packed_weights is true, and the weights cannot be packed here; set it to false"
            )

    def add_adapter(self, name: str, *, seed: int) -> None:
        """Attach a fresh LoRA adapter: the model is unchanged until the adapter learns.

        Raises:
            UsageError: the adapter settings do not fit this model.
        """
        self.fuse()
        targets = self.config.lora_targets
        settings = peft.LoraConfig(
            r=self.config.lora_rank,
            lora_alpha=self.config.lora_alpha,  # type: ignore[arg-type] - PEFT takes any number
            target_modules=targets if targets == "all-linear" else [t.strip() for t in targets.split(",")],
            task_type="CAUSAL_LM",
        )
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                # PEFT uses names that transformers will rename.
                warnings.simplefilter("ignore", FutureWarning)
                torch.manual_seed(seed)
                if self.peft is None:
                    self.peft = peft.get_peft_model(self.causal, settings, adapter_name=name)
                else:
                    self.peft.add_adapter(name, settings)
        except ValueError as error:
            raise UsageError(f"policy.lora_targets = {targets!r} does not fit: {error}") from error
        ends = (self.causal.get_input_embeddings(), self.causal.get_output_embeddings())
        if any(isinstance(layer, BaseTunerLayer) for layer in ends):
            raise UsageError(
                f"policy.lora_targets = {targets!r} does not fit: embeddings and the output layer stay as "
                "they are; name layers in between, or use 'all-linear'"
            )

    @property
    def grammars(self) -> Grammars:
        """The grammar compiler of this model's vocabulary."""
        if self._grammars is None:
            self._grammars = Grammars(self.tokenizer, self.vocabulary, self.chat.end_id)
        return self._grammars

    def end_round(self) -> None:
        """Let go of grammars, and of memory that was freed."""
        if self._grammars is not None:
            self._grammars.forget()
        loading.release_memory(self.device)

    def hidden(self, ids_1N: Tensor, positions_1N: Tensor, layout: AnyLayout) -> Tensor:
        """[N, width] last hidden states of a flat row; see `own_hidden` for an `OwnLayout`."""
        if self.fused is not None:
            return self.fused.hidden(ids_1N, positions_1N, layout, self.adapter)
        decoder = self.causal.get_decoder()
        if self.own_forward:
            most = self.config.tokens_per_microbatch
            return own_hidden(decoder, ids_1N, positions_1N, layout, tokens=most)
        output = decoder(input_ids=ids_1N, position_ids=positions_1N, use_cache=False, layout=layout)
        return output.last_hidden_state[0]

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that go through the model at a time: what a CPU's caches hold, what a GPU likes."""
        most = self.config.tokens_per_microbatch
        return min(most, PREFILL_ON_CPU) if self.device.type == "cpu" else 4 * most

    @property
    def output(self) -> Any:  # noqa: ANN401
        """The output layer."""
        return self.causal.get_output_embeddings()

    def scores(self, hidden: Tensor) -> Tensor:
        """[M, V] scores of all tokens, in the model's number format."""
        return self.output(hidden) if self.fused is None else self.fused.scores(hidden)

    def head(self, hidden: Tensor) -> Tensor:
        """[M, V] scores in float32."""
        return self.scores(hidden).float()


class LocalPolicy:
    """One player: a model, and the weights that are its own."""

    def __init__(
        self, model: LocalModel, adapter: str | None, *, keep_reference: bool = True, learns: bool = True
    ) -> None:
        """A player on a model.

        Args:
            model: the weights.
            adapter: the name of the player's adapter; None when the whole model is its own.
            keep_reference: full fine-tuning only: keep a copy of the initial weights for the KL terms.
            learns: False where the whole model is only sampled.
        """
        self.model, self.adapter = model, adapter
        self.context_tokens = model.context_tokens
        self.progress: Advance | None = None
        self.sampling_s = 0.0
        self._pending: list[tuple[SampleRequest, asyncio.Future[Completion]]] = []
        self._initial: nn.Module | None = None
        self._anchored = False
        if adapter is None and learns:
            if keep_reference:
                self._initial = copy.deepcopy(model.causal)
            model.causal.requires_grad_(requires_grad=True)

    # --- sampling -----------------------------------------------------------------------------------------

    @property
    def closing(self) -> tuple[int, ...]:
        """What ends the thought that the chat template begins; nothing where it begins none."""
        return self.model.chat.encode(CLOSING) if self.model.chat.opens_thought else ()

    def render(
        self,
        messages: Sequence[Message],
        *,
        first: bool,
        tools: Sequence[JsonObject] = (),
        after: str = "",
    ) -> tuple[int, ...]:
        """Token ids of messages, ready for the assistant's reply."""
        return self.model.chat.render(messages, first=first, tools=tools, after=after)

    def encode_reply(self, text: str, tools: Sequence[JsonObject] = ()) -> tuple[int, ...]:
        """Token ids of an assistant's reply, end-of-turn token included."""
        return self.model.chat.encode_reply(clean(text), tools)

    async def sample(self, request: SampleRequest) -> Completion:
        """Sample one completion. Requests of all coroutines that wait at the same time run as one batch.

        Raises:
            RolloutError: the prompt leaves no room in the context window.
        """
        limit = self.model.config.max_thinking_tokens
        if limit is None or request.schema is not None:
            return await self._sample(request)
        chat = self.model.chat
        thoughts = ThoughtLimit(
            tokens=limit, opened=chat.opens_thought, encode=chat.encode, decode=chat.decode
        )
        return await thoughts.sample(request, self._sample)

    async def _sample(self, request: SampleRequest) -> Completion:
        if len(request.prompt_ids) + request.max_tokens > self.context_tokens:
            raise RolloutError(
                f"{len(request.prompt_ids)} prompt tokens and {request.max_tokens} new ones pass the context "
                f"window of {self.context_tokens}"
            )
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
        """Sample completions; a batch that does not fit into memory is halved and tried once more."""
        rows, prefill = self.model.config.max_batch_rows, self.model.prefill_tokens
        try:
            return self._engine(rows, prefill).run(requests, self.progress)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        # Outside the handler: while it runs, the error's traceback keeps the tensors that did not fit.
        rows = max(1, min(rows, len(requests)) // 2)
        log.warning("sampling ran out of memory; again with %d rows at a time", rows)
        loading.release_memory(self.model.device)
        return self._engine(rows, prefill // 2).run(requests, self.progress)

    def _flush_when_quiet(self, seen: int, loop: asyncio.AbstractEventLoop) -> None:
        """Run the batch once a whole turn of the event loop has brought no further request."""
        if len(self._pending) != seen:
            loop.call_soon(self._flush_when_quiet, len(self._pending), loop)
            return
        pending, self._pending = self._pending, []
        start = loop.time()
        try:
            completions = self.sample_all([request for request, _ in pending])
        except (KeyboardInterrupt, SystemExit):
            raise  # ends the event loop, and with it everyone who waits
        except BaseException as error:  # noqa: BLE001 - handed on to every waiting coroutine
            for _, future in pending:
                if not future.done():
                    future.set_exception(error)
            return
        finally:
            self.sampling_s += loop.time() - start
        for (_, future), completion in zip(pending, completions, strict=True):
            if not future.done():
                future.set_result(completion)

    def _engine(self, rows: int, prefill_tokens: int) -> Engine:
        def hidden(ids: Tensor, positions: Tensor, layout: AnyLayout) -> Tensor:
            with self.active():
                return self.model.hidden(ids, positions, layout)

        return Engine(
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
            weights=(self.adapter, *(parameter._version for _, parameter in self.parameters())),
            memory_bytes=self.model.config.cache_gib * 2**30,
        )

    def end_round(self) -> None:
        """Let go of grammars, and of memory that was freed."""
        self.model.end_round()

    # --- weights ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """This player's weights in place."""
        self._switch(self.adapter)
        yield

    @property
    def has_reference(self) -> bool:
        """Whether there are weights for a KL term to hold on to."""
        return self.adapter is not None or self._initial is not None

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        """The weights that both KL terms hold on to: those of the last `anchor`, or the bare base."""
        if self.adapter is None:
            if self._initial is None:
                raise UsageError("this policy keeps no reference: set the KL coefficient to 0")
            own, self.model.causal = self.model.causal, self._initial
            try:
                yield
            finally:
                self.model.causal = own
        elif self._anchored:
            self._switch(self._anchor_name)
            try:
                yield
            finally:
                self._switch(self.adapter)
        else:
            with self.model.peft.disable_adapter():
                self.model.adapter = None
                try:
                    yield
                finally:
                    self.model.adapter = self.adapter

    def anchor(self) -> None:
        """Make the present weights the reference: the player as it is when co-evolution starts."""
        if self.adapter is None:
            if self._initial is not None:
                self._initial.load_state_dict(self.model.causal.state_dict())
            return
        self._set_anchor(self._adapter_state(self.adapter))

    def _set_anchor(self, state: dict[str, Tensor]) -> None:
        if not self._anchored:
            self.model.peft.add_adapter(self._anchor_name, self.model.peft.peft_config[self.adapter])
            self._anchored = True
        peft.set_peft_model_state_dict(self.model.peft, state, adapter_name=self._anchor_name)
        self._switch(self.adapter)

    @property
    def _anchor_name(self) -> str:
        return f"{self.adapter}_initial"

    def _switch(self, adapter: str | None) -> None:
        self.model.adapter = adapter
        if adapter is not None and self.model.peft.active_adapter != adapter:
            self.model.peft.set_adapter(adapter)

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Names and values of what this player learns, in a fixed order."""
        with self.active():
            return [(name, p) for name, p in self.model.causal.named_parameters() if self._owns(name)]

    def _owns(self, name: str) -> bool:
        return self.adapter is None or f".{self.adapter}." in name

    @property
    def head_is_frozen(self) -> bool:
        """Whether the output layer stays as it is: adapters never touch it."""
        return self.adapter is not None

    def completion_hidden(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """[M, width] states that predict the completions' tokens, and [M] those tokens."""
        # In torch's attention with and without gradients: equal weights get equal log-probabilities.
        hidden_NW = self.model.hidden(packed.ids_1N, packed.positions_1N, Layout(packed=packed))
        at_M, tokens_M = packed.targets()
        return hidden_NW.index_select(0, at_M), tokens_M

    def logprobs(self, packed: Packed, *, temperature: float = 1.0) -> Tensor:
        """[M] log-probabilities of the completions' tokens, row after row. Nats."""
        return self.token_logprobs(*self.completion_hidden(packed), temperature=temperature)

    def token_logprobs(
        self,
        hidden_MW: Tensor,
        tokens_M: Tensor,
        *,
        temperature: float = 1.0,
        allowed: Tensor | None = None,
    ) -> Tensor:
        """[M] log-probabilities of tokens, from the states that `completion_hidden` gave for them. Nats.

        Args:
            hidden_MW: the states.
            tokens_M: the tokens.
            temperature: divides the scores.
            allowed: [M, ceil(V / 32)] bit masks of the tokens that could be sampled; None when all could.
        """
        if self.head_is_frozen:
            return frozen_logprobs(
                self.model.output, hidden_MW, tokens_M, temperature=temperature, allowed=allowed
            )

        def piece(hidden: Tensor, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
            scores = self.model.head(hidden)
            scores = scores / temperature if temperature not in (0.0, 1.0) else scores
            if mask is not None:
                scores = scores.masked_fill(is_forbidden(mask, scores.shape[1]), float("-inf"))
            return scores.gather(1, tokens[:, None])[:, 0] - scores.logsumexp(-1)

        return in_pieces(piece, hidden_MW, tokens_M, *(() if allowed is None else (allowed,)))

    def save(self, folder: Path) -> None:
        """Write the player's weights, and its reference: PEFT adapters, or whole models."""
        self._save(folder, self.adapter, self.model.causal)
        if self._anchored or self._initial is not None:
            self._save(folder / REFERENCE, self._anchor_name, self._initial)

    def _save(self, folder: Path, adapter: str | None, causal: Any) -> None:  # noqa: ANN401
        folder.mkdir(parents=True, exist_ok=True)
        if self.adapter is None:
            causal.save_pretrained(folder)
            self.model.tokenizer.save_pretrained(folder)
            return
        self.model.peft.peft_config[adapter].save_pretrained(str(folder))
        _sort_targets(folder / "adapter_config.json")
        state = {name: value.contiguous() for name, value in self._adapter_state(adapter).items()}
        safetensors.torch.save_file(state, folder / ADAPTER)

    def _adapter_state(self, adapter: str | None) -> dict[str, Tensor]:
        # Left to itself, PEFT asks the hub whether the vocabulary was changed.
        return peft.get_peft_model_state_dict(
            self.model.peft, adapter_name=str(adapter), save_embedding_layers=False
        )

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote.

        Raises:
            DataError: the folder is missing or damaged.
        """
        try:
            if self.adapter is None:
                self.model.causal.load_state_dict(self._whole(folder))
                if self._initial is not None:
                    self._initial.load_state_dict(self._whole(folder / REFERENCE))
                return
            state = self._read_adapter(folder)
            anchor = self._read_adapter(folder / REFERENCE) if (folder / REFERENCE).is_dir() else None
        except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
            raise DataError(f"the weights in {folder} cannot be read: {error}") from error
        peft.set_peft_model_state_dict(self.model.peft, state, adapter_name=self.adapter)
        if anchor is not None:
            self._set_anchor(anchor)

    def _read_adapter(self, folder: Path) -> dict[str, Tensor]:
        state = safetensors.torch.load_file(folder / ADAPTER, device=str(self.model.device))
        own = self._adapter_state(self.adapter)
        if {k: v.shape for k, v in state.items()} != {k: v.shape for k, v in own.items()}:
            raise DataError(f"the adapter in {folder} belongs to another model or other LoRA settings")
        if weights.not_finite(state.items()):
            raise DataError(f"the adapter in {folder} holds numbers that are not finite (NaN or infinity)")
        return state

    def _whole(self, folder: Path) -> dict[str, Tensor]:
        return weights.read_causal_lm(str(folder), dtype=self.model.dtype).state_dict()


def _sort_targets(path: Path) -> None:
    """PEFT writes the adapted layers in the order of a set, which differs between processes; sort them."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(settings["target_modules"], list):
        settings["target_modules"].sort()
    path.write_text(json.dumps(settings, indent=2, sort_keys=True), encoding="utf-8")


def in_pieces(function: Callable[..., Tensor], *tensors: Tensor, rows: int = HEAD_ROWS) -> Tensor:
    """Apply a function that scores the vocabulary in pieces of rows; gradients recompute the scores.

    Args:
        function: takes a piece of each tensor, gives a value for each of its rows.
        tensors: of one length, states [M, width] first.
        rows: at most so many in a piece.
    """
    if len(tensors[0]) <= rows:
        return function(*tensors)
    pieces = zip(*(tensor.split(rows) for tensor in tensors), strict=True)
    if not torch.is_grad_enabled():
        return torch.cat([function(*piece) for piece in pieces])
    recompute = checkpoint
    return torch.cat([recompute(function, *piece, use_reentrant=False) for piece in pieces])
