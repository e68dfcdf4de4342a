"""Line: who waits for a slot, as the core sees it: by call and priority, since when, and in which order they are served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SHOWN = 8
"""Entries of each list in the figures: a status page stays small however many wait."""


@dataclass(eq=False)
class Call:
    """The waiting requests of one call. Times are monotonic seconds; ``turn``: when the call was last served, or came."""

    priority: int
    group: int
    since: float
    turn: tuple[float, int]
    waiting: int = 0


class Line:
    """Follows the order of WaitingQueue without holding requests; with several workers, whose queues are apart, it is an estimate."""

    def __init__(self) -> None:
        self._calls: dict[tuple[int, int], Call] = {}
        self._turns = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, priority: int, group: int, now: float) -> Call:
        """One more request of this call waits."""
        key = priority, group
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = Call(priority, group, now, self._turn(now))
        call.waiting += 1
        self._length += 1
        return call

    def serve(self, call: Call, now: float) -> None:
        """One of its requests got a slot: the others wait behind those of other calls."""
        call.turn = self._turn(now)
        self.leave(call)

    def leave(self, call: Call) -> None:
        """One of its requests waits no more."""
        call.waiting -= 1
        self._length -= 1
        if not call.waiting:
            del self._calls[call.priority, call.group]

    def _turn(self, now: float) -> tuple[float, int]:
        # Clocks stand still for several events of one step; the count keeps those in order.
        self._turns += 1
        return now, self._turns

    def figures(self, now: float) -> dict[str, Any]:
        """Length, longest wait, both again for the most urgent priorities, and the calls that are served next. JSON-able."""
        calls = sorted(self._calls.values(), key=lambda call: (call.priority, call.turn))
        levels: dict[int, list[Call]] = {}
        for call in calls:
            levels.setdefault(call.priority, []).append(call)
        return {
            "length": self._length,
            "oldest_wait_s": _wait(calls, now),
            "priorities": [
                {"priority": priority, "length": sum(call.waiting for call in members), "oldest_wait_s": _wait(members, now)}
                for priority, members in list(levels.items())[:SHOWN]
            ],
            "next": _next(levels, now),
        }


def _next(levels: dict[int, list[Call]], now: float) -> list[dict[str, Any]]:
    """The calls that are served next; ``position`` is the place of their first request, counted from 1."""
    found: list[dict[str, Any]] = []
    before = 0
    for priority, members in levels.items():
        for place, call in enumerate(members[: SHOWN - len(found)], before + 1):
            found.append({"position": place, "priority": priority, "waiting": call.waiting, "wait_s": _wait([call], now)})
        before += sum(call.waiting for call in members)
    return found


def _wait(calls: list[Call], now: float) -> float:
    return round(max(0.0, now - min((call.since for call in calls), default=now)), 3)
