# pyright: standard
"""A merged agent as one GGUF file, which llama.cpp and Ollama load.

Shapes: H = heads, D = dimensions of a head.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from genenv.backends.local.export.agent import TrainedAgent
from genenv.backends.local.export.folder import save_tokenizer
from genenv.backends.local.export.gguf_vocabulary import Vocabulary
from genenv.errors import UsageError

_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}
"""By transformers' name for the kind of model."""
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
"""How positions may be rotated."""


def check(agent: TrainedAgent) -> Vocabulary:
    """See whether a GGUF file can say what this agent is; returns its vocabulary.

    Raises:
        UsageError: it cannot; says why.
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
    """Write a merged agent: all that llama.cpp needs, tokenizer and chat template included.

    Args:
        agent: merged.
        vocabulary: what `check` found.
        file: where to.
        name: what the model is called in the file.
        dtype: `float32`, `bfloat16` or `float16`; vectors are float32 in any case.

    Raises:
        UsageError: the model has a weight that GGUF has no name for.
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
    """Every weight by its name in the file, as llama.cpp has it."""
    config = agent.causal.config
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for own, tensor in agent.causal.state_dict().items():
        if own == "lm_head.weight" and config.tie_word_embeddings:
            continue  # llama.cpp takes the embeddings where there is none
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
    """Rows of a projection of queries or keys in the order in which llama.cpp rotates those of `llama`.

    transformers rotates dimension i of a head together with i + D/2, llama.cpp 2i together with 2i + 1. So
    [H * D, ...], each head's halves one after the other, becomes [H * D, ...] with the halves interleaved.
    """
    halves = weight.unflatten(0, (heads, 2, -1))
    return halves.transpose(1, 2).reshape(weight.shape)


def _slower(config: Any) -> Tensor:  # noqa: ANN401
    """[D/2] by how much each rotation is slower than the usual one: llama.cpp divides by it."""
    found, _ = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config, torch.device("cpu"))
    steps = torch.arange(0, 2 * len(found), 2, dtype=torch.int64).float() / (2 * len(found))
    return 1.0 / (config.rope_parameters["rope_theta"] ** steps) / found.float()


def _array(tensor: Tensor) -> np.ndarray:
    """The bytes of a tensor as they are; numpy has no bfloat16."""
    tensor = tensor.detach().contiguous()
    return (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
