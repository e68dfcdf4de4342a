"""Taker: tensors out of a checkpoint's dict, one by one, in the working type and on the working device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from albatross_plugin.errors import CheckpointError
from albatross_plugin.model.spec import is_optional

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
Norm = tuple[Tensor, Tensor]


class Taker:
    """At most one tensor exists twice. ``progress(loaded, total)`` counts bytes of the file; ``bytes`` what was made.

    ``name`` is the file's, for messages. Raises CheckpointError for a tensor that holds NaN; infinities are named in a warning,
    since they fail only the requests that meet them.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype, progress: Progress, name: str = "the checkpoint"
    ) -> None:
        self._name = name
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
        self._look_at(key, target)
        self._read += raw.numel() * raw.itemsize
        self.bytes += target.numel() * target.itemsize
        self.report()

    def report(self) -> None:
        """Tell how far this is. Raises what ``progress`` raises when the load was called off."""
        self._progress(self._read, self._total)

    def _look_at(self, key: str, target: Tensor) -> None:
        """One sum over all numbers finds what is not finite; it takes a small part of the time that reading them took."""
        if bool(torch.isfinite(target.sum(dtype=torch.float32))):
            return
        if bool(torch.isnan(target).any()):
            raise CheckpointError(f"{self._name} is damaged: {key} holds values that are not numbers (NaN); copy or download it again")
        if bool(torch.isinf(target).any()):
            kind = str(target.dtype).removeprefix("torch.")
            logger.warning("%s: %s holds infinite values, or ones beyond %s; requests that meet them fail", self._name, key, kind)

    def plain(self, key: str) -> Tensor:
        tensor = torch.empty(self.shape(key), device=self._device, dtype=self._dtype)
        self.into(key, tensor)
        return tensor

    def vector(self, key: str) -> Tensor:
        return self.plain(key).flatten()

    def norm(self, key: str) -> Norm:
        return self.vector(key + ".weight"), self.vector(key + ".bias")
