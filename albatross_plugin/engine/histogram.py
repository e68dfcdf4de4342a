"""Histogram: how often a value fell between fixed bounds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

# Seconds. A request's waits and its whole time; and a step, or one token of a request.
REQUEST_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 1200.0)
STEP_BOUNDS = (0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class HistogramCounts(NamedTuple):
    """What a histogram held at one moment. ``counts`` has one entry per bound and one for what is above all of them."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    def cumulative(self) -> list[tuple[float, int]]:
        """(bound, values up to and including it); the last bound is infinity."""
        return list(zip((*self.bounds, float("inf")), accumulate(self.counts), strict=True))

    def plus(self, other: HistogramCounts) -> HistogramCounts:
        """The values of both, which have the same bounds."""
        assert self.bounds == other.bounds, "histograms of different bounds cannot be added"
        counts = tuple(mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True))
        return HistogramCounts(self.bounds, counts, self.total + other.total)


class Histogram:
    """Takes values, one at a time or many equal ones at once; its size never changes."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value`` as often as ``times`` says. A value on a bound belongs below it."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def counts(self) -> HistogramCounts:
        return HistogramCounts(self._bounds, tuple(self._counts), self._total)


NO_STEPS = Histogram(STEP_BOUNDS).counts()
