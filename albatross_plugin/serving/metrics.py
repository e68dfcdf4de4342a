"""The engine's figures in the text form that Prometheus scrapes. Needs prometheus-client, the extra ``metrics``.

Nothing is counted here: a scrape reads what the engine has counted anyway. docs/metrics.md lists every metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isinf
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from albatross_plugin import __version__
from albatross_plugin.adapter import AlbatrossRWKV
from albatross_plugin.engine.histogram import HistogramCounts
from albatross_plugin.engine.messages import Stats
from albatross_plugin.engine.tally import Tally, WorkerFigures
from albatross_plugin.engine_thread import starting_status

MAX_PAST_MODELS = 32
"""Names of models that are gone and whose counts are still told: a page that is scraped for ever must not grow for ever."""

PREFIX = "albatross_"
STATES = ("offline", "loading", "ready", "down", "closed")
WORKER = ("model_name", "worker")

GAUGES = {
    "build_info": ("Version of the plugin; always 1.", ("version",)),
    "model_state": ("1 for the state that the engine is in, 0 for the others.", ("state",)),
    "model_loaded_bytes": ("Bytes of the model that are loaded.", ("model_name",)),
    "model_load_total_bytes": ("Bytes of the model to load.", ("model_name",)),
    "num_requests_running": ("Requests that hold a slot.", WORKER),
    "num_requests_waiting": ("Requests that wait for a slot.", WORKER),
    "slots_active": ("Slots that are taken.", WORKER),
    "slots_free": ("Slots that can be given to a request.", WORKER),
    "queue_limit": ("Requests that may wait at most; further ones are answered with 429.", ("model_name",)),
    "queue_oldest_wait_seconds": ("How long the request that waits longest has waited.", ("model_name",)),
    "memory_used_bytes": ("Memory of the worker's device that the worker uses.", WORKER),
    "memory_peak_bytes": ("The most memory that the worker has used.", WORKER),
    "memory_free_bytes": ("Memory of the worker's device that is free; absent where it is not known.", WORKER),
}
COUNTERS = {
    "request_success": ("Requests that have ended, by the reason: stop, length, abort or error.", (*WORKER, "finished_reason")),
    "requests_refused": ("Requests that were not taken: queue_full (429) or unavailable (503).", ("model_name", "reason")),
    "prompt_tokens": ("Prompt tokens fed to the model.", WORKER),
    "generation_tokens": ("Tokens sampled for requests.", WORKER),
    "prefill_rows": ("Rows of steps that fed prompt tokens.", WORKER),
    "decode_rows": ("Rows of steps that decoded.", WORKER),
}
HISTOGRAMS = {
    "request_queue_time_seconds": "From admission to a slot, for every request that got one.",
    "time_to_first_token_seconds": "From admission to the first token, for every request that got one.",
    "request_time_per_output_token_seconds": "Mean time of a request's tokens after the first, once for each finished text.",
    "e2e_request_latency_seconds": "From admission to the end, for finished texts.",
    "inter_token_latency_seconds": "Between two tokens of a request, once for each decoded token, as its step took.",
    "step_seconds": "Time of a step, while the worker was busy.",
}
_TIMES = {
    "request_queue_time_seconds": "queue",
    "time_to_first_token_seconds": "first_token",
    "request_time_per_output_token_seconds": "per_token",
    "e2e_request_latency_seconds": "whole",
}

Key = tuple[str, tuple[str, ...]]
"""Name of a metric without its prefix, and the values of its labels."""


@dataclass
class Counts:
    """What only grows, by metric and labels."""

    numbers: dict[Key, float] = field(default_factory=dict)
    histograms: dict[Key, HistogramCounts] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        for key, number in other.numbers.items():
            self.numbers[key] = self.numbers.get(key, 0) + number
        for key, counts in other.histograms.items():
            mine = self.histograms.get(key)
            self.histograms[key] = counts if mine is None else mine.plus(counts)


class Exporter:
    """One host's metrics, in a registry of its own: hosts and other libraries in the process are not touched.

    Counts of a model that is switched away stay, and go on when a model of that name comes back. What is kept
    of it is its tally alone.
    """

    def __init__(self, host: Any) -> None:
        self._host = host
        self._current: tuple[str, Tally] | None = None
        self._past: dict[str, Counts] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """A scrape's body and content type, in the newest format that ``accept`` names."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        """Read everything once. Called by the registry."""
        model = self._host.model()
        if not isinstance(model, AlbatrossRWKV):
            model = None
        self._remember(model)
        counts = Counts()
        for past in list(self._past.values()):
            counts.add(past)
        if self._current is not None:
            counts.add(_counts(*self._current))
        yield from _singles(_gauge_values(model), GAUGES, GaugeMetricFamily)
        yield from _singles(counts.numbers, COUNTERS, CounterMetricFamily)
        yield from _histograms(counts.histograms)

    def _remember(self, model: AlbatrossRWKV | None) -> None:
        """Keep the counts of a model that is no longer there."""
        tally = None if model is None else model.tally
        if self._current is not None and self._current[1] is not tally:
            name = self._current[0]
            kept = self._past.pop(name, Counts())
            kept.add(_counts(*self._current))
            self._past[name] = kept
            while len(self._past) > MAX_PAST_MODELS:
                del self._past[next(iter(self._past))]
        self._current = None if model is None or tally is None else (model.name, tally)


