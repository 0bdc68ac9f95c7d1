# pyright: standard
"""The decoder that a policy learns with on a GPU: compiled layers over a tree of tokens.

The same weights and the same mathematics as `FusedDecoder`, whose joint projections it reads. The first
update compiles the layers, which takes a minute or so on a new machine, and holds the result to the other
decoder's; where that fails, a sentence says why and learning goes on there.

Shapes: N = tokens in the flat row, M = tokens of completions, W = width.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Hashable, Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from genenv.backends.local import hardware
from genenv.backends.local.attention import Layout
from genenv.backends.local.cuda.scores import compiled_scores
from genenv.backends.local.cuda.tree_layers import (
    Adapters,
    After,
    Before,
    Linear,
    Row,
    TreeLayer,
    TreeMask,
    any_length,
    norm,
)
from genenv.backends.local.fused_decoder import FusedDecoder, Parts, Projection
from genenv.backends.local.packing import Bundle, Packed, TokenTree
from genenv.backends.local.token_logprobs import frozen_scores
from genenv.errors import first_line
from genenv.progress import advance

log = logging.getLogger(__name__)

_SHARE_OF_FREE = 0.75
"""Of the free memory, for what a backward pass keeps; the rest is for what it works with."""
_PRODUCTS = 4
"""Of a layer: queries with keys and values, what attention gives, gate with up, down."""
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
        self._layers: list[TreeLayer] = []
        self._adapters: dict[str | None, Adapters] = {}
        self._seen: set[Hashable] = set()
        """Passes that were made: with which adapter, whether it learned, whether layers ran twice."""
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
        adapters = self._adapters_of(adapter)
        x_NW: Tensor = self._decoder.embedded(tree.ids_N)
        cos, sin = self._decoder.angles(x_NW, tree.positions_N[None])
        learns = torch.is_grad_enabled() and adapter is not None
        recompute = learns and self._kept_bytes(x_NW) > self._room(x_NW.device)
        kind = (adapter, learns, recompute)
        row = Row(tree, TreeMask.of(tree) if self.compile else None, cos, sin, kind, self._seen)
        if row.mask is not None and row.is_new:
            any_length(row.mask.end_N)
            for tensor in row.mask[1:]:
                any_length(tensor, *range(2, tensor.ndim))
        laid = adapters.laid_out()
        for place, layer in enumerate(self._of_decoder()):
            arguments = (x_NW, row, laid[_PRODUCTS * place : _PRODUCTS * (place + 1)])
            own = None if keep is None else functools.partial(keep, place)
            x_NW = checkpoint(layer, *arguments, use_reentrant=False) if recompute else layer(*arguments, own)
        if not learns:
            self._seen.add(kind)
        last = self._decoder.last_norm
        return norm(x_NW.index_select(0, tree.at_M if at is None else at), last.weight, last.variance_epsilon)

    def forget(self, adapter: str) -> None:
        """Let go of the matrices of an adapter that is no longer attached."""
        self._adapters.pop(adapter, None)
        self._seen.clear()

    def forget_all(self) -> None:
        """Look for all weights again."""
        self._layers.clear()
        self._adapters.clear()
        self._seen.clear()

    def _adapters_of(self, adapter: str | None) -> Adapters:
        if adapter not in self._adapters:
            self._adapters[adapter] = Adapters(self._projections(), adapter)
        return self._adapters[adapter]

    def _projections(self) -> list[Projection]:
        """The products of all layers, `_PRODUCTS` each."""
        return [
            product
            for parts in self._decoder.layers
            for product in (parts.qkv, parts.out, parts.up, parts.down)
        ]

    def _of_decoder(self) -> list[TreeLayer]:
        if not self._layers:
            self._layers = [_layer(parts, compile=self.compile) for parts in self._decoder.layers]
        return self._layers

    def _kept_bytes(self, x_NW: Tensor) -> float:
        return len(x_NW) * token_bytes(self._decoder, x_NW.dtype)

    def _room(self, device: torch.device) -> float:
        return self._activation_bytes or _SHARE_OF_FREE * hardware.usable_bytes(device)

    def _tried(self, adapter: str | None, *, learning: bool) -> bool:
        log.info("compiling layers: up to a minute, once on a machine")
        advance(note="compiling, once on a machine")
        begin = time.perf_counter()
        try:
            with torch.set_grad_enabled(learning), _learning(self._adapters_of(adapter).matrices, learning):
                off = self._off(adapter)
        except Exception as error:  # noqa: BLE001 - Triton's own errors have no common class below this one
            why = first_line(error) or type(error).__name__
        else:
            dtype = self._decoder.last_norm.weight.dtype
            if off < _CLOSE_ENOUGH[dtype]:
                log.info("compiled layers in %.0f s", time.perf_counter() - begin)
                advance(note=f"compiled in {time.perf_counter() - begin:.0f} s")
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
        matrices = self._adapters_of(adapter).matrices
        apart = _relative([ours_MW], [theirs_MW])
        if not torch.is_grad_enabled():
            return apart
        apart = max(apart, self._scores_off(theirs_MW, tree.tokens_M))
        if not matrices:
            return apart
        weights_MW = torch.linspace(-1, 1, ours_MW.numel(), device=device).view_as(ours_MW)
        found, expected = (
            torch.autograd.grad((states * weights_MW).sum(), matrices) for states in (ours_MW, theirs_MW)
        )
        return max(apart, _relative(found, expected))

    def _scores_off(self, states_MW: Tensor, tokens_M: Tensor) -> float:
        """How far log-probabilities in compiled code, and their derivatives, are from the usual ones."""
        results: list[list[Tensor]] = []
        for scores in (functools.partial(compiled_scores, compile=self.compile), frozen_scores):
            own_MW = states_MW.detach().requires_grad_()
            logprobs_M = scores(self._decoder.head, own_MW, tokens_M).logprobs_M
            results.append([logprobs_M, *torch.autograd.grad(logprobs_M.sum(), own_MW)])
        return _relative(*results)


@contextlib.contextmanager
def _learning(matrices: Sequence[Tensor], learn: bool) -> Iterator[None]:
    """Whether matrices have gradients, for the time being: those of a policy not in place have none."""
    before = [matrix.requires_grad for matrix in matrices]
    try:
        for matrix in matrices:
            matrix.requires_grad_(learn)
        yield
    finally:
        for matrix, own in zip(matrices, before, strict=True):
            matrix.requires_grad_(own)


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


def kept_values(width: int, queries: int, keys: int, inner: int) -> int:
    """About how many numbers a token leaves in a layer for the backward pass.

    Args:
        width: of the layer.
        queries: of all heads of queries together.
        keys: of all heads of keys together, and so of values.
        inner: of what is between the two products behind attention.
    """
    return 2 * width + 3 * (queries + keys) + 2 * inner


def token_bytes(decoder: FusedDecoder, dtype: torch.dtype) -> float:
    """About how much a token leaves in all layers for the backward pass."""
    values = 0
    for parts in decoder.layers:
        queries, keys, _ = parts.qkv.widths
        values += kept_values(parts.down.outputs, queries, keys, parts.up.outputs // 2)
    return float(values * dtype.itemsize)


def _layer(parts: Parts, *, compile: bool) -> TreeLayer:
    """The layer of a fused decoder as arguments of functions."""
    q_norm, k_norm = parts.head_norms
    before = Before(
        norm_W=parts.before.weight.detach(),
        eps=float(parts.before.variance_epsilon),
        qkv=_linear(parts.qkv),
        q_norm_D=None if q_norm is None else q_norm.weight.detach(),
        k_norm_D=None if k_norm is None else k_norm.weight.detach(),
        head_eps=0.0 if q_norm is None else float(q_norm.variance_epsilon),
        size=parts.head_size,
        widths=tuple(parts.qkv.widths),
    )
    after = After(
        norm_W=parts.between.weight.detach(),
        eps=float(parts.between.variance_epsilon),
        out=_linear(parts.out),
        up=_linear(parts.up),
        down=_linear(parts.down),
    )
    return TreeLayer(before, after, parts.scaling, compile=compile)


def _linear(projection: Projection) -> Linear:
    product = projection.product
    return Linear(product.weight.detach(), None if product.bias is None else product.bias.detach())
