# pyright: standard
"""Attention over a tree of tokens: flex attention in compiled code, or dense where there is none.

Shapes: N = tokens in the flat row, S = blocks of it, H = query heads, K = key/value heads, D = head size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from genenv.backends.local.token_tree import BLOCK, Blocks, TokenTree

KERNEL_OPTIONS: dict[str, Any] = {}
"""Tiles and warps of flex attention's kernels, as torch documents them; empty: what torch chooses. Not
`ROWS_GUARANTEED_SAFE`: the first block that a token looks at may hold nothing it attends to."""


class TreeMask(NamedTuple):
    """Who attends to whom, as flex attention wants it; one for all layers and both passes."""

    end_N: Tensor
    kv_counts: Tensor
    kv_indices: Tensor
    full_kv_counts: Tensor
    full_kv_indices: Tensor
    q_counts: Tensor
    q_indices: Tensor
    full_q_counts: Tensor
    full_q_indices: Tensor

    @staticmethod
    def of(tree: TokenTree) -> TreeMask:
        """That of a tree; nothing waits for the GPU."""
        partly_SS, whole_SS = tree.partly_and_whole()
        parts = [Blocks.of(chosen_SS) for chosen_SS in (partly_SS, whole_SS, partly_SS.T, whole_SS.T)]
        tensors = [tensor for part in parts for tensor in (part.counts_S, part.indices_SS)]
        return TreeMask(tree.end_N, *tensors)


def block_mask(mask: TreeMask) -> BlockMask:
    """What `TreeMask` says, as an object of torch; may be part of compiled code."""
    end_N = mask.end_N

    def attends(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < end_N[key])

    length = BLOCK * mask.kv_indices.shape[-1]
    return BlockMask(
        seq_lengths=(length, length),
        kv_num_blocks=mask.kv_counts,
        kv_indices=mask.kv_indices,
        full_kv_num_blocks=mask.full_kv_counts,
        full_kv_indices=mask.full_kv_indices,
        q_num_blocks=mask.q_counts,
        q_indices=mask.q_indices,
        full_q_num_blocks=mask.full_q_counts,
        full_q_indices=mask.full_q_indices,
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=attends,
    )


def flex(q_SBHD: Tensor, k_SBKD: Tensor, v_SBKD: Tensor, mask: TreeMask, scale: float) -> Tensor:
    """[S, B, H, D]; in blocks of B = `BLOCK` rows, so that the compiler knows they are whole."""
    q, k, v = (each.flatten(0, 1).transpose(0, 1)[None] for each in (q_SBHD, k_SBKD, v_SBKD))
    options: Any = dict(KERNEL_OPTIONS) or None
    mixed = flex_attention(
        q, k, v, block_mask=block_mask(mask), scale=scale, enable_gqa=True, kernel_options=options
    )
    return mixed[0].transpose(0, 1).unflatten(0, (-1, BLOCK))  # type: ignore[union-attr] - no auxiliaries


def dense(q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, tree: TokenTree, scale: float) -> Tensor:
    """[N, H, D]: the same in plain torch, which looks at all pairs of tokens."""
    repeats = q_NHD.shape[1] // k_NKD.shape[1]
    k_NHD, v_NHD = (each.repeat_interleave(repeats, 1) for each in (k_NKD, v_NKD))
    q, k, v = (each.transpose(0, 1)[None] for each in (q_NHD, k_NHD, v_NHD))
    mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=tree.attends_NN(), scale=scale)
    return mixed[0].transpose(0, 1)
