"""StatePool: the recurrent states of all slots. Nobody else knows how they are laid out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from albatross_plugin.errors import RequestError
from albatross_plugin.model.spec import HEAD_SIZE, ModelSpec

PER_LAYER = 3


def state_bytes(spec: ModelSpec, dtype: torch.dtype, recurrent: torch.dtype = torch.float32) -> int:
    """Bytes of one slot: ``n_layer * (H * 64 * 64 * recurrent.itemsize + 2 * C * dtype.itemsize)``, with H = C / 64.

    ``recurrent`` is the type of the recurrence; the two shifted inputs have ``dtype``, the weights' type.
    """
    return spec.n_layer * (spec.n_head * HEAD_SIZE * HEAD_SIZE * recurrent.itemsize + 2 * spec.n_embd * dtype.itemsize)


class StatePool:
    """``rows`` states; row ``rows - 1`` is scratch, for padded rows of a captured batch. ``kept`` more follow, which no pass touches.

    att_shift, ffn_shift [L, rows + kept, C] of the weights' type: the last normalised input of either mix.
    wkv [L, rows + kept, H, 64, 64] of type ``recurrent``: value x key, so that y = S r.
    """

    def __init__(
        self,
        spec: ModelSpec,
        rows: int,
        device: torch.device,
        dtype: torch.dtype,
        recurrent: torch.dtype = torch.float32,
        kept: int = 0,
    ) -> None:
        self.spec = spec
        self.rows = rows
        shift = (spec.n_layer, rows + kept, spec.n_embd)
        self.att_shift = torch.zeros(shift, device=device, dtype=dtype)
        self.ffn_shift = torch.zeros(shift, device=device, dtype=dtype)
        self.wkv = torch.zeros((spec.n_layer, rows + kept, spec.n_head, HEAD_SIZE, HEAD_SIZE), device=device, dtype=recurrent)

    @property
    def memory_bytes(self) -> int:
        return sum(t.numel() * t.itemsize for t in (self.att_shift, self.ffn_shift, self.wkv))

    def reset(self, slot: int) -> None:
        """Make ``slot`` a fresh state, all zeros, whatever it held (a failed request may have left NaN)."""
        for tensor in (self.att_shift, self.ffn_shift, self.wkv):
            tensor[:, slot].zero_()

    def reset_many(self, slots: Tensor) -> None:
        """The same for ``slots`` int64 [n] on the pool's device, in three launches."""
        for tensor in (self.att_shift, self.ffn_shift, self.wkv):
            tensor.index_fill_(1, slots, 0)

    def keep(self, slot: int, row: int) -> None:
        """Copy the state of ``slot`` into the kept ``row``, counted from 0."""
        for tensor in (self.att_shift, self.ffn_shift, self.wkv):
            tensor[:, self.rows + row].copy_(tensor[:, slot])

    def restore(self, row: int, slots: Tensor) -> None:
        """Copy the kept state of ``row`` into ``slots`` int64 [n] on the pool's device, in a few launches however many they are."""
        for tensor in (self.att_shift, self.ffn_shift, self.wkv):
            # A copy of its own: the source must not overlap what is written.
            source = tensor[:, self.rows + row].clone().unsqueeze(1)
            tensor.index_copy_(1, slots, source.expand(-1, len(slots), *source.shape[2:]))

    def load(self, slot: int, initial_state: Any) -> None:
        """Start ``slot`` from ``initial_state``, in the form that hosts keep state files in and PyPI's rwkv package takes:

        a list of 3 * n_layer tensors, per layer the shifted input of the time mix [C], the recurrence [H, 64, 64]
        (value x key) and the shifted input of the channel mix [C]. None: zeros. Raises RequestError when it does not fit.
        """
        if initial_state is None:
            self.reset(slot)
            return
        for layer, parts in enumerate(self._checked(initial_state)):
            att, wkv, ffn = parts
            self.att_shift[layer, slot].copy_(att)
            self.wkv[layer, slot].copy_(wkv)
            self.ffn_shift[layer, slot].copy_(ffn)

    def read(self, slot: int) -> list[Tensor]:
        """A copy of the state of ``slot``, on the CPU, in the form that ``load`` takes."""
        parts = []
        for layer in range(self.spec.n_layer):
            for tensor in (self.att_shift, self.wkv, self.ffn_shift):
                parts.append(tensor[layer, slot].detach().to("cpu", torch.float32, copy=True))
        return parts

    def _checked(self, initial_state: Any) -> list[list[Tensor]]:
        count = PER_LAYER * self.spec.n_layer
        if not isinstance(initial_state, Sequence) or len(initial_state) != count:
            found = f"{len(initial_state)} entries" if isinstance(initial_state, Sequence) else type(initial_state).__name__
            raise RequestError(f"state: expected a list of {count} tensors for {self.spec.n_layer} layers, got {found}", param="state")
        width, heads = self.spec.n_embd, self.spec.n_head
        shapes = ((width,), (heads, HEAD_SIZE, HEAD_SIZE), (width,))
        layers = []
        for layer in range(self.spec.n_layer):
            parts = []
            for part, shape in enumerate(shapes):
                value = initial_state[layer * PER_LAYER + part]
                plain = isinstance(value, Tensor) and value.layout is torch.strided and value.is_floating_point() and not value.is_meta
                if not plain or tuple(value.shape) != shape:
                    found = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                    raise RequestError(
                        f"state: entry {layer * PER_LAYER + part} must be a dense tensor of floats of shape {list(shape)}, got {found}",
                        param="state",
                    )
                parts.append(value)
            layers.append(parts)
        return layers
