"""Tally: what became of an engine's requests and how long it took, in figures that outlive the engine."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

from albatross_plugin.engine.histogram import REQUEST_BOUNDS, STEP_BOUNDS, Histogram, HistogramCounts
from albatross_plugin.engine.messages import Stats

OUTCOMES = ("stop", "length", "abort", "error")
REFUSALS = ("queue_full", "unavailable")


@dataclass(frozen=True)
class WorkerFigures:
    """One worker's figures at one moment. ``times``, in seconds: ``queue``, ``first_token``, ``per_token``, ``whole``."""

    running: int
    waiting: int
    outcomes: dict[str, int]
    times: dict[str, HistogramCounts]
    stats: Stats | None


@dataclass
class _Account:
    running: int = 0
    waiting: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    stats: Stats | None = None
    times: dict[str, Histogram] = field(
        default_factory=lambda: {
            "queue": Histogram(REQUEST_BOUNDS),
            "first_token": Histogram(REQUEST_BOUNDS),
            "per_token": Histogram(STEP_BOUNDS),
            "whole": Histogram(REQUEST_BOUNDS),
        }
    )


class Tally:
    """Counts by worker. Holds nothing of the engine and never grows; may be written and read on any thread.

    It is told of requests, not of tokens: their number comes with each worker's Stats.
    """

    def __init__(self, workers: int) -> None:
        self._lock = threading.Lock()
        self._accounts = [_Account() for _ in range(workers)]
        self._refused: Counter[str] = Counter()

    def refused(self, reason: str, count: int) -> None:
        """``reason`` is one of REFUSALS."""
        with self._lock:
            self._refused[reason] += count

    def queued(self, worker: int) -> None:
        with self._lock:
            self._accounts[worker].waiting += 1

    def started(self, worker: int, waited: float) -> None:
        """A request got a slot after ``waited`` seconds."""
        with self._lock:
            account = self._accounts[worker]
            account.waiting -= 1
            account.running += 1
            account.times["queue"].observe(waited)

    def answered(self, worker: int, seconds: float) -> None:
        """A request got its first token."""
        with self._lock:
            self._accounts[worker].times["first_token"].observe(seconds)

    def ended(self, worker: int, outcome: str, started: bool, seconds: float, per_token: float | None) -> None:
        """``outcome`` is one of OUTCOMES. Times count for texts that were finished; ``per_token`` is None for those of one token."""
        with self._lock:
            account = self._accounts[worker]
            if started:
                account.running -= 1
            else:
                account.waiting -= 1
            account.outcomes[outcome] += 1
            if outcome in ("stop", "length"):
                account.times["whole"].observe(seconds)
                if per_token is not None:
                    account.times["per_token"].observe(per_token)

    def report(self, worker: int, stats: Stats) -> None:
        """A worker's own figures up to now."""
        with self._lock:
            self._accounts[worker].stats = stats

    def refusals(self) -> dict[str, int]:
        with self._lock:
            return {reason: self._refused[reason] for reason in REFUSALS}

    def figures(self) -> list[WorkerFigures]:
        """By worker."""
        with self._lock:
            return [
                WorkerFigures(
                    running=account.running,
                    waiting=account.waiting,
                    outcomes={outcome: account.outcomes[outcome] for outcome in OUTCOMES},
                    times={name: histogram.counts() for name, histogram in account.times.items()},
                    stats=account.stats,
                )
                for account in self._accounts
            ]
