"""The routes of batches: begin one, stop one, the engine's status, and the translation of many texts"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from albatross_plugin import __version__
from albatross_plugin.adapter import AlbatrossRWKV
from albatross_plugin.engine_thread import starting_status
from albatross_plugin.errors import RequestError
from albatross_plugin.serving.batch import Batch
from albatross_plugin.serving.batch_call import BatchCall, read_call, size
from albatross_plugin.serving.batch_schemas import ANSWERS, BATCH_BODY, ENDED, STATUS, TRANSLATE_BODY, TRANSLATIONS
from albatross_plugin.serving.chunks import dumps
from albatross_plugin.serving.json_route import LARGE, JsonRoute, in_thread, read_object
from albatross_plugin.serving.response import ClosingResponse
from albatross_plugin.serving.sse import encode_sse_batch
from albatross_plugin.serving.translation import Translation, read_translation, translations
from albatross_plugin.serving.yielding import YieldingRoute

MAX_RUNNING = 64
REMEMBERED = 256
# A reader that takes nothing for so long loses its batch when another one needs the place.
STALL_SECONDS = 60.0
# Something is sent at least this often, so that nobody on the way takes the connection for dead, and a reader that has gone is noticed.
KEEP_ALIVE_SECONDS = 5.0
WATCH_SECONDS = 0.4
# Such a route changes nothing that others see, so deploy mode leaves it open.
OPEN_IN_DEPLOY = {"x-changes-state": False}


class Batches:
    """The batches of one host: those that run, and how the last ones ended."""

    def __init__(self) -> None:
        self._running: dict[str, Batch] = {}
        self._ended: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def begin(self, model: AlbatrossRWKV, call: BatchCall, *, keep_texts: bool = False) -> Batch:
        """Raises RequestError: 409 for a name that was used, 429 beyond ``MAX_RUNNING`` or with a full queue, 503 without an engine."""
        if call.batch_id in self._running or call.batch_id in self._ended:
            # Also of one that has ended: browsers repeat a call by themselves when its connection breaks before the answer begins.
            message = f"there has been a batch {call.batch_id!r} already; each needs a name of its own"
            raise RequestError(message, status=409, code="batch_exists", param="batch_id")
        if len(self._running) >= MAX_RUNNING:
            # One that has ended needs no place to tell its last reader so.
            for idle in [each for each in self._running.values() if not each.unfinished or each.stalled(STALL_SECONDS)]:
                self.end(idle)
        if len(self._running) >= MAX_RUNNING:
            message = f"{MAX_RUNNING} batches run already; try again when one has ended"
            raise RequestError(message, status=429, code="too_many_batches", headers={"Retry-After": "5"})
        model.check_room(1)
        batch = Batch(model, call, keep_texts=keep_texts)
        self._running[batch.id] = batch
        return batch

    def end(self, batch: Batch) -> None:
        """Whatever of it still runs is ended. Idempotent."""
        batch.close()
        if self._running.pop(batch.id, None) is not None:
            self._ended[batch.id] = _short(batch.summary())
            while len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)

    def stop(self, batch_id: str) -> dict[str, Any]:
        """How it stands after the stop. Raises RequestError 404."""
        batch = self._running.get(batch_id)
        if batch is not None:
            batch.stop()
            return _short(batch.summary())
        if batch_id in self._ended:
            return self._ended[batch_id]
        raise RequestError(f"there is no batch {batch_id[:80]!r}", status=404, code="batch_not_found")

    def figures(self) -> dict[str, int]:
        """Number of those that run, and of their items without an end."""
        return {"running": len(self._running), "items": sum(batch.unfinished for batch in self._running.values())}


def batch_routers(host: Any) -> list[APIRouter]:
    """``host`` is the host object of the ``rwkv_runner_routers`` hook."""
    batches = Batches()
    router = APIRouter(tags=["Albatross"], route_class=JsonRoute)
    usual = APIRouter(tags=["Albatross"], route_class=_YieldingJsonRoute)

    @router.post("/albatross/batch/completions", responses=ANSWERS, openapi_extra={**OPEN_IN_DEPLOY, **BATCH_BODY})
    async def batch_completions(request: Request) -> Response:
        """Many texts by one call; docs/batch.md has the members and the events."""
        model, body = _model(host), await read_object(request)

        def read() -> BatchCall:
            return read_call(model, body, host.saved_config(), host.resolve)

        heavy = body.get("response_format") is not None or size(body.get("prompt")) > LARGE
        call = await in_thread(read) if heavy else read()
        batch = batches.begin(model, call, keep_texts=not call.stream)
        if call.stream:
            return ClosingResponse(_events(batch), lambda: batches.end(batch), headers={"X-Batch-Id": batch.id})
        try:
            if not await _run(batch, request):
                return Response(status_code=499)
            return JSONResponse(batch.answer(), headers={"X-Batch-Id": batch.id})
        finally:
            batches.end(batch)

    @router.delete("/albatross/batch/{batch_id}", responses=ENDED, openapi_extra=OPEN_IN_DEPLOY)
    async def stop_batch(batch_id: str) -> Response:
        """Stop a batch; whoever knows its id may. What has ended stays."""
        return JSONResponse(batches.stop(batch_id))

    @router.get("/albatross/status", responses=STATUS)
    async def engine_status() -> Response:
        """The engine's part of ``/status``, and the batches that run."""
        return JSONResponse({**_status(host), "batches": batches.figures(), "version": __version__})

    @usual.post("/translate/v1/batch-translate", responses=TRANSLATIONS, openapi_extra={**OPEN_IN_DEPLOY, **TRANSLATE_BODY})
    async def batch_translate(request: Request) -> Response:
        """Translate a list of texts, as browser extensions ask for it."""
        model, body = _model(host), await read_object(request)

        def read() -> tuple[Translation, BatchCall]:
            asked = read_translation(body)
            return asked, asked.call(model)

        asked, call = await in_thread(read) if size(body.get("text_list")) > LARGE else read()
        if not call.prompts:
            return JSONResponse(translations(asked, []))
        batch = batches.begin(model, call, keep_texts=True)
        try:
            if not await _run(batch, request):
                return Response(status_code=499)
            return JSONResponse(translations(asked, batch.answer()["items"]))
        finally:
            batches.end(batch)

    return [router, usual]


