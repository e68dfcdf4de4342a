"""Slots: who holds which state row of a worker, and which rows are free."""

from __future__ import annotations

from heapq import heappop, heappush

from albatross_plugin.engine.sequence import Sequence


class Slots:
    """``total`` slots, numbered from 0. The lowest free one is taken first, so that used slots stay contiguous.

    Costs memory for the slots that were ever used, not for ``total``, which is whatever number a user wrote.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._holders: list[Sequence | None] = []
        self._returned: list[int] = []

    @property
    def free(self) -> int:
        """How many can be taken. No ``__len__``: that must fit a machine word."""
        return self._total - len(self._holders) + len(self._returned)

    @property
    def held(self) -> list[Sequence]:
        """The holders in slot order."""
        return [sequence for sequence in self._holders if sequence is not None]

    def by_number(self) -> list[Sequence | None]:
        """Every slot's holder."""
        return self._holders + [None] * (self._total - len(self._holders))

    def __getitem__(self, slot: int) -> Sequence:
        sequence = self._holders[slot]
        assert sequence is not None
        return sequence

    def take(self, sequence: Sequence) -> int:
        """Give ``sequence`` the lowest free slot. The caller has seen that one is free."""
        assert self.free > 0
        if self._returned:
            slot = heappop(self._returned)
            self._holders[slot] = sequence
        else:
            slot = len(self._holders)
            self._holders.append(sequence)
        return slot

    def give(self, slot: int) -> None:
        """The slot may be taken again; until then it still names its last holder, whose results are under way."""
        heappush(self._returned, slot)

    def forget(self, slot: int, sequence: Sequence) -> None:
        """Name no holder any more, unless the slot has passed to another one."""
        if self._holders[slot] is sequence:
            self._holders[slot] = None
