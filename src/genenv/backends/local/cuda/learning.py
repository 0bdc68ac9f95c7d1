# pyright: standard
"""The decoder for training on a GPU: compiled layers over a tree of tokens, and compiled log-probabilities.

It uses the joint projections of a `FusedDecoder`, and computes the same. The first update compiles the
layers, which takes about a minute on a new machine, and compares the results with those of the
`FusedDecoder`. If that fails, a warning is logged, and training uses the `FusedDecoder`.

`compiled_scores` returns log-probabilities, KL and entropy like `token_logprobs`, in compiled code. Logits of
`ROWS` states at a time are read twice: for the normalizer, and for the derivative. The derivative is stored
in the logits' number format, and multiplied by the output layer to give the derivative by the states.

Shapes: N = tokens in the flat row, M = tokens of completions (rows scored), R = rows of a piece, W = width,
V = vocabulary.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from genenv.backends.local import hardware
from genenv.backends.local.attention import Layout
from genenv.backends.local.cuda.tree_layers import (
    Adapters,
    After,
    Before,
    Linear,
    Row,
    TreeLayer,
    TreeMask,
    any_length,
    as_it_is,
    compiled,
    norm,
)
from genenv.backends.local.fused_decoder import FusedDecoder, Layer, Projection
from genenv.backends.local.next_token import is_forbidden
from genenv.backends.local.packing import Bundle, Packed, TokenTree
from genenv.backends.local.token_logprobs import Scores, along, frozen_scores
from genenv.errors import first_line
from genenv.progress import advance

log = logging.getLogger(__name__)

ROWS = 2048
"""Rows scored at a time: 1.2 GiB of logits and derivatives for a vocabulary of 150,000 in bfloat16."""
_FEWEST = 2
"""The compiler would treat fewer rows as a special case."""


def compiled_scores(  # noqa: PLR0913 - as `frozen_scores`
    head: Any,  # noqa: ANN401
    hidden_MW: Tensor,
    tokens_M: Tensor,
    reference_MW: Tensor | None = None,
    *,
    temperature: float = 1.0,
    allowed: Tensor | None = None,
    entropy: bool = False,
    compile: bool = True,
) -> Scores:
    """See `frozen_scores`; `compile=False` runs in plain torch, for tests."""
    found = _Scored.apply(
        hidden_MW,
        head.weight.detach(),
        None if head.bias is None else head.bias.detach(),
        tokens_M,
        temperature or 1.0,
        allowed,
        reference_MW,
        entropy,
        compiled if compile else as_it_is,
    )
    return Scores(*found)  # type: ignore[misc]


def totals(
    scores_RV: Tensor, tokens_R: Tensor, allowed: Tensor | None, cooler: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of tokens, and [R, 1] the log-normalizer: log sum exp of the scaled logits.

    Args:
        scores_RV: logits of the whole vocabulary.
        tokens_R: tokens to score.
        allowed: bit masks of the tokens that could be sampled; None: all.
        cooler: 1 / temperature, as a tensor with one number.
    """
    cooled_RV = _cooled(scores_RV, allowed, cooler)
    most_R1 = cooled_RV.amax(-1, keepdim=True)  # with the sum in one pass, where it is compiled
    total_R1 = (cooled_RV - most_R1).exp().sum(-1, keepdim=True).log() + most_R1
    return (cooled_RV.gather(1, tokens_R[:, None]) - total_R1)[:, 0], total_R1


def slope(
    scores_RV: Tensor, total_R1: Tensor, tokens_R: Tensor, allowed: Tensor | None, cooler: Tensor
) -> Tensor:
    """Return [R, V] the derivatives of the log-probabilities by the logits, in the logits' number format.

    This is a separate function so that the compiler does not store the log-probabilities of all tokens.
    """
    share_RV = (_cooled(scores_RV, allowed, cooler) - total_R1).exp()
    places_V = torch.arange(scores_RV.shape[1], device=scores_RV.device)
    return (((places_V == tokens_R[:, None]).float() - share_RV) * cooler).to(scores_RV.dtype)


