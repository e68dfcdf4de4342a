"""Tool calls as text: the functions in front of the prompt, and the call read back from what the model writes.

A model answers with the function's name and a fenced block that holds ``tool_call("key"="value", ...)``.
"""

from __future__ import annotations

import json
import random
import string
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from host_stub.bodies import ChatCompletionBody, neutral
from host_stub.errors import ApiError
from host_stub.sse import DONE, close, dumps
from host_stub.tool_text import HEAD, complete, read_call

MAX_CALLS_KEPT = 1000
PREFIX = "System{interface} You are a helpful assistant with access to the following functions. Use them if required -{functions}\n\n"
FENCE = "\n```python\ntool_call("


class ToolMemory:
    """The functions that were on offer when a call was made, found again by the call's id in the follow-up."""

    def __init__(self) -> None:
        self._functions: OrderedDict[str, str] = OrderedDict()

    def remember(self, functions: str) -> str:
        """A new call id."""
        call_id = "call_" + "".join(random.choices(string.ascii_letters + string.digits, k=24))
        self._functions[call_id] = functions
        while len(self._functions) > MAX_CALLS_KEPT:
            self._functions.popitem(last=False)
        return call_id

    def recall(self, call_id: Any) -> str | None:
        return self._functions.get(call_id) if isinstance(call_id, str) else None


class ToolUse:
    """Tools of one request. ``call_id`` is None when the request brings the result of an earlier call."""

    def __init__(self, functions: str | None, names: list[str], call_id: str | None) -> None:
        self.functions, self.names, self.call_id = functions, names, call_id

    def prompt(self, prompt: str, interface: str) -> str:
        return prompt if self.functions is None else PREFIX.format(interface=interface, functions=self.functions) + prompt


def tool_use(body: ChatCompletionBody, messages: list[dict[str, Any]], memory: ToolMemory) -> ToolUse | None:
    """How this request uses tools, None when it does not. Raises ApiError 400 for a malformed list."""
    last = messages[-1]
    tools = chosen_tools(body)
    functions, names = _functions(tools)
    if last["role"] == "tool":
        return ToolUse(memory.recall(last.get("tool_call_id")) or functions, names, None)
    if functions is None or body.tool_choice == "none":
        return None
    if not neutral((body.model_extra or {}).get("n"), 1):
        raise ApiError(400, "n is not supported together with tools", param="n", code="unsupported_parameter")
    return ToolUse(functions, names, memory.remember(functions))


def chosen_tools(body: ChatCompletionBody) -> Any:
    """The tools to offer: all, or the one that ``tool_choice`` names. Raises ApiError 400 where it asks for more than an offer."""
    choice, tools = body.tool_choice, body.tools
    if choice is None or choice in ("auto", "none"):
        return tools
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("function"), dict):
        wanted = choice["function"].get("name")
        named = [tool for tool, name in zip(tools or (), _functions(tools)[1], strict=True) if name == wanted]
        if named:
            return named
        raise ApiError(400, f"tool_choice names the function {wanted!r}, which is not among the tools", param="tool_choice")
    raise ApiError(400, "tool_choice must be auto, none or one of the tools: a call cannot be enforced here", param="tool_choice")


def _functions(tools: Any) -> tuple[str | None, list[str]]:
    if tools is None or tools == []:
        return None, []
    try:
        functions = [tool["function"] for tool in tools]
        names = [function["name"] for function in functions]
        if not isinstance(tools, list) or not all(isinstance(name, str) for name in names):
            raise TypeError
    except (TypeError, KeyError):
        raise ApiError(400, "tools must be a list of objects with a function that has a name", param="tools") from None
    for index, function in enumerate(functions):
        if function.get("strict"):
            where = f"tools[{index}].function.strict"
            message = f"{where} is not supported: arguments are read from the text and follow no schema"
            raise ApiError(400, message, param=where, code="unsupported_parameter")
    return json.dumps(functions, indent=2), names


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def apply_to_answer(answer: dict[str, Any], call_id: str) -> dict[str, Any]:
    """Turn an answer whose text is a call into one that carries ``tool_calls``."""
    choice = answer["choices"][0]
    text = choice["message"]["content"] or ""
    read = read_call(text, choice.get("finish_reason"))
    if read is not None:
        name, arguments, reason = read
        choice["message"].update(content=None, tool_calls=[_call(call_id, name, arguments)])
        choice["finish_reason"] = reason
    return answer


