"""PackedBatch: the tokens of one pass, laid out so that every time step of the recurrence is a contiguous slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """Rows ``first`` to ``first + rows - 1`` of the batch, which lie in neighbouring slots from ``slot`` on."""

    first: int
    rows: int
    slot: int
    lengths: tuple[int, ...]

    def spans(self, offsets: Sequence[int]) -> list[tuple[int, int]]:
        """(start, stop) of the block's tokens in each of its time steps; rows that have ended are left out."""
        spans = []
        rows = self.rows
        for time in range(self.lengths[0]):
            while self.lengths[rows - 1] <= time:
                rows -= 1
            start = offsets[time] + self.first
            spans.append((start, start + rows))
        return spans


@dataclass(frozen=True)
class PackedBatch:
    """B rows with ``lengths`` tokens each, longest first; token ``t`` of row ``i`` is at ``offsets[t] + i``.

    N is at least the minimum that the operators ask for; tokens past ``offsets[-1]`` are padding and belong to no row.
    ``order``: for each row, its position in the caller's list. ``slots`` int64 [B]. ``previous`` int64 [N] tells
    where the token before each one lies in cat(B rows of the state, N tokens); ``last`` int64 [B] the last token of each
    row; both are None when there is no padding and every row has exactly one token, which is then its own index.
    """

    order: list[int]
    slot_list: list[int]
    lengths: list[int]
    offsets: list[int]
    slots: Tensor
    blocks: list[Block]
    padded: int
    previous: Tensor | None
    last: Tensor | None

    @property
    def tokens(self) -> int:
        """Real tokens; ``padded`` counts the padding too."""
        return self.offsets[-1]

    @property
    def run(self) -> slice | None:
        """The slots as one slice, if they are neighbours in order."""
        first, count = self.slot_list[0], len(self.slot_list)
        return slice(first, first + count) if self.slot_list == list(range(first, first + count)) else None


def pack(slots: Sequence[int], lengths: Sequence[int], device: torch.device, block_rows: int, minimum: int = 1) -> PackedBatch:
    """Lay out rows with these slots (all different) and numbers of tokens (at least 1 each).

    Neighbouring slots become blocks of at most ``block_rows``, so that the state of a block stays in the cache.
    """
    order = sorted(range(len(slots)), key=lambda i: (-lengths[i], slots[i]))
    slot_list, sizes = [slots[i] for i in order], [lengths[i] for i in order]
    offsets = [0]
    rows = len(order)
    for time in range(sizes[0]):
        while sizes[rows - 1] <= time:
            rows -= 1
        offsets.append(offsets[-1] + rows)
    padded = max(offsets[-1], minimum)
    previous = last = None
    if sizes[0] > 1 or padded > offsets[-1]:
        previous, last = _links(sizes, offsets, padded, device)
    index = torch.tensor(slot_list, dtype=torch.int64, device=device)
    blocks = _blocks(slot_list, sizes, block_rows)
    return PackedBatch(order, slot_list, sizes, offsets, index, blocks, padded, previous, last)


def _links(sizes: list[int], offsets: list[int], padded: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rows = len(sizes)
    previous = list(range(rows))
    for time in range(1, len(offsets) - 1):
        count = offsets[time + 1] - offsets[time]
        before = rows + offsets[time - 1]
        previous.extend(range(before, before + count))
    previous.extend([0] * (padded - len(previous)))
    last = [offsets[size - 1] + row for row, size in enumerate(sizes)]
    return torch.tensor(previous, device=device), torch.tensor(last, device=device)


def _blocks(slots: list[int], sizes: list[int], limit: int) -> list[Block]:
    blocks: list[Block] = []
    first = 0
    for row in range(1, len(slots) + 1):
        ends = row == len(slots) or slots[row] != slots[row - 1] + 1 or row - first == limit
        if ends:
            blocks.append(Block(first, row - first, slots[first], tuple(sizes[first:row])))
            first = row
    return blocks


def time_major(batch: PackedBatch, rows: Sequence[Sequence[int]]) -> list[int]:
    """The token ids of the caller's rows in the order of the batch."""
    ordered = [rows[i] for i in batch.order]
    ids: list[int] = []
    for time in range(len(batch.offsets) - 1):
        count = batch.offsets[time + 1] - batch.offsets[time]
        ids.extend(row[time] for row in ordered[:count])
    return ids + ids[:1] * (batch.padded - len(ids))
