"""Bodies of which only a part comes, or too much, and what they hold."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from host.live import LiveHost, wait_for

from host_stub.guard import Rules

LIMIT = 64 * 1024


@pytest.fixture(scope="module")
def live() -> Iterator[LiveHost]:
    with LiveHost(rules=Rules(max_body=LIMIT, idle_seconds=0.3)) as running:
        yield running


def half(host: LiveHost, sent: bytes, length: int | None = 100) -> socket.socket:
    """A connection on which only a part of a body comes. Without ``length`` it comes in chunks."""
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    client = socket.create_connection(("127.0.0.1", host.port), timeout=10)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{size}\r\n\r\n"
    client.sendall(head.encode() + (sent if length is not None else b"%x\r\n%b\r\n" % (len(sent), sent)))
    return client


def read_all(client: socket.socket) -> bytes:
    """What comes until the other side closes."""
    found = b""
    while data := client.recv(65536):
        found += data
    return found


@pytest.mark.parametrize("length", [100, None])
def test_half_a_body_is_given_up(live: LiveHost, length: int | None) -> None:
    with half(live, b'{"prompt": ', length) as client:
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 408 ") and b'"body_timeout"' in answer
    wait_for(lambda: not live.server.server_state.tasks)


def test_a_body_that_comes_in_drops_is_given_up_too() -> None:
    with LiveHost(rules=Rules(idle_seconds=5.0, body_seconds=0.4)) as host, half(host, b"{", 1000) as client:
        began = time.monotonic()
        ended = threading.Event()

        def drip() -> None:
            try:
                while not ended.wait(0.05):
                    client.sendall(b" ")
            except OSError:
                pass

        thread = threading.Thread(target=drip)
        thread.start()
        answer = client.recv(65536)
        ended.set()
        thread.join()
        assert answer.startswith(b"HTTP/1.1 408 ") and time.monotonic() - began < 4


@pytest.mark.parametrize("length", [10 * LIMIT, None])
def test_a_body_that_is_too_large_holds_nothing_when_its_rest_does_not_come(live: LiveHost, length: int | None) -> None:
    with half(live, b"x" * (LIMIT + 1), length) as client:
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 413 ") and b'"body_too_large"' in answer
    wait_for(lambda: not live.server.server_state.tasks)


def test_clients_that_leave_in_the_middle_of_a_body_hold_nothing() -> None:
    with LiveHost() as host:
        clients = [half(host, b"{") for _ in range(20)]
        wait_for(lambda: len(host.server.server_state.tasks) >= 20)
        for client in clients:
            client.close()
        wait_for(lambda: not host.server.server_state.tasks)
