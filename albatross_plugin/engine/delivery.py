"""From the engine to its callers: what a caller receives, where it waits, and how batches cross to its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple

from albatross_plugin.engine.messages import Failed, Finished, PromptLogprobs, TokenLogprobs


class Token(NamedTuple):
    """One sampled token; the end token is delivered like any other."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class Delivery(NamedTuple):
    """News of one request; ``index`` is its place in the submission."""

    index: int  # type: ignore[assignment]
    event: Token | PromptLogprobs | Finished | Failed


class AsyncEngineCompletion:
    """Controller of one submission: an inbox that ends, and ``abort``.

    With ``loop``, it is read by one task of that loop; without, by one thread. Each request's last delivery is
    Finished or Failed. An object nobody reads holds its deliveries until it is dropped.
    """

    def __init__(
        self,
        request_ids: Sequence[int],
        loop: asyncio.AbstractEventLoop | None,
        abort: Callable[[Sequence[int]], None],
    ) -> None:
        self.request_ids = tuple(request_ids)
        self.loop = loop
        self._abort = abort
        self.stopped: set[int] = set()
        self._open = len(self.request_ids)
        self._buffer: list[Delivery] = []
        self._waiter: asyncio.Future[None] | None = None
        self._queue: SimpleQueue[list[Delivery]] = SimpleQueue()

    async def next_events(self) -> list[Delivery]:
        """Wait for at least one delivery, return all that are there; [] once every request has ended and was read.

        A cancelled wait loses nothing. Raises RuntimeError on another loop than the one given to ``submit``.
        """
        if self.loop is None or asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("this completion belongs to another event loop, or is read synchronously")
        if not self._buffer and self._open:
            if self._waiter is not None:
                raise RuntimeError("this completion is already being read")
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        events, self._buffer = self._buffer, []
        return events

    def next_events_sync(self, timeout: float | None = None) -> list[Delivery]:
        """As ``next_events``, blocking up to ``timeout`` seconds. Raises TimeoutError when nothing came."""
        if self.loop is not None:
            raise RuntimeError("this completion is read on its event loop")
        if not self._open:
            return []
        try:
            events = self._queue.get(timeout=timeout)
        except Empty:
            raise TimeoutError(f"the engine gave no token for {timeout:g} s") from None
        while True:
            try:
                events += self._queue.get_nowait()
            except Empty:
                break
        self._open -= _endings(events)
        return events

    def stop(self, index: int) -> None:
        """End one request whose text is complete for its reader; it counts as stopped, not as aborted."""
        self.stopped.add(index)
        self.abort(index)

    def abort(self, index: int | None = None) -> None:
        """End one request of the submission, or all of them. Idempotent, from any thread; the others run on."""
        self._abort(self.request_ids if index is None else (self.request_ids[index],))

    def receive(self, deliveries: list[Delivery]) -> None:
        """Take a batch: on the reader's loop, or, when read synchronously, from any thread."""
        if self.loop is None:
            self._queue.put(deliveries)
            return
        self._buffer += deliveries
        self._open -= _endings(deliveries)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _endings(deliveries: Sequence[Delivery]) -> int:
    return sum(isinstance(delivery.event, (Finished, Failed)) for delivery in deliveries)


class Outbox:
    """Gathers deliveries and hands them over with one ``call_soon_threadsafe`` per reader's loop and flush."""

    def __init__(self) -> None:
        self._items: dict[AsyncEngineCompletion, list[Delivery]] = {}

    def add(self, completion: AsyncEngineCompletion, delivery: Delivery) -> None:
        self._items.setdefault(completion, []).append(delivery)

    def flush(self) -> list[AsyncEngineCompletion]:
        """Hand over everything; returns those whose loop is closed, so that nobody will ever read them."""
        items, self._items = self._items, {}
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[AsyncEngineCompletion, list[Delivery]]]] = {}
        for completion, deliveries in items.items():
            if completion.loop is None:
                completion.receive(deliveries)
            else:
                by_loop.setdefault(completion.loop, []).append((completion, deliveries))
        lost: list[AsyncEngineCompletion] = []
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_hand_over, batch)
            except RuntimeError:
                lost += [completion for completion, _ in batch]
        return lost


def _hand_over(batch: list[tuple[AsyncEngineCompletion, list[Delivery]]]) -> None:
    for completion, deliveries in batch:
        completion.receive(deliveries)
