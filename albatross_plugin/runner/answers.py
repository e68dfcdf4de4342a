"""One call of a completion route as the hook takes it, and what its answer looks like to the Runner's code."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from albatross_plugin.errors import RequestError
from albatross_plugin.runner.host import RunnerHost

# In the Runner's default list, though either cuts every answer of which a later paragraph begins with such a letter.
TOO_SHORT = frozenset(("\n\nA", "\n\nQ"))


# A body of so many bytes, or a grammar, takes longer to check than others should wait for on the event loop.
HEAVY_BYTES = 65_536
# Some wait there for their turn to compile; in the threads that the host's other routes share they would hold these up.
_HEAVY_THREADS = 80
_limiter: RunVar[CapacityLimiter] = RunVar("albatross_plugin.runner.heavy")


class PluginStream:
    """A stream of chunks, known again by the point that makes a response of it. ``later``: what begins it, in a thread, at ``prepare``."""

    def __init__(self, source: AsyncGenerator[str, None] | None = None, later: Callable[[], Any] | None = None) -> None:
        self.source = source
        self.later = later

    async def prepare(self) -> AsyncGenerator[str, None]:
        """The stream, begun. Raises RequestError before anything was sent."""
        if self.source is None:
            if self.later is None:
                raise ValueError("a stream needs a source")
            begun = await _in_thread(self.later)
            self.source = begun.source if isinstance(begun, PluginStream) else begun
        if self.source is None:
            raise ValueError("nothing began")
        return self.source

    def __aiter__(self) -> PluginStream:
        return self

    async def __anext__(self) -> str:
        return await (await self.prepare()).__anext__()

    async def aclose(self) -> None:
        if self.source is not None:
            await self.source.aclose()


def begin(host: RunnerHost, module: ModuleType, call: Mapping[str, Any], otherwise: Callable[[], Any]) -> Any:
    """As ``start``, at once or, for what is heavy, in a thread when the answer is waited for. ``otherwise``: the Runner's own path."""
    if not _is_heavy(call["request"]):
        started = start(host, module, call)
        return otherwise() if started is None else started

    def later() -> Any:
        started = start(host, module, call)
        return otherwise() if started is None else started

    return PluginStream(later=later) if call["stream"] else _late(later)


async def _in_thread(work: Callable[[], Any]) -> Any:
    limiter = _limiter.get(None)
    if limiter is None:
        limiter = CapacityLimiter(_HEAVY_THREADS)
        _limiter.set(limiter)
    return await to_thread.run_sync(work, limiter=limiter)


async def _late(later: Callable[[], Any]) -> AsyncGenerator[Any, None]:
    async for answer in await _in_thread(later):
        yield answer


def _is_heavy(request: Any) -> bool:
    return sent_body(request).get("response_format") is not None or len(getattr(request, "_body", b"")) > HEAVY_BYTES


def start(host: RunnerHost, module: ModuleType, call: Mapping[str, Any]) -> Any | None:
    """Check and admit one call of ``routes.completion`` (``module``); None: the plugin leaves it to the Runner's own path.

    ``call``: the arguments of the Runner's ``eval`` by name. Raises RequestError before anything was sent.
    """
    model, request, stream, chat = call["model"], call["request"], bool(call["stream"]), bool(call["chat_mode"])
    sent = sent_body(request)
    _refuse(host, model, call["body"], sent)
    if stream:
        from albatross_plugin.serving.evaluate import HOST_CLOSES

        # The response that is made of a stream closes it.
        request.scope[HOST_CLOSES] = True
    try:
        source = host.plugins.evaluate(
            model=model,
            request=request,
            body=_body(call["body"], sent),
            prompt=_prompt(call["prompt"], sent, chat),
            stream=stream,
            stop=_stop(module, call["stop"], sent, chat),
            stop_token_ids=call.get("stop_token_ids", sent.get("stop_token_ids")),
            chat_mode=chat,
            defaults=host.saved_config(),
        )
    except Exception as error:
        raise refusal(error) from error
    if source is None:
        return None
    return PluginStream(source) if stream else _whole(source)


