# pyright: standard
"""One causal language model in memory on this machine, and the different code paths to run it.

Device, number format, threads and compiled code change the last digits of results. A different last digit now
and then changes a sampled token, and with it all later training. So these choices are made once, when a run
starts, and recorded (`resolve_settings`, `settled_config`). Two runs with equal settings give equal results
only if these choices are equal.

Shapes: N = tokens of the flat row, M = tokens scored, V = vocabulary.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Hashable, MutableMapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers
from torch import Tensor

from genenv.backends.local import hardware, loading
from genenv.backends.local.adapters import add_lora_adapter, unadapted, unadapted_sentence
from genenv.backends.local.attention import AnyLayout, KeptCache
from genenv.backends.local.cpu import build, threads
from genenv.backends.local.cuda.decode import DecodeStep, captured_step
from genenv.backends.local.cuda.learning import TreeDecoder
from genenv.backends.local.fused_decoder import FusedDecoder
from genenv.backends.local.model_forward import (
    fused_decoder,
    layers_recomputed,
    own_hidden,
    quantized_token_bytes,
    setting_that_reads_weights,
    shaping,
    sizes_of,
    use_packed_attention,
)
from genenv.backends.local.next_token import Grammars
from genenv.backends.local.sharding import (
    check_can_shard,
    full_dtype,
    shard_all,
    shard_base,
    twin,
    whole_ends,
)
from genenv.backends.settings import ALL_LAYERS, PolicyConfig
from genenv.chat.format import ChatFormat
from genenv.errors import UsageError
from genenv.sampling import Conversation

log = logging.getLogger(__name__)

PREFILL_ON_CPU = 2048
"""Maximum tokens of a prefill on a CPU: with more, activations no longer fit into the processor's caches."""


