"""AsyncEngineCore: the workers' life, admission, and the way of every event to the caller who waits for it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from time import monotonic
from typing import Any

from albatross_plugin.config import EngineConfig
from albatross_plugin.engine.delivery import AsyncEngineCompletion, Delivery, NewTokens
from albatross_plugin.engine.ledger import Ledger
from albatross_plugin.engine.messages import (
    Abort,
    Broken,
    Down,
    Event,
    Loaded,
    LoadFailed,
    LoadProgress,
    ModelInfo,
    Shutdown,
    Stats,
    Submit,
    Tokens,
)
from albatross_plugin.engine.request import Request
from albatross_plugin.engine.router import Router
from albatross_plugin.engine.step import WorkerSpec
from albatross_plugin.engine.tally import Tally
from albatross_plugin.engine.transport import ThreadTransport, Transport
from albatross_plugin.engine.watchdog import Watchdog
from albatross_plugin.engine.worker import describe
from albatross_plugin.errors import EngineInitError, EngineInitTimeout

__all__ = ["AsyncEngineCompletion", "AsyncEngineCore", "Delivery", "NewTokens"]

logger = logging.getLogger(__name__)

UNLOADED = "the model was unloaded"
FLUSH_AT = 8
BATCHES_PER_TURN = 64
JOIN_SECONDS = 10.0


@dataclass
class _WorkerState:
    """What the core knows of one worker. ``down`` is None while it serves, afterwards its last words ("": as asked).

    ``here``: its thread has not ended. ``stuck``: it was given up, and hangs in a step still.
    """

    transport: Transport
    info: ModelInfo | None = None
    progress: LoadProgress = field(default_factory=lambda: LoadProgress(0, 0))
    stats: Stats | None = None
    down: str | None = ""
    here: bool = False
    stuck: bool = False


class AsyncEngineCore:
    """Front of the engine. ``start`` and ``shutdown`` run on the engine's loop; the other methods on any thread.

    Every accepted request ends in exactly one Finished or Failed, whichever part of the engine dies. Workers
    call once per step into the engine's loop, which calls once per drain into each reader's loop.
    """

    def __init__(
        self,
        config: EngineConfig,
        specs: Sequence[WorkerSpec],
        transport: Callable[..., Transport] = ThreadTransport,
        name: str = "",
    ) -> None:
        self.name = name
        self.join_seconds = JOIN_SECONDS
        self._config = config
        self._workers = [_WorkerState(transport(spec, config, self._on_events)) for spec in specs]
        self._numbers = {spec.worker: index for index, spec in enumerate(specs)}
        self._ledger = Ledger(len(specs), config.batch, config.max_queue, config.max_queue_tokens)
        self._router = Router(self._ledger)
        self._watchdog = Watchdog(config.step_timeout)
        self._next_look: asyncio.TimerHandle | None = None
        self._ids = count(1)
        self._inbox: deque[tuple[_WorkerState, list[Event]]] = deque()
        self._drain_due = False
        self._orphaned = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready: asyncio.Future[ModelInfo] | None = None
        self._all_down: asyncio.Event | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._phase = "loading"

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> ModelInfo:
        """Load all workers at the same time; returns when the last is ready.

        Raises EngineInitError with the first failure's cause, EngineInitTimeout after ``config.load_timeout``
        seconds in all. Either way the other workers are stopped before it returns.
        """
        if self._loop is not None:
            raise RuntimeError("the engine was started before")
        self._loop = asyncio.get_running_loop()
        self._ready = self._loop.create_future()
        self._all_down = asyncio.Event()
        try:
            if self._phase == "closed":
                raise EngineInitError(UNLOADED)
            for worker in self._workers:
                worker.transport.start()
                worker.down, worker.here = None, True
            info = await asyncio.wait_for(self._ready, self._config.load_timeout)
            # A shutdown may have come between the last Loaded and this line.
            if self._phase == "closed":
                raise EngineInitError(UNLOADED)
            self._look_later()
            return info
        except (asyncio.TimeoutError, TimeoutError) as error:
            await self.shutdown()
            raise EngineInitTimeout("Albatross engine initialization timed out") from error
        except BaseException:
            await self.shutdown()
            raise

    async def shutdown(self, reason: str = UNLOADED) -> None:
        """Refuse new requests, fail the open ones (503) at once, stop the workers and wait for their threads.

        Idempotent. A worker that does not come back from a step is left behind after a bounded wait, with a warning.
        """
        if self._stopping is None:
            self._phase = "closed"
            if self._next_look is not None:
                self._next_look.cancel()
            self._ledger.close(reason)
            self._router.fail(self._ledger.ids(), reason)
            self._load_failed(reason)
            self._stopping = asyncio.get_running_loop().create_task(self._stop_workers(reason))
        await asyncio.shield(self._stopping)

    async def _stop_workers(self, reason: str) -> None:
        if self._all_down is None:
            return
        self._check_all_down()
        for worker in self._workers:
            worker.transport.send(Shutdown(reason))
        deadline = monotonic() + self.join_seconds
        try:
            await asyncio.wait_for(self._all_down.wait(), self.join_seconds)
        except (asyncio.TimeoutError, TimeoutError):
            left = sum(worker.here and not worker.stuck for worker in self._workers)
            logger.warning("%d of %d workers did not stop within %g s", left, len(self._workers), self.join_seconds)
        for worker in self._workers:
            if worker.stuck:
                logger.warning("worker %d hangs in a step and is left behind, with what it holds", worker.transport.spec.worker)
            # A worker that said Down has a few instructions left, so this does not hold up the loop.
            elif not worker.here and not worker.transport.join(max(0.1, deadline - monotonic())):
                logger.warning("a worker is still there after it said that it had ended")

    def _load_failed(self, message: str) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(EngineInitError(message))

    # --- requests ---------------------------------------------------------------------------------------------------

    def next_request_id(self) -> int:
        return next(self._ids)

    def check_room(self, count: int) -> None:
        """Raises RequestError (400, 429, 503) if ``submit`` would not take ``count`` requests now."""
        self._ledger.check_room(count)

    def places(self) -> int:
        """How many more requests ``submit`` would take now, if their prompts are short."""
        return self._ledger.places()

    def crowded(self, tokens: int) -> bool:
        """Whether one more prompt of so many tokens would leave less than half of the queue to others."""
        return self._ledger.crowded(tokens)

    def has_slot(self, request_id: int) -> bool:
        """Whether this request holds a slot; false as well for one that has ended."""
        return self._ledger.has_slot(request_id)

    def submit(self, requests: Sequence[Request], *, loop: asyncio.AbstractEventLoop | None) -> AsyncEngineCompletion:
        """Take all requests or none; never blocks. ``loop`` reads the completion (None: it is read synchronously).

        Raises RequestError: 429 (``queue_full``, with Retry-After) or 503 (``model_unavailable``).
        """
        completion = AsyncEngineCompletion([request.request_id for request in requests], loop, self.abort)
        for worker, share in self._ledger.admit(requests, completion).items():
            self._workers[worker].transport.send(Submit(tuple(share)))
        return completion

    def abort(self, request_ids: Iterable[int]) -> None:
        """End these requests; unknown ones and those that have ended are passed over. Idempotent."""
        # No lock in here: completions are aborted by their finalizers too, which run wherever the collector does.
        shares: dict[int, list[int]] = {}
        for request_id in request_ids:
            route = self._ledger.routes.get(request_id)
            if route is not None:
                route.leaving = True
                shares.setdefault(route.worker, []).append(request_id)
        for worker, ids in shares.items():
            self._workers[worker].transport.send(Abort(tuple(ids)))

    # --- events -----------------------------------------------------------------------------------------------------

    def _on_events(self, worker: int, events: list[Event]) -> None:
        """Called on the workers' threads, once per step."""
        self._watchdog.heard(worker)
        self._inbox.append((self._workers[self._numbers[worker]], events))
        assert self._loop is not None
        # A drain that is due takes these too; a loop that was closed has none to come.
        if self._drain_due and not self._loop.is_closed():
            return
        self._drain_due = True
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            # The engine's loop was closed under a running worker: its callers are served from here instead.
            with self._orphaned:
                while self._inbox:
                    self._route_batches()

    def _drain(self) -> None:
        """Route what is there. Nothing stays behind, but when workers are faster than this, others on the loop get their turns."""
        self._drain_due = False
        self._route_batches()
        if self._inbox and not self._drain_due:
            self._drain_due = True
            asyncio.get_running_loop().call_soon(self._drain)

    def _route_batches(self) -> None:
        try:
            buffered = 0
            for _ in range(min(len(self._inbox), BATCHES_PER_TURN)):
                worker, events = self._inbox.popleft()
                buffered += 1
                if any([self._take(worker, event) for event in events]) or buffered >= FLUSH_AT:
                    self._router.flush()
                    buffered = 0
        except Exception as error:
            logger.exception("the engine cannot route its events")
            self._go_down(describe(error))
        self._router.flush()

    def _take(self, worker: _WorkerState, event: Event) -> bool:
        if isinstance(event, Tokens):
            pass
        elif isinstance(event, Stats):
            worker.stats = event
        elif isinstance(event, LoadProgress):
            worker.progress = event
        elif isinstance(event, Loaded):
            self._on_loaded(worker, event.info)
        elif isinstance(event, LoadFailed):
            self._load_failed(event.message)
        elif isinstance(event, Broken):
            self._give_up(worker, event.message)
        elif isinstance(event, Down):
            worker.here = worker.stuck = False
            self._give_up(worker, event.message)
            self._check_all_down()
        return self._router.route(event, worker.transport.spec.worker)

    def _on_loaded(self, worker: _WorkerState, info: ModelInfo) -> None:
        worker.info = info
        if all(each.info is not None for each in self._workers) and self._ready is not None and not self._ready.done():
            self._phase = "ready"
            self._ledger.open()
            self._ready.set_result(info)

    def _look_later(self) -> None:
        if self._watchdog.timeout and self._loop is not None:
            self._next_look = self._loop.call_later(self._watchdog.interval, self._look)

    def _look(self) -> None:
        """Give up workers that hang in a step, so that their callers need not wait for ever."""
        for index, worker in enumerate(self._workers):
            oldest = next((self._ledger.routes.get(i) for i in self._ledger.ids(index)), None)
            number = worker.transport.spec.worker
            if worker.down is None and oldest is not None and self._watchdog.stuck(number, oldest.since):
                # Should it come back, it ends there instead of working for nobody.
                worker.stuck = True
                worker.transport.send(Shutdown())
                self._give_up(worker, f"no step of worker {number} has ended for {self._watchdog.timeout:g} s")
        self._look_later()

    def _give_up(self, worker: _WorkerState, message: str) -> None:
        """This worker serves nobody any more; its requests end. Idempotent."""
        if worker.down is not None:
            return
        worker.down = message
        index = self._workers.index(worker)
        left = self._ledger.drop_worker(index)
        if self._phase == "loading":
            self._load_failed(message or "a worker ended before it had loaded the model")
        elif self._phase == "ready":
            logger.error("worker %d is down: %s", index, message)
            if not left:
                self._go_down(message)
        self._router.fail(self._ledger.ids(index), f"the engine went down: {message}")

    def _go_down(self, message: str) -> None:
        self._phase = "down"
        self._ledger.close(f"the engine is down, and the model must be loaded again: {message}")
        self._router.fail(self._ledger.ids(), f"the engine went down: {message}")

    def _check_all_down(self) -> None:
        if self._all_down is not None and not any(worker.here and not worker.stuck for worker in self._workers):
            self._all_down.set()

    # --- status -----------------------------------------------------------------------------------------------------

    @property
    def tally(self) -> Tally:
        """What became of the requests; holds nothing of the engine, and may be kept after its end."""
        return self._ledger.tally

    def status(self) -> dict[str, Any]:
        """JSON-able. ``phase``: loading, ready, down or closed; rates are tokens per second, 0 while nothing runs."""
        figures = self._ledger.figures()
        stats = [worker.stats for worker in self._workers if worker.stats is not None and worker.stats.active]
        return {
            "phase": self._phase,
            "strategy": f"albatross workers={self._config.workers} batch={self._config.batch} device={self._config.device}",
            "error": next((worker.down for worker in self._workers if worker.down), ""),
            "loaded_bytes": sum(worker.progress.loaded_bytes for worker in self._workers),
            "total_bytes": sum(worker.progress.total_bytes for worker in self._workers),
            **figures,
            "decode_tokens_per_second": round(sum(each.decode_tokens_per_second for each in stats), 2),
            "prefill_tokens_per_second": round(sum(each.prefill_tokens_per_second for each in stats), 2),
            "workers": [self._worker_status(index, worker) for index, worker in enumerate(self._workers)],
        }

    def _worker_status(self, index: int, worker: _WorkerState) -> dict[str, Any]:
        phase = "loading" if worker.info is None else "ready" if worker.down is None else "down"
        stats = asdict(worker.stats) if worker.stats is not None else {}
        figures = {name: value for name, value in stats.items() if name not in ("step_times", "token_times")}
        return {"worker": index, "phase": phase, "error": worker.down or "", **figures}
