"""Taker: tensors out of a checkpoint's dict, one by one, in the working type and on the working device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from albatross_plugin.model.spec import is_optional

Progress = Callable[[int, int], None]
Norm = tuple[Tensor, Tensor]


class Taker:
    """At most one tensor exists twice. ``progress(loaded, total)`` counts bytes of the file; ``bytes`` what was made."""

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype, progress: Progress) -> None:
        self._tensors = {key: tensor for key, tensor in tensors.items() if not is_optional(key)}
        self._device, self._dtype, self._progress = device, dtype, progress
        self._total = sum(t.numel() * t.itemsize for t in self._tensors.values())
        self._read = 0
        self.bytes = 0

    def shape(self, key: str) -> torch.Size:
        return self._tensors[key].shape

    def into(self, key: str, target: Tensor) -> None:
        """Fill ``target``, which has the tensor's shape. A copy: it never shares memory with the mapped file."""
        raw = self._tensors.pop(key)
        # To a card it travels in the file's type and is converted there, so that the host holds no second copy.
        target.copy_(raw if target.device.type == "cpu" else raw.to(target.device))
        self._read += raw.numel() * raw.itemsize
        self.bytes += target.numel() * target.itemsize
        self._progress(self._read, self._total)

    def plain(self, key: str) -> Tensor:
        tensor = torch.empty(self.shape(key), device=self._device, dtype=self._dtype)
        self.into(key, tensor)
        return tensor

    def vector(self, key: str) -> Tensor:
        return self.plain(key).flatten()

    def norm(self, key: str) -> Norm:
        return self.vector(key + ".weight"), self.vector(key + ".bias")
