# pyright: standard
"""Decoding of one token for many rows as a step that is captured once in a CUDA graph and replayed.

A step of a small model is a thousand operations of a few microseconds; launched one by one from Python they
take ten times as long. Here a layer of the `FusedDecoder` is four matrix products and five kernels
(`kernels`), and the step for each batch size is one CUDA graph. An adapter's first matrix is appended to the
weights that read the same input, so that one product computes both. The next kernel adds the second matrix's
product.

    [y, a] = x [W, A]^T,   y + a B^T

`captured_step` decides whether a model uses this, and how much memory it gets.

Shapes: R = rows, W = width, O = outputs, I = inputs, r = rank, V = vocabulary.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from genenv.backends.local import hardware
from genenv.backends.local.attention import Layout
from genenv.backends.local.cuda.kv_pages import PAGE, PagePool, RowState, Seat, pages_for
from genenv.backends.local.fused_decoder import FusedDecoder, Layer, Projection
from genenv.backends.local.packing import Bundle, Packed
from genenv.backends.settings import PolicyConfig
from genenv.errors import first_line
from genenv.progress import advance

log = logging.getLogger(__name__)

ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Kinds of rotary positions whose angles depend only on the position."""
HEAD_SIZES = frozenset({16, 32, 64, 128, 256})
"""Supported head sizes: half of one must be a power of two that tensor cores accept."""


class _Layer(NamedTuple):
    """A layer's weights in the form that the kernels expect."""

    qkv: _Joint
    out: _Joint
    up: _Joint
    down: _Joint
    before: tuple[Tensor, float]
    """Weight and epsilon of the norm before attention."""
    between: tuple[Tensor, float]
    """Weight and epsilon of the norm after attention."""
    norms: tuple[Tensor, Tensor, float] | None
    """Weights of the norms of queries and keys, and their epsilon; None: no such norms."""
    scale: float
    """Factor of the attention scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The capacity of a decode step."""

    rows: int
    """Maximum number of rows."""
    context_tokens: int
    """Length of the longest sequence."""
    pages: int
    """Number of KV pages, see `PagePool`."""


