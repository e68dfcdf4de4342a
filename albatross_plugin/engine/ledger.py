"""Who is being served: the open requests, where each runs, how many more may come, and what became of the others."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from time import monotonic
from typing import Any

from albatross_plugin.engine.delivery import AsyncEngineCompletion
from albatross_plugin.engine.messages import Failed, Finished
from albatross_plugin.engine.request import Request
from albatross_plugin.errors import RequestError

MAX_RETRY_AFTER = 60


@dataclass
class Route:
    """Where one open request runs and who reads it. ``since``: monotonic seconds."""

    completion: AsyncEngineCompletion
    index: int
    worker: int
    prompt_tokens: int
    since: float
    answered: bool = False


class Ledger:
    """Admits requests and keeps count. ``admit`` may be called from any thread, and at the same time as the rest.

    ``routes`` may be read without the lock; only the methods change it.
    """

    def __init__(self, workers: int, batch: int, max_queue: int) -> None:
        self.routes: dict[int, Route] = {}
        self._waiting: dict[int, float] = {}
        self._load = dict.fromkeys(range(workers), 0)
        self._batch = batch
        self._max_queue = max_queue
        self._lock = threading.Lock()
        self._refusal: str | None = "the model is still loading"
        self._outcomes: Counter[str] = Counter()
        self._prompt_tokens = self._generated_tokens = 0
        self._seconds_per_request = 1.0

    def open(self) -> None:
        """Admit requests from now on, unless closed before."""
        with self._lock:
            self._refusal = None

    def close(self, reason: str) -> None:
        """Answer every request from now on with 503 and ``reason``."""
        with self._lock:
            self._refusal = reason

    def drop_worker(self, worker: int) -> bool:
        """Give this worker nothing any more; whether another one is left."""
        with self._lock:
            self._load.pop(worker, None)
            return bool(self._load)

    def admit(self, requests: Sequence[Request], completion: AsyncEngineCompletion) -> dict[int, list[Request]]:
        """Take all requests or none, each for the worker with the fewest; returns them by worker.

        Raises RequestError: 503 when closed, 429 when more than ``max_queue`` would wait beyond the slots.
        """
        now = monotonic()
        shares: dict[int, list[Request]] = {}
        with self._lock:
            if self._refusal is not None or not self._load:
                raise RequestError(self._refusal or "the engine is down", status=503, code="model_unavailable")
            self._check_room(len(requests))
            for index, request in enumerate(requests):
                assert request.request_id not in self.routes, f"request {request.request_id} was submitted twice"
                worker = min(self._load, key=self._load.__getitem__)
                self._load[worker] += 1
                self.routes[request.request_id] = Route(completion, index, worker, len(request.prompt_ids), now)
                self._waiting[request.request_id] = now
                shares.setdefault(worker, []).append(request)
            self._outcomes["accepted"] += len(requests)
        return shares

    def check_room(self, count: int) -> None:
        """Whether ``count`` more requests would be taken now, asked before any work is put into them.

        Raises RequestError: 503 and 429 as ``admit``, 400 for more than would ever be taken.
        """
        with self._lock:
            if self._refusal is not None or not self._load:
                raise RequestError(self._refusal or "the engine is down", status=503, code="model_unavailable")
            most = len(self._load) * self._batch + self._max_queue
            if count > most:
                raise RequestError(f"one call may hold at most {most} prompts times choices here, got {count}", param="prompt")
            self._check_room(count)

    def _check_room(self, count: int) -> None:
        beyond = len(self.routes) + count - len(self._load) * self._batch
        if beyond <= self._max_queue:
            return
        self._outcomes["rejected"] += count
        rounds = max(1, beyond - self._max_queue) / (len(self._load) * self._batch)
        seconds = min(MAX_RETRY_AFTER, max(1, ceil(rounds * self._seconds_per_request)))
        message = f"the queue is full: {len(self._waiting)} of at most {self._max_queue} requests are waiting, {count} more cannot be taken"
        raise RequestError(message, status=429, code="queue_full", headers={"Retry-After": str(seconds)})

    def started(self, request_id: int) -> None:
        with self._lock:
            if self._waiting.pop(request_id, None) is not None:
                self._prompt_tokens += self.routes[request_id].prompt_tokens

    def generated(self, tokens: int) -> None:
        with self._lock:
            self._generated_tokens += tokens

    def end(self, request_id: int, event: Finished | Failed) -> Route | None:
        """Strike out a request; None if it has ended before, so that nobody hears of two ends."""
        with self._lock:
            route = self.routes.pop(request_id, None)
            if route is None:
                return None
            self._waiting.pop(request_id, None)
            if route.worker in self._load:
                self._load[route.worker] -= 1
            self._outcomes[_outcome(route, event)] += 1
            self._seconds_per_request += 0.1 * (monotonic() - route.since - self._seconds_per_request)
            return route

    def ids(self, worker: int | None = None) -> list[int]:
        """Open requests, of one worker or of all."""
        with self._lock:
            return [i for i, route in self.routes.items() if worker is None or route.worker == worker]

    def figures(self) -> dict[str, Any]:
        """Slots, queue, requests by outcome, token totals. JSON-able."""
        with self._lock:
            oldest = next(iter(self._waiting.values()), None)
            outcomes = {name: self._outcomes[name] for name in ("accepted", "rejected", "stop", "length", "abort", "error")}
            return {
                "slots": {"total": len(self._load) * self._batch, "active": len(self.routes) - len(self._waiting)},
                "queue": {
                    "length": len(self._waiting),
                    "limit": self._max_queue,
                    "oldest_wait_s": 0.0 if oldest is None else round(monotonic() - oldest, 3),
                },
                "requests": outcomes,
                "tokens": {"prompt": self._prompt_tokens, "generated": self._generated_tokens},
            }


def _outcome(route: Route, event: Finished | Failed) -> str:
    if isinstance(event, Failed):
        return "error"
    return "stop" if route.index in route.completion.stopped else event.reason.value
