"""Completions of a plugin's model: what reaches the hook, and what becomes of its answer."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from host.live import LiveHost, wait_for
from host.word_plugin import WordPlugin
from openai import BadRequestError, OpenAI, RateLimitError

from host_stub.sse import EventStream

CHAT = {"messages": [{"role": "user", "content": "hi there"}]}


def test_both_routes_and_their_short_forms(loaded: LiveHost) -> None:
    for prefix in ("", "/v1"):
        chat = loaded.client.post(f"{prefix}/chat/completions", json=CHAT).json()
        assert chat["choices"][0]["message"]["content"] == "User: hi there Assistant: "
        text = loaded.client.post(f"{prefix}/completions", json={"prompt": "one two"}).json()
        assert text["choices"][0]["text"] == "one two "


def test_req_97_stream_framing(loaded: LiveHost) -> None:
    with loaded.client.stream("POST", "/v1/completions", json={"prompt": "one two", "stream": True}) as response:
        data = response.read()
        assert response.headers["cache-control"] == "no-cache" and response.headers["x-accel-buffering"] == "no"
        assert response.headers["content-type"].startswith("text/event-stream")
    events = data.split(b"\r\n\r\n")
    assert events[-1] == b"" and events[-2] == b"data: [DONE]"
    assert [json.loads(event[6:])["choices"][0]["text"] for event in events[:-2]] == ["one ", "two ", ""]


def test_the_hook_gets_the_whole_call(loaded: LiveHost, plugin: WordPlugin) -> None:
    body = {"prompt": "a", "stop": ["x"], "stop_token_ids": [5], "seed": 7, "n": 2, "logit_bias": {"1": -100}, "new": {"x": 1}}
    loaded.client.post("/v1/completions", json=body)
    call = plugin.calls[-1]
    assert (call["prompt"], call["stream"], call["stop"], call["stop_token_ids"], call["chat_mode"]) == ("a", False, ["x"], [5], False)
    assert (call["body"].seed, call["body"].n, call["body"].logit_bias, call["body"].new) == (7, 2, {"1": -100}, {"x": 1})
    assert call["defaults"] == {}


def test_r22_stops_of_a_chat(loaded: LiveHost, plugin: WordPlugin) -> None:
    seen = []
    for more in ({}, {"stop": None}, {"stop": "x"}, {"stop": []}):
        loaded.client.post("/v1/chat/completions", json={**CHAT, **more})
        seen.append(plugin.calls[-1]["stop"])
    assert seen == [None, None, "x", []], "the turns of both sides are the model's to add; a paragraph may begin with any word"


@pytest.mark.parametrize(
    ("prompt", "given"),
    [
        ("", "\n"),
        (None, "\n"),
        ([], "\n"),
        ([""], ["\n"]),
        (["a", ""], ["a", "\n"]),
        ([1, 2], [1, 2]),
        ([[1], []], [[1], [11]]),
    ],
)
def test_r1_empty_prompts_become_a_newline(loaded: LiveHost, plugin: WordPlugin, prompt: object, given: object) -> None:
    loaded.client.post("/v1/completions", json={"prompt": prompt})
    assert plugin.calls[-1]["prompt"] == given


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": ["a", 1]}, "prompt"),
        ("/v1/completions", {"prompt": {"a": 1}}, "prompt"),
        ("/v1/completions", {"prompt": [True]}, "prompt"),
        ("/v1/completions", {"prompt": "a", "stop": [1]}, "stop"),
        ("/v1/completions", {"prompt": "a", "stop_token_ids": ["x"]}, "stop_token_ids"),
        ("/v1/completions", {"prompt": "a", "temperature": 4}, "temperature"),
        ("/v1/completions", {"prompt": "a", "stream": "yes"}, "stream"),
        ("/v1/completions", {"prompt": "a", "stream_options": 5}, "stream_options"),
        ("/v1/chat/completions", {**CHAT, "stream_options": ["include_usage"]}, "stream_options"),
        ("/v1/chat/completions", {**CHAT, "echo": True}, "echo"),
        ("/v1/chat/completions", {**CHAT, "tool_choice": "required"}, "tool_choice"),
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {**CHAT, "user_name": ""}, "user_name"),
        ("/v1/chat/completions", {**CHAT, "tools": [{"type": "function"}]}, "tools"),
    ],
)
def test_bad_values_are_named(loaded: LiveHost, plugin: WordPlugin, path: str, body: dict[str, object], param: str) -> None:
    answer = loaded.client.post(path, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param and error["type"] == "invalid_request_error" and error["message"]
    assert plugin.calls == []


def test_a_refusal_keeps_its_status_and_headers(loaded: LiveHost) -> None:
    for stream in (False, True):
        answer = loaded.client.post("/v1/completions", json={"prompt": "!reject", "stream": stream})
        assert answer.status_code == 429 and answer.headers["retry-after"] == "7"
        expected = {"message": "too many words", "type": "rate_limit_error", "param": "prompt", "code": "queue_full"}
        assert answer.json()["error"] == expected


def test_an_unexpected_error_is_a_500_in_the_same_shape(loaded: LiveHost) -> None:
    for prompt in ("!bug", "one !fail"):
        answer = loaded.client.post("/v1/completions", json={"prompt": prompt})
        assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
    assert loaded.client.post("/v1/completions", json={"prompt": "fine"}).status_code == 200


def test_an_error_in_the_middle_becomes_an_event_and_the_end(loaded: LiveHost, plugin: WordPlugin) -> None:
    events = loaded.events("/v1/completions", {"prompt": "one !fail two"})
    assert json.loads(events[0])["choices"][0]["text"] == "one "
    assert "the words ran out" in json.loads(events[1])["error"]["message"] and len(events) == 2
    wait_for(lambda: plugin.answers[-1].closed)


def test_the_official_client_reads_answers_and_errors(loaded: LiveHost) -> None:
    with OpenAI(base_url=loaded.url + "/v1", api_key="x", max_retries=0) as client:
        chat = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}], stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chat) == "User: hello Assistant: "
        with pytest.raises(RateLimitError) as refused:
            client.completions.create(model="m", prompt="!reject")
        assert refused.value.code == "queue_full"
        loaded.switch("")
        with pytest.raises(BadRequestError) as offline:
            client.completions.create(model="m", prompt="a")
        assert offline.value.code == "model_not_loaded"


def test_every_answer_is_closed_once_it_ended(loaded: LiveHost, plugin: WordPlugin) -> None:
    loaded.client.post("/v1/completions", json={"prompt": "a"})
    loaded.events("/v1/completions", {"prompt": "a"})
    wait_for(lambda: len(plugin.answers) == 2 and all(answer.closed for answer in plugin.answers))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["!wait", "one !wait"])
def test_abt_1_a_client_that_leaves_closes_the_answer(loaded: LiveHost, plugin: WordPlugin, stream: bool, prompt: str) -> None:
    body = json.dumps({"prompt": prompt, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", loaded.port)) as client:
        client.sendall(head.encode() + body)
        wait_for(lambda: plugin.answers)
    wait_for(lambda: plugin.answers[-1].closed, 2)


def test_a_stream_that_was_never_read_is_closed() -> None:
    """The first write fails: the source was not iterated yet, and is closed all the same."""

    class Source:
        closed = 0

        def __aiter__(self) -> Source:
            return self

        async def __anext__(self) -> str:
            raise AssertionError("nobody asked for a chunk")

        async def aclose(self) -> None:
            self.closed += 1

    async def never() -> dict[str, object]:
        await asyncio.Event().wait()
        return {}

    async def fails(_: object) -> None:
        raise OSError("the connection is gone")

    source = Source()
    asyncio.run(EventStream(source)({"type": "http"}, never, fails))
    assert source.closed == 1


def test_a_long_prompt_is_handed_over_in_a_thread(loaded: LiveHost, plugin: WordPlugin) -> None:
    loaded.client.post("/v1/completions", json={"prompt": "short"})
    loaded.client.post("/v1/completions", json={"prompt": "long " * 20000})
    loaded.client.post("/v1/completions", json={"prompt": ["long " * 10000] * 2})
    on_loop, first, second = plugin.threads
    assert on_loop == "live-host" and first != on_loop and second != on_loop


def test_req_107_embeddings_of_a_model_without_them_are_a_400(loaded: LiveHost) -> None:
    for _ in range(3):
        answer = loaded.client.post("/v1/embeddings", json={"input": "a"})
        assert answer.status_code == 400 and answer.json()["error"]["message"] == "words have no embeddings"
    assert not loaded.state.completion_lock.locked()


def test_a_plugin_without_its_own_serving_takes_the_locked_path() -> None:
    with LiveHost(("words", WordPlugin(evaluates=False))) as host:
        host.switch("any.pth", "words")
        answer = host.client.post("/v1/completions", json={"prompt": "a b c"}).json()
        assert answer["choices"][0] == {"index": 0, "finish_reason": "stop", "text": "a b c "}
        assert answer["usage"] == {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
        cut = host.client.post("/v1/completions", json={"prompt": "a b c", "max_tokens": 2}).json()
        assert (cut["choices"][0]["text"], cut["choices"][0]["finish_reason"]) == ("a b ", "length")
        again = host.client.post("/v1/completions", json={"prompt": "a b c"}).json()
        assert again["choices"][0]["text"] == "a b c ", "one request's settings do not stay for the next"
