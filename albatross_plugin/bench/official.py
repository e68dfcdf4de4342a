"""Random RWKV-7 checkpoints in the shapes of the official models.

    python -m albatross_plugin.bench.official 1.5b model.pth --device cuda

Not for reading: for numbers of a sane size. With ``zeros`` the channel mix's hidden layer is as sparse as that of trained models, of which
86 to 90 of 100 values are zero, because one-row products skip what is zero.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

from albatross_plugin.bench.roofline import OFFICIAL

if TYPE_CHECKING:
    from torch import Tensor

TRAINED_ZEROS = 0.88
# What ln2 adds to every channel, so that a mean in the key matrix becomes a mean of what comes out of it.
_OFFSET = 0.5
# The token shift mixes two independent inputs with a uniform share: the mean of share^2 + (1 - share)^2.
_MIXED_VARIANCE = 2 / 3


def official_checkpoint(name: str, seed: int = 0, device: str = "cuda", zeros: float | None = None) -> dict[str, Tensor]:
    """bfloat16 tensors with the official names. ``zeros``: the share of the channel mix's hidden values that are zero; None: half."""
    import torch

    sizes = OFFICIAL[name]
    width, hidden, vocab = sizes.width, sizes.hidden, sizes.vocab
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
        return (torch.randn(shape, generator=generator, device=device) * scale + mean).bfloat16()

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=device).bfloat16()

    narrow = width**-0.5
    offset = 0.0 if zeros is None else _OFFSET
    key_mean = 0.0 if zeros is None else _key_mean(zeros, width, 0.5 * narrow)
    state = {"emb.weight": normal(vocab, width), "head.weight": normal(vocab, width, scale=3 * narrow)}
    norms = ["blocks.0.ln0", "ln_out"]
    for layer in range(sizes.layers):
        block = f"blocks.{layer}."
        att, ffn = block + "att.", block + "ffn."
        norms += [block + part for part in ("ln1", "ln2", "att.ln_x")]
        state.update({att + "x_" + c: uniform(1, 1, width) for c in "rwkvag"})
        for c, rank, mean in zip("wav", sizes.ranks, (-3.0, 0.0, 0.5), strict=False):
            state[att + c + "0"] = normal(1, 1, width, scale=1.0, mean=mean)
            state[att + c + "1"], state[att + c + "2"] = normal(width, rank, scale=narrow), normal(rank, width, scale=0.3 * rank**-0.5)
        gate = sizes.ranks[3]
        state[att + "g1"], state[att + "g2"] = normal(width, gate, scale=narrow), normal(gate, width, scale=gate**-0.5)
        state[att + "k_k"], state[att + "k_a"] = normal(1, 1, width, scale=0.05, mean=0.85), normal(1, 1, width, scale=0.05, mean=1.0)
        state[att + "r_k"] = normal(sizes.heads, 64, scale=0.05)
        for part in ("receptance", "key", "value", "output"):
            state[f"{att}{part}.weight"] = normal(width, width, scale=0.5 * narrow)
        state[ffn + "x_k"] = uniform(1, 1, width)
        state[ffn + "key.weight"] = normal(hidden, width, scale=0.5 * narrow, mean=key_mean)
        state[ffn + "value.weight"] = normal(width, hidden, scale=0.5 * narrow)
    for norm in norms:
        state[norm + ".weight"] = normal(width, scale=0.1, mean=1.0)
        state[norm + ".bias"] = normal(width, scale=0.1, mean=offset if norm.endswith("ln2") else 0.0)
    return state


def _key_mean(zeros: float, width: int, scale: float) -> float:
    """The mean of the key matrix's numbers, their deviation being ``scale``, for which ``zeros`` of its outputs are negative.

    Inputs have the mean _OFFSET and the variance _MIXED_VARIANCE, so an output is normal with mean ``width * mean * _OFFSET`` and deviation
    ``scale * sqrt(width * (_MIXED_VARIANCE + _OFFSET^2))``.
    """
    deviation = scale * math.sqrt(width * (_MIXED_VARIANCE + _OFFSET**2))
    return float(-NormalDist().inv_cdf(zeros) * deviation / (width * _OFFSET))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m albatross_plugin.bench.official", description="Write a random checkpoint.")
    parser.add_argument("shape", choices=sorted(OFFICIAL))
    parser.add_argument("file", type=Path, help="a .pth file to write; 2 bytes a parameter")
    parser.add_argument("--device", default="cuda", help="where the numbers are made (default: cuda)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    import torch

    checkpoint = official_checkpoint(options.shape, options.seed, options.device, TRAINED_ZEROS)
    torch.save({key: tensor.cpu() for key, tensor in checkpoint.items()}, options.file)
    print(options.file)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
