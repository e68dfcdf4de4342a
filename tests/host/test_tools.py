"""Tool calls as text, and the chat template."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from host.live import LiveHost
from host.word_plugin import WordPlugin

from host_stub.bodies import ChatCompletionBody
from host_stub.errors import ApiError
from host_stub.sse import frames
from host_stub.template import chat_prompt, check_messages
from host_stub.tool_text import parse_call, parse_cut_call
from host_stub.tools import MAX_CALLS_KEPT, ToolMemory, ToolUse, apply_to_answer, apply_to_stream

CALL = 'get_weather\n```python\ntool_call("city"="Paris", "days"="3")\n```'
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": {"type": "object"}}}


def prompt(*messages: dict[str, Any], **body: Any) -> str:
    return chat_prompt(ChatCompletionBody(messages=list(messages), **body), check_messages(list(messages)), "User", "Assistant", ":")


def test_roles_become_paragraphs() -> None:
    text = prompt(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What "}, {"type": "text", "text": "now?"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"a": "b"}'}}]},
        {"role": "tool", "content": "42", "tool_call_id": "x"},
    )
    assert text == (
        'System: Be brief.\n\nUser: What now?\n\nAssistant: f\n```python\ntool_call("a"="b")\n```\n\nObservation: 42\n\nAssistant:'
    )


def test_names_prefix_and_presystem() -> None:
    assert prompt({"role": "developer", "content": "s"}, system_name="Rules") == "Rules: s\n\nAssistant:"
    begun = prompt({"role": "user", "content": "a"}, {"role": "assistant", "content": "Once", "prefix": True})
    assert begun == "User: a\n\nAssistant: Once"
    assert prompt({"role": "assistant", "content": "Once", "prefix": True}, {"role": "user", "content": "a"}).endswith("a\n\nAssistant:")
    assert prompt({"role": "user", "content": "a"}, presystem=True).endswith("\n\nUser: a\n\nAssistant:")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("text", "messages[0]"),
        ({"content": "a"}, "messages[0].role"),
        ({"role": "wizard", "content": "a"}, "messages[0].role"),
        ({"role": ["user"], "content": "a"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content"),
        ({"role": "assistant", "content": None, "tool_calls": [{}]}, "messages"),
        ({"role": "user", "content": "a", "tool_calls": [{}]}, "messages[0].tool_calls"),
    ],
)
def test_bad_messages_are_named(message: Any, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        prompt(message)
    assert refused.value.status == 400 and refused.value.param == param


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        (CALL, ("get_weather", {"city": "Paris", "days": "3"})),
        ("Sure. f```python\ntool_call()\n```", ("f", {})),
        ('f\n```python\ntool_call(\'a\'=\'it is "so"\', "b"="x, y (z)")\n```', ("f", {"a": 'it is "so"', "b": "x, y (z)"})),
        ('f\n```\ntool_call("n"=3)\n```', ("f", {"n": "3"})),
        ("no call here", None),
        ("```python\nprint()\n```", None),
    ],
)
def test_calls_are_read_from_text(text: str, parsed: object) -> None:
    assert parse_call(text) == parsed


def stream(text: str, *, size: int = 3, reason: str = "stop", usage: bool = False) -> list[Any]:
    """The events that ``text`` becomes, written in pieces of ``size`` characters."""

    async def source() -> AsyncIterator[str]:
        yield json.dumps({"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        for start in range(0, len(text), size):
            delta = {"content": text[start : start + size]}
            yield json.dumps({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        yield json.dumps({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if usage:
            yield json.dumps({"id": "c", "choices": [], "usage": {"total_tokens": 1}})
        yield "[DONE]"

    async def collect() -> list[Any]:
        events = [event async for event in apply_to_stream(source(), ToolUse("[]", ["get_weather"], "call_1"), usage)]
        return [event if event == "[DONE]" else json.loads(event) for event in events]

    return asyncio.run(collect())


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("usage", [True, False])
def test_a_streamed_call(size: int, usage: bool) -> None:
    events = stream(CALL + " and more", size=size, usage=usage)
    assert events.count("[DONE]") == 1 and events[-1] == "[DONE]"
    assert [event for event in events[:-1] if not event["choices"]] == (
        [{"id": "c", "choices": [], "usage": {"total_tokens": 1}}] if usage else []
    )
    choices = [event["choices"][0] for event in events[:-1] if event["choices"]]
    assert not any(choice["delta"].get("content") for choice in choices)
    calls = [choice["delta"]["tool_calls"][0] for choice in choices if "tool_calls" in choice["delta"]]
    assert calls[0]["id"] == "call_1" and calls[0]["function"]["name"] == "get_weather"
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert json.loads(arguments) == {"city": "Paris", "days": "3"}
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hi",
        "It is warm in Paris today, and it will stay so for the rest of the week.",
        "a\n\nb\n\nc",
        "get_weather",
        "x ```py\nprint(1)\n``` y",
    ],
)
def test_a_streamed_answer_is_not_changed(text: str, size: int) -> None:
    events = stream(text, size=size)
    choices = [event["choices"][0] for event in events[:-1]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == text
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"] and events[-1] == "[DONE]"


def test_a_call_that_the_limit_cut_says_so() -> None:
    choices = [event["choices"][0] for event in stream(CALL[:-8], reason="length")[:-1]]
    assert choices[-1]["finish_reason"] == "length"


@pytest.mark.parametrize("reason", ["length", "stop"])
@pytest.mark.parametrize("cut", range(len(CALL) - 30, len(CALL) + 1))
def test_both_modes_give_one_reason(reason: str, cut: int) -> None:
    text = CALL[:cut]
    choices = [event["choices"][0] for event in stream(text, reason=reason)[:-1]]
    whole = {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": reason}]}
    whole_choice = apply_to_answer(whole, "call_1")["choices"][0]
    assert whole_choice["finish_reason"] == choices[-1]["finish_reason"]
    assert choices[-1]["finish_reason"] == ("length" if reason == "length" and cut < len(CALL) else "tool_calls")
    arguments = "".join(c["delta"]["tool_calls"][0]["function"]["arguments"] for c in choices if "tool_calls" in c["delta"])
    assert arguments == whole_choice["message"]["tool_calls"][0]["function"]["arguments"]
    if choices[-1]["finish_reason"] == "length":
        assert '{"city": "Paris", "days": "3'.startswith(arguments.removesuffix('"')), "begun, and not to be parsed"
        with pytest.raises(ValueError):
            json.loads(arguments)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", "{"),
        ('"ci', "{"),
        ('"city"="', '{"city": "'),
        ('"city"="x, y', '{"city": "x, y'),
        ('"a"=1, "n"=3', '{"a": "1", "n": "3'),
        ('"a"="b"', '{"a": "b"'),
        ('"a"="b")\n``', '{"a": "b"'),
    ],
)
def test_the_arguments_of_a_cut_call_break_off_as_its_text_does(text: str, arguments: str) -> None:
    assert parse_cut_call("f\n```python\ntool_call(" + text) == ("f", arguments)


def framed(*chunks: Any) -> list[Any]:
    """What a client reads; an exception among the chunks is raised."""

    async def source() -> AsyncIterator[str]:
        for chunk in chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk if isinstance(chunk, str) else json.dumps(chunk)

    async def collect() -> list[str]:
        use = ToolUse("[]", ["get_weather"], "call_1")
        return [event.decode()[6:].strip() async for event in frames(apply_to_stream(source(), use, False))]

    return [event if event == "[DONE]" else json.loads(event) for event in asyncio.run(collect())]


def piece(text: str, reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason, **more}]}


@pytest.mark.parametrize("text", ["It is", "get_weather", CALL[:30], "a long answer that is no call, and more than the name of a function"])
@pytest.mark.parametrize("ending", [RuntimeError("gone"), {"error": {"message": "gone"}}, None])
def test_text_before_an_error_is_not_lost(text: str, ending: Any) -> None:
    events = framed(*(piece(letter) for letter in text), *([] if ending is None else [ending]))
    said = "".join(event["choices"][0]["delta"].get("content", "") for event in events if "choices" in event)
    assert said == text
    assert [bool(event.get("error")) for event in events[-1:]] == [ending is not None]
    assert all(event["choices"][0]["finish_reason"] is None for event in events if "choices" in event)


@pytest.mark.parametrize(
    "text", [CALL + " and more", CALL[:-8], "Hi", "a long answer that is no call, and more than the name of a function"]
)
def test_log_probabilities_of_a_stream_with_tools_are_complete(text: str) -> None:
    entries = [{"token": letter, "logprob": -1.0} for letter in text]
    chunks = [piece(entry["token"], logprobs={"content": [entry]}) for entry in entries]
    role = {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    events = framed(role, *chunks, piece("", "stop"), "[DONE]")
    assert events[-1] == "[DONE]"
    got = [entry for event in events[:-1] for entry in ((event["choices"][0].get("logprobs") or {}).get("content") or [])]
    assert got == entries
    assert any("tool_calls" in event["choices"][0]["delta"] for event in events[:-1]) == ("tool_call(" in text)


def test_answers_with_and_without_a_call() -> None:
    def answer(text: str) -> dict[str, Any]:
        return apply_to_answer({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}, "call_1")

    choice = answer(CALL)["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris", "days": "3"}
    assert answer("Hi")["choices"][0]["message"]["content"] == "Hi"


def test_the_memory_of_calls_is_bounded() -> None:
    memory = ToolMemory()
    first = memory.remember("f")
    assert memory.recall(first) == "f"
    later = [memory.remember("g") for _ in range(MAX_CALLS_KEPT)]
    assert memory.recall(first) is None and memory.recall(later[0]) == "g" and memory.recall(None) is None


def test_a_call_and_its_result_through_http(loaded: LiveHost, plugin: WordPlugin) -> None:
    post = loaded.client.post
    body = {"messages": [{"role": "user", "content": CALL}], "tools": [WEATHER]}
    message = post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    call = message["tool_calls"][0]
    assert call["function"]["name"] == "get_weather"
    asked = plugin.calls[-1]["prompt"]
    assert asked.startswith("System: You are a helpful assistant with access to the following functions.") and "get_weather" in asked
    events = loaded.events("/v1/chat/completions", {**body, "say": CALL + " more words"})
    assert json.loads(events[-2])["choices"][0]["finish_reason"] == "tool_calls"
    result = {"role": "tool", "content": "warm", "tool_call_id": call["id"]}
    followed = post("/v1/chat/completions", json={"messages": [*body["messages"], message, result]}).json()
    assert followed["choices"][0]["message"]["content"]
    assert plugin.calls[-1]["prompt"].startswith("System: You are a helpful") and "Observation: warm" in plugin.calls[-1]["prompt"]
    none = post("/v1/chat/completions", json={**body, "tool_choice": "none"}).json()
    assert "tool_calls" not in none["choices"][0]["message"]
    assert post("/v1/chat/completions", json={**body, "n": 2}).json()["error"]["param"] == "n"


def test_a_named_function_alone_is_offered(loaded: LiveHost, plugin: WordPlugin) -> None:
    time = {"type": "function", "function": {"name": "get_time"}}
    body = {"messages": [{"role": "user", "content": "a"}], "tools": [WEATHER, time]}
    named = {"type": "function", "function": {"name": "get_time"}}
    for choice, offered in ((None, (True, True)), ("auto", (True, True)), ("none", (False, False)), (named, (False, True))):
        assert loaded.client.post("/v1/chat/completions", json={**body, "tool_choice": choice}).status_code == 200
        asked = plugin.calls[-1]["prompt"]
        assert ("get_weather" in asked, "get_time" in asked) == offered


@pytest.mark.parametrize(
    "choice", ["required", "", 5, True, [], {}, {"type": "function", "function": {"name": "other"}}, {"type": "custom"}]
)
def test_a_tool_choice_that_cannot_be_kept_is_refused(loaded: LiveHost, plugin: WordPlugin, choice: object) -> None:
    for tools in ([WEATHER], None):
        body = {"messages": [{"role": "user", "content": "a"}], "tools": tools, "tool_choice": choice}
        answer = loaded.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "tool_choice", choice
    assert plugin.calls == []
