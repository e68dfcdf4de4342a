"""CudaWeights: the tensors of a checkpoint in the layouts that the CUDA kernels read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from albatross_plugin.model.checkpoint import open_checkpoint
from albatross_plugin.model.spec import ModelSpec, check_vocabulary
from albatross_plugin.model.taker import Norm, Progress, Taker
from albatross_plugin.model.weights import normalised_embedding

# Of the six mixed inputs the first three go through square matrices, so that these are one batched product.
MIXES = "rkvwag"
LORAS = "wavg"
RANK_MULTIPLE = 32


@dataclass(frozen=True)
class LowRank:
    """One LoRA. ``kind``: its place in LORAS, ``mixed``: the place of its input in MIXES; down [R, C] and up [C, R].

    R is padded with zeros to a multiple of 32, the same for every layer.
    """

    kind: int
    mixed: int
    down: Tensor
    up: Tensor


@dataclass(frozen=True)
class CudaLayer:
    """One layer in float16. mix [6, C] in the order of MIXES; ``ffn_value`` is [F, C], transposed, so that rows can be skipped.

    ``loras``: decay, rate, residual (not in layer 0), gate.
    """

    ln1: Norm
    ln2: Norm
    ln_x: Norm
    mix: Tensor
    rkv: Tensor
    output: Tensor
    loras: list[LowRank]
    w0: Tensor
    a0: Tensor
    v0: Tensor | None
    k_k: Tensor
    k_a: Tensor
    r_k: Tensor
    ffn_mix: Tensor
    ffn_key: Tensor
    ffn_value: Tensor


@dataclass(frozen=True, eq=False)
class CudaWeights:
    """A whole model on one card. ``embedding`` [V, C] is already normalised with ``ln0``; ``head`` [V, C]; ``ranks`` as LORAS."""

    spec: ModelSpec
    ranks: tuple[int, ...]
    embedding: Tensor
    layers: list[CudaLayer]
    ln_out: Norm
    head: Tensor
    bytes: int


def weight_bytes(tensors: dict[str, Tensor]) -> int:
    """Bytes on the card for a checkpoint's tensors, before anything is read; the LoRAs' padding is below a thousandth."""
    return sum(tensor.numel() for tensor in tensors.values()) * torch.float16.itemsize


def open_for_cuda(path: str, token_limit: int) -> tuple[ModelSpec, dict[str, Tensor]]:
    """Sizes and mapped tensors. Raises CheckpointError when this is no RWKV-7 model for this vocabulary."""
    spec, tensors = open_checkpoint(path)
    check_vocabulary(spec, token_limit)
    return spec, tensors


def load_cuda_weights(spec: ModelSpec, tensors: dict[str, Tensor], device: torch.device, progress: Progress) -> CudaWeights:
    """Copy to the card tensor by tensor. ``progress(loaded, total)`` counts bytes of the file."""
    ranks = padded_ranks(spec, tensors)
    taker = Taker(tensors, device, torch.float16, progress, spec.name)
    embedding = normalised_embedding(taker)
    layers = [_layer(taker, f"blocks.{index}.", index == 0, ranks, device) for index in range(spec.n_layer)]
    ln_out = taker.norm("ln_out")
    head = taker.plain("head.weight")
    return CudaWeights(spec, ranks, embedding, layers, ln_out, head, taker.bytes)


def padded_ranks(spec: ModelSpec, tensors: dict[str, Tensor]) -> tuple[int, ...]:
    """The largest rank of each LoRA over the layers, rounded up for the tensor cores."""
    ranks = []
    for name in LORAS:
        first = 1 if name == "v" else 0
        found = [tensors[f"blocks.{layer}.att.{name}1"].shape[1] for layer in range(first, spec.n_layer)]
        ranks.append(-(-max(found, default=1) // RANK_MULTIPLE) * RANK_MULTIPLE)
    return tuple(ranks)


def _layer(taker: Taker, block: str, first: bool, ranks: tuple[int, ...], device: torch.device) -> CudaLayer:
    att, ffn = block + "att.", block + "ffn."
    mix = torch.stack([taker.vector(att + "x_" + c) for c in MIXES])
    width = mix.shape[1]
    rkv = torch.empty(3, width, width, device=device, dtype=torch.float16)
    for index, name in enumerate(("receptance", "key", "value")):
        taker.into(f"{att}{name}.weight", rkv[index])
    loras = [_low_rank(taker, att, kind, ranks[kind]) for kind, name in enumerate(LORAS) if not (first and name == "v")]
    return CudaLayer(
        ln1=taker.norm(block + "ln1"),
        ln2=taker.norm(block + "ln2"),
        ln_x=taker.norm(att + "ln_x"),
        mix=mix,
        rkv=rkv,
        output=taker.plain(att + "output.weight"),
        loras=loras,
        w0=taker.vector(att + "w0"),
        a0=taker.vector(att + "a0"),
        v0=None if first else taker.vector(att + "v0"),
        k_k=taker.vector(att + "k_k"),
        k_a=taker.vector(att + "k_a"),
        r_k=taker.plain(att + "r_k"),
        ffn_mix=taker.plain(ffn + "x_k").view(1, -1),
        ffn_key=taker.plain(ffn + "key.weight"),
        ffn_value=taker.plain(ffn + "value.weight").t().contiguous(),
    )


def _low_rank(taker: Taker, att: str, kind: int, rank: int) -> LowRank:
    name = LORAS[kind]
    down, up = taker.plain(f"{att}{name}1").t(), taker.plain(f"{att}{name}2").t()
    missing = rank - down.shape[0]
    if missing:
        down = torch.nn.functional.pad(down, (0, 0, 0, missing))
        up = torch.nn.functional.pad(up, (0, missing))
    return LowRank(kind, MIXES.index(name), down.contiguous(), up.contiguous())