class _YieldingJsonRoute(JsonRoute, YieldingRoute):
    """Of a path that a host may have itself."""


def _model(host: Any) -> AlbatrossRWKV:
    """Raises RequestError: 503 while a model of ours loads, 400 without one."""
    model = host.model()
    if isinstance(model, AlbatrossRWKV):
        return model
    if model is not None:
        message = "the loaded model is not served by this engine; load an RWKV-7 .pth model with the strategy albatross"
        raise RequestError(message, code="unsupported", param="model")
    if starting_status() is not None:
        raise RequestError("model not loaded: it is being loaded", status=503, code="model_loading", headers={"Retry-After": "1"})
    raise RequestError("model not loaded", code="model_not_loaded", param="model")


def _status(host: Any) -> dict[str, Any]:
    model = host.model()
    if isinstance(model, AlbatrossRWKV):
        engine = model.status()
        return {"model": model.name, "state": engine["phase"], "engine": engine}
    starting = starting_status()
    if starting is not None:
        return {"model": None, "state": "loading", "engine": starting}
    if model is not None:
        return {"model": str(getattr(model, "name", "")) or None, "state": "foreign", "engine": None}
    return {"model": None, "state": "offline", "engine": None}


async def _run(batch: Batch, request: Request) -> bool:
    """Whether the client waited for the end."""
    work = asyncio.create_task(batch.run())
    try:
        while not work.done():
            await asyncio.wait([work], timeout=WATCH_SECONDS)
            if not work.done() and await request.is_disconnected():
                return False
        await work
        return True
    finally:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


async def _events(batch: Batch) -> AsyncGenerator[bytes, None]:
    yield encode_sse_batch([dumps({"batch": batch.head()})])
    sent = time.monotonic()
    async with contextlib.aclosing(batch.updates()) as news:
        async for updates in news:
            if updates:
                yield encode_sse_batch(map(dumps, updates))
            elif time.monotonic() - sent < KEEP_ALIVE_SECONDS:
                continue
            else:
                yield b": still here\r\n\r\n"
            sent = time.monotonic()
    yield encode_sse_batch([dumps({"batch": batch.summary()}), "[DONE]"])


def _short(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: summary[name] for name in ("id", "object", "status", "counts")}
