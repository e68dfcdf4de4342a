"""What a model and its slots need on a card, computed before anything is loaded, and how it is given back."""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass

import torch

from albatross_plugin.errors import NO_CARD_MEMORY, DeviceError
from albatross_plugin.model.arena import arena_bytes
from albatross_plugin.model.cuda_sampler import sampler_bytes
from albatross_plugin.model.graphs import bucket_sizes, pass_sizes
from albatross_plugin.model.spec import ModelSpec
from albatross_plugin.model.state import state_bytes

logger = logging.getLogger(__name__)

# cuBLAS, the kernels' code and torch's rounding; a captured graph keeps its nodes on the card.
_RESERVE = 256 << 20
_GRAPH_BYTES = 6 << 20
# No card holds so many slots; beyond it only the sums matter, not the lists.
_MOST = 1 << 16


@dataclass(frozen=True)
class Need:
    """Bytes on the card: ``weights`` once, ``slot`` for each slot, ``total`` for everything."""

    weights: int
    slot: int
    total: int


def need(spec: ModelSpec, weights: int, batch: int, pass_tokens: int, recurrent: torch.dtype, graphs: bool, kept: int = 0) -> Need:
    """What ``batch`` slots of this model need; ``weights`` bytes of weights, passes of ``pass_tokens`` prompt tokens, ``kept`` states."""
    rows = batch + 1
    slot = state_bytes(spec, torch.float16, recurrent) + sampler_bytes(1, spec.vocab_size)
    sizes = pass_sizes(min(pass_tokens + rows, _MOST))
    working = arena_bytes(spec, max(sizes[-1], pass_tokens + rows), rows)
    captured = _GRAPH_BYTES * (len(bucket_sizes(min(batch, _MOST))) + len(sizes)) if graphs else 0
    return Need(weights, slot, weights + rows * slot + kept * state_bytes(spec, torch.float16, recurrent) + working + captured + _RESERVE)


def check_fits(
    spec: ModelSpec, weights: int, batch: int, pass_tokens: int, recurrent: torch.dtype, graphs: bool, free: int, kept: int = 0
) -> Need:
    """Raise DeviceError, naming the largest batch that fits, when ``free`` bytes are not enough."""

    def needed(count: int) -> Need:
        return need(spec, weights, count, pass_tokens, recurrent, graphs, kept)

    def fits(count: int) -> bool:
        return needed(count).total <= free

    asked = needed(batch)
    if asked.total <= free:
        return asked
    if not fits(1):
        one = needed(1)
        raise DeviceError(
            f"{spec.name} needs {_gib(one.total)} of memory on the card ({NO_CARD_MEMORY}): {_gib(weights)} for its weights, "
            f"and {_gib(free)} is free. "
            "Choose a smaller model or ALBATROSS_PREFILL_BUDGET, or end what else uses the card."
        )
    low, high = 1, batch
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    raise DeviceError(
        f"batch={batch} needs {_gib(asked.total)} of memory on the card ({NO_CARD_MEMORY}): {_gib(weights)} for weights and "
        f"{asked.slot / 2**20:.1f} MiB a slot, and {_gib(free)} is free. Choose batch={low} or fewer."
    )


def _gib(count: int) -> str:
    """Whole numbers all the way: a batch may be too large for a float."""
    hundredths = count * 100 >> 30
    return f"{hundredths // 100}.{hundredths % 100:02} GiB"


def drop_locals(error: BaseException) -> None:
    """Let go of what the frames that ``error`` has left still hold, which else lives as long as the error."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__


def give_back() -> None:
    """Return to the driver what torch's allocator keeps although nobody uses it."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    try:
        torch.cuda.empty_cache()
    except RuntimeError as error:
        # A card that has failed, or one on which another worker is capturing a graph right now.
        logger.debug("memory stays in torch's keeping: %s", error)
