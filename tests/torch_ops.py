"""The operations of `genenv.backends.local.cuda.kernels.TritonOps` in torch, for tests and without CUDA."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from genenv.backends.local.cuda.kv_pages import PAGE, RowState, pages_for
from genenv.backends.local.next_token import Odds, is_forbidden


class TorchOps:
    """The operations between matrix products in plain torch, which define the results of `TritonOps`.

    Args:
        heads: (query heads, key heads, head size) of a layer's attention.
        rank: of the adapters.
    """

    rows_of_a_tile = 4

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
