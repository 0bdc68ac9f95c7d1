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
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from genenv.backends.local import hardware
from genenv.backends.local.attention import Layout
from genenv.backends.local.cuda.kv_pages import PAGE, PagePool, RowState, Seat, pages_for
from genenv.backends.local.fused_decoder import FusedDecoder, Layer, Projection
from genenv.backends.local.next_token import Odds, is_forbidden
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
        captured: whether steps run as CUDA graphs of Triton kernels; else they run in torch.
    """

    def __init__(
        self,
        fused: FusedDecoder,
        causal: Any,  # noqa: ANN401
        *,
        rank: int,
        room: Room,
        captured: bool,
    ) -> None:
        decoder = causal.get_decoder()
        self._fused, self._rank, self._captured = fused, rank, captured
        self._embedding = decoder.embed_tokens.weight
        self._device, self._dtype = self._embedding.device, self._embedding.dtype
        self._final = decoder.norm.weight, float(decoder.norm.variance_epsilon)
        heads = fused.heads
        if captured:
            from genenv.backends.local.cuda.ops import Heads, TritonOps

            own = Heads(queries=heads[0], keys=heads[1], size=heads[2])
            self._ops = TritonOps(own, rank)
            tile = own.rows_of_a_tile
        else:
            self._ops, tile = TorchOps(heads, rank), 4
        self._layers = [_layer(layer, rank) for layer in fused.layers]
        self.pool = PagePool(len(self._layers), heads[1], heads[2], room.pages, self._dtype, self._device)
        self._buckets = buckets(room.rows)
        # one more page, as both the prompt and the row may fill their last page only in part
        most = pages_for(room.context_tokens) + 1
        self.state = RowState(
            self._buckets[-1], most, causal.config.get_text_config().vocab_size, tile, self._device
        )
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
        return self._fused.scores(x)


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
            step = open_step(causal, fused, config, context_tokens, captured=True)
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
    *,
    captured: bool,
) -> DecodeStep:
    """Create a step with as many pages as all rows can need, or as fit into the memory."""
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
        captured=captured,
    )


@torch.no_grad()
def difference(step: DecodeStep, fused: FusedDecoder) -> float:
    """Return the mean L1 distance over tokens between the distributions of a step and of the bare model."""
    ids = [7 * i + 3 for i in range(_TOKENS)]
    packed = Packed([Bundle(prompt_ids=ids)], step.state.device)
    hidden = fused.hidden(packed.ids_1N, packed.positions_1N, Layout(packed=packed), None)
    expected = fused.scores(hidden).float().softmax(-1)
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


class TorchOps:
    """The operations between matrix products in plain torch, which define the results of `ops.TritonOps`.

    Machines without CUDA and tests use it.

    Args:
        heads: (query heads, key heads, head size) of a layer's attention.
        rank: of the adapters.
    """

    def __init__(self, heads: tuple[int, int, int], rank: int) -> None:
        self.queries, self.keys, self.size = heads
        self.rank = rank

    def split(
        self, joint: Tensor, up: Tensor, norms: tuple[Tensor, Tensor, float] | None,
        angles: tuple[Tensor, Tensor], pages: tuple[Tensor, Tensor], state: RowState,
    ) -> Tensor:  # fmt: skip
        """Split a joint QKV product: write keys and values to their pages, return queries [R, H, D]."""
        rows, size = len(joint), self.size
        widths = [self.queries * size, self.keys * size, self.keys * size]
        parts = self._adapted(joint, up, widths)
        query, key, value = (part.view(rows, -1, size) for part in parts)
        if norms is not None:
            query, key = (
                _norm(x, (weight, norms[2])) for x, weight in zip((query, key), norms[:2], strict=True)
            )
        own_R, prompt_R = state.drawn_R[:rows].long() - 1, state.prompt_R[:rows].long()
        cos, sin = (table[prompt_R + own_R][:, None].to(joint.dtype) for table in angles)
        query, key = (_rotate(x, cos, sin) for x in (query, key))
        page_R = state.table_RP[:rows].gather(1, (-(-prompt_R // PAGE) + own_R // PAGE)[:, None])[:, 0].long()
        for store, new in zip(pages, (key, value), strict=True):
            store[page_R, :, own_R % PAGE] = new
        return query.contiguous()

    def attend(self, query: Tensor, pages: tuple[Tensor, Tensor], state: RowState, scale: float) -> Tensor:
        """Return [R, H * D]: attention of each row to its prompt and to its own tokens."""
        out = torch.zeros_like(query)
        for row in sorted({int(row) for row in state.tiles_RM.flatten().tolist() if 0 <= row < len(query)}):
            prompt, own = int(state.prompt_R[row]), int(state.drawn_R[row])
            first, table = pages_for(prompt), state.table_RP[row].long()
            parts = (table[:first], prompt), (table[first : first + pages_for(own)], own)
            keys, values = (
                torch.cat([store[at].transpose(0, 1).flatten(1, 2)[:, :n] for at, n in parts], 1)
                for store in pages
            )
            repeats = self.queries // self.keys
            out[row] = nn.functional.scaled_dot_product_attention(
                query[row][:, None],
                keys.repeat_interleave(repeats, 0),
                values.repeat_interleave(repeats, 0),
                scale=scale,
            )[:, 0]
        return out.flatten(1)

    def embed(
        self, embedding: Tensor, state: RowState, residual: Tensor, norm: tuple[Tensor, float]
    ) -> Tensor:
        """Write the embeddings of the rows' tokens to the residual; return them normed, [R, W]."""
        residual.copy_(embedding[state.token_R[: len(residual)]])
        return _norm(residual, norm)

    def join(self, joint: Tensor, up: Tensor, residual: Tensor, norm: tuple[Tensor, float]) -> Tensor:
        """Add a product to the residual, in place; return the normed residual, [R, W]."""
        width = residual.shape[1]
        (product,) = self._adapted(joint, up.T, [width])
        residual.add_(product)
        return _norm(residual, norm)

    def gate(self, joint: Tensor, up: Tensor, inner: int) -> Tensor:
        """Return [R, I]: silu(gate) * up."""
        gate, value = self._adapted(joint, up, [inner, inner])
        return nn.functional.silu(gate) * value

    def _adapted(self, joint: Tensor, up: Tensor, widths: list[int]) -> list[Tensor]:
        """Return products with their adapters added; `joint` has the adapters' first products at its end."""
        done, start, total = [], 0, sum(widths)
        for index, width in enumerate(widths):
            low = joint[:, total + index * self.rank : total + (index + 1) * self.rank]
            share = low.float() @ up[start : start + width].float().T
            done.append((joint[:, start : start + width].float() + share).to(joint.dtype))
            start += width
        return done

    def draw(self, scores: Tensor, state: RowState, step: int, first: int, *, held: bool) -> None:
        """Draw a token for each row of scores [R, V]; these rows start at row `first` of the state."""
        at = slice(first, first + len(scores))
        raw = scores.float()
        scores = raw / state.temperature_R[at, None]
        odds = Odds(scores)
        allowed, norm = odds, odds.norm_R
        bound = scores
        if held:
            bound = scores.masked_fill(is_forbidden(state.mask_RV[at], scores.shape[1]), float("-inf"))
            bound = bound.masked_fill(raw < state.least_R[at, None], float("-inf"))
            allowed = Odds(bound)
            norm = torch.where(state.among_R[at] != 0, allowed.norm_R, norm)
        token = allowed.draw(state.uniform_RS[at, step])
        token = torch.where(state.greedy_R[at] != 0, bound.argmax(-1), token)
        left = state.left_R[at]
        goes_on = left > 0
        state.out_token_SR[step, at] = torch.where(goes_on, token, -1).int()
        state.out_logprob_SR[step, at] = scores.gather(1, token[:, None])[:, 0] - norm
        state.token_R[at] = torch.where(goes_on, token, state.token_R[at])
        state.drawn_R[at] += goes_on.int()
        state.left_R[at] = torch.where(goes_on & (state.ends_V[token] != 0), 0, left - goes_on.int()).int()


def _norm(x: Tensor, norm: tuple[Tensor, float]) -> Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm[1])
    return scaled.to(x.dtype) * norm[0]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.float().chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).to(x.dtype)
