"""eval_albatross: one API call from the host's route to the engine and back, without the host's lock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio.from_thread
from fastapi import Request

from albatross_plugin.adapter import AlbatrossRWKV
from albatross_plugin.completion import AlbatrossCompletion, Piece
from albatross_plugin.engine.messages import TokenLogprobs
from albatross_plugin.engine.request import FinishReason
from albatross_plugin.errors import GenerationError, RequestError
from albatross_plugin.options import GenerationOptions
from albatross_plugin.serving.chunks import AnswerWriter, TextOffsets, error_chunk, usage
from albatross_plugin.serving.profile import RequestProfile, clock, no_clock, profile
from albatross_plugin.serving.stream import ChunkStream

# A key of the request's scope: this host closes an answer's generator as soon as the client has gone, so nobody else need look.
HOST_CLOSES = "rwkv_runner.closes_when_gone"
WATCH_SECONDS = 0.4
# So many tokens ready for one choice show that this loop is behind: they travel as one event, which costs what one token's does.
MERGE_FROM = 4


def eval_albatross(
    model: AlbatrossRWKV,
    request: Request | None,
    body: Any,
    prompt: str | Sequence[Any] | None,
    stream: bool,
    stop: str | Sequence[str] | None,
    stop_token_ids: Sequence[int] | None,
    chat_mode: bool,
    defaults: Mapping[str, Any] | None = None,
) -> AsyncGenerator[Any, None]:
    """Check, encode and admit a call, then return its answer as an async generator.

    Streams are a ChunkStream of JSON text per chunk and ``[DONE]`` last, other calls yield exactly one dict. Raises
    RequestError before anything is sent. ``prompt`` is a text, a list of texts, a list of token ids or a list of such lists.
    """
    options = model.options(body, stop=stop, stop_token_ids=stop_token_ids, chat_mode=chat_mode, defaults=defaults)
    if isinstance(prompt, (list, tuple)) and prompt and not isinstance(prompt[0], int):
        model.check_room(len(prompt) * options.n)
    prompts = _prompts(model, prompt)
    completion = model.open(prompts, options, loop=_consumer_loop())
    # Hosts look for calls in the text of a stream with tools, one token at a time.
    merge_from = None if getattr(body, "tools", None) else MERGE_FROM if stream else 1
    call = _Call(model, request, completion, options, prompts, chat_mode, stream, merge_from)
    return ChunkStream(call.batches()) if stream else call.whole()


def _consumer_loop() -> asyncio.AbstractEventLoop:
    """The host's loop, also when the host validates long prompts in a worker thread of its own."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return anyio.from_thread.run_sync(asyncio.get_running_loop)


def _prompts(model: AlbatrossRWKV, prompt: str | Sequence[Any] | None) -> list[list[int]]:
    """Token ids of every prompt; an empty prompt becomes a newline, as in the host."""
    if prompt is None or isinstance(prompt, str):
        return [model.encode_prompt(prompt)]
    items = list(prompt)
    if not items:
        return [model.encode_prompt(None)]
    if all(isinstance(item, str) for item in items):
        return [model.encode_prompt(item) for item in items]
    if all(isinstance(item, (list, tuple)) for item in items):
        return [model.check_ids(item) if item else model.encode_prompt(None) for item in items]
    if any(isinstance(item, (str, list, tuple)) for item in items):
        raise RequestError("prompt mixes texts and token ids", param="prompt")
    return [model.check_ids(items)]


