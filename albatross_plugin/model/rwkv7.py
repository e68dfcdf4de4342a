"""The forward pass of RWKV-7 for a packed batch of rows of any lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from albatross_plugin.model.batch import PackedBatch
from albatross_plugin.model.spec import HEAD_SIZE
from albatross_plugin.model.state import StatePool
from albatross_plugin.model.taker import Norm
from albatross_plugin.model.weights import Layer, Lora, Weights

# exp(-0.5), the lowest logarithm of a decay, as RWKV-7 rounds it.
DECAY_SCALE = -0.606531
TINY = 1e-12


class RWKV7:
    """Weights in use. Holds no state: every call reads and writes the slots of a StatePool."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    @property
    def weights(self) -> Weights:
        return self._weights

    def forward(self, tokens: Tensor, batch: PackedBatch, pool: StatePool) -> Tensor:
        """Feed ``tokens`` int64 [N] (time-major, see PackedBatch) and advance the rows' slots in ``pool`` in place.

        Returns the residual stream [N, C] after the last layer, for ``logits``.
        """
        x = self._weights.embedding.index_select(0, tokens)
        first_value: Tensor | None = None
        for index, layer in enumerate(self._weights.layers):
            mixed, first_value = self._time_mix(layer, x, first_value, batch, pool.att_shift[index], pool.wkv[index])
            x = x + mixed
            x += self._channel_mix(layer, x, batch, pool.ffn_shift[index])
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Float32 logits [R, V] of some rows [R, C] of the residual stream."""
        count = x.shape[0]
        missing = self._weights.ops.minimum_rows - count
        if missing > 0:
            x = torch.cat((x, x[:1].expand(missing, -1)))
        result: Tensor = self._weights.ops.linear(_norm(x, self._weights.ln_out), self._weights.head)
        return result[:count].float()

    def _time_mix(
        self, layer: Layer, x: Tensor, first_value: Tensor | None, batch: PackedBatch, shift: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        ops = self._weights.ops
        xn = _norm(x, layer.ln1)
        x_r, x_w, x_k, x_v, x_a, x_g = ops.token_shift(xn, _exchange(xn, batch, shift), layer.mix).unbind(0)
        r, k, v = ops.linear(x_r, layer.receptance), ops.linear(x_k, layer.key), ops.linear(x_v, layer.value)
        w = self._lora(layer.decay, x_w, torch.tanh_).float().sigmoid_().mul_(DECAY_SCALE).exp_()
        a = self._lora(layer.rate, x_a).sigmoid_()
        g = self._lora(layer.gate, x_g, torch.sigmoid_)
        if layer.residual is None or first_value is None:
            first_value = v
        else:
            v = torch.lerp(v, first_value, self._lora(layer.residual, x_v).sigmoid_())
        heads = (k.shape[0], -1, HEAD_SIZE)
        kk = (k * layer.k_k).view(heads).float()
        kk /= torch.linalg.vector_norm(kk, dim=-1, keepdim=True).clamp_(min=TINY)
        k = torch.addcmul(layer.one_minus_k_a, a, layer.k_a).mul_(k)
        b = kk * a.view(heads)
        r, k, v = r.view(heads), k.view(heads), v.view(heads)
        y = ops.wkv(state, batch, r.float(), w.view(heads), k.float(), v.float(), kk, b)
        bonus = (r * k * layer.r_k).sum(-1, keepdim=True) * v
        y = ops.head_norm(y, *layer.ln_x).add_(bonus.view(y.shape[0], -1)).to(g.dtype)
        return ops.linear(y.mul_(g), layer.output), first_value

    def _channel_mix(self, layer: Layer, x: Tensor, batch: PackedBatch, shift: Tensor) -> Tensor:
        ops = self._weights.ops
        xn = _norm(x, layer.ln2)
        mixed = ops.token_shift(xn, _exchange(xn, batch, shift), layer.ffn_mix)[0]
        hidden = ops.linear_relu(mixed, layer.ffn_key)
        result: Tensor = ops.linear(hidden.mul_(hidden), layer.ffn_value)
        return result

    def _lora(self, lora: Lora, x: Tensor, act: object = None) -> Tensor:
        ops = self._weights.ops
        low = ops.linear(x, lora.down)
        if act is not None:
            act(low)  # type: ignore[operator]
        return ops.linear(low, lora.up, lora.bias)


def _norm(x: Tensor, norm: Norm) -> Tensor:
    return torch.layer_norm(x, norm[0].shape, norm[0], norm[1])


def _exchange(xn: Tensor, batch: PackedBatch, shift: Tensor) -> Tensor:
    """The normalised input of each token's predecessor [N, C]; ``shift`` [S, C] gets the last one of each row."""
    run = batch.run
    rows = shift[run] if run is not None else shift.index_select(0, batch.slots)
    if batch.tokens == 1:
        # Padding may have any predecessor, so nothing needs to be gathered.
        previous, last = rows.expand_as(xn).clone(), xn[:1]
    elif batch.previous is None or batch.last is None:
        previous, last = rows.clone() if run is not None else rows, xn
    else:
        previous, last = torch.cat((rows, xn)).index_select(0, batch.previous), xn.index_select(0, batch.last)
    if run is not None:
        rows.copy_(last)
    else:
        shift.index_copy_(0, batch.slots, last)
    return previous
