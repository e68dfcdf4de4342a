"""One table of operators for each kind of device. The torch reference is here; others replace entries of the table.

Shapes: N tokens of B rows are packed time-major (see PackedBatch), C is the model's width, H = C / 64 heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from albatross_plugin.model.batch import PackedBatch
from albatross_plugin.model.spec import HEAD_SIZE

GROUP_NORM_EPS = 64e-5
# oneDNN's packed product takes another path for fewer rows: slower, and with sums in another order. The forward pass
# pads to this, so that the numbers of a row do not depend on how many others there are.
MINIMUM_ROWS = 4
PACKED_FROM = 1 << 17


@dataclass(frozen=True)
class Operators:
    """What the forward pass calls.

    pack(weight [out, in]) -> packed: an opaque form of a weight, made once while loading.
    linear(x [N, in], packed, bias [out] | None) -> [N, out].
    linear_relu: the same with max(0, .) applied.
    token_shift(x [N, C], previous [N, C], mu [K, 1, C]) -> [K, N, C]: x + (previous - x) * mu.
    wkv(state [S, H, 64, 64], batch, r, w, k, v, kk, b: each [N, H, 64]) -> [N, H, 64]: runs the recurrence over the
    rows of ``batch``, in place in their slots of the state; all float32. Padding gives zeros.
    head_norm(y [N, H, 64], weight [C], bias [C]) -> [N, C]: GroupNorm with one group per head.
    """

    pack: Callable[[Tensor], Any]
    linear: Callable[..., Tensor]
    linear_relu: Callable[..., Tensor]
    token_shift: Callable[[Tensor, Tensor, Tensor], Tensor]
    wkv: Callable[..., Tensor]
    head_norm: Callable[[Tensor, Tensor, Tensor], Tensor]
    minimum_rows: int = 1


def operators_for(device: torch.device, dtype: torch.dtype) -> Operators:
    """The fastest table that works for this device and type of weights."""
    table = Operators(_plain_pack, F.linear, _plain_linear_relu, token_shift, wkv, head_norm)
    if device.type == "cpu" and dtype == torch.float32 and _packed_linear_works():
        return Operators(_packed_pack, _packed_linear, _packed_linear_relu, token_shift, wkv, head_norm, MINIMUM_ROWS)
    return table


def token_shift(x: Tensor, previous: Tensor, mu: Tensor) -> Tensor:
    return torch.addcmul(x, previous - x, mu)


def wkv(state: Tensor, batch: PackedBatch, r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, b: Tensor) -> Tensor:
    """S = S diag(w) - (S kk) b^T + v k^T, then y = S r, with b = kk * a.

    y is taken from the old state, so that the state is read by one product for both vectors:
    y = S (w * r) - (S kk) (b . r) + v (k . r).
    """
    tokens, heads, size = r.shape
    right = torch.empty(tokens, heads, 2, size, dtype=r.dtype, device=r.device)
    torch.mul(w, r, out=right[:, :, 0])
    right[:, :, 1] = kk
    products = torch.empty_like(right) if tokens == batch.tokens else torch.zeros_like(right)
    flat = tokens * heads
    columns = (
        right.view(flat, 2, size),
        products.view(flat, 2, size),
        w.reshape(flat, 1, size),
        b.reshape(flat, 1, size),
        k.reshape(flat, 1, size),
        v.reshape(flat, size, 1),
    )
    for block in batch.blocks:
        rows = state[block.slot : block.slot + block.rows].view(block.rows * heads, size, size)
        _advance(rows, heads, block.spans(batch.offsets), columns)
    y, removed = products[:, :, 0], products[:, :, 1]
    y = torch.addcmul(y, removed, (b * r).sum(-1, keepdim=True), value=-1)
    return y.addcmul_(v, (k * r).sum(-1, keepdim=True))


def _advance(rows: Tensor, heads: int, spans: list[tuple[int, int]], columns: tuple[Tensor, ...]) -> None:
    """Run one block of neighbouring slots through its time steps; a span is the block's tokens of one step."""
    right, products, w, b, k, v = columns
    for first, last in spans:
        start, stop = first * heads, last * heads
        active = rows if stop - start == rows.shape[0] else rows[: stop - start]
        product = products[start:stop]
        torch.bmm(right[start:stop], active.mT, out=product)
        active.mul_(w[start:stop])
        active.addcmul_(product[:, 1, :, None], b[start:stop], value=-1)
        active.addcmul_(v[start:stop], k[start:stop])


def head_norm(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    tokens = y.shape[0]
    normal = F.layer_norm(y, (HEAD_SIZE,), None, None, GROUP_NORM_EPS)
    return torch.addcmul(bias.float(), normal.view(tokens, -1), weight.float())


def _plain_pack(weight: Tensor) -> Tensor:
    return weight.contiguous()


def _plain_linear_relu(x: Tensor, packed: Tensor) -> Tensor:
    return F.linear(x, packed).relu_()


# --- oneDNN with weights in its own blocked order: about twice as fast as F.linear for 2 to 64 rows on one thread ---------


def _packed_pack(weight: Tensor) -> Tensor:
    # For a LoRA's matrix oneDNN's own cost of a call, some 10 us, is more than it saves.
    return _onednn_pack(weight) if weight.numel() >= PACKED_FROM else weight.contiguous()


def _onednn_pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 64)
    return packed


def _packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    if not packed.is_mkldnn:
        return F.linear(x, packed, bias)
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return result


def _packed_linear_relu(x: Tensor, packed: Tensor) -> Tensor:
    if not packed.is_mkldnn:
        return F.linear(x, packed).relu_()
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "relu", [], "")
    return result


def _packed_linear_works() -> bool:
    """Whether this torch has the operators (they are torch's own, but not a documented interface) and they are right."""
    if not torch.backends.mkldnn.is_available():
        return False
    weight = torch.arange(64 * 64, dtype=torch.float32).view(64, 64) % 7 - 3
    x = torch.arange(4 * 64, dtype=torch.float32).view(4, 64) % 5 - 2
    try:
        result = _packed_linear_relu(x, _onednn_pack(weight))
    except (RuntimeError, AttributeError, NotImplementedError, TypeError):
        return False
    return bool(torch.equal(result, F.linear(x, weight).relu()))
