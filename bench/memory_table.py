"""What models of several sizes take of a GPU, worked out as by `genenv doctor CONFIG`: a table.

python bench/memory_table.py
python bench/memory_table.py --context 4096 --rows 32
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from transformers import Qwen3Config

from genenv.backends.local.memory_estimate import memory_needs, shape_in
from genenv.backends.settings import PolicyConfig

SIZES = {
    "0.6B": (28, 1024, 16, 3072, True),
    "1.7B": (28, 2048, 16, 6144, True),
    "4B": (36, 2560, 32, 9728, True),
    "8B": (36, 4096, 32, 12288, False),
    "14B": (40, 5120, 40, 17408, False),
    "32B": (64, 5120, 64, 25600, False),
}
"""Of Qwen3: layers, width, heads, inner width, whether the output layer is the embeddings."""
_OF_ADAPTERS = ("adapters", "gradients", "moments of AdamW", "what KL terms hold on to")
_GIB = 2**30


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--context", type=int, default=8192, help="tokens of the longest episode")
    parser.add_argument("--rows", type=int, default=64, help="sequences sampled at once")
    parser.add_argument("--microbatch", type=int, default=16_384, help="tokens of a backward pass")
    parser.add_argument("--keep", type=float, default=16.0, help="GiB a backward pass may keep")
    options = parser.parse_args(arguments)
    print("| Qwen3 | base | adapters of two players, r = 16 | a backward pass | keys and values |")
    print("|---|---|---|---|---|")
    for name, (layers, width, heads, inner, tied) in SIZES.items():
        config = Qwen3Config(
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=heads,
            num_key_value_heads=8,
            head_dim=128,
            intermediate_size=inner,
            vocab_size=151_936,
            tie_word_embeddings=tied,
        )
        policy = PolicyConfig(
            max_batch_rows=options.rows,
            context_tokens=options.context,
            tokens_per_microbatch=options.microbatch,
            activation_gib=options.keep,
            packed_weights=False,
            cache_gib=0.0,
        )
        policies = ["agent", "simulator"]
        found = memory_needs(
            shape_in(config, "all-linear"),
            policy,
            policies=policies,
            held=policies,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
        )
        by = {one.name: one.bytes / _GIB for one in found}
        adapters = sum(by[name] for name in _OF_ADAPTERS)
        learning, sampling = by["a backward pass"], by["keys and values of a full batch"]
        print(f"| {name} | {by['base weights']:.1f} | {adapters:.2f} | {learning:.1f} | {sampling:.1f} |")


if __name__ == "__main__":
    main()