class DecodeStep:
    """Runs the layers of a decoder for one token per row, with an adapter in place.

    Args:
        fused: the decoder; its projections are enlarged to hold adapters.
        causal: the model of the decoder.
        rank: maximum rank of an adapter.
        room: capacity.
        ops: makes the operations to use in place of Triton kernels, without CUDA graphs, from the numbers of
            query and key heads, the head size, and the rank; for machines without CUDA.
    """

    def __init__(
        self,
        fused: FusedDecoder,
        causal: Any,  # noqa: ANN401
        *,
        rank: int,
        room: Room,
        ops: Callable[[tuple[int, int, int], int], Any] | None = None,
    ) -> None:
        decoder = causal.get_decoder()
        self._fused, self._rank, self._captured = fused, rank, ops is None
        self._embedding = decoder.embed_tokens.weight
        self._device, self._dtype = self._embedding.device, self._embedding.dtype
        self._final = decoder.norm.weight, float(decoder.norm.variance_epsilon)
        heads = fused.heads
        if ops is None:
            from genenv.backends.local.cuda.kernels import TritonOps as ops  # needs Triton
        self._ops = ops(heads, rank)
        self._layers = [_layer(layer, rank) for layer in fused.layers]
        self.pool = PagePool(len(self._layers), heads[1], heads[2], room.pages, self._dtype, self._device)
        self._buckets = buckets(room.rows)
        # one more page, as both the prompt and the row may fill their last page only in part
        most = pages_for(room.context_tokens) + 1
        vocabulary, tile = causal.config.get_text_config().vocab_size, self._ops.rows_of_a_tile
        self.state = RowState(self._buckets[-1], most, vocabulary, tile, self._device)
        places = torch.arange(room.context_tokens + 1, device=self._device)[None]
        cos, sin = decoder.rotary_emb(self._embedding[:1], places)
        half = cos.shape[-1] // 2
        self._angles = cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()
        self.rows = room.rows
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._memory: Any = None
        self._weights: Hashable = None

    def use(self, adapter: str | None, weights: Hashable) -> None:
        """Copy an adapter's matrices into the step's weights.

        Args:
            adapter: its name; None for the bare base.
            weights: identifies its present values; equal values are not copied again.
        """
        if weights == self._weights:
            return
        with torch.no_grad():
            for layer in self._layers:
                for joint in layer[:4]:
                    joint.put(adapter)
        self._weights = weights

    def forget(self) -> None:
        """Forget which adapter is in place, because its name may now mean another one."""
        self._weights = None

    def fits(self, adapter: str | None) -> bool:
        """Return whether an adapter's rank fits."""
        return all(joint.rank_of(adapter) <= self._rank for layer in self._layers[:1] for joint in layer[:4])

    def bucket(self, rows: int) -> int:
        """Return the batch size of the step that serves this many rows."""
        return next(size for size in self._buckets if size >= rows)

    @torch.no_grad()
    def scores(self, rows: int) -> Tensor:
        """Return [bucket, V] logits after each row's last token; the next call overwrites them."""
        size = self.bucket(rows)
        if not self._captured:
            return self._forward(size)
        if size not in self._graphs:
            self._capture(size)
        graph, scores = self._graphs[size]
        graph.replay()
        return scores

    def draw(self, scores: Tensor, step: int, *, first: int = 0, held: bool = False) -> None:
        """Draw tokens from logits, and store tokens and log-probabilities in the state.

        Args:
            scores: [n, V] logits of rows.
            step: index of the step, of its results and of its random numbers.
            first: the first of these rows in the state.
            held: whether to apply the masks and minimum logits in the state.
        """
        self._ops.draw(scores, self.state, step, first, held=held)

    def _capture(self, size: int) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._forward(size)  # compiles missing kernels
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            scores = self._forward(size)
        self._memory = graph.pool()
        self._graphs[size] = graph, scores

    def _forward(self, size: int) -> Tensor:
        ops, state, pool = self._ops, self.state, self.pool
        residual = torch.empty(size, self._embedding.shape[1], dtype=self._dtype, device=self._device)
        x = ops.embed(self._embedding, state, residual, self._layers[0].before)
        for index, layer in enumerate(self._layers):
            pages = pool.keys_LPKTD[index], pool.values_LPKTD[index]
            query = ops.split(layer.qkv(x), layer.qkv.up, layer.norms, self._angles, pages, state)
            mixed = ops.attend(query, pages, state, layer.scale)
            x = ops.join(layer.out(mixed), layer.out.up, residual, layer.between)
            x = ops.gate(layer.up(x), layer.up.up, layer.up.outputs // 2)
            last = index + 1 == len(self._layers)
            norm = self._final if last else self._layers[index + 1].before
            x = ops.join(layer.down(x), layer.down.up, residual, norm)
        return self._fused.head(x)


@dataclass(slots=True)
class _Joint:
    """Projections that read one input, with the first matrices of their adapters appended."""

    projection: Projection
    weight: Tensor
    """[O + k r, I] for k projections."""
    bias: Tensor | None
    up: Tensor
    """[O, r] the adapters' second matrices, scaled; [r, O] if `transposed`."""
    transposed: bool
    rank: int
    outputs: int

    def __call__(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)

    def rank_of(self, adapter: str | None) -> int:
        return max((len(down) for down, _, _, _ in self.projection.low_rank(adapter)), default=0)

    def put(self, adapter: str | None) -> None:
        """Copy an adapter's matrices; layers without one get zeros."""
        self.weight[self.outputs :].zero_()
        up = self.up.T if self.transposed else self.up
        up.zero_()
        starts = [0, *itertools.accumulate(self.projection.widths)]
        for down_rI, up_Or, scale, columns in self.projection.low_rank(adapter):
            start = self.outputs + starts.index(columns.start) * self.rank
            self.weight[start : start + len(down_rI)].copy_(down_rI)
            up[columns, : up_Or.shape[1]].copy_(up_Or * scale)


def _layer(layer: Layer, rank: int) -> _Layer:
    qkv, out, up, down = (
        _joint(part, rank, transposed=transposed)
        for part, transposed in ((layer.qkv, False), (layer.out, True), (layer.up, False), (layer.down, True))
    )
    query, key = layer.head_norms
    return _Layer(
        qkv, out, up, down,
        before=(layer.before.weight, float(layer.before.variance_epsilon)),
        between=(layer.between.weight, float(layer.between.variance_epsilon)),
        norms=None if query is None else (query.weight, key.weight, float(query.variance_epsilon)),
        scale=layer.scaling,
    )  # fmt: skip


def _joint(projection: Projection, rank: int, *, transposed: bool) -> _Joint:
    extra = rank * len(projection.widths)
    weight, bias = projection.widened(extra)
    outputs = projection.outputs
    shape = (rank, outputs) if transposed else (outputs, rank)
    return _Joint(projection, weight, bias, weight.new_zeros(shape), transposed, rank, outputs)


def buckets(rows: int) -> Sequence[int]:
    """Return the batch sizes for which steps are captured; the largest holds this many rows."""
    found = [1]
    while found[-1] < rows:
        last = found[-1]
        power = 1 << (last.bit_length() - 1)
        # above 16 rows two sizes per doubling: a step with a third of empty rows wastes time
        found.append(last * 2 if last < 16 else (power * 3 // 2 if last == power else power * 2))
    return found


def why_not(causal: Any, fused: FusedDecoder) -> str | None:  # noqa: ANN401
    """Return why a model cannot decode in captured steps; None if it can."""
    config = causal.config.get_text_config()
    kind = config.rope_parameters.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        return f"its rotary positions are of the kind {kind}"
    queries, keys, size = fused.heads
    if size not in HEAD_SIZES:
        return f"its heads have {size} numbers"
    if queries % keys or queries // keys > 32:
        return f"{queries} heads of queries share {keys} of keys"
    return None


def bytes_of_a_page(heads: tuple[int, int, int], layers: int, dtype: torch.dtype) -> int:
    """Return the bytes of one page of keys and values in all layers."""
    return 2 * layers * heads[1] * heads[2] * PAGE * dtype.itemsize


_SHARE = 0.3
"""Share of the free memory for KV pages; training needs the rest."""
_TOKENS, _ROWS = 5, 20
"""Length of the sequence in the comparison with the model; and number of rows, as kernels vary with it."""


def captured_step(
    causal: Any,  # noqa: ANN401
    fused: FusedDecoder,
    config: PolicyConfig,
    context_tokens: int,
) -> DecodeStep | None:
    """Return a captured step if its results match the model's; else None, with a logged warning.

    Args:
        causal: the model.
        fused: its fused decoder.
        config: states the adapters' rank and the maximum number of rows.
        context_tokens: the longest sequence.
    """
    begun = time.monotonic()
    advance(note="compiling, once on a machine")
    try:
        reason = why_not(causal, fused)
        if reason is None:
            step = open_step(causal, fused, config, context_tokens)
            off = difference(step, fused)
            if off < (1e-3 if step.pool.keys_LPKTD.dtype == torch.float32 else 0.1):
                log.info("kernels for sampling: ready after %.0f s", time.monotonic() - begun)
                advance(note=f"compiled in {time.monotonic() - begun:.0f} s")
                return step
            reason = f"its results and those of its captured step differ by {off:.3g}"
    except Exception as error:  # noqa: BLE001 - Triton's own errors have no common class below this one
        reason = first_line(error) or type(error).__name__
    log.warning("sampling runs layer by layer, several times slower: %s", reason)
    return None


def open_step(
    causal: Any,  # noqa: ANN401
    fused: FusedDecoder,
    config: PolicyConfig,
    context_tokens: int,
    ops: Callable[[tuple[int, int, int], int], Any] | None = None,
) -> DecodeStep:
    """Create a step with as many pages as all rows can need, or as fit into the memory; see `DecodeStep`."""
    rows = hardware.batch_rows(config.max_batch_rows, torch.device("cuda"))
    dtype = causal.get_output_embeddings().weight.dtype
    device = causal.get_output_embeddings().weight.device
    longest = pages_for(context_tokens) + 1
    hardware.release_memory(device)
    affordable = _SHARE * hardware.free_bytes(device) / bytes_of_a_page(fused.heads, len(fused.layers), dtype)
    pages = 1 + max(2 * longest, int(min(rows * longest, affordable)))
    log.info("sampling has pages for %d tokens, and at most %d rows at once", (pages - 1) * PAGE, rows)
    return DecodeStep(
        fused,
        causal,
        rank=config.lora_rank if config.tuning == "lora" else 1,
        room=Room(rows=rows, context_tokens=context_tokens, pages=pages),
        ops=ops,
    )


@torch.no_grad()
def difference(step: DecodeStep, fused: FusedDecoder) -> float:
    """Return the mean L1 distance over tokens between the distributions of a step and of the bare model."""
    ids = [7 * i + 3 for i in range(_TOKENS)]
    packed = Packed([Bundle(prompt_ids=ids)], step.state.device)
    hidden = fused.hidden(packed.ids_1N, packed.positions_1N, Layout(packed=packed), None)
    expected = fused.head(hidden).float().softmax(-1)
    page = step.pool.take(1)
    step.use(None, None)
    differences: list[float] = []
    for rows in {1, min(_ROWS, step.rows)}:
        found = []
        for drawn, token in enumerate(ids, 1):
            seat = Seat(
                token=token, drawn=drawn, left=1, prompt_tokens=0, pages=page,
                prompt=None, temperature=1.0, choices=False,
            )  # fmt: skip
            step.state.seat([seat] * rows, step.bucket(rows))  # all rows write the same
            found.append(step.scores(rows)[rows - 1].float().clone())
        differences.append((torch.stack(found).softmax(-1) - expected).abs().sum(-1).mean().item())
    for held in (False, True):  # compile both variants now, so that failures show here
        step.draw(step.scores(1), 0, held=held)
    step.pool.give(page)
    return max(differences)
