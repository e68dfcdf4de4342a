"""A worker's figures: counts since the start, rates over the last interval, the throughput log line."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter

from albatross_plugin.engine.histogram import STEP_BOUNDS, Histogram
from albatross_plugin.engine.messages import Stats
from albatross_plugin.engine.step import Memory, StepPlan

logger = logging.getLogger(__name__)

STATS_INTERVAL = 0.5


class Meter:
    """Only time in which the worker was busy counts, so that a pause does not dilute a rate.

    ``log_interval``: busy seconds between two log lines, 0 for none.
    """

    def __init__(self, worker: int, slots: int, log_interval: float, clock: Callable[[], float] = perf_counter) -> None:
        self._worker = worker
        self._slots = slots
        self._log_interval = log_interval
        self._clock = clock
        self._mark = self._reported = clock()
        self._steps = self._decode_rows = self._prefill_rows = self._prefill_tokens = self._generated = 0
        self._step_times, self._token_times = Histogram(STEP_BOUNDS), Histogram(STEP_BOUNDS)
        self._since = (0, 0, 0)
        self._seconds = 0.0
        self._log_tokens, self._log_seconds = 0, 0.0

    def wake(self) -> None:
        """The worker starts to be busy now."""
        self._mark = self._clock()

    def record(self, plan: StepPlan, generated: int, active: int) -> None:
        """A step has ended that gave ``generated`` tokens; ``active`` slots are in use."""
        now = self._clock()
        elapsed, self._mark = now - self._mark, now
        self._steps += 1
        rows = len(plan.decode)
        self._decode_rows += rows
        self._step_times.observe(elapsed)
        if rows:
            self._token_times.observe(elapsed, rows)
        if plan.prefill:
            self._prefill_rows += len(plan.prefill)
            self._prefill_tokens += sum(len(chunk.token_ids) for chunk in plan.prefill)
        self._generated += generated
        self._seconds += elapsed
        self._log_tokens += generated
        self._log_seconds += elapsed
        if self._log_interval and self._log_seconds >= self._log_interval:
            self._log(active)

    def _log(self, active: int) -> None:
        if self._log_tokens:
            rate = self._log_tokens / self._log_seconds
            text = "[worker_%d] Albatross decode throughput: %.1f tok/s, active_batch=%d, interval_tokens=%d"
            logger.info(text, self._worker, rate, active, self._log_tokens)
        self._log_tokens, self._log_seconds = 0, 0.0

    @property
    def due(self) -> bool:
        return self._clock() - self._reported >= STATS_INTERVAL

    def report(self, active: int, waiting: int, memory: Memory) -> Stats:
        """The figures up to now; a new interval starts."""
        steps, generated, prefilled = self._since
        seconds = self._seconds or float("inf")
        stats = Stats(
            active=active,
            waiting=waiting,
            slots=self._slots,
            steps=self._steps,
            decode_rows=self._decode_rows,
            prefill_tokens=self._prefill_tokens,
            generated_tokens=self._generated,
            step_seconds=self._seconds / max(1, self._steps - steps),
            decode_tokens_per_second=(self._generated - generated) / seconds,
            prefill_tokens_per_second=(self._prefill_tokens - prefilled) / seconds,
            memory_bytes=memory.used,
            peak_memory_bytes=memory.peak,
            free_memory_bytes=memory.free,
            prefill_rows=self._prefill_rows,
            step_times=self._step_times.counts(),
            token_times=self._token_times.counts(),
        )
        self._since = (self._steps, self._generated, self._prefill_tokens)
        self._seconds = 0.0
        self._reported = self._clock()
        return stats
