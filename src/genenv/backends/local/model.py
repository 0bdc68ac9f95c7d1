# pyright: standard
"""One causal language model in memory, on this machine, and the ways to run it.

Some choices change the last digits of what is computed: device, number format, threads, compiled code. A sum
in another order differs in its last digits, a sampled token then differs once in a while, and with it all
that is learned. So they are made once, when a run starts, and recorded (`resolve_settings`,
`settled_config`): two runs with equal settings are equal only when these choices are.

Shapes: N = tokens of the flat row, M = tokens scored, V = vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Any

import torch
import transformers
from torch import Tensor

from genenv.backends.local import hardware, loading
from genenv.backends.local.adapters import add_lora_adapter, unadapted, unadapted_sentence
from genenv.backends.local.attention import AnyLayout
from genenv.backends.local.cpu import build, threads
from genenv.backends.local.cuda.decode import DecodeStep, captured_step
from genenv.backends.local.cuda.learning import TreeDecoder, token_bytes
from genenv.backends.local.fused_decoder import FusedDecoder
from genenv.backends.local.model_forward import fused_decoder, own_hidden, shaping, use_packed_attention
from genenv.backends.local.next_token import Grammars
from genenv.backends.local.processes import check_can_shard, shard_base
from genenv.backends.settings import ALL_LAYERS, PolicyConfig
from genenv.chat.format import ChatFormat
from genenv.errors import UsageError

log = logging.getLogger(__name__)

PREFILL_ON_CPU = 2048
"""Beyond so many tokens activations are slower to read again than the products are to start."""


class LocalModel:
    """One causal language model in memory, and its tokenizer."""

    def __init__(self, source: str, config: PolicyConfig, processes: int = 1) -> None:
        """Load a model and hold it to its own forward pass.

        Args:
            source: a known short name, a folder, or a hub name.
            config: settings of the policies.
            processes: how many share the base, each of which holds a part (`processes.shard_base`).

        Raises:
            UsageError: the model cannot be used here; the sentence says why.
        """
        self.source, self.config = source, config
        if config.threads:
            torch.set_num_threads(config.threads)
        transformers.utils.logging.disable_progress_bar()
        resolved = loading.resolve(source)
        self.device = hardware.choose_device(config.device)
        self.max_batch_rows = hardware.batch_rows(config.max_batch_rows, self.device)
        self.tokens_per_microbatch = hardware.microbatch_tokens(config.tokens_per_microbatch, self.device)
        """Tokens of one forward and backward pass."""
        self.tokens_per_tree = self.tokens_per_microbatch
        """The same where tokens are laid out as a tree, which takes less memory."""
        if self.device.type == "cpu":
            hardware.keep_freed_memory()
            threads.follow_the_machine()
        if config.tuning == "full" and config.dtype == "bfloat16":
            raise UsageError(
                "policy.tuning is 'full' and policy.dtype 'bfloat16': steps of usual size vanish in bfloat16 "
                "weights; use policy.dtype='float32', or policy.tuning='lora'"
            )
        full, self.shared = config.tuning == "full", processes > 1
        if self.shared:
            check_can_shard(config)
        self.dtype = torch.float32 if full else hardware.choose_dtype(config.dtype, self.device)
        self.tokenizer = loading.load_tokenizer(resolved)
        self.chat = ChatFormat(self.tokenizer, config.chat_template_kwargs)
        at_first = torch.device("cpu") if self.shared else self.device
        causal = loading.load_causal_lm(resolved, dtype=self.dtype, device=at_first)
        loading.check_vocabulary(source, self.tokenizer, causal)
        shape = causal.config.get_text_config()
        limit = int(getattr(shape, "max_position_embeddings", None) or config.context_tokens)
        self.context_tokens = min(config.context_tokens, limit)
        self.vocabulary = int(shape.vocab_size)
        self.causal = causal.requires_grad_(requires_grad=False)
        self.other_inputs = tuple(loading.other_inputs(causal))
        """Modules for images and sound: removed, or with full tuning frozen, as a checkpoint is whole."""
        if not full:
            loading.without_other_inputs(causal)
        if self.shared:
            shard_base(causal, self.device, processes)
        self.shaping = shaping(causal.config)
        self.peft: Any = None
        self._grammars: Grammars | None = None
        packed = use_packed_attention(causal, source, self.context_tokens, config.attention)
        self.own_forward = not packed
        """Whether the model runs in its own forward pass: packed attention is not for it."""
        if self.shared and not packed:
            raise UsageError(f"{source} is not trained by several processes: it needs packed attention")
        self.kernels = build.wanted(config.compiled, self.device)
        self.adapter: str | None = None
        """The adapter in use; None for the bare base."""
        self._set_in_peft: str | None = None
        """The adapter that PEFT has in place; None where that is not known."""
        self.fused: FusedDecoder | None = None
        self._decode_step: DecodeStep | None = None
        self._decode_step_tried = False
        self._slow: set[str | None] = set()
        """Adapters for which a warning was logged that they sample layer by layer."""
        self.tree: TreeDecoder | None = None
        """The same layers for learning over a tree of tokens; None where that is not faster."""

    def fuse(self) -> None:
        """Let genenv's own decoder run the layers, where it knows them: the base is to stay as it is.

        Raises:
            UsageError: the settings ask for it, or for packed weights, and it cannot be.
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
            self.tokens_per_tree = hardware.microbatch_tokens(
                config.tokens_per_microbatch, self.device, token_bytes(self.fused, self.dtype)
            )
        if config.packed_weights is True and not (self.fused is not None and self.fused.pack()):
            raise UsageError(
                "policy.packed_weights is true, and the weights cannot be packed here; set it to false"
            )

    def add_adapter(self, name: str, *, seed: int, lora: PolicyConfig | None = None) -> None:
        """Attach a fresh LoRA adapter: the model is unchanged until the adapter learns.

        Args:
            name: of the adapter.
            seed: of its first weights.
            lora: has its rank, scale and layers, where they are not the model's own settings.

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
        """Attach an adapter with the settings of another; its values are yet to come."""
        self.peft.add_adapter(name, self.peft.peft_config[other])
        self._set_in_peft = None

    def use(self, adapter: str | None) -> None:
        """Put an adapter in place; None: whatever is, where there are none."""
        self.adapter = adapter
        if adapter is not None and self._set_in_peft != adapter:  # PEFT goes through all modules
            self.peft.set_adapter(adapter)
            self._set_in_peft = adapter

    def drop_adapter(self, name: str, *, instead: str) -> None:
        """Let go of an adapter and its memory; another one is in use from here on."""
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
        """Sampling as a captured step, with an adapter in place; None where the layers run one by one.

        Args:
            adapter: its name; None for the bare base.
            weights: names its present values.
        """
        if not self._decode_step_tried:
            self._decode_step_tried = True
            wanted = self.device.type == "cuda" and self.config.compiled is not False
            if wanted and self.fused is not None and self.shaping.is_nothing:
                self._decode_step = captured_step(self.causal, self.fused, self.config, self.context_tokens)
                if self.tree is not None:
                    self.tree.forget_all()  # the weights are elsewhere now
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
            self._grammars = Grammars(self.tokenizer, self.vocabulary, self.chat.end_id)
        return self._grammars

    def end_round(self) -> None:
        """Let go of grammars, and of memory that was freed."""
        if self._grammars is not None:
            self._grammars.forget()
        hardware.release_memory(self.device)

    def hidden(self, ids_1N: Tensor, positions_1N: Tensor, layout: AnyLayout) -> Tensor:
        """[N, width] last hidden states of a flat row; see `own_hidden` for an `OwnLayout`."""
        if self.fused is not None:
            return self.fused.hidden(ids_1N, positions_1N, layout, self.adapter)
        decoder = self.causal.get_decoder()
        if self.own_forward:
            most = self.tokens_per_microbatch
            return own_hidden(decoder, ids_1N, positions_1N, layout, tokens=most)
        output = decoder(input_ids=ids_1N, position_ids=positions_1N, use_cache=False, layout=layout)
        return output.last_hidden_state[0]

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that go through the model at a time: what a CPU's caches hold, what a GPU likes."""
        most = self.tokens_per_microbatch
        if self.device.type == "cpu":
            return min(most, PREFILL_ON_CPU)
        return 4 * self.config.tokens_per_microbatch or hardware.microbatch_tokens(0, self.device)

    @property
    def output(self) -> Any:  # noqa: ANN401
        """The output layer."""
        return self.causal.get_output_embeddings()

    def scores(self, hidden: Tensor) -> Tensor:
        """[M, V] scores of all tokens, in the model's number format."""
        return self.shaping(self.linear_scores(hidden))

    def linear_scores(self, hidden: Tensor) -> Tensor:
        """[M, V] what the output layer gives, before the model shapes it."""
        return self.output(hidden) if self.fused is None else self.fused.scores(hidden)

    def head(self, hidden: Tensor) -> Tensor:
        """[M, V] scores in float32."""
        return self.scores(hidden).float()


def resolve_settings(policy: PolicyConfig) -> PolicyConfig:
    """Device, number format, threads and compiled code that suit this machine, where they are automatic."""
    device = hardware.choose_device(policy.device)
    if device.type == "cpu":
        hardware.keep_freed_memory()  # before torch starts threads
    full = policy.tuning == "full" and policy.dtype == "auto"
    dtype = torch.float32 if full else hardware.choose_dtype(policy.dtype, device)
    compiled = policy.compiled  # on a GPU it says only whether compiled code is wanted at all
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
    """The settings with what was decided while the policies' models were loaded.

    Where two models stand on different sides, by their nature, `auto` stays: it decides the same again.
    Weights are packed in both or in none, because that was measured.
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
