"""CudaSteps: decode steps and prompt passes on one card, as CUDA graphs of padded sizes, or kernel by kernel without them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from albatross_plugin.engine.request import MAX_LOGPROBS
from albatross_plugin.model.arena import Views
from albatross_plugin.model.cuda_model import CudaRWKV7, Rows
from albatross_plugin.model.cuda_sampler import CudaSampler
from albatross_plugin.model.graphs import MEASURED_PASS, bucket_for, bucket_sizes, capture, pass_sizes
from albatross_plugin.model.products import Products

logger = logging.getLogger(__name__)

_ALIGN = 4
_PINNED_BLOCKS = 6


class CudaSteps:
    """Everything here only queues work on the current stream, and each captured step reads its rows from fixed places.

    ``batch`` slots, the next row of the state pool being scratch; ``pass_tokens`` is the most tokens of one pass.
    ``results`` int32 [batch + 1, 4] and ``tops`` int32 [batch + 1, 2, 20] are what the sampler writes, in row order.
    ``sizes``: the rows of steps and the tokens of passes that are prepared, ascending; None: all that may be needed.
    """

    def __init__(
        self,
        model: CudaRWKV7,
        products: Products,
        sampler: CudaSampler,
        batch: int,
        pass_tokens: int,
        device: torch.device,
        sizes: tuple[list[int], list[int]] | None = None,
    ) -> None:
        self._model, self._products, self._sampler = model, products, sampler
        self._batch, self._device = batch, device
        self._sizes, self._pass_sizes = sizes or (bucket_sizes(batch), pass_sizes(pass_tokens))
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pass_graphs: dict[int, torch.cuda.CUDAGraph] = {}

        def ints(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.last = ints(batch + 1)
        self.results, self.tops = ints(batch + 1, 4), ints(batch + 1, 2, MAX_LOGPROBS)
        self._slots, self._ids = ints(batch + 1), ints(batch + 1)
        self._block = ints(sum(self._layout(self._pass_sizes[-1])))
        self._decoding: Sequence[int] | None = None
        self._bucket = 0

    # --- decode steps --------------------------------------------------------------------------------------------------

    def decode(self, slots: Sequence[int]) -> None:
        """Forward, sampling and feedback of the tokens for ``slots``. The same object as last time means the same slots."""
        if slots is not self._decoding:
            size = bucket_for(len(slots), self._sizes)
            padded = [*slots, *([self._batch] * (size - len(slots)))]
            self._slots[:size].copy_(upload(padded, self._device), non_blocking=True)
            torch.sub(-1, self._slots[:size], out=self._ids[:size])
            self._decoding, self._bucket = slots, size
        graph = self._graphs.get(self._bucket)
        if graph is not None:
            graph.replay()
        else:
            self._decode(self._bucket)

    def _decode(self, size: int) -> None:
        slots = self._slots[:size]
        views = self._model.forward(Rows(self._ids[:size], slots, None, None), self.last)
        logits = self._model.logits(views, None, size)
        self._sampler.sample(logits, slots, self.last, self.results, self.tops)

    # --- passes with prompts -------------------------------------------------------------------------------------------

    def forward(self, pieces: Sequence[tuple[int, Sequence[int]]]) -> Views:
        """Feed (slot, ids) in one ragged pass, ids as in Rows; the residual stream is then in ``x`` of the views."""
        ids: list[int] = []
        token_row: list[int] = []
        starts = [0]
        for row, (_, part) in enumerate(pieces):
            ids += part
            token_row += [row] * len(part)
            starts.append(len(ids))
        size = bucket_for(len(ids), self._pass_sizes)
        rows = self._rows_of(size)
        spare = size - len(ids)
        # Spare tokens belong to no row, and spare rows have no tokens and the scratch slot.
        slots = [slot for slot, _ in pieces] + [self._batch] * (rows - len(pieces))
        starts += [len(ids)] * (rows - len(pieces))
        lists = (ids + [0] * spare, token_row + [0] * spare, slots, starts)
        numbers: list[int] = []
        for part, room in zip(lists, self._layout(size), strict=True):
            numbers += part
            numbers += [0] * (room - len(part))
        self._block[: len(numbers)].copy_(upload(numbers, self._device), non_blocking=True)
        graph = self._pass_graphs.get(size)
        if graph is None:
            return self._forward(size)
        graph.replay()
        return self._model.views(size, rows)

    def pass_graph(self, tokens: int) -> torch.cuda.CUDAGraph | None:
        """What ``forward`` replays for so many tokens, with the rows of its last call of that size. None without graphs."""
        return self._pass_graphs.get(bucket_for(tokens, self._pass_sizes))

    def sample(self, views: Views, index: Sequence[int], slots: Sequence[int]) -> None:
        """A token for each of ``slots`` from the tokens ``index`` of the last pass."""
        size = bucket_for(len(slots), self._sizes)
        spare = size - len(slots)
        numbers = [*index, *([0] * spare), *([0] * (-size % _ALIGN)), *slots, *([self._batch] * spare)]
        block = upload(numbers, self._device)
        logits = self._model.logits(views, block[:size], size)
        self._sampler.sample(logits, block[size + -size % _ALIGN :], self.last, self.results, self.tops)

    def _rows_of(self, size: int) -> int:
        return min(self._batch, size)

    def _layout(self, size: int) -> tuple[int, int, int, int]:
        """Room for ids, token_row, slots and starts; each begins at a multiple of 16 bytes."""
        rows = self._rows_of(size)
        return size, size, rows + -rows % _ALIGN, rows + 1 + -(rows + 1) % _ALIGN

    def _forward(self, size: int) -> Views:
        rows, parts, begin = self._rows_of(size), [], 0
        for room, used in zip(self._layout(size), (size, size, rows, rows + 1), strict=True):
            parts.append(self._block[begin : begin + used])
            begin += room
        ids, token_row, slots, starts = parts
        return self._model.forward(Rows(ids, slots, starts, token_row), self.last)

    # --- at load -------------------------------------------------------------------------------------------------------

    def prepare(self, graphs: bool, tick: Callable[[], None] = lambda: None) -> None:
        """Measure the products for every size, then capture every size. No slot is in use yet. ``tick`` is called between sizes."""
        _warm_pinned_memory(max(4 * sum(self._layout(self._pass_sizes[-1])), self._sampler.upload_bytes))
        self._slots.fill_(self._batch)
        self._ids.fill_(-1 - self._batch)
        # A size that both a step and a pass may have is measured once.
        measured = {*self._sizes, *(size for size in self._pass_sizes if size <= MEASURED_PASS)}
        for size in with_progress(sorted(measured), "measuring products", tick):
            self._products.measure(size, heads=size in self._sizes)
        # Once without a graph: what is loaded lazily must be there before a capture.
        self._block.zero_()
        self._decode(self._sizes[-1])
        self._forward(self._pass_sizes[0])
        torch.cuda.current_stream(self._device).synchronize()
        if graphs:
            try:
                self._capture(tick)
            except RuntimeError as error:
                self.release()
                logger.warning("CUDA graphs could not be captured (%s); every step is launched kernel by kernel, which is slower", error)

    def _capture(self, tick: Callable[[], None]) -> None:
        pool = None
        for kept, sizes, run in ((self._graphs, self._sizes, self._decode), (self._pass_graphs, self._pass_sizes, self._forward)):
            for size in with_progress(sizes, "capturing", tick):
                kept[size] = capture(lambda size=size, run=run: run(size), pool)  # type: ignore[misc]
                pool = pool or kept[size].pool()
                # The first launch also brings the graph to the card; running streams shall not wait for that.
                kept[size].replay()

    def release(self) -> None:
        for kept in (self._graphs, self._pass_graphs):
            for graph in kept.values():
                graph.reset()
            kept.clear()


def upload(numbers: Sequence[int], device: torch.device) -> Tensor:
    """int32 on the card, through pinned memory that torch keeps until the copy has run."""
    return torch.tensor(numbers, dtype=torch.int32).pin_memory().to(device, non_blocking=True)


def _warm_pinned_memory(most: int) -> None:
    """Let torch's cache of pinned memory hold some blocks of every size that ``upload`` will ask for, up to ``most`` bytes.

    To pin memory holds up the whole device for milliseconds, which running streams would feel.
    """
    size, kept = 512, []
    while size < 2 * most:
        kept += [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(_PINNED_BLOCKS)]
        size *= 2
    kept.clear()


def with_progress(sizes: Sequence[int], what: str, tick: Callable[[], None]) -> Iterator[int]:
    """``sizes``, with a progress bar where somebody looks at a terminal and tqdm is there; a log line in any case."""
    logger.info("%s of %s rows", what, ", ".join(map(str, sizes)))
    # A process without a console, as on Windows, may have no stderr at all.
    bar = _progress_bar() if sys.stderr is not None and sys.stderr.isatty() else None
    shown: Iterable[int] = sizes if bar is None else bar(sizes, desc=what, unit="size", leave=False)
    for size in shown:
        tick()
        yield size


def _progress_bar() -> Callable[..., Any] | None:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    found: Callable[..., Any] = tqdm
    return found
