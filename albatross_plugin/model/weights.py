"""Weights: the tensors of a checkpoint in the form that the forward pass uses, loaded once per process and device."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from albatross_plugin.model.archive import Checksums
from albatross_plugin.model.checkpoint import open_checkpoint
from albatross_plugin.model.ops import Operators, operators_for
from albatross_plugin.model.spec import ModelSpec, check_vocabulary
from albatross_plugin.model.taker import Norm, Progress, Taker

_EMBEDDING_SLICE = 4096
# Sizes of the model, and bytes of weights that are still to be made. Raises when there is no room.
Fits = Callable[[ModelSpec, int], None]


@dataclass(frozen=True)
class Lora:
    """``up(act(down(x))) + bias``; the bias [C] is None for the gate."""

    down: Any
    up: Any
    bias: Tensor | None


@dataclass(frozen=True)
class Layer:
    """One layer. ``mix`` [6, 1, C] is in the order r, w, k, v, a, g; matrices are packed by the operators."""

    ln1: Norm
    ln2: Norm
    ln_x: Norm
    mix: Tensor
    receptance: Any
    key: Any
    value: Any
    output: Any
    decay: Lora
    rate: Lora
    residual: Lora | None
    gate: Lora
    k_k: Tensor
    k_a: Tensor
    one_minus_k_a: Tensor
    r_k: Tensor
    ffn_mix: Tensor
    ffn_key: Any
    ffn_value: Any


@dataclass(frozen=True, eq=False)
class Weights:
    """A whole model on one device. ``embedding`` [V, C] is already normalised with ``ln0``; ``bytes`` counts all tensors."""

    spec: ModelSpec
    device: torch.device
    dtype: torch.dtype
    ops: Operators
    embedding: Tensor
    layers: list[Layer]
    ln_out: Norm
    head: Any
    bytes: int = field(default=0)


def _anything_fits(spec: ModelSpec, to_load: int) -> None:
    """For callers that need no room of their own beside the weights."""


def weight_dtype(device: torch.device) -> torch.dtype:
    return torch.float16 if device.type == "cuda" else torch.float32


_cache: weakref.WeakValueDictionary[tuple[object, ...], Weights] = weakref.WeakValueDictionary()
_cache_lock = threading.Lock()


def shared_weights(path: str, device: torch.device, token_limit: int, progress: Progress, fits: Fits = _anything_fits) -> Weights:
    """The weights of ``path`` on ``device``; whoever asks while another holds them gets the same object.

    ``fits`` is asked before anything large is read. Raises CheckpointError.

    The lock is held while loading, so that a second worker waits instead of loading again.
    """
    file = os.path.realpath(path)
    with _cache_lock:
        found: Weights | None = None
        if os.path.exists(file):
            stat = os.stat(file)
            key = (file, stat.st_mtime_ns, stat.st_size, str(device))
            found = _cache.get(key)
        if found is None:
            found = load_weights(path, device, token_limit, progress, fits)
            _cache[key] = found
        else:
            check_vocabulary(found.spec, token_limit)
            fits(found.spec, 0)
            progress(stat.st_size, stat.st_size)
        return found


def load_weights(path: str, device: torch.device, token_limit: int, progress: Progress, fits: Fits) -> Weights:
    """Read, convert and pack. ``progress(loaded, total)`` counts bytes of the file's tensors."""
    spec, tensors = open_checkpoint(path)
    check_vocabulary(spec, token_limit)
    dtype = weight_dtype(device)
    fits(spec, sum(tensor.numel() for tensor in tensors.values()) * dtype.itemsize)
    taker = _PackingTaker(tensors, device, dtype, operators_for(device, dtype), progress, spec.name)
    with Checksums(path, taker.report):
        embedding = normalised_embedding(taker)
        layers = [_layer(taker, f"blocks.{index}.", index == 0) for index in range(spec.n_layer)]
        ln_out = taker.norm("ln_out")
        head = taker.packed("head.weight")
    return Weights(spec, device, dtype, taker.ops, embedding, layers, ln_out, head, taker.bytes)


class _PackingTaker(Taker):
    """Also brings matrices into the form that the operators multiply by."""

    def __init__(
        self, tensors: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype, ops: Operators, progress: Progress, name: str
    ) -> None:
        super().__init__(tensors, device, dtype, progress, name)
        self.ops = ops

    def packed(self, key: str, transpose: bool = False) -> Any:
        tensor = self.plain(key)
        return self.ops.pack(tensor.t() if transpose else tensor)

    def lora(self, key: str, bias: bool = True) -> Lora:
        down, up = self.packed(key + "1", transpose=True), self.packed(key + "2", transpose=True)
        return Lora(down, up, self.vector(key + "0") if bias else None)


def normalised_embedding(taker: Taker) -> Tensor:
    """[V, C], with ``blocks.0.ln0`` applied once for all."""
    table = taker.plain("emb.weight")
    weight, bias = taker.norm("blocks.0.ln0")
    for part in table.split(_EMBEDDING_SLICE):
        part.copy_(F.layer_norm(part, weight.shape, weight, bias))
    return table


def _layer(taker: _PackingTaker, block: str, first: bool) -> Layer:
    att, ffn = block + "att.", block + "ffn."
    k_a = taker.vector(att + "k_a")
    return Layer(
        ln1=taker.norm(block + "ln1"),
        ln2=taker.norm(block + "ln2"),
        ln_x=taker.norm(att + "ln_x"),
        mix=torch.stack([taker.vector(att + "x_" + c) for c in "rwkvag"]).unsqueeze(1),
        receptance=taker.packed(att + "receptance.weight"),
        key=taker.packed(att + "key.weight"),
        value=taker.packed(att + "value.weight"),
        output=taker.packed(att + "output.weight"),
        decay=taker.lora(att + "w"),
        rate=taker.lora(att + "a"),
        residual=None if first else taker.lora(att + "v"),
        gate=taker.lora(att + "g", bias=False),
        k_k=taker.vector(att + "k_k"),
        k_a=k_a,
        one_minus_k_a=1 - k_a,
        r_k=taker.plain(att + "r_k"),
        ffn_mix=taker.plain(ffn + "x_k").view(1, 1, -1),
        ffn_key=taker.packed(ffn + "key.weight"),
        ffn_value=taker.packed(ffn + "value.weight"),
    )
