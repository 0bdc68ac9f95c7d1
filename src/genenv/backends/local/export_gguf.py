# pyright: standard
"""Write a merged agent, weights and tokenizer, to one GGUF file, which llama.cpp and Ollama load.

A GGUF tokenizer consists of tokens with their types, merges, and the name of a pre-tokenization rule.
llama.cpp implements these rules in code, so only tokenizers with a known rule can be written. The rule is
read from the tokenizer itself. The model's name does not determine it, because the agent may have been
trained with another tokenizer than the original one.

Shapes: H = heads, D = dimensions of a head.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from genenv.backends.local.export_merged import TrainedAgent, save_tokenizer
from genenv.errors import UsageError

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = rf"{_WORDS}|\p{{N}}|{_REST}"
_LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_RULES: Mapping[tuple[tuple[str, ...], bool], str] = {
    (("bytes by words",), False): "gpt-2",
    (("digits", "bytes by words"), False): "smollm",
    ((_QWEN2, "bytes"), False): "qwen2",
    ((_LLAMA3, "bytes"), True): "llama-bpe",
    ((_LLAMA3, "bytes"), False): "smaug-bpe",
}
"""llama.cpp's name of a rule, by the steps that split a text, and whether whole words skip the merges."""


class Vocabulary:
    """A byte-level BPE tokenizer that can be written to GGUF."""

    def __init__(self, tokenizer: Any, base: str, rows: int) -> None:  # noqa: ANN401
        """Read a tokenizer.

        Args:
            tokenizer: of transformers.
            base: name of the base model, for the message.
            rows: size of the model's embedding.

        Raises:
            UsageError: llama.cpp does not support the tokenizer.
        """
        self._tokenizer, self._rows = tokenizer, rows
        backend = getattr(tokenizer, "backend_tokenizer", None)
        made = json.loads(backend.to_str()) if backend is not None else {"model": {}}
        self._merges: Sequence[Any] = made["model"].get("merges", ())
        why, rule = _oddity(made), ""
        if not why and not self._merges:
            why = "it has no merges"
        if not why:
            rule = _RULES.get((_cuts(made), bool(made["model"].get("ignore_merges"))), "")
            why = "" if rule else "it cuts texts by a rule of its own"
        if why:
            raise UsageError(
                f"the tokenizer of {base} cannot be written to GGUF: {why}; "
                "leave --format out for a folder of safetensors"
            )
        self.rule = rule

    @property
    def begin(self) -> str:
        """The token that the tokenizer adds at the beginning of every text; empty if there is none."""
        return str(self._tokenizer.bos_token) if self._adds(0, "bos") else ""

    def add_to(self, writer: gguf.GGUFWriter, saved: Path, end_id: int) -> None:
        """Write the tokenizer to a GGUF file.

        Args:
            writer: of the file.
            saved: a folder in which the tokenizer was saved.
            end_id: the token that ends a turn.
        """
        tokens, types = self._tokens()
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.rule)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        logging.getLogger("gguf.vocab").setLevel(logging.ERROR)  # tokens without a row are fine
        special = gguf.SpecialVocab(saved, load_merges=True, n_vocab=self._rows)
        special.special_token_ids |= {"eot": end_id}
        special.add_special_token = {"bos": self._adds(0, "bos"), "eos": self._adds(-1, "eos")}
        special.add_to_gguf(writer, quiet=True)

    def _tokens(self) -> tuple[list[str], list[gguf.TokenType]]:
        """Return all tokens in the order of the embedding's rows, with their types."""
        named = {number: token for token, number in self._tokenizer.get_vocab().items()}
        added = self._tokenizer.added_tokens_decoder
        special = set(self._tokenizer.all_special_ids)
        tokens = [named.get(number, f"[PAD{number}]") for number in range(self._rows)]
        types = [gguf.TokenType.NORMAL] * self._rows
        for number in range(self._rows):
            if number not in named:
                types[number] = gguf.TokenType.UNUSED
            elif number in special or (number in added and added[number].special):
                types[number] = gguf.TokenType.CONTROL
            elif number in added:
                types[number] = gguf.TokenType.USER_DEFINED
        return tokens, types

    def _adds(self, place: int, kind: str) -> bool:
        """Return whether the tokenizer adds a token of this kind at this place of every text."""
        number = getattr(self._tokenizer, f"{kind}_token_id")
        ids = self._tokenizer.encode("a")
        return number is not None and bool(ids) and ids[place] == number


def _oddity(made: Mapping[str, Any]) -> str:
    """Return the first property of a tokenizer that GGUF cannot express; "" if there is none."""
    model = made["model"]
    if model.get("type") != "BPE":
        return f"it is no byte-level BPE, but {model.get('type') or 'of a kind of its own'}"
    if model.get("byte_fallback"):
        return "it has bytes for what it does not know alone, as SentencePiece"
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return "it marks the pieces of words"
    if (made["normalizer"] or {}).get("type", "NFC") != "NFC":
        return f"it changes texts beforehand ({made['normalizer']['type']})"
    return ""