class _Held:
    """Text that is not sent yet, with its log-probabilities and the chunk that its successors are made from."""

    def __init__(self) -> None:
        self.text = ""
        self.entries: list[Any] = []
        self.form: dict[str, Any] | None = None
        self.data: dict[str, Any] = {}
        self.role_sent = False

    def add(self, data: dict[str, Any]) -> None:
        choice = data["choices"][0]
        self.data = data
        self.text += choice["delta"].get("content") or ""
        form = choice.get("logprobs")
        if form is not None:
            self.form = form
            self.entries += form.get("content") or []

    def choice(self, **changes: Any) -> dict[str, Any]:
        """The last chunk's choice with ``changes`` and all log-probabilities so far."""
        choice = {**self.data["choices"][0], **changes}
        if self.form is not None:
            choice["logprobs"] = {**self.form, "content": self.entries}
        return choice

    def chunk(self, choice: dict[str, Any]) -> str:
        return dumps({**self.data, "choices": [choice]})

    def take(self, **changes: Any) -> str:
        """``choice()`` as a chunk; nothing is held after it."""
        event = self.chunk(self.choice(**changes))
        self.text, self.entries = "", []
        return event

    def flush(self) -> list[str]:
        """What is left when the stream breaks off: the text, whatever it was going to become."""
        return [self.take(delta={"content": self.text}, finish_reason=None)] if self.text or self.entries else []


async def apply_to_stream(source: AsyncIterator[Any], use: ToolUse, with_usage: bool) -> AsyncGenerator[Any, None]:
    """Hold text back while it may be the head of a call; then pass it on, or send the call once it is complete."""
    held = _Held()
    try:
        async for event in _converted(source, use, with_usage, held):
            yield event
    except Exception:
        for event in held.flush():
            yield event
        raise
    finally:
        await close(source)


async def _converted(source: AsyncIterator[Any], use: ToolUse, with_usage: bool, held: _Held) -> AsyncIterator[Any]:
    async for chunk in source:
        data = _choices(chunk)
        if data is None:
            if chunk == DONE or "error" in _parsed(chunk):
                for event in held.flush():
                    yield event
            yield chunk
            continue
        held.add(data)
        choice = data["choices"][0]
        ended = choice.get("finish_reason")
        if HEAD.search(held.text) is not None:
            # Log-probabilities cover the whole answer, as they do without a stream.
            if ended or (complete(held.text) and held.form is None):
                for event in _call_chunks(held, use.call_id or "", ended):
                    yield event
                async for rest in _only_the_end(source, with_usage):
                    yield rest
                return
        elif ended or not _may_become_call(held.text, use.names):
            yield held.take(delta={**choice["delta"], "content": held.text})
            async for rest in source:
                yield rest
            return
        if choice["delta"].get("role"):
            held.role_sent = True
            sent = {"logprobs": None} if "logprobs" in choice else {}
            yield held.chunk({**choice, **sent, "delta": {**choice["delta"], "content": ""}})
    for event in held.flush():
        yield event


def _parsed(chunk: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(chunk) if isinstance(chunk, (str, bytes)) else chunk
    return data


def _choices(chunk: Any) -> dict[str, Any] | None:
    """The chunk where it carries a choice."""
    data = None if chunk == DONE else _parsed(chunk)
    return data if data is not None and data.get("choices") else None


def _may_become_call(text: str, names: list[str]) -> bool:
    """Whether the head of a call can still follow. Models write the name first, or after a few words."""
    longest = max(map(len, names), default=32)
    if "```" in text:
        return len(text) <= longest + len(FENCE) + 32 and text.count("```") == 1
    return len(text) <= longest + 16 and text.count("\n") < 4


def _call_chunks(held: _Held, call_id: str, ended: str | None) -> list[str]:
    """The call in the held text: its head with all log-probabilities, its arguments, and the end."""
    name, arguments, reason = read_call(held.text, ended) or (HEAD.search(held.text).group(1), "{}", "tool_calls")  # type: ignore[union-attr]
    whole = _call(call_id, name, arguments)
    head: dict[str, Any] = {**whole, "index": 0, "function": {"name": name, "arguments": ""}}
    rest: dict[str, Any] = {"index": 0, "function": {"arguments": whole["function"]["arguments"]}}
    role = {} if held.role_sent else {"role": "assistant"}
    first = held.take(delta={**role, "content": None, "tool_calls": [head]}, finish_reason=None)
    others: list[tuple[dict[str, Any], str | None]] = [({"tool_calls": [rest]}, None), ({}, reason)]
    return [first, *(held.chunk({"index": 0, "delta": delta, "finish_reason": end}) for delta, end in others)]


async def _only_the_end(source: AsyncIterator[Any], with_usage: bool) -> AsyncIterator[Any]:
    """After a complete call: the end mark at once; or, where usage was asked for, what the model needs to reach its end."""
    if not with_usage:
        yield DONE
        return
    async for chunk in source:
        if _choices(chunk) is None:
            yield chunk
