"""Outbox: gathers what the readers shall get, and hands it over with one call per event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import repeat

from albatross_plugin.engine.delivery import AsyncEngineCompletion, Delivery, NewTokens, deliver
from albatross_plugin.engine.messages import TokenLogprobs


class Readers:
    """The readers of a list of rows that have one event loop in common (None: they read synchronously), in row order.

    ``rows`` are their places in the list, None when it is theirs altogether.
    """

    __slots__ = ("completions", "indexes", "loop", "rows")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None,
        completions: list[AsyncEngineCompletion],
        indexes: list[int],
        rows: list[int] | None,
    ) -> None:
        self.loop = loop
        self.completions = completions
        self.indexes = indexes
        self.rows = rows


class _Step:
    """The tokens of one step for readers of one loop."""

    __slots__ = ("logprobs", "readers", "tokens")

    def __init__(self, readers: Readers, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs | None] | None) -> None:
        self.readers = readers
        self.tokens = tokens
        self.logprobs = logprobs


_Item = _Step | tuple[AsyncEngineCompletion, Delivery]


class Outbox:
    """``flush`` hands over what was added, in that order for each reader, with one ``call_soon_threadsafe`` per loop."""

    def __init__(self) -> None:
        self._items: dict[asyncio.AbstractEventLoop | None, list[_Item]] = {}

    def add(self, completion: AsyncEngineCompletion, delivery: Delivery) -> None:
        self._items.setdefault(completion.loop, []).append((completion, delivery))

    def add_tokens(self, readers: Readers, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs | None] | None) -> None:
        """``tokens`` and ``logprobs`` of the whole list of rows; those of the readers' own rows are picked out."""
        if readers.rows is not None:
            tokens = [tokens[row] for row in readers.rows]
            logprobs = logprobs and [logprobs[row] for row in readers.rows]
        self._items.setdefault(readers.loop, []).append(_Step(readers, tokens, logprobs))

    def flush(self) -> list[AsyncEngineCompletion]:
        """Hand over everything; returns those whose loop is closed, so that nobody will ever read them."""
        if not self._items:
            return []
        items, self._items = self._items, {}
        lost: list[AsyncEngineCompletion] = []
        for loop, batch in items.items():
            try:
                if loop is None:
                    _put(batch)
                else:
                    loop.call_soon_threadsafe(_hand_over, batch)
            except RuntimeError:
                for item in batch:
                    lost += item.readers.completions if isinstance(item, _Step) else [item[0]]
        return list(dict.fromkeys(lost))


def _hand_over(batch: list[_Item]) -> None:
    """Runs on the readers' loop."""
    for item in batch:
        if not isinstance(item, _Step):
            completion, delivery = item
            completion.receive(delivery)
            continue
        readers = item.readers
        deliver(readers.completions, readers.indexes, item.tokens, item.logprobs)


def _put(batch: list[_Item]) -> None:
    """For completions that are read synchronously: one message for each."""
    news: dict[AsyncEngineCompletion, list[Delivery]] = {}
    for item in batch:
        if not isinstance(item, _Step):
            news.setdefault(item[0], []).append(item[1])
            continue
        readers = item.readers
        numbers = repeat(None) if item.logprobs is None else item.logprobs
        for completion, index, token, entry in zip(readers.completions, readers.indexes, item.tokens, numbers):  # noqa: B905
            tokens = NewTokens([token], None if entry is None else [entry])
            news.setdefault(completion, []).append(Delivery(index, tokens))
    for completion, deliveries in news.items():
        completion.receive_now(deliveries)
