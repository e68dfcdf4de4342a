"""AlbatrossCompletion: one API call's texts, read from the engine's events, synchronously or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from albatross_plugin.detokenizer import Detokenizer
from albatross_plugin.engine.core import AsyncEngineCompletion, Delivery, NewTokens
from albatross_plugin.engine.messages import Failed, Finished, PromptLogprobs, TokenLogprobs
from albatross_plugin.engine.request import FinishReason, SamplingParams
from albatross_plugin.errors import GenerationError

FiveTuple = tuple[str, str, str, int, int]


@dataclass(slots=True)
class Piece:
    """News of one choice: new text, and, once, why it ended. ``tokens`` counts all sampled so far, end token included."""

    index: int
    text: str
    tokens: int
    finish_reason: FinishReason | None = None
    logprobs: Sequence[TokenLogprobs] = ()
    prompt_logprobs: Sequence[TokenLogprobs] = ()


class _Choice:
    """Turns one request's tokens into text; knows when that text is complete."""

    __slots__ = ("_detokenizer", "_ends", "done", "index", "tokens")

    def __init__(self, index: int, token_bytes: Sequence[bytes], stops: Sequence[str], params: SamplingParams) -> None:
        self.index = index
        self.tokens = 0
        self.done = False
        self._detokenizer = Detokenizer(token_bytes, stops)
        self._ends = params.end_token_ids

    def tokens_apart(self, event: NewTokens) -> list[Piece]:
        """One piece for each token, up to the one that completes a stop."""
        pieces = []
        for place, token_id in enumerate(event.token_ids):
            numbers = None if event.logprobs is None else event.logprobs[place : place + 1]
            pieces.append(self.tokens_together(NewTokens([token_id], numbers)))
            if self.done:
                break
        return pieces

    def tokens_together(self, event: NewTokens) -> Piece:
        """One piece for all of the tokens, up to the one that completes a stop."""
        token_ids = event.token_ids
        # The engine samples nothing after an end token.
        if len(token_ids) == 1:
            text, taken = "" if token_ids[0] in self._ends else self._detokenizer.push(token_ids[0]), 1
        else:
            text, taken = self._detokenizer.push_all(token_ids[:-1] if token_ids[-1] in self._ends else token_ids)
        if not self._detokenizer.stopped:
            self.tokens += len(token_ids)
            return Piece(self.index, text, self.tokens, None, event.logprobs or ())
        self.done = True
        self.tokens += taken
        return Piece(self.index, text, self.tokens, FinishReason.STOP, (event.logprobs or ())[:taken])

    @property
    def detokenizer(self) -> Detokenizer:
        return self._detokenizer

    def finished(self, event: Finished) -> Piece:
        self.done = True
        self.tokens = event.completion_tokens
        return Piece(self.index, self._detokenizer.finish(), self.tokens, event.reason)


