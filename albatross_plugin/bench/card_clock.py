"""Times on a card: work between events on the current stream, and the ceilings that the card has in this run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from albatross_plugin.bench.report import median
from albatross_plugin.bench.roofline import Ceilings

if TYPE_CHECKING:
    import torch

_COPY_BYTES = 1 << 31
_PRODUCT_SIZE = 8192
_LEAST, _MOST = 5, 60


def milliseconds(run: Callable[[], object], seconds: float = 0.3) -> float:
    """Median of one run, the runs queued one behind the other, for about so many seconds in all.

    The first one warms up and the second one says how many there will be.
    """
    import torch

    def spans(count: int) -> list[float]:
        event: Any = torch.cuda.Event
        marks = [event(enable_timing=True) for _ in range(count + 1)]
        marks[0].record()
        for mark in marks[1:]:
            run()
            mark.record()
        marks[-1].synchronize()
        return [float(first.elapsed_time(second)) for first, second in pairwise(marks)]

    once = spans(2)[1]
    return median(spans(min(_MOST, max(_LEAST, int(1e3 * seconds / max(once, 1e-3))))))


class Replay:
    """``run`` as a CUDA graph; it runs once before. Keeps ``run``, and with it the memory that the graph reads and writes.

    The current stream must not be the default one.
    """

    def __init__(self, run: Callable[[], object]) -> None:
        from albatross_plugin.model.graphs import capture

        run()
        self._run = run
        self._graph: Any = capture(run)

    def __call__(self) -> None:
        self._graph.replay()


def measure_ceilings(device: torch.device) -> Ceilings:
    """Copy of 2 GiB within the card, bytes read and written; and a product of two 8192 x 8192 float16 matrices of random numbers."""
    import torch

    source = torch.randint(0, 255, (_COPY_BYTES,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copying = partial(target.copy_, source)
    copy = 2 * _COPY_BYTES / (milliseconds(copying, 0.05) / 1e3)
    left, right, out = (torch.randn(_PRODUCT_SIZE, _PRODUCT_SIZE, device=device).half() for _ in range(3))
    multiplying = partial(torch.mm, left, right, out=out)
    return Ceilings(copy, 2 * _PRODUCT_SIZE**3 / (milliseconds(multiplying, 0.06) / 1e3))