def _counts(name: str, tally: Tally) -> Counts:
    counts = Counts()
    for reason, number in tally.refusals().items():
        counts.numbers["requests_refused", (name, reason)] = number
    for worker, figures in enumerate(tally.figures()):
        labels = (name, str(worker))
        for outcome, number in figures.outcomes.items():
            counts.numbers["request_success", (*labels, outcome)] = number
        for metric, time in _TIMES.items():
            counts.histograms[metric, labels] = figures.times[time]
        _add_stats(counts, labels, figures.stats)
    return counts


def _add_stats(counts: Counts, labels: tuple[str, ...], stats: Stats | None) -> None:
    """What the worker itself has counted, as far as it has said."""
    if stats is None:
        return
    counts.numbers["prompt_tokens", labels] = stats.prefill_tokens
    counts.numbers["generation_tokens", labels] = stats.generated_tokens
    counts.numbers["prefill_rows", labels] = stats.prefill_rows
    counts.numbers["decode_rows", labels] = stats.decode_rows
    counts.histograms["inter_token_latency_seconds", labels] = stats.token_times
    counts.histograms["step_seconds", labels] = stats.step_times


def _gauge_values(model: AlbatrossRWKV | None) -> dict[Key, float]:
    values: dict[Key, float] = {("build_info", (__version__,)): 1}
    status = starting_status() if model is None else model.status()
    name = "" if status is None else str(status["model"])
    phase = "offline" if status is None else status["phase"]
    for state in STATES:
        values["model_state", (state,)] = state == phase
    if status is not None:
        values["model_loaded_bytes", (name,)] = status["loaded_bytes"]
        values["model_load_total_bytes", (name,)] = status["total_bytes"]
    if model is not None and status is not None:
        values["queue_limit", (name,)] = status["queue"]["limit"]
        values["queue_oldest_wait_seconds", (name,)] = status["queue"]["oldest_wait_s"]
        for index, figures in enumerate(model.tally.figures()):
            up = status["workers"][index]["phase"] == "ready"
            _add_places(values, (name, str(index)), figures, model.config.batch if up else 0)
    return values


def _add_places(values: dict[Key, float], labels: tuple[str, ...], figures: WorkerFigures, slots: int) -> None:
    values["num_requests_running", labels] = values["slots_active", labels] = figures.running
    values["num_requests_waiting", labels] = figures.waiting
    values["slots_free", labels] = max(0, slots - figures.running)
    if figures.stats is not None:
        values["memory_used_bytes", labels] = figures.stats.memory_bytes
        values["memory_peak_bytes", labels] = figures.stats.peak_memory_bytes
        if figures.stats.free_memory_bytes is not None:
            values["memory_free_bytes", labels] = figures.stats.free_memory_bytes


def _singles(
    values: Mapping[Key, float],
    described: Mapping[str, tuple[str, tuple[str, ...]]],
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
) -> Iterator[Metric]:
    for name, (about, labels) in described.items():
        family = kind(PREFIX + name, about, labels=labels)
        for (metric, names), value in values.items():
            if metric == name:
                family.add_metric(names, value)
        yield family


def _histograms(values: Mapping[Key, HistogramCounts]) -> Iterator[Metric]:
    for name, about in HISTOGRAMS.items():
        family = HistogramMetricFamily(PREFIX + name, about, labels=WORKER)
        for (metric, names), counts in values.items():
            if metric == name:
                buckets = [("+Inf" if isinf(bound) else repr(bound), count) for bound, count in counts.cumulative()]
                family.add_metric(names, buckets, counts.total)
        yield family
