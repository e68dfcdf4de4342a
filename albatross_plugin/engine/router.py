"""Takes the workers' events to the callers who wait for them, and no event past a request's end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from albatross_plugin.engine.delivery import Delivery
from albatross_plugin.engine.ledger import Ledger, Route
from albatross_plugin.engine.messages import Event, Failed, Finished, PromptLogprobs, Started, Stats, Tokens
from albatross_plugin.engine.outbox import Outbox, Readers


class Router:
    """Fills an Outbox from events. One thread at a time."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._outbox = Outbox()
        self._audiences: dict[int, tuple[list[int], list[Readers]]] = {}

    def route(self, event: Event, worker: int) -> bool:
        """Whether someone should hear of it at once: a first token, or an end. Of events about workers, figures are kept."""
        if isinstance(event, Tokens):
            return self._tokens(event, worker)
        if isinstance(event, (Finished, Failed)):
            return self._end(event)
        if isinstance(event, PromptLogprobs):
            route = self._ledger.routes.get(event.request_id)
            if route is not None:
                self._outbox.add(route.completion, Delivery(route.index, event))
        elif isinstance(event, Started):
            self._ledger.started(event.request_id)
        elif isinstance(event, Stats):
            self._ledger.tally.report(worker, event)
        return False

    def _tokens(self, event: Tokens, worker: int) -> bool:
        request_ids, readers = self._audiences.get(worker, (None, []))
        first = False
        # The same list object means the same rows: a worker makes a new one when somebody joins or leaves.
        if request_ids is not event.request_ids:
            readers, first = self._find_audience(event.request_ids)
            self._audiences[worker] = event.request_ids, readers
        for each in readers:
            self._outbox.add_tokens(each, event.token_ids, event.logprobs)
        self._ledger.generated(len(event.token_ids))
        return first

    def _find_audience(self, request_ids: list[int]) -> tuple[list[Readers], bool]:
        """The readers of these rows by event loop, and whether one of them gets a first token."""
        first = False
        found: dict[asyncio.AbstractEventLoop | None, list[tuple[int, Route]]] = {}
        for row, request_id in enumerate(request_ids):
            route = self._ledger.routes.get(request_id)
            if route is not None:
                if route.answered is None:
                    first = True
                    self._ledger.answered(route)
                found.setdefault(route.completion.loop, []).append((row, route))
        readers = []
        for loop, members in found.items():
            rows = None if len(members) == len(request_ids) else [row for row, _ in members]
            readers.append(Readers(loop, [route.completion for _, route in members], [route.index for _, route in members], rows))
        return readers, first

    def _end(self, event: Finished | Failed) -> bool:
        route = self._ledger.end(event.request_id, event)
        if route is not None:
            # Whoever was among the readers may have ended; and none of them shall be kept alive from here.
            self._audiences.clear()
            self._outbox.add(route.completion, Delivery(route.index, event))
        return route is not None

    def fail(self, request_ids: Iterable[int], message: str) -> None:
        """Fail these requests (503) without asking their worker, after what they have been sent before."""
        for request_id in request_ids:
            self._end(Failed(request_id, message, 503))
        self.flush()

    def flush(self) -> None:
        """Hand over what has gathered. Requests whose reader's loop is closed are aborted: nobody will read them."""
        for completion in self._outbox.flush():
            completion.abort()
