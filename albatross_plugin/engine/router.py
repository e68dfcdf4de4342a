"""Takes the workers' events to the callers who wait for them, and no event past a request's end."""

from __future__ import annotations

from collections.abc import Iterable

from albatross_plugin.engine.delivery import Delivery, Outbox, Token
from albatross_plugin.engine.ledger import Ledger
from albatross_plugin.engine.messages import Event, Failed, Finished, PromptLogprobs, Started, Tokens


class Router:
    """Fills an Outbox from events. One thread at a time."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._outbox = Outbox()

    def route(self, event: Event) -> bool:
        """Whether someone should hear of it at once: a first token, or an end. Events about workers are passed over."""
        if isinstance(event, Tokens):
            return self._tokens(event)
        if isinstance(event, (Finished, Failed)):
            return self._end(event)
        if isinstance(event, PromptLogprobs):
            route = self._ledger.routes.get(event.request_id)
            if route is not None:
                self._outbox.add(route.completion, Delivery(route.index, event))
        elif isinstance(event, Started):
            self._ledger.started(event.request_id)
        return False

    def _tokens(self, event: Tokens) -> bool:
        first = False
        logprobs = event.logprobs or [None] * len(event.token_ids)
        for request_id, token_id, numbers in zip(event.request_ids, event.token_ids, logprobs, strict=True):
            route = self._ledger.routes.get(request_id)
            if route is None:
                continue
            first = first or not route.answered
            route.answered = True
            self._outbox.add(route.completion, Delivery(route.index, Token(token_id, numbers)))
        self._ledger.generated(len(event.token_ids))
        return first

    def _end(self, event: Finished | Failed) -> bool:
        route = self._ledger.end(event.request_id, event)
        if route is not None:
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
