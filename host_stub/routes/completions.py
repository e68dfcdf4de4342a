"""Chat and text completions: the plugin's generator when the model is a plugin's, else the locked path."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

import anyio
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from host_stub import bodies, locked, schemas, tools
from host_stub.bodies import ChatCompletionBody, CompletionBody, GenerationBody, neutral
from host_stub.errors import ApiError, from_exception
from host_stub.heavy import LARGE, in_thread
from host_stub.json_body import JsonRoute
from host_stub.models import AbstractRWKV
from host_stub.openapi import errors, streamed
from host_stub.paths import resolve
from host_stub.routes.deps import loaded_model
from host_stub.sse import CLOSES_WHEN_GONE, ClientGone, EventStream, close, while_connected
from host_stub.state import HostState
from host_stub.template import chat_prompt, check_messages, turn_stops

router = APIRouter(tags=["Completions"], route_class=JsonRoute)
T = TypeVar("T")

# Calls that may wait for a schema do it in threads of their own: those that everything else shares would fill up.
SCHEMA_THREADS = 80


@router.post("/v1/chat/completions", responses={**streamed(schemas.CHAT_ANSWER, schemas.CHAT_EVENTS), **errors(429, 503)})
@router.post("/chat/completions", responses={**streamed(schemas.CHAT_ANSWER, schemas.CHAT_EVENTS), **errors(429, 503)})
async def chat_completions(body: ChatCompletionBody, request: Request) -> Response:
    state, model = loaded_model(request)
    if not neutral((body.model_extra or {}).get("echo"), False):
        raise ApiError(400, "echo is not supported in a chat", param="echo", code="unsupported_parameter")
    user, bot = body.user_name or model.user, body.assistant_name or model.bot

    def prepare() -> tuple[list[dict[str, Any]], str, tools.ToolUse | None]:
        messages = check_messages(body.messages)
        tools.chosen_tools(body)
        prompt = chat_prompt(body, messages, user, bot, model.interface)
        if speaks_rwkv(model):
            use = tools.tool_use(body, messages, request.app.state.tool_memory)
            return messages, use.prompt(prompt, model.interface) if use else prompt, use
        if body.tools:
            raise ApiError(400, "tools are not supported by this model", param="tools", code="unsupported_parameter")
        return messages, prompt, None

    messages, prompt, use = await _off_the_loop(request, prepare)
    source = await start(state, model, request, body, prompt, bodies.stops(body.stop), messages, turn_stops(user, bot, model.interface))
    return await _answer(request, body, source, use)


@router.post("/v1/completions", responses={**streamed(schemas.TEXT_ANSWER, schemas.TEXT_EVENTS), **errors(429, 503)})
@router.post("/completions", responses={**streamed(schemas.TEXT_ANSWER, schemas.TEXT_EVENTS), **errors(429, 503)})
async def completions(body: CompletionBody, request: Request) -> Response:
    state, model = loaded_model(request)
    prompt = await _off_the_loop(request, lambda: bodies.prompts(body.prompt))
    source = await start(state, model, request, body, prompt, bodies.stops(body.stop))
    return await _answer(request, body, source, None)


async def _off_the_loop(request: Request, work: Callable[[], T]) -> T:
    """Do ``work`` at once, or in a thread when the body is so large that others would feel it: a chat of 20,000 messages, say."""
    large = len(await request.body()) > LARGE
    return await in_thread(work) if large else work()


def speaks_rwkv(model: Any) -> bool:
    """Whether prompts take the host's chat form; a GGUF of another family brings a template of its own."""
    return isinstance(model, AbstractRWKV) or getattr(model, "rwkv", False) or "rwkv" in str(model.name).lower()


async def start(
    state: HostState,
    model: Any,
    request: Request,
    body: GenerationBody,
    prompt: Any,
    stop: str | list[str] | None,
    messages: list[dict[str, Any]] | None = None,
    turns: list[str] | None = None,
) -> AsyncGenerator[Any, None]:
    """Validate, and admit where a plugin does that. Raises ApiError before anything was sent."""
    request.scope[CLOSES_WHEN_GONE] = True
    bodies.check_sizes(body)
    ids, streaming, chat_mode = bodies.token_ids(body.stop_token_ids), bool(body.stream), messages is not None
    with_usage = locked.wants_usage(body)

    def ask_plugins() -> Any:
        return state.plugins.hook.rwkv_runner_eval(
            model=model,
            request=request,
            body=body,
            prompt=prompt,
            stream=streaming,
            stop=stop,
            stop_token_ids=ids,
            chat_mode=chat_mode,
            defaults=state.defaults(),
        )

    if isinstance(model, AbstractRWKV) and not hasattr(model, "run"):
        _check_state(model, body)
    try:
        if (body.model_extra or {}).get("response_format") is not None:
            # Compiling a schema may take long, and is no reason to make prompts wait.
            source = await anyio.to_thread.run_sync(ask_plugins, limiter=_schema_threads(request))
        else:
            source = await in_thread(ask_plugins) if _length(prompt) > LARGE else ask_plugins()
    except Exception as error:
        known = from_exception(error)
        if known is None:
            raise
        raise known from error
    if source is not None:
        return source  # type: ignore[no-any-return]
    own = [stop] if isinstance(stop, str) else list(stop or ())
    if turns and speaks_rwkv(model):
        own += turns
    call = locked.prepare(state, model, body, prompt, own, ids, messages)
    return locked.stream(state, model, call, chat_mode, with_usage) if streaming else locked.once(state, model, call, chat_mode)


def _schema_threads(request: Request) -> anyio.CapacityLimiter:
    """One for the application, made where its loop runs."""
    state = request.app.state
    if not hasattr(state, "schema_threads"):
        state.schema_threads = anyio.CapacityLimiter(SCHEMA_THREADS)
    limiter: anyio.CapacityLimiter = state.schema_threads
    return limiter


def _check_state(model: Any, body: GenerationBody) -> None:
    """A plugin's requests run side by side on one model object, so a state file cannot belong to one of them."""
    if body.state is not None and resolve(body.state) != model.state_path:
        raise ApiError(400, "state cannot be set for one request here; use /update-config", param="state", code="unsupported_parameter")


def _length(prompt: Any) -> int:
    """Characters or token ids, over all prompts."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return sum(map(len, prompt))
    return len(prompt)


async def _answer(request: Request, body: GenerationBody, source: AsyncGenerator[Any, None], use: tools.ToolUse | None) -> Response:
    calling = use is not None and use.call_id is not None
    if body.stream:
        if calling and use is not None:
            source = tools.apply_to_stream(source, use, locked.wants_usage(body))
        return EventStream(source)
    try:
        answer = await while_connected(request, _first(source))
    except ClientGone:
        return Response(status_code=499)
    except Exception as error:
        known = from_exception(error)
        if known is None:
            raise
        raise known from error
    if answer is None:
        return Response(status_code=499)
    if calling and use is not None:
        answer = tools.apply_to_answer(answer, use.call_id or "")
    return JSONResponse(answer)


async def _first(source: AsyncGenerator[Any, None]) -> Any:
    """The one answer; None when the generator saw first that the client is gone."""
    try:
        async for answer in source:
            return answer
        return None
    finally:
        await close(source)
