"""Arena: the working memory of the CUDA forward pass, allocated once, seen through views for each size of pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from albatross_plugin.model.cuda_weights import CudaWeights
from albatross_plugin.model.kernels import ops
from albatross_plugin.model.spec import ModelSpec

WORKSPACE_BYTES = 32 << 20
SPARSE_ROWS = 4
# Half-precision vectors of width C per token: x, six mixed, r k v, four LoRA outputs, v_first, y, the channel mix's input.
_VECTORS = 17


@dataclass(frozen=True)
class Views:
    """What a pass over N tokens of R rows works in; float16 but for the logits.

    x, v_first, y, ffn_in [N, C]; mixed [6, N, C]; rkv [3, N, C]; low: per LoRA [N, R_i]; up [4, N, C], both in the
    order of LORAS; hidden [N, F]; tail [R, C]; normed [S, C]; logits [S, V] float32.
    """

    x: Tensor
    mixed: Tensor
    rkv: Tensor
    low: list[Tensor]
    up: Tensor
    v_first: Tensor
    y: Tensor
    ffn_in: Tensor
    hidden: Tensor
    tail: Tensor
    normed: Tensor
    logits: Tensor


def arena_bytes(spec: ModelSpec, tokens: int, rows: int) -> int:
    """Bytes of an Arena for up to ``tokens`` tokens and ``rows`` rows, and two workspaces; the LoRAs' inner vectors count as C wide."""
    per_token = (_VECTORS + 1) * spec.n_embd + spec.n_ffn
    per_row = 2 * spec.n_embd * 2 + spec.vocab_size * 4
    return tokens * per_token * 2 + rows * per_row + 2 * WORKSPACE_BYTES


class Arena:
    """One block per kind of vector. Two passes never overlap: all run on one stream."""

    def __init__(self, weights: CudaWeights, tokens: int, rows: int, device: torch.device) -> None:
        spec = weights.spec
        width = spec.n_embd
        self._spec = spec
        self._ranks = weights.ranks
        self.tokens, self.rows = tokens, rows

        def half(count: int) -> Tensor:
            return torch.zeros(count, device=device, dtype=torch.float16)

        self._x, self._v_first, self._y, self._ffn_in = (half(tokens * width) for _ in range(4))
        self._mixed, self._rkv, self._up = half(6 * tokens * width), half(3 * tokens * width), half(4 * tokens * width)
        self._low = half(tokens * sum(weights.ranks))
        self._hidden = half(tokens * spec.n_ffn)
        self._tail, self._normed = half(rows * width), half(rows * width)
        self._logits = torch.zeros(rows * spec.vocab_size, device=device, dtype=torch.float32)
        self.workspace = torch.empty(WORKSPACE_BYTES, device=device, dtype=torch.uint8)
        parts = max(ops().sparse_partials(count, spec.n_ffn, width) for count in range(1, SPARSE_ROWS + 1))
        self.partial = torch.zeros(parts, device=device, dtype=torch.float32)
        self.counters = torch.zeros(max(1, width // 64), device=device, dtype=torch.int32)

    def views(self, tokens: int, rows: int) -> Views:
        width, hidden = self._spec.n_embd, self._spec.n_ffn
        assert tokens <= self.tokens and rows <= self.rows

        def cut(block: Tensor, *shape: int) -> Tensor:
            count = 1
            for size in shape:
                count *= size
            return block[:count].view(shape)

        low, start = [], 0
        for rank in self._ranks:
            low.append(self._low[start : start + tokens * rank].view(tokens, rank))
            start += tokens * rank
        return Views(
            x=cut(self._x, tokens, width),
            mixed=cut(self._mixed, 6, tokens, width),
            rkv=cut(self._rkv, 3, tokens, width),
            low=low,
            up=cut(self._up, 4, tokens, width),
            v_first=cut(self._v_first, tokens, width),
            y=cut(self._y, tokens, width),
            ffn_in=cut(self._ffn_in, tokens, width),
            hidden=cut(self._hidden, tokens, hidden),
            tail=cut(self._tail, rows, width),
            normed=cut(self._normed, rows, width),
            logits=cut(self._logits, rows, self._spec.vocab_size),
        )
