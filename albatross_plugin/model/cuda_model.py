"""CudaRWKV7: the forward pass of RWKV-7 through the CUDA kernels, for decoding rows and for ragged prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from albatross_plugin.model.arena import Arena, Views
from albatross_plugin.model.cuda_weights import CudaWeights
from albatross_plugin.model.products import Products
from albatross_plugin.model.state import StatePool

LAYER_NORM_EPS = 1e-5


@dataclass(frozen=True)
class Rows:
    """N tokens of R rows, row after row, all int32 on the device.

    ids [N]: a token, or -1 - slot for the token that was last sampled in a slot. slots [R]. ``starts`` [R + 1] and
    ``token_row`` [N] are None when every row has exactly one token; else tokens past
    ``starts[R]`` are padding, and a row may have none.
    """

    ids: Tensor
    slots: Tensor
    starts: Tensor | None
    token_row: Tensor | None


class CudaRWKV7:
    """Holds weights and working memory, and no state: every call reads and writes the slots of ``pool``."""

    def __init__(self, weights: CudaWeights, pool: StatePool, arena: Arena, products: Products, ops: Any) -> None:
        self._weights, self._pool, self._arena, self._products, self._ops = weights, pool, arena, products, ops
        self._scratch = pool.rows - 1

    @property
    def weights(self) -> CudaWeights:
        return self._weights

    def views(self, tokens: int, rows: int) -> Views:
        """Where a pass over so many tokens and rows works."""
        return self._arena.views(tokens, rows)

    def forward(self, rows: Rows, last: Tensor) -> Views:
        """Feed the rows and advance their slots; the residual stream is then in ``x`` [N, C] of the views returned."""
        ops, tokens = self._ops, rows.ids.shape[0]
        views = self._arena.views(tokens, rows.slots.shape[0])
        ways = self._products.ways(tokens)
        ragged = rows.starts is not None
        tail = views.tail if ragged else None
        ops.embed(self._weights.embedding, rows.ids, last, views.x)
        for index, layer in enumerate(self._weights.layers):
            att_shift, ffn_shift = self._pool.att_shift[index], self._pool.ffn_shift[index]
            where = (rows.slots, rows.starts, rows.token_row, tail)
            ops.mix(views.x, *layer.ln1, layer.mix, att_shift, *where, views.mixed, LAYER_NORM_EPS)
            if ragged:
                ops.commit(views.tail, rows.slots, att_shift)
            self._products.time_mix(layer, views, ways)
            self._recurrence(index, rows, views)
            self._products.output(layer, views, ways)
            ops.mix(views.x, *layer.ln2, layer.ffn_mix, ffn_shift, *where, views.ffn_in.unsqueeze(0), LAYER_NORM_EPS)
            if ragged:
                ops.commit(views.tail, rows.slots, ffn_shift)
            self._products.channel_mix(layer, views, ways)
        return views

    def _recurrence(self, index: int, rows: Rows, views: Views) -> None:
        layer = self._weights.layers[index]
        w, a, v, g = views.up.unbind(0)
        self._ops.wkv(
            self._pool.wkv[index],
            rows.slots,
            rows.starts,
            *views.rkv.unbind(0),
            w,
            a,
            v if index else None,
            g,
            views.v_first,
            layer.w0,
            layer.a0,
            layer.v0,
            layer.k_k,
            layer.k_a,
            layer.r_k,
            *layer.ln_x,
            views.y,
            self._scratch,
        )

    def logits(self, views: Views, index: Tensor | None, count: int) -> Tensor:
        """Float32 logits [count, V] for the tokens ``index`` int32 [count] (None: all) of the last forward pass."""
        views = self._arena.views(views.x.shape[0], count) if index is not None else views
        normed, logits = views.normed[:count], views.logits[:count]
        self._ops.layer_norm(views.x, index, *self._weights.ln_out, normed, LAYER_NORM_EPS)
        self._products.head(normed, logits)
        return logits
