"""CUDA graphs: whole steps captured once and replayed with one launch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

# Padding costs little: a padded row's state is not touched, and products grow in steps anyway.
_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960, 1024)
_STEP_BEYOND = 128
# (below this size, the step to the next)
_PASS_STEPS = ((64, 16), (128, 32), (512, 64), (1024, 128), (4096, 256))
_PASS_STEP_BEYOND = 1024
# Products of larger passes are all alike to cuBLASLt's own guess.
MEASURED_PASS = 4096


def capture(run: Callable[[], object], pool: Any = None) -> torch.cuda.CUDAGraph:
    """Record what ``run`` queues on the current stream, which must not be the default one. ``run`` has run before."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.current_stream().synchronize()
    # Other threads may go on using the device meanwhile.
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        run()
    except BaseException:
        # The end of a capture that went wrong raises too, and says less.
        with suppress(RuntimeError):
            graph.capture_end()
        raise
    graph.capture_end()
    return graph


def bucket_sizes(batch: int) -> list[int]:
    """Numbers of rows for which a step is captured, the largest being ``batch``."""
    sizes = [size for size in _SIZES if size < batch]
    sizes += range(_SIZES[-1] + _STEP_BEYOND, batch, _STEP_BEYOND)
    return sizes + [batch]


def pass_sizes(tokens: int) -> list[int]:
    """Numbers of tokens for which a pass with prompts is captured. Padding adds less than a half, from 1,024 tokens on a quarter."""
    sizes, size = [], 0
    while size < tokens:
        size += (
            16 if size < 64 else 32 if size < 128 else 64 if size < 512 else 128 if size < 1024 else 256 if size < MEASURED_PASS else 1024
        )
        sizes.append(size)
    return sizes


def bucket_for(count: int, sizes: list[int]) -> int:
    """The smallest of ``sizes`` that holds ``count``. Raises ValueError when none does."""
    for size in sizes:
        if size >= count:
            return size
    raise ValueError(f"{count} is more than the largest size, {sizes[-1]}")