async def _whole(source: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """The one answer. The Runner takes it and drops this generator, so the source is closed first."""
    try:
        answer = await source.__anext__()
    except StopAsyncIteration:
        return
    except Exception as error:
        raise refusal(error) from error
    finally:
        await source.aclose()
    yield answer


def refusal(error: Exception) -> Exception:
    """What carries an HTTP status of its own as a RequestError, which the application answers; anything else as it is."""
    status = getattr(error, "status", None)
    if isinstance(error, RequestError) or isinstance(status, bool) or not isinstance(status, int) or not 400 <= status <= 599:
        return error
    return RequestError(
        str(getattr(error, "message", None) or error),
        status=status,
        code=getattr(error, "code", None) or "invalid_request_error",
        param=getattr(error, "param", None),
        headers=getattr(error, "headers", None),
    )


def sent_body(request: Any) -> dict[str, Any]:
    """The JSON object that the client sent; the Runner's own models keep only the members that they declare."""
    content = getattr(request, "_json", None)
    if content is None and isinstance(getattr(request, "_body", None), bytes):
        try:
            content = json.loads(request._body)
        except ValueError:
            content = None
    return content if isinstance(content, dict) else {}


def _body(body: Any, sent: Mapping[str, Any]) -> Any:
    """What the Runner has checked, and as ``model_extra`` what it does not know. Messages and tools are plain JSON."""
    members = dict(body)
    members.update({name: sent[name] for name in ("messages", "tools", "tool_choice") if name in members and name in sent})
    extra = {name: value for name, value in sent.items() if name not in members}
    return SimpleNamespace(**members, model_extra=extra)


def _prompt(prompt: Any, sent: Mapping[str, Any], chat: bool) -> Any:
    """All prompts of a list, of which the Runner takes the first."""
    asked = None if chat else sent.get("prompt")
    return asked if isinstance(asked, list) and asked else prompt


def _stop(module: ModuleType, stop: Any, sent: Mapping[str, Any], chat: bool) -> Any:
    """The client's own stops. For chats without any, the Runner's list; the turns of both sides are the plugin's affair."""
    if sent.get("stop") is not None:
        return sent["stop"]
    usual = getattr(module, "default_stop", None)
    if not chat or not isinstance(usual, list):
        return stop
    return [each for each in usual if each not in TOO_SHORT]


def _refuse(host: RunnerHost, model: Any, body: Any, sent: Mapping[str, Any]) -> None:
    """What the Runner's code around a plugin cannot keep. Raises RequestError."""
    state = getattr(body, "state", None)
    if state is not None and host.resolve(state) != getattr(model, "state_path", ""):
        # Requests run side by side on one model object, so a state file cannot belong to one of them.
        message = "state cannot be set for one request here; use /update-config"
        raise RequestError(message, code="unsupported_parameter", param="state")
    if hasattr(body, "tools"):
        _refuse_forced_calls(sent)
    if getattr(body, "tools", None) and sent.get("n") not in (None, 1):
        # The Runner looks for a call in one text alone.
        raise RequestError("n is not supported together with tools", code="unsupported_parameter", param="n")


def _refuse_forced_calls(sent: Mapping[str, Any]) -> None:
    """The Runner reads calls from the text, so it can neither make the model call nor hold arguments to a schema. Raises RequestError."""
    choice, tools = sent.get("tool_choice"), sent.get("tools")
    if choice not in (None, "auto", "none") and not (isinstance(choice, dict) and choice.get("type") == "function"):
        raise RequestError("tool_choice must be auto, none or one of the tools: a call cannot be enforced here", param="tool_choice")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and function.get("strict"):
            where = f"tools[{index}].function.strict"
            raise RequestError(f"{where} is not supported: calls are read from the text", code="unsupported_parameter", param=where)
