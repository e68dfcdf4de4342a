"""Tool calls as text: the functions in front of the prompt, and the call read back from what the model writes.

A model answers with the function's name and a fenced block that holds ``tool_call("key"="value", ...)``.
"""

from __future__ import annotations

import json
import random
import re
import string
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from host_stub.bodies import ChatCompletionBody
from host_stub.errors import ApiError
from host_stub.sse import DONE, close, dumps

MAX_CALLS_KEPT = 1000
PREFIX = "System{interface} You are a helpful assistant with access to the following functions. Use them if required -{functions}\n\n"
HEAD = re.compile(r"(\w+)\s*```\w*\s*tool_call\(")
BLOCK = re.compile(r"(\w+)\s*```\w*\s*tool_call\((.*?)\)?\s*(?:```|\Z)", re.DOTALL)
ARGUMENT = re.compile(r"""(['"])(.+?)\1\s*[=:]\s*(?:(['"])(.*?)\3(?=\s*(?:,|\Z))|([^,\s]+))""", re.DOTALL)
CLOSED = re.compile(r"\)\s*```")
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
    functions, names = _functions(body.tools)
    if last["role"] == "tool":
        return ToolUse(memory.recall(last.get("tool_call_id")) or functions, names, None)
    if functions is None or body.tool_choice == "none":
        return None
    if (body.model_extra or {}).get("n") not in (None, 1):
        raise ApiError(400, "n is not supported together with tools", param="n", code="unsupported_parameter")
    return ToolUse(functions, names, memory.remember(functions))


def _functions(tools: Any) -> tuple[str | None, list[str]]:
    if not tools:
        return None, []
    try:
        functions = [tool["function"] for tool in tools]
        names = [str(function["name"]) for function in functions]
    except (TypeError, KeyError):
        raise ApiError(400, "tools must be a list of objects with a function that has a name", param="tools") from None
    return json.dumps(functions, indent=2), names


def parse_call(text: str) -> tuple[str, dict[str, str]] | None:
    """Name and arguments of the first call in ``text``."""
    found = BLOCK.search(text)
    if found is None:
        return None
    arguments = {m.group(2): m.group(4) if m.group(3) else m.group(5) for m in ARGUMENT.finditer(found.group(2).strip())}
    return found.group(1), arguments


def _call(call_id: str, name: str, arguments: dict[str, str]) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}


def apply_to_answer(answer: dict[str, Any], call_id: str) -> dict[str, Any]:
    """Turn an answer whose text is a call into one that carries ``tool_calls``."""
    choice = answer["choices"][0]
    parsed = parse_call(choice["message"]["content"] or "")
    if parsed is not None:
        choice["message"].update(content=None, tool_calls=[_call(call_id, *parsed)])
        choice["finish_reason"] = "tool_calls"
    return answer


async def apply_to_stream(source: AsyncIterator[Any], use: ToolUse, with_usage: bool) -> AsyncGenerator[Any, None]:
    """Hold text back while it may be the head of a call; then pass it on, or send the call once it is complete."""
    text, decided, call = "", False, False
    try:
        async for chunk in source:
            if decided or chunk == DONE:
                yield chunk
                continue
            data = json.loads(chunk) if isinstance(chunk, (str, bytes)) else chunk
            if not data.get("choices"):
                yield chunk
                continue
            choice = data["choices"][0]
            text += choice["delta"].get("content") or ""
            ended = choice.get("finish_reason")
            call = call or HEAD.search(text) is not None
            if call and not (ended or _complete(text)):
                continue
            if call:
                cut = ended == "length" and not _complete(text)
                for event in _call_chunks(data, text, use.call_id or "", "length" if cut else "tool_calls"):
                    yield event
                async for rest in _only_the_end(source, with_usage):
                    yield rest
                return
            if ended or not _may_become_call(text, use.names):
                decided = True
                yield dumps({**data, "choices": [{**choice, "delta": {**choice["delta"], "content": text}}]})
            elif choice["delta"].get("role"):
                yield dumps({**data, "choices": [{**choice, "delta": {**choice["delta"], "content": ""}}]})
    finally:
        await close(source)


def _complete(text: str) -> bool:
    after = text[HEAD.search(text).end() :]  # type: ignore[union-attr]
    return CLOSED.search(after) is not None or "\n\n" in after


def _may_become_call(text: str, names: list[str]) -> bool:
    """Whether the head of a call can still follow. Models write the name first, or after a few words."""
    longest = max(map(len, names), default=32)
    if "```" in text:
        return len(text) <= longest + len(FENCE) + 32 and text.count("```") == 1
    return len(text) <= longest + 16 and text.count("\n") < 4


def _call_chunks(data: dict[str, Any], text: str, call_id: str, reason: str) -> list[str]:
    name, arguments = parse_call(text) or (HEAD.search(text).group(1), {})  # type: ignore[union-attr]
    whole = _call(call_id, name, arguments)
    head: dict[str, Any] = {**whole, "index": 0, "function": {"name": name, "arguments": ""}}
    rest: dict[str, Any] = {"index": 0, "function": {"arguments": whole["function"]["arguments"]}}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None, "tool_calls": [head]}, {"tool_calls": [rest]}]
    events: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    events.append({"index": 0, "delta": {}, "finish_reason": reason})
    return [dumps({**data, "choices": [event]}) for event in events]


async def _only_the_end(source: AsyncIterator[Any], with_usage: bool) -> AsyncIterator[Any]:
    """After a complete call: the end mark at once; or, where usage was asked for, what the model needs to reach its end."""
    if not with_usage:
        yield DONE
        return
    async for chunk in source:
        if chunk == DONE or not (json.loads(chunk) if isinstance(chunk, (str, bytes)) else chunk).get("choices"):
            yield chunk
