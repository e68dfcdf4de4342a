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
from albatross_plugin.engine.line import Call, Line
from albatross_plugin.engine.messages import Failed, Finished
from albatross_plugin.engine.request import Request
from albatross_plugin.engine.tally import Tally
from albatross_plugin.errors import RequestError

MAX_RETRY_AFTER = 60


@dataclass(eq=False)
class Route:
    """Where one open request runs and who reads it. Times are monotonic seconds, None for what has not happened yet.

    ``leaving``: it was asked to end, so its place is as good as free.
    """

    completion: AsyncEngineCompletion
    index: int
    worker: int
    prompt_tokens: int
    since: float
    call: Call
    started: float | None = None
    answered: float | None = None
    leaving: bool = False


class Ledger:
    """Admits requests and keeps count. ``admit`` may be called from any thread, and at the same time as the rest.

    ``routes`` may be read without the lock; only the methods change it, but for ``leaving`` of a route.
    """

    def __init__(self, workers: int, batch: int, max_queue: int, max_queue_tokens: int) -> None:
        self.routes: dict[int, Route] = {}
        self.tally = Tally(workers)
        self._line = Line()
        self._load = dict.fromkeys(range(workers), 0)
        self._batch = batch
        self._max_queue, self._max_queue_tokens = max_queue, max_queue_tokens
        self._waiting_tokens = 0
        self._lock = threading.Lock()
        self._refusal: str | None = "the model is still loading"
        self._outcomes: Counter[str] = Counter()
        self._prompt_tokens = self._generated_tokens = 0
        self._slot_seconds: float | None = None

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

        Raises RequestError: 503 when closed, 429 when more than ``max_queue`` would wait beyond the slots, or with so many others'
        prompts that they hold more than ``max_queue_tokens`` together.
        """
        now = monotonic()
        tokens = sum(len(request.prompt_ids) for request in requests)
        shares: dict[int, list[Request]] = {}
        with self._lock:
            self._check_open(len(requests))
            self._check_room(len(requests))
            self._check_tokens(len(requests), tokens)
            self._waiting_tokens += tokens
            for index, request in enumerate(requests):
                assert request.request_id not in self.routes, f"request {request.request_id} was submitted twice"
                worker = min(self._load, key=self._load.__getitem__)
                self._load[worker] += 1
                call = self._line.add(request.priority, request.group, now)
                self.routes[request.request_id] = Route(completion, index, worker, len(request.prompt_ids), now, call)
                self.tally.queued(worker)
                shares.setdefault(worker, []).append(request)
            self._outcomes["accepted"] += len(requests)
        return shares

    def check_room(self, count: int) -> None:
        """Whether ``count`` more requests would be taken now, asked before any work is put into them.

        Raises RequestError: 503 and 429 as ``admit``, 400 for more than would ever be taken.
        """
        with self._lock:
            self._check_open(count)
            most = self._slots + self._max_queue
            if count > most:
                raise RequestError(f"one call may hold at most {most} prompts times choices here, got {count}", param="prompt")
            self._check_room(count)

    def places(self) -> int:
        """How many more requests would be taken now, going by their number alone. Unlike ``check_room`` it counts nobody as refused."""
        with self._lock:
            leaving = sum(route.leaving for route in self.routes.values())
            return max(0, self._slots + self._max_queue - len(self.routes) + leaving)

    def crowded(self, tokens: int) -> bool:
        """Whether those that wait, with one more prompt of so many tokens, hold more than half of the queue, by number or by tokens."""
        with self._lock:
            return 2 * (len(self._line) + 1) > self._max_queue or 2 * (self._waiting_tokens + tokens) > self._max_queue_tokens

    def has_slot(self, request_id: int) -> bool:
        """Whether an open request has got its slot."""
        route = self.routes.get(request_id)
        return route is not None and route.started is not None

    @property
    def _slots(self) -> int:
        return len(self._load) * self._batch

    def _check_open(self, count: int) -> None:
        if self._refusal is not None or not self._load:
            self.tally.refused("unavailable", count)
            raise RequestError(self._refusal or "the engine is down", status=503, code="model_unavailable")

    def _check_room(self, count: int) -> None:
        beyond = len(self.routes) + count - self._slots - self._max_queue
        # Whoever was told to end does so before its worker hears of the next request. Looked for only when it matters.
        if beyond <= 0 or beyond <= sum(route.leaving for route in self.routes.values()):
            return
        places = f"{self._slots} slots and {self._max_queue} places to wait"
        reason = f"{len(self.routes)} requests are there for {places}, {count} more cannot be taken"
        raise self._full(count, reason, beyond)

    def _check_tokens(self, count: int, tokens: int) -> None:
        """Waiting prompts are memory. A call that waits behind nobody is taken whatever it holds."""
        if self._waiting_tokens + tokens <= self._max_queue_tokens or len(self.routes) + count <= self._slots:
            return
        gone = sum(route.prompt_tokens for route in self.routes.values() if route.leaving and route.started is None)
        waiting = self._waiting_tokens - gone
        if not waiting or waiting + tokens <= self._max_queue_tokens:
            return
        reason = f"the prompts that wait hold {waiting} of at most {self._max_queue_tokens} tokens, {tokens} more cannot be taken"
        raise self._full(count, reason, max(1, len(self.routes) + count - self._slots))

    def _full(self, count: int, reason: str, ends: int) -> RequestError:
        """The refusal of ``count`` requests, to be tried again when so many others have ended."""
        self._outcomes["rejected"] += count
        self.tally.refused("queue_full", count)
        seconds = min(MAX_RETRY_AFTER, max(1, ceil(self._until_free(ends))))
        return RequestError(f"the queue is full: {reason}", status=429, code="queue_full", headers={"Retry-After": str(seconds)})

    def _until_free(self, ends: int) -> float:
        """Seconds until so many requests have ended, if they hold their slots as long as the last ones did."""
        return ends * (self._slot_seconds if self._slot_seconds is not None else 1.0) / max(1, self._slots)

    def started(self, request_id: int) -> None:
        """The request has a slot now."""
        with self._lock:
            route = self.routes.get(request_id)
            if route is not None and route.started is None:
                now = route.started = monotonic()
                self._line.serve(route.call, now)
                self._prompt_tokens += route.prompt_tokens
                self._waiting_tokens -= route.prompt_tokens
                self.tally.started(route.worker, now - route.since)

    def answered(self, route: Route) -> None:
        """The request gets its first token."""
        route.answered = monotonic()
        self.tally.answered(route.worker, route.answered - route.since)

    def generated(self, tokens: int) -> None:
        with self._lock:
            self._generated_tokens += tokens

    def end(self, request_id: int, event: Finished | Failed) -> Route | None:
        """Strike out a request; None if it has ended before, so that nobody hears of two ends."""
        with self._lock:
            route = self.routes.pop(request_id, None)
            if route is None:
                return None
            if route.worker in self._load:
                self._load[route.worker] -= 1
            now = monotonic()
            if route.started is None:
                self._line.leave(route.call)
                self._waiting_tokens -= route.prompt_tokens
            else:
                held = now - route.started
                self._slot_seconds = held if self._slot_seconds is None else self._slot_seconds + 0.1 * (held - self._slot_seconds)
            outcome = _outcome(route, event)
            self._outcomes[outcome] += 1
            self.tally.ended(route.worker, outcome, route.started is not None, now - route.since, _per_token(route, event, now))
            return route

    def ids(self, worker: int | None = None) -> list[int]:
        """Open requests, of one worker or of all."""
        with self._lock:
            return [i for i, route in self.routes.items() if worker is None or route.worker == worker]

    def figures(self) -> dict[str, Any]:
        """Slots, queue, requests by outcome, token totals. JSON-able, and small however many wait."""
        with self._lock:
            outcomes = {name: self._outcomes[name] for name in ("accepted", "rejected", "stop", "length", "abort", "error")}
            ahead = len(self.routes) + 1 - self._slots
            return {
                "slots": {"total": self._slots, "active": len(self.routes) - len(self._line)},
                "queue": {
                    "limit": self._max_queue,
                    "tokens": self._waiting_tokens,
                    # For one more request behind all others.
                    "estimated_wait_s": round(self._until_free(max(0, ahead)), 3),
                    **self._line.figures(monotonic()),
                },
                "requests": outcomes,
                "tokens": {"prompt": self._prompt_tokens, "generated": self._generated_tokens},
            }


def _outcome(route: Route, event: Finished | Failed) -> str:
    if isinstance(event, Failed):
        return "error"
    return "stop" if route.index in route.completion.stopped else event.reason.value


def _per_token(route: Route, event: Finished | Failed, now: float) -> float | None:
    """Mean seconds of a request's tokens after the first."""
    if isinstance(event, Failed) or route.answered is None or event.completion_tokens < 2:
        return None
    return (now - route.answered) / (event.completion_tokens - 1)
