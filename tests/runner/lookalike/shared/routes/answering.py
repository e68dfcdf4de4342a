"""What both forms of this server answer with: bodies, the chat prompt, the shapes of answers, and calls read back from text."""

import json
import re
from threading import Lock

from pydantic import BaseModel
from utils.rwkv import *

completion_lock = Lock()
default_stop = ["\n\nUser", "\n\nA", "\n\nQ"]
CALL = re.compile(r"(\w+)\s*```[\w\s]*tool_call\(['\"](\w+)['\"]=['\"](\w+)['\"]\)", re.DOTALL)


class CompletionBody(ModelConfigBody):
    prompt: str | list[str] | None = None
    stream: bool = False
    stop: str | list[str] | None = None


class ChatCompletionBody(ModelConfigBody):
    messages: list[dict] | None = None
    stream: bool = False
    stop: str | list[str] | None = default_stop
    tools: list[dict] | None = None


class EmbeddingsBody(BaseModel):
    input: str | list[str] | list[list[int]] | None = None
    fast_mode: bool = False


def chat_prompt(model, body):
    turns = "".join(f"{model.user}: {message['content']}\n\n" for message in body.messages)
    known = f"System: functions {json.dumps(body.tools)}\n\n" if body.tools else ""
    return f"{known}{turns}{model.bot}:"


def chunk(model, chat, text, reason=None):
    choice = {"index": 0, "finish_reason": reason}
    choice.update({"delta": {"content": text} if reason is None else {}} if chat else {"text": text})
    return json.dumps({"object": "chat.completion.chunk" if chat else "text_completion", "model": model.name, "choices": [choice]})


def answer(model, chat, text, prompt_tokens, tokens):
    choice = {"index": 0, "finish_reason": "stop"}
    choice.update({"message": {"role": "assistant", "content": text}} if chat else {"text": text})
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": prompt_tokens + tokens}
    return {"object": "chat.completion" if chat else "text_completion", "model": model.name, "choices": [choice], "usage": usage}


def found_call(text):
    found = CALL.search(text)
    if found is None:
        return None
    name, key, value = found.groups()
    return {"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps({key: value})}}


def with_call(whole):
    choice = whole["choices"][0]
    call = found_call(choice["message"]["content"])
    if call is not None:
        choice["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice["finish_reason"] = "tool_calls"
    return whole


async def call_events(chunks):
    """The chunks of a stream of text as those of a call."""
    text, last = "", None
    async for item in chunks:
        if item == "[DONE]":
            break
        last = json.loads(item)
        text += last["choices"][0]["delta"].get("content", "")
    call = found_call(text)
    if call is not None:
        last["choices"][0]["delta"] = {"tool_calls": [call]}
    yield json.dumps(last)
    last["choices"][0].update(delta={}, finish_reason="tool_calls" if call else "stop")
    yield json.dumps(last)
    yield "[DONE]"