def divergence(
    scores_RV: Tensor,
    total_R1: Tensor,
    reference_RV: Tensor,
    reference_total_R1: Tensor,
    allowed: Tensor | None,
    cooler: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the KL to the reference, and its derivatives by the policy's logits."""
    own_RV = _cooled(scores_RV, allowed, cooler) - total_R1
    apart_RV = own_RV - (_cooled(reference_RV, allowed, cooler) - reference_total_R1)
    apart_RV = _zero_where_forbidden(apart_RV, allowed)
    share_RV = own_RV.exp()
    kl_R1 = (share_RV * apart_RV).sum(-1, keepdim=True)
    return kl_R1[:, 0], ((apart_RV - kl_R1) * share_RV * cooler).to(scores_RV.dtype)


def uncertainty(
    scores_RV: Tensor, total_R1: Tensor, allowed: Tensor | None, cooler: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the entropy, and its derivatives by the logits."""
    own_RV = _cooled(scores_RV, allowed, cooler) - total_R1
    share_RV, terms_RV = own_RV.exp(), _zero_where_forbidden(own_RV, allowed)
    entropy_R1 = -(share_RV * terms_RV).sum(-1, keepdim=True)
    return entropy_R1[:, 0], (-(terms_RV + entropy_R1) * share_RV * cooler).to(scores_RV.dtype)


def _cooled(scores_RV: Tensor, allowed: Tensor | None, cooler: Tensor) -> Tensor:
    cooled_RV = scores_RV.float() * cooler
    if allowed is None:
        return cooled_RV
    return cooled_RV.masked_fill(is_forbidden(allowed, scores_RV.shape[1]), float("-inf"))


def _zero_where_forbidden(values_RV: Tensor, allowed: Tensor | None) -> Tensor:
    return (
        values_RV
        if allowed is None
        else values_RV.masked_fill(is_forbidden(allowed, values_RV.shape[1]), 0.0)
    )


class _Scored(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]  # noqa: PLR0913
        ctx: Any,  # noqa: ANN401
        hidden_MW: Tensor,
        weight_VW: Tensor,
        bias_V: Tensor | None,
        tokens_M: Tensor,
        temperature: float,
        allowed: Tensor | None,
        reference_MW: Tensor | None,
        entropy: bool,
        as_is: Callable[..., Any],
    ) -> tuple[Tensor | None, ...]:
        learns, hidden_MW = ctx.needs_input_grad[0], hidden_MW.detach()
        ctx.places = [0, *([1] if reference_MW is not None else []), *([2] if entropy else [])]
        values_of: list[list[Tensor]] = [[] for _ in ctx.places]
        slopes_of = [torch.empty_like(hidden_MW) for _ in ctx.places if learns]
        # a number in a tensor: as a number of Python each temperature would be compiled
        cooler = torch.full((), 1.0 / temperature, device=hidden_MW.device)
        for start in range(0, max(1, len(hidden_MW)), ROWS):
            rows = slice(start, start + ROWS)
            tokens = any_length(tokens_M[rows])
            run = as_is if len(tokens) >= _FEWEST else as_it_is
            masks = None if allowed is None else any_length(allowed[rows])
            scores = any_length(nn.functional.linear(hidden_MW[rows], weight_VW, bias_V))
            value, total = run(totals)(scores, tokens, masks, cooler)
            found: list[tuple[Tensor, Tensor | None]] = [
                (value, run(slope)(scores, total, tokens, masks, cooler) if learns else None)
            ]
            if reference_MW is not None:
                other = any_length(nn.functional.linear(reference_MW[rows], weight_VW, bias_V))
                _, other_total = run(totals)(other, tokens, masks, cooler)
                found.append(run(divergence)(scores, total, other, other_total, masks, cooler))
                del other
            if entropy:
                found.append(run(uncertainty)(scores, total, masks, cooler))
            del scores
            for place in range(len(found)):
                value, slope_RV = found[place]
                values_of[place].append(value)
                if learns and slope_RV is not None:
                    torch.mm(slope_RV, weight_VW, out=slopes_of[place][rows])
                del slope_RV
            del found
        ctx.save_for_backward(*slopes_of)
        wholes: list[Tensor | None] = [None, None, None]
        for place, parts in zip(ctx.places, values_of, strict=True):
            wholes[place] = torch.cat(parts)
        return tuple(wholes)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        return along(ctx.saved_tensors, [gradients[place] for place in ctx.places]), *(None,) * 8


_SHARE_OF_FREE = 0.75
"""Share of the free memory for activations of a backward pass; the rest is for temporary tensors."""
_PRODUCTS = 4
"""Products of a layer: queries with keys and values, attention output, gate with up, down."""
_CLOSE_ENOUGH = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""Maximum relative difference of states and gradients from those of the `FusedDecoder`."""


class TreeDecoder:
    """Runs the layers of a fused decoder for training over a tree of tokens.

    Args:
        decoder: has the weights.
        activation_bytes: if a backward pass would keep more, only the layers' inputs are kept, and the rest
            is recomputed; 0: three quarters of the free memory.
        compile: whether layers are compiled, with flex attention. If not, all runs in plain torch on any
            device, for tests.
    """

    def __init__(self, decoder: FusedDecoder, activation_bytes: float = 0.0, *, compile: bool = True) -> None:
        self._decoder, self._activation_bytes, self.compile = decoder, activation_bytes, compile
        self._layers: list[TreeLayer] = []
        self._adapters: dict[str | None, Adapters] = {}
        self._seen: set[Hashable] = set()
        """Passes run so far, by adapter, whether with gradients, and whether with recomputation."""
        self._works: dict[bool, bool] = {}

    def works(self, adapter: str | None, *, learning: bool = True) -> bool:
        """Return whether compiled layers give the fused decoder's results; tested once, with one adapter.

        Args:
            adapter: its name; None for the bare base.
            learning: whether to test derivatives too.
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
        """Return [M, W] last hidden states.

        Args:
            tree: the tokens.
            adapter: its name; None for the bare base.
            at: [M] indices of the tokens; None: the tokens before each completion token of the tree.
            keep: receives each layer's index, keys and values, [N, K, D] each.
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
        """Free the cached matrices of a detached adapter."""
        self._adapters.pop(adapter, None)
        self._seen.clear()

    def forget_all(self) -> None:
        """Drop all references to weights, after they have moved in memory."""
        self._layers.clear()
        self._adapters.clear()
        self._seen.clear()

    def _adapters_of(self, adapter: str | None) -> Adapters:
        if adapter not in self._adapters:
            products = [part for layer in self._decoder.layers for part in layer.projections]
            self._adapters[adapter] = Adapters(products, adapter)
        return self._adapters[adapter]

    def _of_decoder(self) -> list[TreeLayer]:
        if not self._layers:
            self._layers = [_layer(layer, compile=self.compile) for layer in self._decoder.layers]
        return self._layers

    def _kept_bytes(self, x_NW: Tensor) -> float:
        return len(x_NW) * self._decoder.sizes.kept_by_compiled * x_NW.element_size()

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
        """Return the relative difference of states and gradients from the fused decoder's, on small input."""
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
        """Return the relative difference of compiled log-probabilities and derivatives from usual ones."""
        results: list[list[Tensor]] = []
        for scores in (functools.partial(compiled_scores, compile=self.compile), frozen_scores):
            own_MW = states_MW.detach().requires_grad_()
            logprobs_M = scores(self._decoder.head, own_MW, tokens_M).logprobs_M
            results.append([logprobs_M, *torch.autograd.grad(logprobs_M.sum(), own_MW)])
        return _relative(*results)


@contextlib.contextmanager
def _learning(matrices: Sequence[Tensor], learn: bool) -> Iterator[None]:
    """Context manager: set `requires_grad` of matrices; an inactive policy's adapters have it off."""
    before = [matrix.requires_grad for matrix in matrices]
    try:
        for matrix in matrices:
            matrix.requires_grad_(learn)
        yield
    finally:
        for matrix, own in zip(matrices, before, strict=True):
            matrix.requires_grad_(own)


def _small_tree(vocabulary: int) -> list[Bundle]:
    """Return prompts with a shared beginning, and completions, over more than one block of tokens."""

    def ids(length: int, step: int) -> list[int]:
        return [(step * i + 3) % vocabulary for i in range(length)]

    return [
        Bundle(prompt_ids=ids(150, 7), completions=[ids(65, 5), ids(21, 11)]),
        Bundle(prompt_ids=[*ids(90, 7), 1], completions=[ids(38, 13)]),
    ]


def _relative(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the norm of the differences, relative to the norm of the expected values."""
    apart = sum(
        (a.detach().double() - b.detach().double()).square().sum()
        for a, b in zip(found, expected, strict=True)
    )
    whole = sum(b.detach().double().square().sum() for b in expected)
    return float((apart / whole).sqrt()) if whole else float(apart)


def _layer(layer: Layer, *, compile: bool) -> TreeLayer:
    """Convert a layer of a fused decoder to arguments of the functions in `tree_layers`."""
    q_norm, k_norm = layer.head_norms
    before = Before(
        norm_W=layer.before.weight.detach(),
        eps=float(layer.before.variance_epsilon),
        qkv=_linear(layer.qkv),
        q_norm_D=None if q_norm is None else q_norm.weight.detach(),
        k_norm_D=None if k_norm is None else k_norm.weight.detach(),
        head_eps=0.0 if q_norm is None else float(q_norm.variance_epsilon),
        size=layer.head_size,
        widths=tuple(layer.qkv.widths),
    )
    after = After(
        norm_W=layer.between.weight.detach(),
        eps=float(layer.between.variance_epsilon),
        out=_linear(layer.out),
        up=_linear(layer.up),
        down=_linear(layer.down),
    )
    return TreeLayer(before, after, layer.scaling, compile=compile)


def _linear(projection: Projection) -> Linear:
    product = projection.product
    return Linear(product.weight.detach(), None if product.bias is None else product.bias.detach())
