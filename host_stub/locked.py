"""The host's locked path: one generation at a time, in a thread, as text chunks or one answer."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

from host_stub import calls, loaders
from host_stub.bodies import GenerationBody, neutral, refuse_others
from host_stub.calls import Call, Piece, Progress
from host_stub.config import apply_settings
from host_stub.errors import ApiError
from host_stub.models import AbstractRWKV
from host_stub.sse import DONE, dumps
from host_stub.state import HostState

# Members without influence on the text, and values that ask for what happens anyway.
_HARMLESS = frozenset(
    (
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "prompt_cache_options", "parallel_tool_calls",
    )
)  # fmt: skip
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "echo": (False,), "logprobs": (False,), "top_logprobs": (0,), "logit_bias": ({},), "suffix": ("",),
    "priority": (0,), "ignore_eos": (False,), "response_format": ({"type": "text"},), "modalities": (["text"],), "functions": ([],),
    "function_call": ("none", "auto"), "verbosity": ("medium",), "reasoning_effort": ("none",),
}  # fmt: skip


def prepare(
    state: HostState, model: Any, body: GenerationBody, prompt: Any, stop: list[str], ids: list[int] | None, messages: Any = None
) -> Call:
    """Check and merge one request. Raises ApiError 400 that names the first parameter which this path cannot honour."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise ApiError(400, "this model takes one prompt, as text", param="prompt", code="unsupported_parameter")
    _refuse_unknown(model, body)
    own = body.settings()
    if body.max_completion_tokens is not None:
        own["max_tokens"] = body.max_completion_tokens
    if not isinstance(model, AbstractRWKV):
        for name in own.keys() & {"penalty_decay", "global_penalty", "state"}:
            if own[name]:
                raise _unsupported(name)
        if ids:
            raise _unsupported("stop_token_ids")
    settings = {**state.model_settings, **state.defaults(), **own}
    return Call(prompt, settings, [text for text in stop if text], ids or [], _seed(body), messages, body)


def _refuse_unknown(model: Any, body: GenerationBody) -> None:
    taken = {"stream_options"} | set(getattr(model, "options", {}))
    for name, value in (body.model_extra or {}).items():
        if name in taken or name in _HARMLESS or neutral(value, *_NEUTRAL.get(name, ())):
            continue
        raise _unsupported(name)


def _unsupported(name: str, param: str | None = None) -> ApiError:
    return ApiError(400, f"{name} is not supported by this model", param=param or name, code="unsupported_parameter")


def _extra(body: GenerationBody, name: str) -> Any:
    return (body.model_extra or {}).get(name)


def _seed(body: GenerationBody) -> int | None:
    seed = _extra(body, "seed")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**32):
        raise ApiError(400, "seed must be a whole number from 0 to 4294967295", param="seed")
    return seed


def wants_usage(body: GenerationBody) -> bool:
    """``stream_options.include_usage``. Raises ApiError 400 for anything else than an object with a truth value in it."""
    options = _extra(body, "stream_options")
    if options is None:
        return False
    wanted = options.get("include_usage") if isinstance(options, Mapping) else options
    if not isinstance(options, Mapping) or not (wanted is None or isinstance(wanted, bool)):
        raise ApiError(400, 'stream_options must be an object such as {"include_usage": true}', param="stream_options")
    if not neutral(options.get("include_obfuscation"), False):
        raise _unsupported("stream_options.include_obfuscation", "stream_options")
    refuse_others(options, ("include_usage", "include_obfuscation"), "stream_options")
    return bool(wanted)


async def pieces(state: HostState, model: Any, call: Call) -> AsyncGenerator[Piece, None]:
    """Wait for the lock, generate in the worker thread, hand the news over. Closing it ends the generation.

    The lock is given back when the thread is done, not when the reader leaves: the model serves one call at a time.
    """
    await state.completion_lock.acquire()
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Piece | BaseException | None] = asyncio.Queue()
    cancelled = threading.Event()

    def post(item: Piece | BaseException | None) -> bool:
        # The loop may be closed already when the process ends.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(queue.put_nowait, item)
        return not cancelled.is_set()

    def work() -> None:
        try:
            if state.model is not model:
                raise calls.unloaded()
            if cancelled.is_set():
                return
            _configure(model, call)
            calls.run(model, call, post)
        except BaseException as error:
            post(error)
        else:
            post(None)

    try:
        future = loop.run_in_executor(state.worker, work)
    except RuntimeError:
        # The worker is shut down: the server ends.
        state.completion_lock.release()
        raise calls.unloaded() from None
    future.add_done_callback(lambda _: state.completion_lock.release())
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        cancelled.set()


def _configure(model: Any, call: Call) -> None:
    apply_settings(model, call.settings)
    state_path = call.settings.get("state")
    if state_path is not None and isinstance(model, AbstractRWKV):
        loaders.load_state(model, state_path)


class Form:
    """The JSON around a text, for one request: chat or completion, with one id and one time of creation.

    ``with_usage``: chunks say that their usage is null, as those of a stream do that ends with it.
    """

    def __init__(self, model: Any, chat_mode: bool, *, with_usage: bool = False) -> None:
        self.chat_mode = chat_mode
        self._tail: dict[str, Any] = {"usage": None} if with_usage else {}
        self._head = {
            "id": ("chatcmpl-" if chat_mode else "cmpl-") + uuid.uuid4().hex,
            "created": int(time.time()),
            "model": model.name,
        }

    def chunk(self, text: str, reason: str | None = None, *, first: bool = False) -> str:
        kind = "chat.completion.chunk" if self.chat_mode else "text_completion"
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
        if self.chat_mode:
            choice["delta"] = {**({"role": "assistant"} if first else {}), **({"content": text} if text or first else {})}
        else:
            choice["text"] = text
        return dumps({**self._head, "object": kind, "choices": [choice], **self._tail})

    def usage_chunk(self, last: Piece) -> str:
        kind = "chat.completion.chunk" if self.chat_mode else "text_completion"
        return dumps({**self._head, "object": kind, "choices": [], "usage": usage(last)})

    def answer(self, text: str, last: Piece) -> dict[str, Any]:
        kind = "chat.completion" if self.chat_mode else "text_completion"
        choice: dict[str, Any] = {"index": 0, "finish_reason": last.finish_reason}
        if self.chat_mode:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return {**self._head, "object": kind, "choices": [choice], "usage": usage(last)}


def usage(last: Piece) -> dict[str, int]:
    """``completion_tokens`` counts every sampled token, the one that ended the text included."""
    total = last.prompt_tokens + last.completion_tokens
    return {"prompt_tokens": last.prompt_tokens, "completion_tokens": last.completion_tokens, "total_tokens": total}


async def stream(state: HostState, model: Any, call: Call, chat_mode: bool, with_usage: bool) -> AsyncGenerator[Any, None]:
    """JSON text per chunk, then ``[DONE]``."""
    form, last, source = Form(model, chat_mode, with_usage=with_usage), Piece(), pieces(state, model, call)
    try:
        if chat_mode:
            yield form.chunk("", first=True)
        async for last in source:
            if last.text:
                yield form.chunk(last.text)
    finally:
        await source.aclose()
    yield form.chunk("", last.finish_reason or "stop")
    if with_usage:
        yield form.usage_chunk(last)
    yield DONE


async def once(state: HostState, model: Any, call: Call, chat_mode: bool) -> AsyncGenerator[Any, None]:
    """Exactly one answer."""
    progress, source = Progress(), pieces(state, model, call)
    try:
        async for piece in source:
            progress.add(piece)
    finally:
        await source.aclose()
    yield Form(model, chat_mode).answer(progress.text, progress.last)
