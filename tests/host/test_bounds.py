"""What a request may hold at most, before and in its body; and what answers while the host is busy."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator

import anyio.to_thread
import pytest
from host.live import LiveHost
from host.word_plugin import WordPlugin

from host_stub.errors import ApiError
from host_stub.json_body import MAX_ITEMS, MAX_MEMBERS, MAX_NAMES, parse
from host_stub.protocol import BoundedProtocol
from host_stub.state import ModelStatus

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def served() -> Iterator[LiveHost]:
    with LiveHost(("words", WordPlugin())) as running:
        assert running.switch("any.pth", "words").status_code == 200
        yield running


def refused(host: LiveHost, body: dict[str, object] | bytes, path: str = "/v1/completions") -> tuple[int, str, str | None]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = host.client.post(path, content=content, headers=JSON)
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


def test_a_body_of_too_many_members_is_refused(served: LiveHost) -> None:
    for count in (MAX_MEMBERS, 70_000):
        body = {"prompt": "a", **{f"k{number}": None for number in range(count)}}
        assert refused(served, body) == (400, "body_too_complex", None)
    ids = b'{"prompt": [' + b"1," * (MAX_ITEMS + 1) + b"1]}"
    assert refused(served, ids) == (400, "body_too_complex", None)
    assert served.client.post("/v1/completions", json={"prompt": "a, b: " * 50_000, "say": "a"}).status_code == 200


def test_only_what_stands_outside_of_strings_is_counted() -> None:
    marks = ",:" * (MAX_ITEMS + 1)
    for text in (marks, '\\"' + marks, marks + "\\\\", '\\\\\\"' + marks):
        assert parse(json.dumps({"a": text, "b": 1}).encode()) == {"a": text, "b": 1}
    many = "1," * (MAX_ITEMS + 1)
    for body in ('{"a\\\\": [' + many + "1]}", '["\\"", ' + many + "1]", "[" + '{"":1},' * (MAX_NAMES + 1) + "1]"):
        with pytest.raises(ApiError) as error:
            parse(body.encode())
        assert error.value.code == "body_too_complex"


@pytest.mark.parametrize("body", [b"[" * 100_000, b'"' + b"a" * 100_000, b"\xff" * 100_000, ('"' + "a" * 70_000 + '"').encode("utf-16")])
def test_large_bodies_that_are_not_json(served: LiveHost, body: bytes) -> None:
    assert refused(served, body) == (400, "invalid_json", None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop_token_ids", [1] * 4097),
        ("logit_bias", {str(token): 1 for token in range(4097)}),
        ("metadata", {str(number): "a" for number in range(17)}),
        ("metadata", [1]),
        ("max_completion_tokens", 102_401),
        ("max_completion_tokens", True),
        ("max_tokens", 102_401),
    ],
)
def test_limits_of_single_parameters(served: LiveHost, name: str, value: object) -> None:
    assert refused(served, {"prompt": "a", name: value}) == (400, "invalid_value", name)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/update-config", {"temperature": 0, "foo": 1}, "foo"),
        ("/switch-model", {"model": "", "foo": 1}, "foo"),
        ("/v1/completions", {"prompt": "a", "stream_options": {"foo": 1}}, "stream_options.foo"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a", "foo": 1}]}, "messages[0].foo"),
    ],
)
def test_members_that_nobody_reads_are_named(served: LiveHost, path: str, body: dict[str, object], param: str) -> None:
    assert refused(served, body, path) == (400, "unknown_parameter", param)
    assert served.status()["status"] == 3 and served.state.defaults() == {}


def test_what_clients_keep_of_an_answer_is_taken(served: LiveHost) -> None:
    kept = {"refusal": None, "annotations": [], "reasoning_content": "hm", "audio": None, "function_call": None, "tool_calls": None}
    messages = [{"role": "user", "content": "a", "name": "Ann"}, {"role": "assistant", "content": "b", **kept}]
    assert served.client.post("/v1/chat/completions", json={"messages": messages}).status_code == 200


def test_probes_need_no_thread(served: LiveHost) -> None:
    """All threads of the pool are taken, and a large body is being read; what tells of the host's life answers."""
    free, taken = threading.Event(), threading.Barrier(41)

    def wait() -> None:
        taken.wait(10)
        free.wait(10)

    def fill() -> None:
        for _ in range(40):
            asyncio.run_coroutine_threadsafe(anyio.to_thread.run_sync(wait), served.server._loop)  # type: ignore[arg-type]

    fill()
    taken.wait(10)
    try:
        for path in ("/", "/health", "/status", "/v1/models", "/v1/models/words"):
            assert served.client.get(path, timeout=2).status_code == 200, path
            assert served.client.head(path, timeout=2).status_code == 200
        assert served.client.post("/v1/completions", json={"prompt": "a " * 50_000, "say": "b"}, timeout=5).status_code == 200
    finally:
        free.set()


def test_the_head_of_an_answer_has_no_body(served: LiveHost) -> None:
    answer = served.client.head("/health")
    assert answer.status_code == 200 and answer.content == b"" and int(answer.headers["content-length"]) > 10
    assert served.client.head("/nowhere").status_code == 404 and served.client.head("/v1/completions").status_code == 405


def test_a_websocket_is_turned_away(served: LiveHost, caplog: pytest.LogCaptureFixture) -> None:
    for path in ("/", "/v1/chat/completions"):
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        head += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        assert talk(served, head.encode()).startswith(b"HTTP/1.1 403")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def talk(host: LiveHost, data: bytes) -> bytes:
    """What comes back until the server closes, or until it has answered."""
    with socket.create_connection(("127.0.0.1", host.port), timeout=5) as client:
        try:
            client.sendall(data)
            return client.recv(4096)
        except ConnectionError:
            return b""


def test_headers_have_a_limit(served: LiveHost) -> None:
    for more in (b"X: " + b"a" * 100_000, b"X: a\r\n" * 20_000):
        for end in (b"\r\n\r\n", b""):
            answer = talk(served, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + more + end)
            assert answer.startswith(b"HTTP/1.1 431") or (answer == b"" and not end), answer
    assert served.client.get("/health", headers={"x": "a" * 40_000}).status_code == 200


def test_half_a_head_does_not_hold_a_connection(served: LiveHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedProtocol, "head_seconds", 0.2)
    for sent in (b"", b"GET /health HTTP/1.1\r\nHost:"):
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", served.port), timeout=5) as client:
            client.sendall(sent)
            assert client.recv(1) == b"", "closed"
        assert 0.1 < time.monotonic() - began < 3
    assert served.client.get("/health").status_code == 200


def test_during_a_load_a_call_is_told_to_come_again(served: LiveHost) -> None:
    """The official client asks again after a 503, and not after a 400."""
    state, model = served.state, served.state.model
    state.model = None
    try:
        for status, expected in (
            (ModelStatus.Loading, (503, "model_loading", "1")),
            (ModelStatus.Offline, (400, "model_not_loaded", None)),
        ):
            state.status = status
            answer = served.client.post("/v1/completions", json={"prompt": "a"})
            assert (answer.status_code, answer.json()["error"]["code"], answer.headers.get("retry-after")) == expected
    finally:
        state.model, state.status = model, ModelStatus.Working
