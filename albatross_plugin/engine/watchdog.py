"""Watchdog: how long a worker that owes somebody a token has been silent."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

MOST_SECONDS_BETWEEN_LOOKS = 5.0


class Watchdog:
    """A busy worker says something after every step that takes long, and twice a second when they are short; see Meter.

    ``timeout``: seconds of silence after which a worker counts as stuck; 0: none ever does. ``heard`` may be called from any thread.
    """

    def __init__(self, timeout: float, clock: Callable[[], float] = monotonic) -> None:
        self.timeout = timeout
        self._clock = clock
        self._heard: dict[int, float] = {}

    @property
    def interval(self) -> float:
        """Seconds from one look to the next: a stuck worker is found a quarter later than it might be, at most."""
        return min(MOST_SECONDS_BETWEEN_LOOKS, self.timeout / 4)

    def heard(self, worker: int) -> None:
        """This worker said something just now."""
        self._heard[worker] = self._clock()

    def stuck(self, worker: int, owes_since: float) -> bool:
        """Whether it has been silent for too long; ``owes_since``: since when its oldest request is there."""
        return self._clock() - max(owes_since, self._heard.get(worker, owes_since)) > self.timeout
