"""The queue in front of the slots: lowest priority number first, and groups of one priority in turn."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict

from albatross_plugin.engine.sequence import Sequence

_Groups = OrderedDict[int, OrderedDict[int, Sequence]]


class WaitingQueue:
    """Sequences that hold no slot. ``add``, ``pop`` and ``remove`` do not walk over the other waiters.

    Within a priority each group gives one sequence per turn, so that one call for a thousand texts does not
    keep a chat waiting; within a group the order is that of arrival.
    """

    def __init__(self) -> None:
        self._levels: dict[int, _Groups] = {}
        self._priorities: list[int] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, sequence: Sequence) -> None:
        request = sequence.request
        if request.priority not in self._levels:
            self._levels[request.priority] = OrderedDict()
            insort(self._priorities, request.priority)
        self._levels[request.priority].setdefault(request.group, OrderedDict())[request.request_id] = sequence
        self._length += 1

    def pop(self) -> Sequence:
        """The sequence whose turn it is. Raises IndexError when nobody waits."""
        level = self._levels[self._priorities[0]]
        group = next(iter(level))
        sequence = next(iter(level[group].values()))
        level.move_to_end(group)
        self.remove(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Take out a waiting sequence, wherever it stands."""
        priority, group = sequence.request.priority, sequence.request.group
        level = self._levels[priority]
        del level[group][sequence.request.request_id]
        self._length -= 1
        if not level[group]:
            del level[group]
        if not level:
            del self._levels[priority]
            del self._priorities[bisect_left(self._priorities, priority)]
