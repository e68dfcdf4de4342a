"""Random RWKV-7 checkpoints in the shapes of the official models, made on the card. Not for reading: for numbers of a sane size."""

from __future__ import annotations

import torch
from torch import Tensor

# layers, width, LoRA ranks w, a, v, g
SHAPES = {
    "0.1b": (12, 768, 64, 64, 32, 128),
    "0.4b": (24, 1024, 64, 64, 32, 128),
    "1.5b": (24, 2048, 96, 96, 64, 256),
    "2.9b": (32, 2560, 96, 96, 64, 320),
    "7.2b": (32, 4096, 128, 128, 96, 480),
}


def official_checkpoint(name: str, seed: int = 0, device: str = "cuda") -> dict[str, Tensor]:
    """bfloat16 tensors with the official names."""
    layers, width, *ranks = SHAPES[name]
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
        return (torch.randn(shape, generator=generator, device=device) * scale + mean).bfloat16()

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=device).bfloat16()

    narrow = width**-0.5
    state = {"emb.weight": normal(65536, width), "head.weight": normal(65536, width, scale=2 * narrow)}
    norms = ["blocks.0.ln0", "ln_out"]
    for layer in range(layers):
        block = f"blocks.{layer}."
        att, ffn = block + "att.", block + "ffn."
        norms += [block + name for name in ("ln1", "ln2", "att.ln_x")]
        state.update({att + "x_" + c: uniform(1, 1, width) for c in "rwkvag"})
        for c, rank, mean in zip("wav", ranks, (-3.0, 0.0, 0.5), strict=False):
            state[att + c + "0"] = normal(1, 1, width, scale=1.0, mean=mean)
            state[att + c + "1"], state[att + c + "2"] = normal(width, rank, scale=narrow), normal(rank, width, scale=0.3 * rank**-0.5)
        state[att + "g1"], state[att + "g2"] = normal(width, ranks[3], scale=narrow), normal(ranks[3], width, scale=ranks[3] ** -0.5)
        state[att + "k_k"], state[att + "k_a"] = normal(1, 1, width, scale=0.05, mean=0.85), normal(1, 1, width, scale=0.05, mean=1.0)
        state[att + "r_k"] = normal(width // 64, 64, scale=0.05)
        for part in ("receptance", "key", "value", "output"):
            state[f"{att}{part}.weight"] = normal(width, width, scale=0.5 * narrow)
        state[ffn + "x_k"] = uniform(1, 1, width)
        state[ffn + "key.weight"] = normal(4 * width, width, scale=0.5 * narrow)
        state[ffn + "value.weight"] = normal(width, 4 * width, scale=0.5 * narrow)
    for norm in norms:
        state[norm + ".weight"] = normal(width, scale=0.1, mean=1.0)
        state[norm + ".bias"] = normal(width, scale=0.1)
    return state