def _cuts(made: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the steps by which a tokenizer splits texts before the merges, known steps in words."""
    step = made["pre_tokenizer"] or {}
    steps = step["pretokenizers"] if step.get("type") == "Sequence" else [step]
    return tuple(map(_cut, steps))


def _cut(step: Mapping[str, Any]) -> str:
    kind = step.get("type")
    if kind == "ByteLevel" and not step["add_prefix_space"]:
        return "bytes by words" if step["use_regex"] else "bytes"
    if kind == "Digits" and step["individual_digits"]:
        return "digits"
    if kind == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
        return str(step["pattern"].get("Regex", ""))
    return str(kind)


_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}
"""GGUF architectures by transformers' `model_type`."""
_FILES = {
    "float32": gguf.LlamaFileType.ALL_F32,
    "float16": gguf.LlamaFileType.MOSTLY_F16,
    "bfloat16": gguf.LlamaFileType.MOSTLY_BF16,
}
_TENSORS = {
    torch.float32: gguf.GGMLQuantizationType.F32,
    torch.float16: gguf.GGMLQuantizationType.F16,
    torch.bfloat16: gguf.GGMLQuantizationType.BF16,
}
_ROPES = ("default", "linear", "llama3")
"""Supported kinds of rotary positions."""


def check(agent: TrainedAgent) -> Vocabulary:
    """Check that GGUF can express this agent; return its vocabulary.

    Raises:
        UsageError: GGUF cannot express the agent; the message says why.
    """
    config = agent.causal.config
    kind, why = config.model_type, ""
    rope = config.rope_parameters.get("rope_type", "default") if kind in _ARCHITECTURES else ""
    if kind not in _ARCHITECTURES:
        why = f"{agent.base} is a {kind} model, and GGUF is written for {', '.join(_ARCHITECTURES)}"
    elif rope not in _ROPES or (rope == "llama3" and kind != "llama"):
        why = f"{agent.base} rotates positions by {rope!r}, which is not written to GGUF"
    elif config.hidden_act != "silu":
        why = f"{agent.base} has {config.hidden_act!r} in its layers, which is not written to GGUF"
    elif any(layer != "full_attention" for layer in getattr(config, "layer_types", None) or ()):
        why = f"{agent.base} has layers of windowed attention, which are not written to GGUF"
    if why:
        raise UsageError(f"{why}; leave --format out for a folder of safetensors")
    return Vocabulary(agent.tokenizer, agent.base, agent.causal.get_input_embeddings().weight.shape[0])


def save_gguf(agent: TrainedAgent, vocabulary: Vocabulary, file: Path, *, name: str, dtype: str) -> None:
    """Write a merged agent to a file with all that llama.cpp needs, chat template included.

    Args:
        agent: the merged agent.
        vocabulary: the result of `check`.
        file: path of the file.
        name: name of the model in the file.
        dtype: `float32`, `bfloat16` or `float16`; vectors are always float32.

    Raises:
        UsageError: GGUF has no name for a weight of the model.
    """
    config = agent.causal.config
    architecture = _ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_file_type(_FILES[dtype])
    _add_shape(writer, config)
    with tempfile.TemporaryDirectory() as scratch:
        save_tokenizer(agent, Path(scratch))
        vocabulary.add_to(writer, Path(scratch), agent.chat.end_id)
    tensors = list(_named(agent, architecture))
    for label, tensor in tensors:
        array, kind = _array(tensor), _TENSORS[tensor.dtype]
        writer.add_tensor_info(label, array.shape, array.dtype, array.nbytes, raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for _, tensor in tensors:
            writer.write_tensor_data(_array(tensor))
    finally:
        writer.close()


def _add_shape(writer: gguf.GGUFWriter, config: Any) -> None:  # noqa: ANN401
    heads, rope = config.num_attention_heads, config.rope_parameters
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


def _named(agent: TrainedAgent, architecture: gguf.MODEL_ARCH) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight with llama.cpp's name for it."""
    config = agent.causal.config
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for own, tensor in agent.causal.state_dict().items():
        if own == "lm_head.weight" and config.tie_word_embeddings:
            continue  # llama.cpp uses the embeddings instead
        name = names.get_name(own, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise UsageError(
                f"{agent.base} has a weight {own}, for which GGUF has no name; leave --format out for a "
                "folder of safetensors"
            )
        if architecture is gguf.MODEL_ARCH.LLAMA and ".self_attn." in own:
            part = own.split(".self_attn.")[1]
            if part.startswith(("q_proj", "k_proj")):
                q = part.startswith("q_proj")
                tensor = paired(tensor, config.num_attention_heads if q else config.num_key_value_heads)
        yield name, tensor if tensor.dim() > 1 else tensor.float()
    if config.rope_parameters.get("rope_type") == "llama3":
        yield f"{gguf.TENSOR_NAMES[gguf.MODEL_TENSOR.ROPE_FREQS]}.weight", _slower(config)


def paired(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a query or key projection for llama.cpp's rotation in `llama` models.

    transformers rotates dimension i of a head together with i + D/2, llama.cpp 2i together with 2i + 1. So [H
    * D, ...], each head's halves one after the other, becomes [H * D, ...] with the halves interleaved.
    """
    halves = weight.unflatten(0, (heads, 2, -1))
    return halves.transpose(1, 2).reshape(weight.shape)


def _slower(config: Any) -> Tensor:  # noqa: ANN401
    """Return [D/2] the factors by which rotations are slower than by default; llama.cpp divides by them."""
    found, _ = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config, torch.device("cpu"))
    steps = torch.arange(0, 2 * len(found), 2, dtype=torch.int64).float() / (2 * len(found))
    return 1.0 / (config.rope_parameters["rope_theta"] ** steps) / found.float()


def _array(tensor: Tensor) -> np.ndarray:
    """Return a tensor as a numpy array of the same bytes; bfloat16, which numpy lacks, becomes uint16."""
    tensor = tensor.detach().contiguous()
    return (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
