"""Seeded RWKV-7 checkpoints with random weights, in the layout of the official files.

    python -m host_stub.demo_model OUT.pth --layers 12 --width 768

They load like any other and cost as much per token, but say nothing. Token 0 (end of text) and the ids without text score
0 at every step, far below the rest, so that an answer is as long as it was asked to be.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Part of the file name: a changed recipe must not be answered from an old file.
RECIPE = 1
TEXT_IDS = range(1, 65530)


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; ``width`` is a multiple of ``head``."""

    layers: int
    width: int
    vocab: int = 65536
    head: int = 64

    def __post_init__(self) -> None:
        if self.layers < 1 or self.vocab < 2 or self.width < 1 or self.width % self.head:
            raise ValueError(f"not a model shape: {self}; the width must be a multiple of {self.head}")

    @property
    def heads(self) -> int:
        return self.width // self.head

    def rank(self, factor: float) -> int:
        """Inner size of a low-rank pair: near ``factor * sqrt(width)``, in steps of 32."""
        return max(32, 32 * round(factor * math.sqrt(self.width) / 32))


DEMO_SHAPE = Shape(layers=6, width=512)


class _Weights:
    """Draws tensors from one seeded generator, in bfloat16 as official files store them."""

    def __init__(self, seed: int) -> None:
        import torch

        self.torch = torch
        self.source = torch.Generator().manual_seed(seed)

    def normal(self, *size: int, std: float, mean: float = 0.0) -> torch.Tensor:
        values = self.torch.empty(size).normal_(mean, std, generator=self.source)
        return values.to(self.torch.bfloat16)

    def uniform(self, *size: int, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
        return self.torch.empty(size).uniform_(low, high, generator=self.source).to(self.torch.bfloat16)

    def matrix(self, rows: int, columns: int, fan_in: int, gain: float = 1.0) -> torch.Tensor:
        """A matrix whose output has about ``gain`` times the size of an input of unit size."""
        return self.normal(rows, columns, std=gain * fan_in**-0.5)


def random_checkpoint(shape: Shape, seed: int = 0) -> dict[str, torch.Tensor]:
    """State dict of an untrained RWKV-7: finite scores of about unit spread times 3, states that stay bounded."""
    draw = _Weights(seed)
    weights = {"emb.weight": draw.normal(shape.vocab, shape.width, std=1.0)}
    _norm(weights, draw, "blocks.0.ln0", shape.width)
    for layer in range(shape.layers):
        for name in ("ln1", "ln2"):
            _norm(weights, draw, f"blocks.{layer}.{name}", shape.width)
        _time_mix(weights, draw, f"blocks.{layer}.att.", shape)
        _channel_mix(weights, draw, f"blocks.{layer}.ffn.", shape)
    _norm(weights, draw, "ln_out", shape.width)
    head = draw.matrix(shape.vocab, shape.width, fan_in=shape.width, gain=3.0)
    head[: TEXT_IDS.start] = 0
    head[TEXT_IDS.stop :] = 0
    weights["head.weight"] = head
    return weights


def _norm(weights: dict[str, torch.Tensor], draw: _Weights, name: str, width: int) -> None:
    weights[f"{name}.weight"] = draw.normal(width, std=0.02, mean=1.0)
    weights[f"{name}.bias"] = draw.normal(width, std=0.02)


def _time_mix(weights: dict[str, torch.Tensor], draw: _Weights, prefix: str, shape: Shape) -> None:
    width = shape.width
    for part in ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g"):
        weights[prefix + part] = draw.uniform(1, 1, width)
    # Offsets (None: the gate has none) and inner sizes of the four low-rank pairs. The decays spread from short to long memory.
    pairs = {"w": (-4.0, 2.5), "a": (0.0, 2.5), "v": (0.5, 1.7), "g": (None, 5.0)}
    for part, (offset, factor) in pairs.items():
        rank = shape.rank(factor)
        if offset is not None:
            weights[f"{prefix}{part}0"] = draw.normal(1, 1, width, std=1.5 if part == "w" else 0.3, mean=offset)
        weights[f"{prefix}{part}1"] = draw.matrix(width, rank, fan_in=width)
        weights[f"{prefix}{part}2"] = draw.matrix(rank, width, fan_in=rank, gain=1.0 if part == "g" else 0.3)
    weights[prefix + "k_k"] = draw.normal(1, 1, width, std=0.05, mean=0.9)
    weights[prefix + "k_a"] = draw.normal(1, 1, width, std=0.05, mean=1.0)
    weights[prefix + "r_k"] = draw.normal(shape.heads, shape.head, std=0.05)
    for part, gain in (("receptance", 0.5), ("key", 0.5), ("value", 0.7), ("output", 0.5)):
        weights[f"{prefix}{part}.weight"] = draw.matrix(width, width, fan_in=width, gain=gain)
    _norm(weights, draw, prefix + "ln_x", width)


def _channel_mix(weights: dict[str, torch.Tensor], draw: _Weights, prefix: str, shape: Shape) -> None:
    width, inner = shape.width, 4 * shape.width
    weights[prefix + "x_k"] = draw.uniform(1, 1, width)
    weights[prefix + "key.weight"] = draw.matrix(inner, width, fan_in=width, gain=0.8)
    weights[prefix + "value.weight"] = draw.matrix(width, inner, fan_in=inner, gain=0.8)


def cache_folder(environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """This user's folder for files that can be made again, by the customs of the platform."""
    environ = os.environ if environ is None else environ
    if platform == "win32":
        local = environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "albatross-plugin" / "Cache"
    if platform == "darwin":
        return Path.home() / "Library" / "Caches" / "albatross-plugin"
    base = environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "albatross-plugin"


def cached_checkpoint(folder: Path, shape: Shape, seed: int = 0) -> tuple[Path, bool]:
    """The checkpoint of a shape and seed in ``folder``, and whether it had to be made: it was not there, or was damaged."""
    path = folder / f"rwkv7-random-{shape.layers}x{shape.width}-v{shape.vocab}-seed{seed}-r{RECIPE}.pth"
    if _intact(path):
        return path, False
    write_checkpoint(path, shape, seed)
    return path, True


def write_checkpoint(path: Path, shape: Shape, seed: int = 0) -> None:
    """Write the checkpoint and, last, its digest; a write that is cut off leaves no file that passes for whole."""
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        torch.save(random_checkpoint(shape, seed), partial)
        digest = _digest(partial)
        os.replace(partial, path)
        _digest_file(path).write_text(digest + "\n", encoding="ascii")
    finally:
        partial.unlink(missing_ok=True)


def _intact(path: Path) -> bool:
    try:
        return _digest_file(path).read_text(encoding="ascii").strip() == _digest(path)
    except (OSError, UnicodeDecodeError):
        return False


def _digest_file(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def main(arguments: list[str] | None = None) -> int:
    about = "Write a seeded RWKV-7 checkpoint with random weights."
    parser = argparse.ArgumentParser(prog="python -m host_stub.demo_model", description=about)
    parser.add_argument("out", type=Path, nargs="?", help="the file to write; with --cached, the folder (default: the user's cache)")
    parser.add_argument("--layers", type=int, default=DEMO_SHAPE.layers)
    parser.add_argument("--width", type=int, default=DEMO_SHAPE.width, help="a multiple of 64")
    parser.add_argument("--vocab", type=int, default=DEMO_SHAPE.vocab)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cached", action="store_true", help="keep an intact file of the same shape and seed; prints its path")
    options = parser.parse_args(arguments)
    try:
        shape = Shape(options.layers, options.width, options.vocab)
    except ValueError as error:
        parser.error(str(error))
    if options.cached:
        path, _ = cached_checkpoint(options.out or cache_folder(), shape, options.seed)
    else:
        if options.out is None:
            parser.error("name the file to write, or use --cached")
        path = options.out
        write_checkpoint(path, shape, options.seed)
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
