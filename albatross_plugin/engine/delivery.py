"""From the engine to its callers: what a caller receives, and where it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from queue import Empty, SimpleQueue
from typing import NamedTuple

from albatross_plugin.engine.messages import Failed, Finished, PromptLogprobs, TokenLogprobs


@dataclass(slots=True)
class NewTokens:
    """Tokens of one request since the last delivery, one or more, the end token among them like any other.

    ``logprobs`` is parallel to ``token_ids``, or None where the request did not ask for numbers.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None


class Delivery(NamedTuple):
    """News of one request; ``index`` is its place in the submission."""

    index: int  # type: ignore[assignment]
    event: NewTokens | PromptLogprobs | Finished | Failed


class AsyncEngineCompletion:
    """Controller of one submission: an inbox that ends, and ``abort``.

    With ``loop``, it is read by one task of that loop; without, by one thread. Each request's last delivery is
    Finished or Failed. Tokens that a slow reader has not fetched grow into one delivery per request. An object nobody
    reads holds its deliveries until it is dropped.

    ``urgent(index, token_id)`` is asked, on ``loop``, whether the reader shall be woken for a token; None: for each. It is not asked about
    tokens for which ``calm[index][token_id]`` is true; the reader may change these tables, not their number.
    """

    __slots__ = (
        "__weakref__", "_abort", "_buffer", "_growing", "_open", "_queue", "_waiter",
        "calm", "loop", "request_ids", "stopped", "urgent",
    )  # fmt: skip

    def __init__(
        self,
        request_ids: Sequence[int],
        loop: asyncio.AbstractEventLoop | None,
        abort: Callable[[Sequence[int]], None],
    ) -> None:
        self.request_ids = tuple(request_ids)
        self.loop = loop
        self._abort = abort
        self.urgent: Callable[[int, int], bool] | None = None
        self.calm: list[Sequence[int]] | None = None
        self.stopped: set[int] = set()
        self._open = len(self.request_ids)
        self._buffer: list[Delivery] = []
        self._growing: list[NewTokens | None] = [None] * len(self.request_ids)
        self._waiter: asyncio.Future[None] | None = None
        self._queue: SimpleQueue[list[Delivery]] = SimpleQueue()

    async def next_events(self) -> list[Delivery]:
        """Wait for at least one delivery, return all that are there; [] once every request has ended and was read.

        A cancelled wait loses nothing. Raises RuntimeError on another loop than the one given to ``submit``.
        """
        if self.loop is None or asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("this completion belongs to another event loop, or is read synchronously")
        if not self.has_news:
            await self.arrival()
        return self.take()

    @property
    def has_news(self) -> bool:
        """Whether ``take`` has something to give, or will never have again."""
        return bool(self._buffer) or not self._open

    def arrival(self) -> asyncio.Future[None]:
        """Done when there is news. To be awaited at once by the one task that reads, when ``has_news`` is false."""
        if self.loop is None:
            raise RuntimeError("this completion is read synchronously")
        if self._waiter is not None and not self._waiter.done():
            raise RuntimeError("this completion is already being read")
        self._waiter = self.loop.create_future()
        return self._waiter

    def take(self) -> list[Delivery]:
        """All deliveries that are there, on ``loop``."""
        self._waiter = None
        events, self._buffer = self._buffer, []
        self._growing = [None] * len(self.request_ids)
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
        self._open -= sum(isinstance(delivery.event, (Finished, Failed)) for delivery in events)
        return events

    def stop(self, index: int) -> None:
        """End one request whose text is complete for its reader; it counts as stopped, not as aborted."""
        self.stopped.add(index)
        self.abort(index)

    def abort(self, index: int | None = None) -> None:
        """End one request of the submission, or all of them. Idempotent, from any thread; the others run on."""
        self._abort(self.request_ids if index is None else (self.request_ids[index],))

    # --- for the engine: on the reader's loop, where there is one --------------------------------------------------

    def receive(self, delivery: Delivery) -> None:
        """Take news other than tokens."""
        self._buffer.append(delivery)
        if isinstance(delivery.event, (Finished, Failed)):
            self._open -= 1
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def receive_now(self, deliveries: list[Delivery]) -> None:
        """Take news of a completion that is read synchronously, from any thread."""
        self._queue.put(deliveries)


def deliver(
    completions: Iterable[AsyncEngineCompletion],
    indexes: Iterable[int],
    tokens: Iterable[int],
    logprobs: Iterable[TokenLogprobs | None] | None,
) -> None:
    """One token for each of these requests, on the loop of their readers. Runs once per token, so it does without calls."""
    numbers = repeat(None) if logprobs is None else logprobs
    # Delivery(index, event) would be a call of a function in Python, which makes the tuple in this way too.
    new = tuple.__new__
    for completion, index, token, entry in zip(completions, indexes, tokens, numbers):  # noqa: B905
        growing = completion._growing[index]
        if growing is None:
            growing = completion._growing[index] = NewTokens([token], None if entry is None else [entry])
            completion._buffer.append(new(Delivery, (index, growing)))
        else:
            growing.token_ids.append(token)
            if growing.logprobs is not None and entry is not None:
                growing.logprobs.append(entry)
        waiter = completion._waiter
        if waiter is None or (completion.calm is not None and completion.calm[index][token]):
            continue
        if not waiter.done() and (completion.urgent is None or completion.urgent(index, token)):
            waiter.set_result(None)
