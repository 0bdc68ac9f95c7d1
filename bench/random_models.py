"""Models of well-known shapes with random weights: speed and memory do not depend on what the weights say.

    python bench/random_models.py qwen3-0.6b qwen3-4b --tokenizer dist/bundle-gpu/tokenizer --out models

Every model gets the given tokenizer, filled up with made-up words to about as many tokens as the model has
rows. A model that is there already is left alone. Prints each model's folder as a JSON line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import string
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    },
    "qwen3-4b": {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "vocab_size": 152_064,
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "rope_theta": 1e6,
        "tie_word_embeddings": False,
    },
    "smollm2-135m": {
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rope_theta": 1e5,
        "tie_word_embeddings": True,
    },
}
"""Shapes as in the published configurations."""
ROWS_WITHOUT_TOKEN = 256
"""Published models have a few more rows than tokens; so do these."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("shapes", nargs="+", choices=list(SHAPES), metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("--tokenizer", type=Path, required=True, help="a folder with a tokenizer's files")
    parser.add_argument("--out", type=Path, default=Path("models"))
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--layers", type=int, help="fewer or more layers than the shape has")
    options = parser.parse_args(arguments)
    for name in options.shapes:
        folder = options.out / name
        if not (folder / "config.json").exists():
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            shape = SHAPES[name] | ({"num_hidden_layers": options.layers} if options.layers else {})
            write_model(partial, shape, options.tokenizer, options.dtype)
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
        print(json.dumps({"model": str(folder)}))


def write_model(folder: Path, shape: dict[str, Any], tokenizer: Path, dtype: str) -> None:
    """Draw a model's weights, on the GPU where there is one, and save them beside a tokenizer of its size."""
    import torch
    import transformers

    shutil.copytree(tokenizer, folder)
    fill_up(folder / "tokenizer.json", shape["vocab_size"] - ROWS_WITHOUT_TOKEN)
    end = transformers.AutoTokenizer.from_pretrained(folder).eos_token_id
    theta = {"rope_type": "default", "rope_theta": shape["rope_theta"]}
    plain = {key: value for key, value in shape.items() if key not in {"model_type", "rope_theta"}}
    config = transformers.AutoConfig.for_model(
        shape["model_type"], **plain, rope_parameters=theta, eos_token_id=end, bos_token_id=None
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.save_pretrained(folder)


def fill_up(tokenizer: Path, size: int) -> None:
    """Add made-up words to a byte-level BPE tokenizer until it has so many tokens. They are never encoded."""
    content = json.loads(tokenizer.read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = content["model"]["vocab"]
    added = {one["content"]: one["id"] for one in content["added_tokens"]}
    first = max([*vocabulary.values(), *added.values()]) + 1
    words = (word for word in made_up_words() if word not in vocabulary and word not in added)
    vocabulary |= dict(zip(words, range(first, size), strict=False))
    tokenizer.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def made_up_words() -> Iterator[str]:
    """Words of four letters and more, each after a space as byte-level tokenizers write it."""
    for length in itertools.count(4):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            yield "Ġ" + "".join(letters)


if __name__ == "__main__":
    main()
