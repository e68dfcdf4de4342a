"""Embeddings, under the same lock as the locked path."""

from __future__ import annotations

import array
import asyncio
import base64
import sys
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from host_stub import bodies, schemas
from host_stub.bodies import EmbeddingsBody
from host_stub.calls import unloaded
from host_stub.errors import ApiError, from_exception
from host_stub.json_body import JsonRoute
from host_stub.models import AbstractRWKV
from host_stub.openapi import answered, errors
from host_stub.routes.deps import loaded_model
from host_stub.rwkv_model import TextRWKV
from host_stub.sse import ClientGone, while_connected
from host_stub.state import HostState

router = APIRouter(tags=["Embeddings"], route_class=JsonRoute)
# Notes of the caller, which change no vector.
HARMLESS = frozenset(("user",))
ANSWERS = {**answered(schemas.EMBEDDINGS), **errors(503)}


@router.post("/v1/embeddings", responses=ANSWERS)
@router.post("/embeddings", responses=ANSWERS)
@router.post("/v1/engines/text-embedding-ada-002/embeddings", responses=ANSWERS)
@router.post("/engines/text-embedding-ada-002/embeddings", responses=ANSWERS)
async def embeddings(body: EmbeddingsBody, request: Request) -> Response:
    state, model = loaded_model(request)
    if not isinstance(model, AbstractRWKV):
        raise ApiError(400, "model not support embedding", code="unsupported", param="model")
    bodies.refuse_others(body.model_extra, HARMLESS)
    if body.encoding_format not in (None, "float", "base64"):
        raise ApiError(400, "encoding_format must be float or base64", param="encoding_format")
    inputs = _inputs(body.input, model)
    try:
        vectors = await while_connected(request, _embed(state, model, inputs, body.fast_mode))
    except ClientGone:
        return Response(status_code=499)
    except NotImplementedError as error:
        raise ApiError(400, str(error), code="unsupported", param="model") from error
    except Exception as error:
        known = from_exception(error)
        if known is None:
            raise
        raise known from error
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(vector) if body.encoding_format == "base64" else vector}
        for index, (vector, _) in enumerate(vectors)
    ]
    tokens = sum(count for _, count in vectors)
    return JSONResponse({"object": "list", "data": data, "model": model.name, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})


async def _embed(state: HostState, model: Any, inputs: list[str | list[int]], fast: bool) -> list[tuple[list[float], int]]:
    """One vector after the other in the worker thread; between two of them a client that left ends the work."""
    loop = asyncio.get_running_loop()
    vectors = []
    for item in inputs:
        await state.completion_lock.acquire()
        try:
            future = loop.run_in_executor(state.worker, _one, state, model, item, fast)
        except RuntimeError:
            # The worker is shut down: the server ends.
            state.completion_lock.release()
            raise unloaded() from None
        future.add_done_callback(lambda _: state.completion_lock.release())
        vectors.append(await future)
    return vectors


def _one(state: HostState, model: Any, item: str | list[int], fast: bool) -> tuple[list[float], int]:
    if state.model is not model:
        raise unloaded()
    vector: tuple[list[float], int] = model.get_embedding(item, fast)
    return vector


def _inputs(value: Any, model: Any) -> list[str | list[int]]:
    """Texts and lists of token ids; a model that reads text alone gets its own ids as text. Raises ApiError 400."""
    if value in (None, "", [], [[]]):
        raise ApiError(400, "input not found", param="input")
    single = isinstance(value, str) or (isinstance(value, list) and all(type(item) is int for item in value))
    items = [value] if single else value
    if not isinstance(items, list) or not all(_is_text(item) or _is_ids(item) for item in items):
        raise ApiError(400, "input must be a text, token ids, or a list of texts or of such lists, none of them empty", param="input")
    reads_ids = isinstance(model, TextRWKV)
    return [item if reads_ids or isinstance(item, str) else model.pipeline.decode(item) for item in items]


def _is_text(item: Any) -> bool:
    return isinstance(item, str) and item != ""


def _is_ids(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and all(type(each) is int for each in item)


def _base64(vector: list[float]) -> str:
    """float32, little-endian, as OpenAI's clients read it."""
    numbers = array.array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
