# pyright: standard
"""The decoder that a policy learns with on a GPU: compiled layers over a tree of tokens.

The same weights and the same mathematics as `FusedDecoder`, whose joint projections it reads. The first
update compiles the layers, which takes a minute or so on a new machine, and holds the result to the other
decoder's; where that fails, a sentence says why and learning goes on there.

Shapes: N = tokens in the flat row, M = tokens of completions, W = width.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from genenv.backends.local import hardware
from genenv.backends.local.cuda.compiling import any_length
from genenv.backends.local.cuda.layer_math import After, Before, Linear, Place, norm
from genenv.backends.local.cuda.tree_attention import TreeMask
from genenv.backends.local.cuda.tree_layers import Row, TreeLayer
from genenv.backends.local.fused_decoder import FusedDecoder, Parts
from genenv.backends.local.fused_projections import Projection
from genenv.backends.local.layouts import Layout
from genenv.backends.local.packing import Bundle, Packed
from genenv.backends.local.token_tree import TokenTree
from genenv.errors import first_line

log = logging.getLogger(__name__)

_ERRORS = (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError, ImportError, OSError)
"""What torch raises where layers cannot be compiled: no compiler for Triton, a card that is too old."""
_SHARE_OF_FREE = 0.75
"""Of the free memory, for what a backward pass keeps; the rest is for what it works with."""
_CLOSE_ENOUGH = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""How far states and gradients may be from the other decoder's, relative."""


class TreeDecoder:
    """Runs the layers of a fused decoder for learning.

    Args:
        decoder: has the weights.
        activation_bytes: beyond so much a backward pass keeps the layers' inputs alone and computes the rest
            again; 0: three quarters of the memory that is free.
        compile: whether layers are compiled, and attention is flex attention. Without, all of it is plain
            torch on any device, for tests.
    """

    def __init__(self, decoder: FusedDecoder, activation_bytes: float = 0.0, *, compile: bool = True) -> None:
        self._decoder, self._activation_bytes, self.compile = decoder, activation_bytes, compile
        self._layers: dict[str | None, list[TreeLayer]] = {}
        self._works: dict[bool, bool] = {}

    def works(self, adapter: str | None, *, learning: bool = True) -> bool:
        """Whether compiled layers say what the decoder's own say; tried once, with one adapter.

        Args:
            adapter: which.
            learning: whether their derivatives are wanted too.
        """
        if learning not in self._works:
            self._works[learning] = not self.compile or self._tried(adapter, learning=learning)
        return self._works[learning]

    def hidden(
        self,
        tree: TokenTree,
        adapter: str | None,
        *,
        at: Tensor | None = None,
        keep: Callable[[int, Tensor, Tensor], None] | None = None,
    ) -> Tensor:
        """[M, W] last hidden states.

        Args:
            tree: the tokens.
            adapter: which is used; None for none.
            at: [M] of which tokens; None: those that predict the tree's completion tokens.
            keep: takes each layer's index, keys and values, [N, K, D] each.
        """
        layers = self._of(adapter)
        x_NW: Tensor = self._decoder.embedded(tree.ids_N)
        cos, sin = self._decoder.angles(x_NW, tree.positions_N[None])
        mask = TreeMask.of(tree) if self.compile else None
        if mask is not None:
            any_length(mask.end_N)
            for tensor in mask[1:]:
                any_length(tensor, *range(2, tensor.ndim))
        row = Row(tree, mask, cos, sin)
        recompute = (
            torch.is_grad_enabled()
            and adapter is not None
            and self._kept_bytes(x_NW) > self._room(x_NW.device)
        )
        for index, layer in enumerate(layers):
            own = None if keep is None else functools.partial(keep, index)
            x_NW = checkpoint(layer, x_NW, row, use_reentrant=False) if recompute else layer(x_NW, row, own)
        last = self._decoder.last_norm
        return norm(x_NW.index_select(0, tree.at_M if at is None else at), last.weight, last.variance_epsilon)

    def forget(self, adapter: str) -> None:
        """Let go of the matrices of an adapter that is no longer attached."""
        self._layers.pop(adapter, None)

    def forget_all(self) -> None:
        """Look for all weights again."""
        self._layers.clear()

    def _of(self, adapter: str | None) -> list[TreeLayer]:
        if adapter not in self._layers:
            self._layers[adapter] = [
                _layer(parts, adapter, compile=self.compile) for parts in self._decoder.layers
            ]
        return self._layers[adapter]

    def _kept_bytes(self, x_NW: Tensor) -> float:
        values = sum(_kept_values(parts) for parts in self._decoder.layers)
        return len(x_NW) * values * x_NW.element_size()

    def _room(self, device: torch.device) -> float:
        return self._activation_bytes or _SHARE_OF_FREE * hardware.usable_bytes(device)

    def _tried(self, adapter: str | None, *, learning: bool) -> bool:
        log.info("compiling layers: up to a minute, once on a machine")
        try:
            with torch.set_grad_enabled(learning):
                off = self._off(adapter)
        except _ERRORS as error:
            why = first_line(error)
        else:
            dtype = self._decoder.last_norm.weight.dtype
            if off < _CLOSE_ENOUGH[dtype]:
                return True
            why = f"their results and those of the usual layers differ by {off:.3g}"
        log.warning("learning runs without compiled layers, which is slower: %s", why)
        return False

    def _off(self, adapter: str | None) -> float:
        """How far states and gradients of a small tree are from those of the decoder, relative."""
        device, vocabulary = self._decoder.last_norm.weight.device, self._decoder.vocabulary
        bundles = _small_tree(vocabulary)
        tree, packed = TokenTree(bundles, device), Packed(bundles, device)
        ours_MW = self.hidden(tree, adapter)
        theirs_NW = self._decoder.hidden(packed.ids_1N, packed.positions_1N, Layout(packed=packed), adapter)
        theirs_MW = theirs_NW.index_select(0, packed.targets()[0])
        matrices = [m for layer in self._of(adapter) for m in layer.matrices if m.requires_grad]
        if not matrices or not torch.is_grad_enabled():
            return _relative([ours_MW], [theirs_MW])
        weights_MW = torch.linspace(-1, 1, ours_MW.numel(), device=device).view_as(ours_MW)
        found, expected = (
            torch.autograd.grad((states * weights_MW).sum(), matrices) for states in (ours_MW, theirs_MW)
        )
        return max(_relative([ours_MW], [theirs_MW]), _relative(found, expected))