class AlbatrossCompletion:
    """Text of one submission. Iterate it (``for`` or ``async for``) for the host's five-tuples
    ``("text", cumulative, delta, prompt_tokens, completion_tokens)`` of choice 0, or read ``pieces()`` of all choices.

    An object that is dropped before its end aborts what still runs. Raises GenerationError when a request failed.
    """

    def __init__(
        self,
        source: AsyncEngineCompletion,
        token_bytes: Sequence[bytes],
        stops: Sequence[str],
        params: Sequence[SamplingParams],
        prompt_tokens: Sequence[int],
    ) -> None:
        self._source = source
        self._choices = [_Choice(i, token_bytes, stops, each) for i, each in enumerate(params)]
        self._open = len(self._choices)
        self._error: GenerationError | None = None
        self.prompt_tokens = list(prompt_tokens)
        self.finish_reasons: list[FinishReason | None] = [None] * len(self._choices)

    @property
    def request_ids(self) -> tuple[int, ...]:
        """What the engine calls the choices."""
        return self._source.request_ids

    @property
    def completion_tokens(self) -> int:
        """Tokens sampled so far, over all choices."""
        choices = self._choices
        return choices[0].tokens if len(choices) == 1 else sum(choice.tokens for choice in choices)

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.finish_reasons[0]

    def be_patient(self) -> None:
        """Let ``pieces`` wait for an end, or for a token after which a text may be complete: for readers of whole texts."""
        # Not a method of this object: the source would keep it alive, and its dropping ends the requests.
        checks = [choice.detokenizer.may_stop for choice in self._choices]
        self._source.urgent = lambda index, token_id: checks[index](token_id)
        self._source.calm = [choice.detokenizer.calm() for choice in self._choices]

    async def pieces(self, merge_from: int | None = None) -> list[Piece]:
        """Wait for news; an empty list says that every choice has ended.

        Each token makes a piece of its own; where ``merge_from`` or more of one choice have gathered, they make one together.
        """
        while (news := self.ready(merge_from)) is None:
            await self.arrival()
        return news

    def ready(self, merge_from: int | None = None) -> list[Piece] | None:
        """What ``pieces`` would give without waiting; None where it would wait: then await ``arrival()``, and ask again."""
        while self._open:
            if not self._source.has_news:
                return None
            news = self._digest(self._source.take(), merge_from)
            if news:
                return news
        return self._end()

    def arrival(self) -> asyncio.Future[None]:
        """Done when it may be worth asking ``ready`` again."""
        return self._source.arrival()

    def pieces_sync(self, timeout: float | None = None) -> list[Piece]:
        """As ``pieces``, blocking. Raises TimeoutError after ``timeout`` seconds without an event."""
        while self._open:
            news = self._digest(self._source.next_events_sync(timeout), None)
            if news:
                return news
        return self._end()

    def _end(self) -> list[Piece]:
        """Text that came before a failure is handed out first, then the failure is raised."""
        if self._error is not None:
            raise self._error
        return []

    def _digest(self, deliveries: list[Delivery], merge_from: int | None) -> list[Piece]:
        if not deliveries:
            self._open = 0
            self._error = GenerationError("the engine ended without an answer", status=503, code="model_unavailable")
        news: list[Piece] = []
        for index, event in deliveries:
            choice = self._choices[index]
            if choice.done:
                continue
            if isinstance(event, NewTokens):
                count = len(event.token_ids)
                if count == 1 or (merge_from is not None and count >= merge_from):
                    news.append(choice.tokens_together(event))
                else:
                    news += choice.tokens_apart(event)
                if self._source.calm is not None:
                    self._source.calm[index] = choice.detokenizer.calm()
                if choice.done:
                    self._source.stop(index)
            elif isinstance(event, Finished):
                news.append(choice.finished(event))
            elif isinstance(event, PromptLogprobs):
                news.append(Piece(index, "", choice.tokens, prompt_logprobs=event.entries))
            elif isinstance(event, Failed):
                self.abort()
                code = "model_unavailable" if event.status == 503 else "engine_error"
                self._error = GenerationError(event.message, status=event.status, code=code)
                break
            if choice.done:
                self._open -= 1
                self.finish_reasons[index] = news[-1].finish_reason
        return news

    def __iter__(self) -> Iterator[FiveTuple]:
        text = ""
        try:
            while news := self.pieces_sync():
                for piece in news:
                    text += piece.text
                    yield ("text", text, piece.text, self.prompt_tokens[0], piece.tokens)
        finally:
            self.abort()

    async def __aiter__(self) -> AsyncIterator[FiveTuple]:
        text = ""
        try:
            while news := await self.pieces():
                for piece in news:
                    text += piece.text
                    yield ("text", text, piece.text, self.prompt_tokens[0], piece.tokens)
        finally:
            self.abort()

    def abort(self) -> None:
        """End what still runs; neighbours in the batch are not touched. Idempotent, from any thread."""
        if self._open:
            self._open = 0
            for choice in self._choices:
                choice.done = True
            self._source.abort()

    async def aclose(self) -> None:
        self.abort()

    def __del__(self) -> None:
        if getattr(self, "_open", 0):
            self.abort()