@dataclass
class _Call:
    """One admitted call. Dropping it before its answer is read aborts it, through the completion."""

    model: AlbatrossRWKV
    request: Request | None
    completion: AlbatrossCompletion
    options: GenerationOptions
    prompts: list[list[int]]
    chat: bool
    streaming: bool
    merge_from: int | None

    def __post_init__(self) -> None:
        config = self.model.config
        if HOST_CLOSES in getattr(self.request, "scope", ()):
            self.request = None
        self.interval = config.disconnect_check_interval
        self.clock = clock if config.profile else no_clock
        self.profile = RequestProfile(stream_requests=int(self.streaming))
        self.writer = AnswerWriter(
            self.model.name,
            chat=self.chat,
            stream=self.streaming,
            include_usage=self.streaming and self.options.include_usage,
            token_bytes=self.model.tokenizer.token_bytes,
        )
        self.next_check = self.interval
        self.plain = not self.options.echo and self.options.sampling.logprobs is None
        self.begun: set[int] = set()
        self.opened: set[int] = set()
        self.held: dict[int, list[TokenLogprobs]] = {}
        self.places: dict[int, TextOffsets] = {}

    async def batches(self) -> AsyncGenerator[list[str], None]:
        """The chunks of a stream, those that are ready at one time together."""
        async with self._attended():
            try:
                # Not through a coroutine of its own: this is what happens for each token of each stream.
                while (pieces := self.completion.ready(self.merge_from)) != []:
                    if pieces is None:
                        now = self.clock()
                        await self.completion.arrival()
                        self.profile.completion_wait_ns += self.clock() - now
                        continue
                    if self.completion.completion_tokens >= self.next_check:
                        await self._check_in_turn()
                    now = self.clock()
                    chunks = self._chunks(pieces)
                    self.profile.json_dump_ns += self.clock() - now
                    if chunks:
                        self.profile.stream_chunks += len(chunks)
                        self.profile.bytes += sum(map(len, chunks))
                        now = self.clock()
                        yield chunks
                        self.profile.yield_resume_ns += self.clock() - now
            except GenerationError as error:
                yield [error_chunk(error)]
                return
            last = [self.writer.usage_chunk(self._usage())] if self.options.include_usage else []
            yield [*last, "[DONE]"]

    async def whole(self) -> AsyncGenerator[dict[str, Any], None]:
        count = len(self.completion.finish_reasons)
        texts: list[list[str]] = [[] for _ in range(count)]
        logprobs: list[list[TokenLogprobs]] = [[] for _ in range(count)]
        self.completion.be_patient()
        async with self._attended():
            while pieces := await self._news():
                for piece in pieces:
                    texts[piece.index].append(piece.text)
                    logprobs[piece.index] += [*piece.prompt_logprobs, *piece.logprobs]
            now = self.clock()
            choices = []
            for index in range(count):
                reason = self.completion.finish_reasons[index] or FinishReason.ABORT
                text = self._echo(index) + "".join(texts[index])
                choices.append((text, reason, self._logprobs(index, logprobs[index])))
            answer = self.writer.answer(choices, self._usage())
            self.profile.json_dump_ns += self.clock() - now
            yield answer

    async def _news(self) -> list[Piece]:
        """Wait for news; empty when every choice has ended."""
        now = self.clock()
        pieces = await self.completion.pieces(self.merge_from)
        self.profile.completion_wait_ns += self.clock() - now
        if pieces and self.completion.completion_tokens >= self.next_check:
            await self._check_in_turn()
        return pieces

    async def _check_in_turn(self) -> None:
        """As often as the setting says: a client found gone ends the call."""
        self.next_check = self.completion.completion_tokens + self.interval
        await self._check_client()

    async def _check_client(self) -> None:
        if self.request is None:
            return
        now = self.clock()
        gone = await self.request.is_disconnected()
        self.profile.disconnect_check_ns += self.clock() - now
        if gone:
            self.completion.abort()

    async def _watch(self) -> None:
        """Notice a client that leaves while nothing is sent: in the queue, in prefill, or before a whole answer."""
        sent = -1
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            # Who leaves a running stream is noticed by what is sent.
            if not self.streaming or self.profile.stream_chunks == sent:
                await self._check_client()
            sent = self.profile.stream_chunks

    @contextlib.asynccontextmanager
    async def _attended(self) -> AsyncIterator[None]:
        started = self.clock()
        watcher = asyncio.create_task(self._watch()) if self.request is not None else None
        try:
            yield
        finally:
            if watcher is not None:
                watcher.cancel()
            self.completion.abort()
            if self.model.config.profile:
                self.profile.tokens = self.completion.completion_tokens
                self.profile.request_wall_ns = self.clock() - started
                profile.add(self.profile)

    def _chunks(self, pieces: list[Piece]) -> list[str]:
        """The chunks that these pieces are worth: text, then the reason once a choice has ended."""
        chunks: list[str] = []
        for piece in pieces:
            if self.plain:
                if piece.text:
                    chunks.append(self.writer.text(piece.index, piece.text))
            else:
                self._add_special(chunks, piece)
            if piece.finish_reason is not None:
                chunks += self.writer.finish(piece.index, piece.finish_reason)
        return chunks

    def _add_special(self, chunks: list[str], piece: Piece) -> None:
        """As for plain text, where the prompt is echoed or numbers were asked for."""
        text = piece.text
        if self.options.echo and piece.index not in self.begun:
            text = self._echo(piece.index) + text
        self.begun.add(piece.index)
        logprobs = None
        if self.options.sampling.logprobs is not None:
            # Held-back text keeps its numbers back too, so that no chunk carries numbers for text of another.
            held = self.held.setdefault(piece.index, [])
            held += [*piece.prompt_logprobs, *piece.logprobs]
            if held and (text or piece.finish_reason is not None):
                logprobs = self._logprobs(piece.index, held)
                self.held[piece.index] = []
        if text or logprobs is not None:
            chunks.append(self.writer.text(piece.index, text, logprobs))

    def _echo(self, index: int) -> str:
        """The prompt's text, where the call asked for it."""
        if not self.options.echo:
            return ""
        return self.model.tokenizer.decode(self.prompts[index // self.options.n])

    def _logprobs(self, index: int, entries: list[TokenLogprobs]) -> dict[str, Any] | None:
        if self.options.sampling.logprobs is None:
            return None
        # An echoed prompt's first token opens the list, once.
        opens = self.options.echo and index not in self.opened
        self.opened.add(index)
        first = self.prompts[index // self.options.n][0] if opens else None
        return self.writer.logprobs(entries, first, self.places.setdefault(index, TextOffsets()))

    def _usage(self) -> dict[str, int]:
        """A prompt counts once, however many choices it was given."""
        return usage(sum(map(len, self.prompts)), self.completion.completion_tokens)
