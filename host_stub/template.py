"""Chat messages to prompt text, in the form that RWKV-Runner gives its models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from host_stub.bodies import ChatCompletionBody, refuse_others
from host_stub.errors import ApiError

GREETING = "Hello, I am here to help. Ask me whatever you like, and I answer as completely as I can."
OBSERVATION = "Observation"
# What a message may hold: what is read here, and what clients keep of an earlier answer, which says nothing to the model.
KNOWN = frozenset(
    (
        "role", "content", "tool_calls", "tool_call_id", "prefix", "name", "refusal", "annotations", "reasoning_content", "reasoning",
        "parsed", "id",
    )
)  # fmt: skip


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """Messages with text contents. Raises ApiError 400 that names the message and what is wrong with it."""
    if not messages:
        raise ApiError(400, "messages not found", param="messages")
    if not isinstance(messages, list):
        raise ApiError(400, "messages must be a list", param="messages")
    return [_message(item, f"messages[{index}]") for index, item in enumerate(messages)]


def chat_prompt(body: ChatCompletionBody, messages: list[dict[str, Any]], user: str, bot: str, interface: str) -> str:
    """One paragraph per message, and at the end the bot's turn, unless the last message is a prefix of its answer."""
    system = body.system_name or "System"
    names = {"user": user, "assistant": bot, "system": system, "tool": OBSERVATION}
    text = f"{user}{interface} Hi.\n\n{bot}{interface} {GREETING}\n\n" if body.presystem else ""
    for message in messages:
        content = _tool_call(message) if message.get("tool_calls") else message["content"]
        if content is None:
            continue
        text += f"{names[message['role']]}{interface} {content}\n\n"
    last = messages[-1]
    if last["role"] == "assistant" and last.get("prefix") and last["content"] is not None:
        return text[: -len("\n\n")]
    return f"{text}{bot}{interface}"


def turn_stops(user: str, bot: str, interface: str) -> list[str]:
    """Where the next turn of either side begins."""
    return [f"\n\n{user}{interface}", f"\n\n{bot}{interface}"]


def _message(item: Any, where: str) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise ApiError(400, f"{where} must be an object", param=where)
    role = "system" if item.get("role") == "developer" else item.get("role")
    if role not in ("system", "user", "assistant", "tool"):
        raise ApiError(400, f"{where}.role {role!r} is not one of system, developer, user, assistant, tool", param=f"{where}.role")
    refuse_others(item, KNOWN, where)
    calls = item.get("tool_calls")
    if (calls is not None and not isinstance(calls, list)) or (calls and role != "assistant"):
        raise ApiError(400, f"{where}.tool_calls must be a list in an assistant's message", param=f"{where}.tool_calls")
    if not isinstance(item.get("prefix", False), (bool, type(None))):
        raise ApiError(400, f"{where}.prefix must be true or false", param=f"{where}.prefix")
    content = _content(item.get("content"), f"{where}.content")
    if content is None and role != "assistant":
        raise ApiError(400, f"{where}.content is missing", param=f"{where}.content")
    return {**item, "role": role, "content": content}


def _content(value: Any, where: str) -> str | None:
    """Text as it is, or a list of text parts joined."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ApiError(400, f"{where} must be a string or a list of text parts", param=where)
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ApiError(400, f"{where} holds a part of type {kind!r}; only text is served", param=where, code="unsupported_content")
        texts.append(part["text"])
    return "".join(texts)


def _tool_call(message: Mapping[str, Any]) -> str:
    """An earlier call as the model wrote it. Only the first one is told, as in RWKV-Runner."""
    try:
        function = message["tool_calls"][0]["function"]
        arguments = json.loads(function["arguments"])
        told = ", ".join(f'"{key}"="{value}"' for key, value in arguments.items())
        return f"{function['name']}\n```python\ntool_call({told})\n```"
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ApiError(400, "tool_calls must hold a function with a name and JSON arguments", param="messages") from None
