"""The measuring client against a real HTTP server."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from albatross_plugin.bench.openai_client import Endpoint, Generation, HttpError, call, generate

CHAT = "/v1/chat/completions"


def ask(server: Any, timeout: float = 10, **more: Any) -> Generation:
    body = {"messages": [], "max_tokens": 6, "stream": True, "stream_options": {"include_usage": True}, **more}
    return asyncio.run(generate(Endpoint.parse(server.url), CHAT, body, timeout))


@pytest.mark.parametrize("chunked", [True, False])
def test_stream(fake: Any, chunked: bool) -> None:
    fake.chunked, fake.first_delay = chunked, 0.2
    done = ask(fake)
    assert done.ok and done.whole and done.finish_reason == "length"
    assert done.text == "".join(f"wörd{number} " for number in range(6))
    assert (done.chunks, done.tokens, done.usage) == (6, 6, {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11})
    # The empty chunk with the role is not a first token.
    assert done.first_latency is not None and 0.2 <= done.first_latency <= done.latency


def test_stream_without_usage_counts_chunks(fake: Any) -> None:
    fake.counts = False
    done = ask(fake)
    assert done.ok and done.usage is None and done.tokens == 6


def test_whole_answer(fake: Any) -> None:
    done = ask(fake, stream=False)
    assert done.ok and done.tokens == 6 and done.text == "w " * 6 and done.finish_reason == "length"


def test_error_event_ends_with_its_message(fake: Any) -> None:
    fake.error_after = 2
    done = ask(fake)
    assert not done.ok and done.error == "out of albatrosses" and done.chunks == 2


@pytest.mark.parametrize("chunked", [True, False])
def test_cut_stream_is_an_error(fake: Any, chunked: bool) -> None:
    fake.cut_after, fake.chunked = 2, chunked
    done = ask(fake)
    assert not done.ok and done.error and done.chunks == 2


def test_refusal_carries_status_and_text(fake: Any) -> None:
    fake.refuses = ("stream_options",)
    done = ask(fake)
    assert done.status == 400 and done.error is not None and "stream_options is not supported" in done.error


def test_silent_server_ends_with_the_timeout(fake: Any) -> None:
    fake.silent = True
    done = ask(fake, timeout=0.3)
    assert done.error == "no end within 0.3 s" and done.latency < 5


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = Endpoint.parse(f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(HttpError, match="no connection"):
            asyncio.run(call(endpoint, "GET", "/v1/models"))
        done = asyncio.run(generate(endpoint, CHAT, {"stream": True}, 5))
    assert not done.ok and done.error is not None and "no connection" in done.error


def test_plain_call(fake: Any) -> None:
    reply = asyncio.run(call(Endpoint.parse(fake.url + "/v1/"), "GET", "/v1/models"))
    assert reply.status == 200 and reply.json()["data"][0]["id"] == "fake-model"
    assert asyncio.run(call(Endpoint.parse(fake.url), "GET", "/nothing")).status == 404


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://a:81", ("a", 81, False, "")),
        ("a:81", ("a", 81, False, "")),
        ("https://a/v1", ("a", 443, True, "")),
        ("http://a/x/v1/", ("a", 80, False, "/x")),
        ("http://[::1]:9/x", ("::1", 9, False, "/x")),
    ],
)
def test_addresses(url: str, parts: tuple[str, int, bool, str]) -> None:
    endpoint = Endpoint.parse(url)
    assert (endpoint.host, endpoint.port, endpoint.secure, endpoint.prefix) == parts


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:port"])
def test_bad_addresses(url: str) -> None:
    with pytest.raises(ValueError):
        Endpoint.parse(url)