def _small_tree(vocabulary: int) -> list[Bundle]:
    """Prompts that share a beginning, and completions over more than one block of tokens."""

    def ids(length: int, step: int) -> list[int]:
        return [(step * i + 3) % vocabulary for i in range(length)]

    return [
        Bundle(prompt_ids=ids(150, 7), completions=[ids(65, 5), ids(21, 11)]),
        Bundle(prompt_ids=[*ids(90, 7), 1], completions=[ids(38, 13)]),
    ]


def _relative(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The norm of all differences, by that of all that is expected."""
    apart = sum(
        (a.detach().double() - b.detach().double()).square().sum()
        for a, b in zip(found, expected, strict=True)
    )
    whole = sum(b.detach().double().square().sum() for b in expected)
    return float((apart / whole).sqrt()) if whole else float(apart)


def _kept_values(parts: Parts) -> int:
    """About how many numbers a token leaves in a layer for the backward pass."""
    queries, keys, values = parts.qkv.widths
    normed = 0 if parts.head_norms[0] is None else queries + keys
    return 2 * parts.down.outputs + normed + 2 * queries + keys + values + parts.up.outputs


def _layer(parts: Parts, adapter: str | None, *, compile: bool) -> TreeLayer:
    """The layer of a fused decoder as arguments of functions."""
    q_norm, k_norm = parts.head_norms
    before = Before(
        norm_W=parts.before.weight.detach(),
        eps=float(parts.before.variance_epsilon),
        qkv=_linear(parts.qkv, adapter),
        q_norm_D=None if q_norm is None else q_norm.weight.detach(),
        k_norm_D=None if k_norm is None else k_norm.weight.detach(),
        head_eps=0.0 if q_norm is None else float(q_norm.variance_epsilon),
        size=parts.head_size,
        widths=tuple(parts.qkv.widths),
    )
    after = After(
        norm_W=parts.between.weight.detach(),
        eps=float(parts.between.variance_epsilon),
        out=_linear(parts.out, adapter),
        up=_linear(parts.up, adapter),
        down=_linear(parts.down, adapter),
    )
    return TreeLayer(before, after, parts.scaling, compile=compile)


def _linear(projection: Projection, adapter: str | None) -> Linear:
    product, low_rank = projection.product, list(projection.low_rank(adapter))
    return Linear(
        weight_OI=product.weight.detach(),
        bias_O=None if product.bias is None else product.bias.detach(),
        downs=tuple(down for down, _, _, _ in low_rank),
        ups=tuple(up for _, up, _, _ in low_rank),
        places=tuple(Place(columns.start, columns.stop, scale) for _, _, scale, columns in low_rank),
    )