class LocalModel:
    """A causal language model in memory, with its tokenizer; policies are adapters on it."""

    def __init__(self, source: str, config: PolicyConfig, processes: int = 1) -> None:
        """Load a model, and check that packed attention gives the results of its original forward pass.

        Args:
            source: a known short name, a folder, or a hub name.
            config: settings of the policies.
            processes: number of processes that train together; each holds a shard (`sharding`).

        Raises:
            UsageError: the model cannot be used on this machine; the message says why.
        """
        self.source, self.config = source, config
        if config.threads:
            torch.set_num_threads(config.threads)
        transformers.utils.logging.disable_progress_bar()
        resolved = loading.resolve(source)
        self.device = hardware.choose_device(config.device)
        self.max_batch_rows = hardware.batch_rows(config.max_batch_rows, self.device)
        self.tokens_per_microbatch = hardware.microbatch_tokens(config.tokens_per_microbatch, self.device)
        """Maximum tokens of one forward and backward pass."""
        self.tokens_per_tree = self.tokens_per_microbatch
        """The same limit for tokens laid out as a tree, which need less memory."""
        if self.device.type == "cpu":
            hardware.keep_freed_memory()
            threads.follow_the_machine()
        check_can_quantize(config)
        full, self.shared = config.tuning == "full", processes > 1
        self.processes = processes
        self.sharded = full and self.shared
        """Whether all weights are sharded, and not the layers of a frozen base alone."""
        if self.shared:
            check_can_shard(config)
        self.dtype = (
            full_dtype(config, processes) if full else hardware.choose_dtype(config.dtype, self.device)
        )
        self.kept_dtype = torch.float32 if full else self.dtype
        """Number format in which weights are kept; `dtype` is that in which they are used."""
        self.tokenizer = loading.load_tokenizer(resolved)
        self.chat = ChatFormat(self.tokenizer, config.chat_template_kwargs, loading.stop_ids(resolved))
        self.causal = causal = self._loaded(resolved)
        self.other_inputs = tuple(loading.other_inputs(causal))
        """Modules for images and sound. They are removed, or with full tuning frozen, since checkpoints are
        complete."""
        if not full:
            loading.without_other_inputs(causal)
        if self.sharded:
            shard_all(causal, self.device, processes, self.dtype)
        elif self.shared:
            shard_base(causal, self.device, processes)
        shape = causal.config.get_text_config()
        limit = int(getattr(shape, "max_position_embeddings", None) or config.context_tokens)
        self.context_tokens = min(config.context_tokens, limit)
        self.vocabulary = int(shape.vocab_size)
        if config.quantize != "none":
            self._fit_quantized()
        self.shaping = shaping(causal.config)
        self.peft: Any = None
        self._grammars: Grammars | None = None
        with self.whole_ends():
            packed = use_packed_attention(causal, source, self.context_tokens, config.attention)
        self.own_forward = not packed
        """Whether the model runs in its original forward pass because packed attention does not suit it."""
        if self.shared and not packed:
            raise UsageError(f"{source} is not trained by several processes: it needs packed attention")
        self.kernels = build.wanted(config.compiled, self.device)
        self.adapter: str | None = None
        """The adapter in use; None for the bare base."""
        self._set_in_peft: str | None = None
        """The adapter that is active in PEFT; None if unknown."""
        self.kept_caches: MutableMapping[Conversation, KeptCache] = WeakKeyDictionary()
        """KV caches of conversations between their turns, of all policies on this model."""
        self.holds: Hashable = None
        """Which policy's weights are in this model, if it is a copy that several policies fill by turns."""
        self.fused: FusedDecoder | None = None
        self._decode_step: DecodeStep | None = None
        self._decode_step_tried = False
        self._slow: set[str | None] = set()
        """Adapters for which slow sampling (layer by layer) was already logged."""
        self.tree: TreeDecoder | None = None
        """The fused layers for training over a tree of tokens; None if that is not faster."""

    def _loaded(self, resolved: str) -> Any:  # noqa: ANN401
        """Return the model with its weights, not sharded yet."""
        causal = loading.load_causal_lm(
            resolved,
            dtype=self.kept_dtype,
            device=torch.device("cpu") if self.shared else self.device,
            quantize=self.config.quantize,
        )
        loading.check_vocabulary(self.source, self.tokenizer, causal)
        # FSDP takes number formats from what is trained when it first runs
        return causal.requires_grad_(requires_grad=self.sharded)

    def _fit_quantized(self) -> None:
        """Free the memory of the original weights, and size micro-batches for a base in 4 bits."""
        hardware.release_memory(self.device)  # they were read layer by layer
        token = quantized_token_bytes(sizes_of(self.causal.config), self.dtype)
        most = hardware.microbatch_tokens(self.config.tokens_per_microbatch, self.device, token)
        self.tokens_per_microbatch = self.tokens_per_tree = most

    def whole_ends(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager: the weights outside the layers are whole, as scores need them."""
        return whole_ends(self.causal, self.dtype) if self.sharded else contextlib.nullcontext()

    def frozen_copy(self) -> Any:  # noqa: ANN401
        """Return a copy of the whole model with its present weights, sharded if they are."""
        if self.sharded:
            return twin(self.causal, self.device, self.processes, self.dtype)
        return copy.deepcopy(self.causal)

    def fuse(self) -> None:
        """Switch to genenv's fused decoder if it supports the layers; the base must then stay frozen.

        Raises:
            UsageError: the settings require the fused decoder or packed weights, and the model does not allow
                it.
        """
        config = self.config
        if self.peft is not None or self.fused is not None or self.shared:
            return
        must = config.decoder == "fused"
        if must and self.own_forward:
            raise UsageError("policy.decoder is 'fused', which needs policy.attention = 'packed'")
        if config.decoder != "transformers" and not self.own_forward:
            limit = hardware.activation_bytes(config.activation_gib, self.device)
            tried = config.packed_weights == "auto" and self.kernels is not None
            packed = hardware.packing_bytes(self.device) if tried else 0.0
            self.fused = fused_decoder(self.causal, self.source, limit, self.kernels, packed, must=must)
        if self.fused is not None and self.device.type == "cuda" and config.compiled is not False:
            self.tree = TreeDecoder(self.fused, config.activation_gib * 2**30)
            token = self.fused.sizes.kept_by_compiled * self.dtype.itemsize
            most = hardware.microbatch_tokens(config.tokens_per_microbatch, self.device, token)
            self.tokens_per_tree = most
        if config.packed_weights is True and not (self.fused is not None and self.fused.pack()):
            raise UsageError(
                "policy.packed_weights is true, and the weights cannot be packed here; set it to false"
            )

    def add_adapter(self, name: str, *, seed: int, lora: PolicyConfig | None = None) -> None:
        """Attach a fresh LoRA adapter, which does not change the model's output until it is trained.

        Args:
            name: of the adapter.
            seed: of the initial weights.
            lora: states rank, scale and layers of the adapter; None: the model's settings do.

        Raises:
            UsageError: the adapter settings do not fit this model.
        """
        settings = lora or self.config
        self.fuse()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            first, self.peft = self.peft is None, add_lora_adapter(self.causal, name, settings, self.peft)
        self._set_in_peft = None
        if (
            first
            and settings.lora_targets in ALL_LAYERS
            and (warning := unadapted_sentence(unadapted(self.causal)))
        ):
            log.warning("%s: %s", self.source, warning)

    def add_adapter_like(self, name: str, other: str | None) -> None:
        """Attach an adapter with the settings of another; the caller must load its weights."""
        self.peft.add_adapter(name, self.peft.peft_config[other])
        self._set_in_peft = None

    def use(self, adapter: str | None) -> None:
        """Activate an adapter; None: the bare model, for full tuning."""
        self.adapter = adapter
        if adapter is not None and self._set_in_peft != adapter:  # PEFT visits all modules
            self.peft.set_adapter(adapter)
            self._set_in_peft = adapter

    def drop_adapter(self, name: str, *, instead: str) -> None:
        """Detach an adapter, free its memory, and activate another."""
        self.adapter = instead
        self.peft.set_adapter(instead)
        self.peft.delete_adapter(name)
        self._set_in_peft = None
        if self.fused is not None:
            self.fused.forget(name)
        if self._decode_step is not None:
            self._decode_step.forget()
        if self.tree is not None:
            self.tree.forget(name)

    def decode_step(self, adapter: str | None, weights: Hashable) -> DecodeStep | None:
        """Return the captured sampling step with an adapter activated; None if layers must run one by one.

        Args:
            adapter: its name; None for the bare base.
            weights: identifies the adapter's present values.
        """
        if not self._decode_step_tried:
            self._decode_step_tried = True
            wanted = self.device.type == "cuda" and self.config.compiled is not False
            if wanted and self.fused is not None and self.shaping.is_nothing:
                self._decode_step = captured_step(self.causal, self.fused, self.config, self.context_tokens)
                if self.tree is not None:
                    self.tree.forget_all()  # capturing moved the weights
        step = self._decode_step
        if step is None:
            return None
        if not step.fits(adapter):
            self._warn_slow(adapter)
            return None
        step.use(adapter, weights)
        return step

    def _warn_slow(self, adapter: str | None) -> None:
        if adapter not in self._slow:
            self._slow.add(adapter)
            log.warning(
                "adapter %s has a rank above policy.lora_rank = %d: it samples layer by layer, several times "
                "slower",
                adapter,
                self.config.lora_rank,
            )

    @property
    def grammars(self) -> Grammars:
        """The grammar compiler of this model's vocabulary."""
        if self._grammars is None:
            self._grammars = Grammars(self.tokenizer, self.vocabulary, self.chat.stop_ids)
        return self._grammars

    def end_round(self) -> None:
        """Free compiled grammars and cached memory."""
        if self._grammars is not None:
            self._grammars.forget()
        hardware.release_memory(self.device)

    def hidden(self, ids_1N: Tensor, positions_1N: Tensor, layout: AnyLayout) -> Tensor:
        """Return [N, width] the last hidden states of a flat row; for an `OwnLayout` see `own_hidden`."""
        if self.fused is not None:
            return self.fused.hidden(ids_1N, positions_1N, layout, self.adapter)
        decoder = self.causal.get_decoder()
        if self.own_forward:
            most = self.tokens_per_microbatch
            return own_hidden(decoder, ids_1N, positions_1N, layout, tokens=most)
        with layers_recomputed(decoder) if self._recomputes(ids_1N.shape[1]) else contextlib.nullcontext():
            output = decoder(input_ids=ids_1N, position_ids=positions_1N, use_cache=False, layout=layout)
        return output.last_hidden_state[0]

    def _recomputes(self, tokens: int) -> bool:
        """Return whether a backward pass over so many tokens keeps only the inputs of layers.

        This is for quantized bases, whose layers are those of transformers; `FusedDecoder` decides by itself.
        """
        if self.config.quantize == "none" or self.shared or not torch.is_grad_enabled():
            return False
        kept = sizes_of(self.causal.config).kept * self.dtype.itemsize
        return tokens * kept > hardware.activation_bytes(self.config.activation_gib, self.device)

    @property
    def prefill_tokens(self) -> int:
        """Maximum prompt tokens per prefill: what fits a CPU's caches, or keeps a GPU busy."""
        most = self.tokens_per_microbatch
        if self.device.type == "cpu":
            return min(most, PREFILL_ON_CPU)
        return 4 * self.config.tokens_per_microbatch or hardware.microbatch_tokens(0, self.device)

    @property
    def batch_tokens(self) -> float:
        """Maximum tokens of all rows that are sampled at once, by what their keys and values take."""
        sizes = sizes_of(self.causal.config)
        return hardware.batch_bytes(self.device) / (2 * sizes.layers * sizes.keys * self.dtype.itemsize)

    @property
    def output(self) -> Any:  # noqa: ANN401
        """The output layer (LM head)."""
        return self.causal.get_output_embeddings()

    def scores(self, hidden: Tensor) -> Tensor:
        """Return [M, V] logits, in the model's number format."""
        return self.shaping(self.linear_scores(hidden))

    def linear_scores(self, hidden: Tensor) -> Tensor:
        """Return [M, V] the output layer's results, before the model scales or caps them."""
        return (self.output if self.fused is None else self.fused.head)(hidden)

    def head(self, hidden: Tensor) -> Tensor:
        """Return [M, V] logits in float32."""
        return self.scores(hidden).float()


def check_can_quantize(config: PolicyConfig) -> None:
    """Refuse settings that a base in 4 bits does not allow.

    Raises:
        UsageError: a setting does not go with `policy.quantize`; the message names it.
    """
    if config.quantize == "none":
        return
    if config.tuning == "full":
        raise UsageError(
            f"policy.quantize is {config.quantize!r} and policy.tuning 'full', but weights in 4 bits cannot "
            "be trained; use policy.tuning='lora', or policy.quantize='none'"
        )
    if name := setting_that_reads_weights(config):
        value = "true" if name == "packed_weights" else repr(config.decoder)
        raise UsageError(
            f"policy.{name} is {value}, which reads weights as numbers, and policy.quantize is "
            f"{config.quantize!r}; leave one of them out"
        )


def resolve_settings(policy: PolicyConfig) -> PolicyConfig:
    """Replace `auto` for device, number format, threads and compiled code by this machine's values."""
    device = hardware.choose_device(policy.device)
    if device.type == "cpu":
        hardware.keep_freed_memory()  # before torch starts threads
    full = policy.tuning == "full" and policy.dtype == "auto"
    dtype = torch.float32 if full else hardware.choose_dtype(policy.dtype, device)
    compiled = policy.compiled  # on a GPU it only says whether compiled code is wanted
    if device.type == "cpu":
        compiled = build.wanted(policy.compiled, device) is not None
    return policy.model_copy(
        update={
            "device": device.type,
            "dtype": str(dtype).removeprefix("torch."),
            "compiled": compiled,
            "threads": policy.threads
            or hardware.choose_threads(dtype if device.type == "cpu" else torch.float32),
        }
    )


def settled_config(policy: PolicyConfig, *loaded: LocalModel) -> PolicyConfig:
    """Return the settings with the choices that were made while the policies' models were loaded.

    If two models differ in such a choice, `auto` stays, and chooses the same again. Weights are packed in all
    models or in none, because packing was chosen by a measurement.
    """
    fused = [model.fused for model in loaded if model.fused is not None]
    packed = bool(fused) and all(decoder.packed for decoder in fused)
    for decoder in fused:
        if decoder.packed and not packed:
            decoder.unpack()
    attention = {"own" if model.own_forward else "packed" for model in loaded}
    decoders = {"transformers" if model.fused is None else "fused" for model in loaded}
    return policy.model_copy(
        update={
            "packed_weights": packed,
            "attention": attention.pop() if len(attention) == 1 else policy.attention,
            "decoder": decoders.pop() if len(decoders) == 1 else policy.decoder,
        }
    )
