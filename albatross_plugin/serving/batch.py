"""Batch: many texts of one call, fed to the engine a few at a time and read together"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

from albatross_plugin.adapter import AlbatrossRWKV
from albatross_plugin.engine.request import FinishReason
from albatross_plugin.errors import GenerationError, RequestError
from albatross_plugin.serving.batch_call import BatchCall
from albatross_plugin.serving.batch_item import FINAL, Item
from albatross_plugin.serving.chunks import usage
from albatross_plugin.serving.error_object import error_object
from albatross_plugin.serving.json_route import LARGE, in_thread

# Updates are handed over this often, or when there are so many, and at most so many together.
TICK_SECONDS = 0.05
FLUSH = 256
# So many items wait in the engine's queue for a slot at most, or as many as there are slots: those that end together are followed at once.
AHEAD = 64
# When the queue is full of other calls' prompts.
RETRY_SECONDS = 0.5


class Batch:
    """The items of one call, on one event loop. Ends when each item has a final status.

    ``updates()`` may be read once. Without a reader nothing is fed, and the engine holds what it has made. ``keep_texts``: for
    ``answer()``. Dropping the object aborts what still runs, through the completions.
    """

    def __init__(self, model: AlbatrossRWKV, call: BatchCall, *, keep_texts: bool = False) -> None:
        self.id = call.batch_id or f"batch-{uuid.uuid4().hex}"
        self.items = [Item(index, seed) for index, seed in enumerate(call.seeds)]
        self.counts = Counter(dict.fromkeys(FINAL, 0))
        self.stopped = False
        self.prompt_tokens = self.completion_tokens = 0
        self._model, self._call, self._keep = model, call, keep_texts
        self._head = {
            "id": self.id,
            "object": "albatross.batch",
            "created": int(time.time()),
            "model": model.name,
            "count": len(self.items),
        }
        self._ahead = min(max(AHEAD, model.config.workers * model.config.batch), max(1, model.config.max_queue // 2))
        self._group = model.new_name()
        # Prompts that are used more than once are fed once.
        self._shared = {first: model.new_name() for first, count in Counter(call.alike).items() if count > 1}
        self._fed = 0
        self._not_before = 0.0
        self._open: dict[int, Item] = {}
        self._waiting = 0
        self._ripe: list[Item] = []
        self._news: list[dict[str, Any]] = []
        self._encoded: tuple[str, list[int]] | None = None
        self._wake = asyncio.Event()
        self._handed: float | None = None

    @property
    def unfinished(self) -> int:
        """Items without a final status."""
        return len(self.items) - sum(self.counts.values())

    def stalled(self, seconds: float) -> bool:
        """Whether its reader has been busy for so long with what it took last, and has not asked for more."""
        return self._handed is not None and time.monotonic() - self._handed > seconds

    @property
    def status(self) -> str:
        if self.unfinished:
            return "running"
        return "aborted" if self.stopped else "done"

    def head(self) -> dict[str, Any]:
        """How the batch begins."""
        return {**self._head, "status": "running"}

    def summary(self) -> dict[str, Any]:
        """How the batch stands, and, once it has ended, how it ended."""
        return {
            **self._head,
            "status": self.status,
            "counts": dict(self.counts),
            "usage": usage(self.prompt_tokens, self.completion_tokens),
        }

    def answer(self) -> dict[str, Any]:
        """The whole batch, of an object that keeps texts."""
        return {**self.summary(), "items": [item.whole() for item in self.items]}

    async def updates(self) -> AsyncGenerator[list[dict[str, Any]], None]:
        """What the items have to say, every ``TICK_SECONDS``: lists of at most ``FLUSH``, empty ones where there is nothing new."""
        try:
            while True:
                self._collect()
                await self._feed()
                ended = not self.unfinished
                news, self._news = self._news, []
                parts = [news[start : start + FLUSH] for start in range(0, len(news), FLUSH)]
                for part in parts or ([] if ended else [[]]):
                    # An empty one too: to show that it is still here, its reader may write, and hang in that.
                    self._handed = time.monotonic()
                    yield part
                    self._handed = None
                if ended:
                    return
                await self._until_worth_telling()
        finally:
            self.close()

    async def _until_worth_telling(self) -> None:
        """Until the next tick; what ends before it is replaced in the engine at once."""
        until = time.monotonic() + TICK_SECONDS
        while (left := until - time.monotonic()) > 0 and self.unfinished and len(self._news) < FLUSH:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), left)
            self._wake.clear()
            ripe, self._ripe = self._ripe, []
            for item in ripe:
                self._read(item)
            await self._feed()

    async def run(self) -> None:
        """Go on until every item has ended, for whoever wants the whole."""
        async with contextlib.aclosing(self.updates()) as updates:
            async for _ in updates:
                pass

    def stop(self) -> None:
        """End every item that has not ended; what they have said so far stays, and the reader hears of each. Idempotent."""
        if not self.unfinished:
            return
        self._collect()
        if not self.unfinished:
            return
        self.stopped = True
        for item in self.items:
            if item.status not in FINAL:
                self._end(item, "aborted", FinishReason.ABORT.value)
        self._wake.set()

    def close(self) -> None:
        """Nobody reads any more: as ``stop``."""
        self.stop()

    # --- feeding ----------------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        """Give the engine items until so many wait for a slot as it may need before the next tick."""
        places = self._model.places()
        encoded = 0
        while self._fed < len(self.items) and self._waiting < self._ahead and places > 0 and time.monotonic() >= self._not_before:
            item, prompt = self.items[self._fed], self._call.prompts[self._fed]
            ids = await self._encode(prompt) if isinstance(prompt, str) else list(prompt)
            if self.stopped:
                return
            # One item waits in any case, so that the batch has its turns; many batches together leave room for chats.
            if self._waiting and self._model.crowded(len(ids)):
                return
            if not self._submit(item, ids):
                return
            self._fed += 1
            if item.completion is not None:
                places -= 1
            encoded += len(prompt)
            if encoded > LARGE:
                # Other requests get their turn on this loop.
                encoded = 0
                await asyncio.sleep(0)

    async def _encode(self, prompt: str) -> list[int]:
        """The prompt's ids; those of the last prompt are kept, since a batch is often one prompt many times."""
        if self._encoded is None or self._encoded[0] is not prompt:
            encode = self._model.encode_prompt
            ids = await in_thread(lambda: encode(prompt)) if len(prompt) > LARGE else encode(prompt)
            self._encoded = prompt, ids
        return self._encoded[1]

    def _submit(self, item: Item, ids: list[int]) -> bool:
        """False: the queue is full, to be tried again."""
        try:
            options = self._call.options_of(item.index)
            shared = self._shared.get(self._call.alike[item.index], 0) if self._shared else 0
            item.completion = self._model.open([ids], options, loop=asyncio.get_running_loop(), group=self._group, shared=shared)
        except RequestError as error:
            if error.status == 429:
                self._not_before = time.monotonic() + RETRY_SECONDS
                return False
            self._fail(item, error)
        else:
            self._open[item.index] = item
            self._waiting += 1
            self.prompt_tokens += len(ids)
            item.completion.be_patient()
            self._watch(item)
        return True

    # --- reading ----------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Read what the engine has made since the last time."""
        for item in list(self._open.values()):
            self._read(item)
            if item.status == "pending" and item.completion is not None and self._model.has_slot(item.completion):
                self._go_on(item, "", 0)

    def _read(self, item: Item) -> None:
        completion, read = item.completion, False
        if completion is None:
            return
        try:
            while pieces := completion.ready(1):
                read = True
                text, tokens, reason = "".join(piece.text for piece in pieces), pieces[-1].tokens, pieces[-1].finish_reason
                if reason is not None:
                    self._end(item, "aborted" if reason is FinishReason.ABORT else "done", reason.value, text, tokens)
                    return
                self._go_on(item, text, tokens)
        except GenerationError as error:
            self._fail(item, error)
            return
        if read:
            self._watch(item)

    def _watch(self, item: Item) -> None:
        """Be told when the item may have ended. To be renewed when something was read."""
        assert item.completion is not None
        item.completion.arrival().add_done_callback(lambda _: self._ripen(item))

    def _ripen(self, item: Item) -> None:
        self._ripe.append(item)
        self._wake.set()

    def _go_on(self, item: Item, text: str, tokens: int) -> None:
        first = item.status == "pending"
        self._waiting -= first
        item.status, item.tokens = "running", tokens
        if text or first:
            self._say(item, text)

    def _end(self, item: Item, status: str, reason: str, text: str = "", tokens: int | None = None) -> None:
        item.finish_reason = reason
        item.tokens = item.tokens if tokens is None else tokens
        self._finish(item, status, text)

    def _fail(self, item: Item, error: RequestError | GenerationError) -> None:
        item.error = error_object(error)
        self._finish(item, "error", "")

    def _finish(self, item: Item, status: str, text: str) -> None:
        if item.status == "pending" and item.index in self._open:
            self._waiting -= 1
        item.status = status
        self.counts[status] += 1
        self.completion_tokens += item.tokens
        self._open.pop(item.index, None)
        if item.completion is not None:
            item.completion.abort()
            item.completion = None
        self._say(item, text)

    def _say(self, item: Item, text: str) -> None:
        if self._keep:
            item.parts.append(text)
            return
        self._news.append(item.update(text))
