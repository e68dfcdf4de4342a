"""What a client reads, in both modes and on both routes, by the official client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from stub import StubHost

from albatross_plugin.tokenizer import WorldTokenizer, find_vocabulary

EMOJI = [3319, 153, 129]
RARE = [241, 161, 175, 184]
JOINED = [3319, 146, 170, 9810, 241, 160, 155, 129]
NEXT_TURN = [261, 24281, 59]
START = 34  # "!" begins a script on the completions route
CHAT_START = 59  # a chat prompt ends in ":"

Load = Callable[..., StubHost]


def client(host: StubHost) -> openai.OpenAI:
    return openai.OpenAI(base_url=host.url + "/v1", api_key="none", max_retries=0)


def read(host: StubHost, chat: bool, stream: bool, **options: Any) -> tuple[str, str, int, int, list[str]]:
    """(text, finish_reason, prompt tokens, completion tokens, deltas) of one answer."""
    extra = options.pop("extra_body", {})
    options = {"temperature": 0, "max_tokens": 20, **options}
    with client(host) as api:
        call: Any
        if chat:
            call = api.chat.completions.create
            options["messages"] = [{"role": "user", "content": "hello"}]
        else:
            call = api.completions.create
            options["prompt"] = "!"
        if not stream:
            answer = call(model="any", extra_body=extra, **options)
            choice = answer.choices[0]
            text = choice.message.content if chat else choice.text
            assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
            return text, choice.finish_reason, answer.usage.prompt_tokens, answer.usage.completion_tokens, [text]
        deltas, reasons, usages, ids, roles = [], [], [], set(), []
        for chunk in call(model="any", stream=True, stream_options={"include_usage": True}, extra_body=extra, **options):
            ids.add((chunk.id, chunk.created, chunk.model))
            if chunk.usage is not None:
                assert chunk.choices == []
                usages.append(chunk.usage)
                continue
            choice = chunk.choices[0]
            reasons.append(choice.finish_reason)
            piece = choice.delta.content if chat else choice.text
            if chat:
                roles.append(choice.delta.role)
            if choice.finish_reason is None:
                deltas.append(piece or "")
        assert len(ids) == 1
        assert reasons[:-1] == [None] * (len(reasons) - 1), "only the last chunk of a choice has a reason"
        assert not chat or roles[0] == "assistant"
        assert len(usages) == 1
        return "".join(deltas), reasons[-1], usages[0].prompt_tokens, usages[0].completion_tokens, deltas


MODES = [
    pytest.param(chat, stream, id=f"{'chat' if chat else 'text'}-{'stream' if stream else 'whole'}") for chat in (0, 1) for stream in (0, 1)
]


@pytest.mark.parametrize(("chat", "stream"), MODES)
@pytest.mark.parametrize(("said", "text"), [([*EMOJI, 2095], "😀ok"), (RARE, "𠮷"), (JOINED, "👩‍🚀")], ids=["emoji", "rare", "joined"])
def test_tok_1_characters_of_several_tokens(load: Load, chat: bool, stream: bool, said: list[int], text: str) -> None:
    host = load([CHAT_START if chat else START, *said])
    got, reason, _, count, deltas = read(host, chat, stream)
    assert got == text
    assert all(deltas), "no empty delta"
    assert reason == "stop"
    assert count == len(said) + 1, "the end token is counted"


@pytest.mark.parametrize(("chat", "stream"), MODES)
def test_tok_1_a_stop_on_an_emoji(load: Load, chat: bool, stream: bool) -> None:
    host = load([CHAT_START if chat else START, 1097, *EMOJI, 4424])
    assert read(host, chat, stream, stop=["😀"])[:2] == ("Hi", "stop")


@pytest.mark.parametrize(("chat", "stream"), MODES)
def test_tok_3_stop_text_over_three_tokens(load: Load, chat: bool, stream: bool) -> None:
    first = CHAT_START if chat else START
    script = [first, 1097, 47, *NEXT_TURN[:2], *([] if chat else NEXT_TURN[2:]), 40640]
    if chat:  # the colon began the script, so the next turn's colon would begin it anew: stop on the words alone
        options: dict[str, Any] = {"stop": ["\n\nUser"]}
    else:
        options = {"stop": ["\n\nUser:"]}
    host = load(script)
    got, reason, _, _, _ = read(host, chat, stream, **options)
    assert got == "Hi."
    assert reason == "stop"
    host.wait_for(lambda: host.engine()["slots"]["active"] == 0, 1)


@pytest.mark.parametrize("stream", [False, True])
def test_tok_3_stop_inside_one_token(load: Load, stream: bool) -> None:
    host = load([START, 24136, 1097])
    before = host.engine()["requests"]
    assert read(host, False, stream, stop=["O"])[:2] == ("ST", "stop")
    host.wait_for(lambda: host.engine()["slots"]["active"] == 0, 1)
    after = host.engine()["requests"]
    assert (after["stop"], after["abort"]) == (before["stop"] + 1, before["abort"]), "the reader's stop is no abort"


@pytest.mark.parametrize("stop", [None, [], [""], "", "default"])
def test_tok_5_chat_stops_at_the_next_turn(load: Load, stop: Any) -> None:
    tokenizer = WorldTokenizer(find_vocabulary(None))
    # The colon may stand in the script once only, so the prompt must end in another token: that of "():".
    first = tokenizer.encode("Assistant f():")[-1]
    assert first != 59
    host = load([first, 1097, *NEXT_TURN, 40640])
    options = {} if stop == "default" else {"stop": stop}
    answer = host.client.post(
        "/v1/chat/completions",
        json={
            "messages": [{"role": "user", "content": "hello"}],
            "assistant_name": "Assistant f()",
            "temperature": 0,
            "max_tokens": 12,
            **options,
        },
    ).json()
    assert answer["choices"][0]["message"]["content"] == "Hi"
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stop", [["(", "[", "\\"], ["x" * 10_000] * 100])
def test_tok_5_stops_are_literal_and_may_be_long(load: Load, stop: list[str]) -> None:
    host = load([START, 1097, 47])
    answer = host.client.post("/v1/completions", json={"prompt": "!", "temperature": 0, "max_tokens": 5, "stop": stop}).json()
    assert answer["choices"][0]["text"] == "Hi."


@pytest.mark.parametrize(("chat", "stream"), MODES)
def test_api_1_max_tokens_is_length(load: Load, chat: bool, stream: bool) -> None:
    host = load([CHAT_START if chat else START, 1097, 47, 40640, 33944])
    got, reason, _, count, _ = read(host, chat, stream, max_tokens=2)
    assert (got, reason, count) == ("Hi.", "length", 2)


@pytest.mark.parametrize(("chat", "stream"), MODES)
def test_api_1_stop_token_ids(load: Load, chat: bool, stream: bool) -> None:
    host = load([CHAT_START if chat else START, 1097, 47, 40640])
    got, reason, _, count, _ = read(host, chat, stream, extra_body={"stop_token_ids": [47]})
    assert (got, reason, count) == ("Hi", "stop", 2)


@pytest.mark.parametrize(("chat", "stream"), MODES)
def test_api_1_stop_text_and_limit_on_one_token(load: Load, chat: bool, stream: bool) -> None:
    host = load([CHAT_START if chat else START, 1097, 47, 40640])
    got, reason, _, count, _ = read(host, chat, stream, stop=["."], max_tokens=2)
    assert (got, reason, count) == ("Hi", "stop", 2)


@pytest.mark.parametrize("limit", [1, 5, 20])
@pytest.mark.parametrize(("chat", "stream"), MODES)
def test_api_1_counts_on_a_random_model(random_host: StubHost, chat: bool, stream: bool, limit: int) -> None:
    _, reason, prompt, count, _ = read(random_host, chat, stream, max_tokens=limit, extra_body={"ignore_eos": True})
    assert (reason, count) == ("length", limit)
    assert prompt == (1 if not chat else prompt)


@pytest.mark.parametrize(
    ("options", "extra"), [({"include_usage": True}, 1), ({"include_usage": False}, 0), ({}, 0), (None, 0), ("absent", 0)]
)
def test_api_2_usage_in_a_stream(load: Load, options: Any, extra: int) -> None:
    host = load([START, 1097, 47])
    body: dict[str, Any] = {"prompt": "!", "temperature": 0, "stream": True}
    if options != "absent":
        body["stream_options"] = options
    with host.client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        raw = answer.read().decode()
    events = raw.split("\r\n\r\n")
    assert events.pop() == ""
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert len([c for c in chunks if not c["choices"]]) == extra
    if extra:
        assert chunks[-1]["usage"] == {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}


def test_req_91_to_95_shapes(load: Load) -> None:
    host = load([START, 1097, 47])
    whole = host.client.post("/v1/completions", json={"prompt": "!", "temperature": 0}).json()
    assert whole["object"] == "text_completion"
    assert whole["choices"] == [{"index": 0, "text": "Hi.", "finish_reason": "stop"}]
    assert whole["usage"] == {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
    assert whole["id"] and whole["created"] and whole["model"].startswith("script-")


def test_req_103_to_106_profile(load: Load) -> None:
    host = load([START, 1097, 47])
    assert host.client.post("/albatross/profile/reset").json() == {"success": True}
    read(host, False, True)
    read(host, False, False)
    figures = host.client.get("/albatross/profile", params={"reset": "true"}).json()
    assert figures["requests"] == 2
    assert figures["stream_requests"] == 1
    assert figures["tokens"] == 6
    assert figures["stream_chunks"] == 3, "two texts and the reason"
    assert figures["request_wall_ms"] > 0
    assert set(figures) == {
        "requests", "stream_requests", "tokens", "stream_chunks", "bytes", "completion_wait_ms", "disconnect_check_ms", "json_dump_ms",
        "yield_resume_ms", "request_wall_ms",
    }  # fmt: skip
    assert host.client.get("/albatross/profile").json()["requests"] == 0
