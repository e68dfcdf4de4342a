"""Seeded checkpoints of known shapes for benchmarks, kept in this user's cache folder.

They are made by the stub host's own command in a process that goes away with its memory, so that measuring needs no torch.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


class CheckpointError(RuntimeError):
    """A checkpoint could not be made; the message says why."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of an RWKV-7; ``width`` is a multiple of 64."""

    layers: int
    width: int
    vocab: int = 65536

    @property
    def state_floats(self) -> int:
        """Numbers in the state of one sequence: two vectors per layer, and a 64 x 64 matrix for each head of each layer.

        ``layers * (2 * width + (width / 64) * 64 * 64)``, which is ``66 * layers * width``.
        """
        return self.layers * (2 * self.width + self.width // 64 * 64 * 64)

    @property
    def slot_bytes(self) -> int:
        """Memory of one slot: its state in float32, and for the penalties two float32 numbers and a byte for each token id."""
        return 4 * self.state_floats + 9 * self.vocab

    def __str__(self) -> str:
        return f"{self.layers} layers, {self.width} wide, vocabulary {self.vocab}"


SHAPES = {"small": ModelShape(2, 128), "0.1b": ModelShape(12, 768)}


def checkpoint(shape: ModelShape, folder: Path | None = None, seed: int = 0) -> Path:
    """The file of a shape and seed, made if it is missing or damaged. ``folder`` None: the user's cache. Raises CheckpointError."""
    command = [sys.executable, "-m", "host_stub.demo_model", "--cached", *([str(folder)] if folder else [])]
    command += ["--layers", str(shape.layers), "--width", str(shape.width), "--vocab", str(shape.vocab), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        raise CheckpointError(f"the checkpoint was not made:\n{done.stderr[-2000:]}")
    return Path(done.stdout.splitlines()[-1])
