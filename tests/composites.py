"""Small random models that also take images, saved as their makers would: `...ForConditionalGeneration`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,  # wide enough for attention to matter
    "bos_token_id": None,
    "pad_token_id": None,
}
_QWEN_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_LINEAR_ATTENTION = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
COMPOSITES: dict[str, dict[str, Any]] = {
    "qwen3_5": {
        "text_config": {"num_hidden_layers": 4, **_LINEAR_ATTENTION},
        "vision_config": _QWEN_VISION,
    },
    "qwen3_vl": {
        "vision_config": _QWEN_VISION | {"deepstack_visual_indexes": [0]},
    },
    "gemma3": {
        "text_config": {"query_pre_attn_scalar": 16},
        "vision_config": _VISION,
        "mm_tokens_per_image": 4,
    },
    "gemma4": {
        "text_config": {
            "global_head_dim": 16,
            "pad_token_id": 0,
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 0,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "vision_config": _VISION | {"num_key_value_heads": 2, "head_dim": 16},
        "audio_config": None,
    },
    "mistral3": {
        "text_config": {"model_type": "mistral", "sliding_window": None},
        "vision_config": _VISION | {"model_type": "pixtral", "head_dim": 16},
    },
}
"""What is special about each family, by the type that transformers has for it."""


def composite(tiny: Any, kind: str) -> Path:
    """The folder of such a model with the tokenizer of the other tiny models; made once.

    Its vocabulary is too small for the tokens that stand for images, so none is sampled.
    """
    return tiny.shared(f"composite-{kind}", lambda to: _save(tiny, kind, to))


def _save(tiny: Any, kind: str, folder: Path) -> None:
    tokenizer, special = tiny.tokenizer(), COMPOSITES[kind]
    text = _TEXT | {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    if kind == "gemma4":
        text["vocab_size_per_layer_input"] = len(tokenizer)
    config = transformers.AutoConfig.for_model(
        kind, **(special | {"text_config": text | special.get("text_config", {})})
    )
    torch.manual_seed(1)
    transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"size": 28}\n', encoding="utf-8")


def original(folder: Path) -> Any:
    """A folder's model by its own class of transformers, in float32."""
    config: Any = transformers.AutoConfig.from_pretrained(folder)
    made: Any = getattr(transformers, config.architectures[0])
    loaded, found = made.from_pretrained(folder, dtype="float32", output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    return loaded.eval()
