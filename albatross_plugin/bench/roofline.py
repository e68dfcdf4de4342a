"""Roofline of a step: the fewest bytes and the operations that it takes, and the time that a card's measured ceilings allow for them."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = 64
HALF = 2
STATE_BYTES = {"fp16": 2, "fp32": 4}


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of an RWKV-7: ``hidden`` is the width of the channel mix, ``ranks`` those of the LoRAs w, a, v, g."""

    layers: int
    width: int
    ranks: tuple[int, int, int, int]
    vocab: int = 65536

    @property
    def hidden(self) -> int:
        return 4 * self.width

    @property
    def heads(self) -> int:
        return self.width // HEAD

    @property
    def layer_matrices(self) -> int:
        """Numbers in the matrices of one layer: r, k, v and output, the LoRAs' halves, key and value of the channel mix."""
        return self.width * (4 * self.width + 2 * sum(self.ranks) + 2 * self.hidden)

    @property
    def layer_vectors(self) -> int:
        """Three norms, six mixes, w0, a0, v0, k_k, k_a, r_k, and the mix of the channel mix: each as wide as the model."""
        return self.width * (2 * 3 + 6 + 6 + 1)


OFFICIAL = {
    "0.1b": ModelSizes(12, 768, (64, 64, 32, 128)),
    "0.4b": ModelSizes(24, 1024, (64, 64, 32, 128)),
    "1.5b": ModelSizes(24, 2048, (96, 96, 64, 256)),
    "2.9b": ModelSizes(32, 2560, (96, 96, 64, 320)),
    "7.2b": ModelSizes(32, 4096, (128, 128, 96, 480)),
}


@dataclass(frozen=True)
class Work:
    """What something takes at least: bytes through the card's memory, and floating-point operations."""

    bytes: float
    flops: float = 0.0


@dataclass(frozen=True)
class Ceilings:
    """Measured rates of a card: ``copy`` in bytes read and written a second, ``product`` in operations a second."""

    copy: float
    product: float

    def seconds(self, work: Work) -> float:
        """The larger of the two times, as if bytes and operations overlapped without a rest."""
        return max(work.bytes / self.copy, work.flops / self.product)

    def fraction(self, work: Work, seconds: float) -> float:
        """Which part of the roofline's rate was reached by work that took ``seconds``."""
        return self.seconds(work) / seconds


def weight_bytes(sizes: ModelSizes) -> int:
    """Float16 weights that a step reads, each once. Of the embedding a step reads a few rows, which do not count."""
    body = sizes.layers * (sizes.layer_matrices + sizes.layer_vectors)
    return HALF * (body + sizes.vocab * sizes.width + 2 * sizes.width)


def state_bytes(sizes: ModelSizes, state: str) -> int:
    """State of one sequence: a 64 x 64 matrix for each head in the state's type, two float16 vectors, for each layer."""
    return sizes.layers * (sizes.heads * HEAD * HEAD * STATE_BYTES[state] + 2 * sizes.width * HALF)


def recurrence_flops(sizes: ModelSizes) -> int:
    """For one token of one layer: four multiply-adds for each number of the state (S kk, the two outer products, S r)."""
    return sizes.heads * HEAD * HEAD * 2 * 4


def pass_work(sizes: ModelSizes, rows: int, tokens: int = 1, state: str = "fp16") -> Work:
    """``rows`` sequences of ``tokens`` tokens each: weights once, states read and written, one line of logits a row.

    Logits count as float16, the narrowest that any engine writes. What goes from one kernel to the next does not count: it may stay in the
    second-level cache.
    """
    moved = weight_bytes(sizes) + rows * 2 * state_bytes(sizes, state) + rows * sizes.vocab * HALF
    for_token = sizes.layers * (2 * sizes.layer_matrices + recurrence_flops(sizes))
    return Work(moved, rows * tokens * for_token + rows * 2 * sizes.vocab * sizes.width)
