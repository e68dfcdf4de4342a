"""Clients that go away, neighbours, failures, loads and unloads, through HTTP."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import tiny
from stub import StubHost

Load = Callable[..., StubHost]
START = 34


def path_of(models: Path, name: str, **shape: Any) -> Path:
    path = models / f"{name}.pth"
    if not path.exists():
        tiny.write(path, tiny.random_checkpoint(**shape))
    return path


@pytest.fixture
def slow_host(host: StubHost, models: Path) -> Callable[[str], StubHost]:
    """A model big enough that a long answer takes seconds."""

    def serve(strategy: str) -> StubHost:
        answer = host.switch(path_of(models, "slow", layers=4, width=256), strategy)
        assert answer.status_code == 200, answer.text
        return host

    return serve


class RudeClient:
    """A raw connection that sends one streaming request and can vanish at any moment."""

    def __init__(self, host: StubHost, **body: Any) -> None:
        url = httpx.URL(host.url)
        self.socket = socket.create_connection((url.host, url.port or 80), timeout=30)
        body = {"prompt": "!", "stream": True, "max_tokens": 100_000, "ignore_eos": True, **body}
        payload = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        self.socket.sendall(head.encode() + payload)

    def read_until(self, marker: bytes, count: int = 1) -> None:
        seen = b""
        while seen.count(marker) < count:
            data = self.socket.recv(65536)
            assert data, seen
            seen += data

    def close(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.socket.close()


@pytest.mark.parametrize("when", ["after the headers", "after two chunks", "before the answer"])
def test_abt_1_a_closed_client_frees_its_slot(slow_host: Callable[[str], StubHost], when: str) -> None:
    host = slow_host("albatross device=cpu batch=1")
    client = RudeClient(host, stream=when != "before the answer")
    if when == "after the headers":
        client.read_until(b"\r\n\r\n")
    elif when == "after two chunks":
        client.read_until(b"data: ", 2)
    else:
        host.wait_for(lambda: host.engine()["slots"]["active"] == 1)
    client.close()
    closed = time.monotonic()
    host.wait_for(lambda: host.engine()["slots"]["active"] == 0, 3)
    assert time.monotonic() - closed < 1.5
    short = host.client.post("/v1/completions", json={"prompt": "!", "max_tokens": 2, "ignore_eos": True})
    assert short.json()["usage"]["completion_tokens"] == 2


def test_abt_3_clients_that_leave_the_queue(slow_host: Callable[[str], StubHost]) -> None:
    host = slow_host("albatross device=cpu batch=1")
    busy = RudeClient(host)
    busy.read_until(b"data: ", 1)
    queued = [RudeClient(host, stream=bool(i % 2)) for i in range(20)]
    host.wait_for(lambda: host.engine()["queue"]["length"] == 20)
    before = host.engine()
    for client in queued:
        client.close()
    host.wait_for(lambda: host.engine()["queue"]["length"] == 0, 3)
    assert host.engine()["slots"]["active"] == 1
    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(host.client.post, "/v1/completions", json={"prompt": "!", "max_tokens": 1, "ignore_eos": True})
        host.wait_for(lambda: host.engine()["queue"]["length"] == 1)
        busy.close()
        closed = time.monotonic()
        assert last.result(10).status_code == 200
        assert time.monotonic() - closed < 2, "served as soon as the slot is free"
    after = host.engine()
    assert after["tokens"]["prompt"] == before["tokens"]["prompt"] + 1, "of the twenty that left none was fed to the model"
    assert (after["slots"], after["queue"]["length"]) == ({"total": 1, "active": 0}, 0)


def test_neighbours_that_come_and_go_change_nothing(random_host: StubHost, models: Path) -> None:
    host = random_host
    prompts = ["one two", "three four five", "six", "a longer prompt with some more words in it than the others have"]
    body = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
    alone = [host.client.post("/v1/completions", json={"prompt": p, **body}).json()["choices"][0]["text"] for p in prompts]
    assert host.switch(models / "random.pth", "albatross device=cpu batch=8").status_code == 200
    stop = threading.Event()

    def neighbours() -> int:
        count = 0
        while not stop.is_set() and count < 100:
            client = RudeClient(host, temperature=1)
            if count % 2:
                client.read_until(b"data: ", 1)
            client.close()
            count += 1
        return count

    def stream(prompt: str) -> str:
        text = ""
        with httpx.stream("POST", host.url + "/v1/completions", json={"prompt": prompt, "stream": True, **body}, timeout=120) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(8) as pool:
        noise = pool.submit(neighbours)
        together = list(pool.map(stream, prompts * 3))
        assert noise.result() == 100
    assert together == alone * 3


def test_smp_5_a_row_with_infinite_scores_fails_alone(host: StubHost, models: Path) -> None:
    path = models / "poison.pth"
    tiny.write(path, tiny.poison_checkpoint([34, 1097, 47, 40640], trigger=40640))
    assert host.switch(path, "albatross device=cpu batch=4").status_code == 200

    def ask(limit: int, stream: bool) -> httpx.Response:
        return httpx.post(
            host.url + "/v1/completions", json={"prompt": "!", "temperature": 0, "max_tokens": limit, "stream": stream}, timeout=60
        )

    with ThreadPoolExecutor(4) as pool:
        bad, good, also, streamed = [pool.submit(ask, n, s) for n, s in ((8, False), (2, False), (2, False), (8, True))]
    assert bad.result().status_code == 500
    assert "finite" in bad.result().json()["error"]["message"]
    assert good.result().json()["choices"][0]["text"] == also.result().json()["choices"][0]["text"] == "Hi."
    assert '"error"' in streamed.result().text
    assert "[DONE]" not in streamed.result().text
    assert ask(2, False).json()["choices"][0]["text"] == "Hi."


def test_req_2_without_a_card_the_refusal_is_quick(host: StubHost, load: Load, models: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.fail("run this file where no card is visible: CUDA_VISIBLE_DEVICES= pytest ...")
    path = path_of(models, "a", layers=2, width=128)
    began = time.monotonic()
    answer = host.switch(path, "albatross workers=1 batch=32")
    assert time.monotonic() - began < 5
    assert answer.status_code == 500
    text = answer.text
    assert "failed to load: Albatross engine initialization failed: " in text
    assert "Albatross backend requires a CUDA-capable GPU and an RWKV-7 .pth model." in text
    assert "not compiled with CUDA" in text or "no NVIDIA driver" in text
    assert "device=cpu" in text
    assert host.client.post("/v1/completions", json={"prompt": "!"}).status_code == 400
    load([START, 1097, 47])
    assert host.client.post("/v1/completions", json={"prompt": "!", "temperature": 0}).json()["choices"][0]["text"] == "Hi."


@pytest.mark.parametrize(
    ("strategy", "slots", "workers"),
    [("albatross device=cpu", 32, 1), ("albatross workers=2 batch=64 device=cpu", 128, 2), ("chirrup batch=4 device=cpu", 4, 1),
     ("ALBATROSS WORKERS=nope batch=-1 device=cpu", 32, 1)],
)  # fmt: skip
def test_req_57_to_64_strategies(load: Load, strategy: str, slots: int, workers: int) -> None:
    host = load([START, 1097, 47], strategy)
    status = host.engine()
    assert status["slots"]["total"] == slots
    assert len(status["workers"]) == workers
    line = f"Albatross engine initialized: workers={workers}, batch_size={slots // workers}"
    host.wait_for(lambda: any(line in each for each in list(host.log)))


@pytest.mark.parametrize("strategy", ["cuda fp16", " ", "albatrossx"])
def test_other_strategies_never_reach_the_engine(load: Load, host: StubHost, models: Path, strategy: str) -> None:
    load([START, 1097, 47])
    answer = host.switch(path_of(models, "a", layers=2, width=128), strategy)
    assert answer.status_code == 500
    assert "failed to load: " in answer.text
    assert "Albatross" not in answer.text
    load([START, 1097, 47])


def test_mem_1_unloading_gives_everything_back(host: StubHost, models: Path) -> None:
    first, second = path_of(models, "a", layers=2, width=128), path_of(models, "b", layers=2, width=256)
    process = psutil.Process(host.process.pid)
    sizes, threads = [], []
    for turn in range(10):
        assert host.switch((first, second)[turn % 2], "albatross device=cpu batch=4 workers=2").status_code == 200
        assert host.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3}).status_code == 200
        client = RudeClient(host)
        client.read_until(b"data: ", 1)
        client.close()
        assert host.switch("", "").status_code == 200
        sizes.append(process.memory_info().rss)
        threads.append(process.num_threads())
    # The host's pool may hold another idle thread; a worker that stayed would be one in each turn.
    assert threads[-1] <= threads[1] + 2, threads
    assert sizes[-1] - sizes[2] < 20e6, [round(s / 1e6) for s in sizes]
    assert host.client.post("/v1/completions", json={"prompt": "a"}).status_code == 400


def test_mem_3_switch_under_load_ends_every_request(slow_host: Callable[[str], StubHost], models: Path) -> None:
    host = slow_host("albatross device=cpu batch=4")

    def stream() -> str:
        with httpx.stream(
            "POST", host.url + "/v1/completions", json={"prompt": "!", "stream": True, "max_tokens": 50_000, "ignore_eos": True}, timeout=60
        ) as answer:
            return answer.read().decode()

    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(stream) for _ in range(8)]
        host.wait_for(lambda: host.engine()["slots"]["active"] == 4 and host.engine()["queue"]["length"] == 4)
        began = time.monotonic()
        path = path_of(models, "a", layers=2, width=128)
        host.loaded = None
        answers = [answer.result() for answer in [pool_switch(host, path), pool_switch(host, path)]]
        texts = [each.result(timeout=30) for each in running]
        assert time.monotonic() - began < 30
    assert sorted(answers) in ([200, 200], [200, 304])
    assert all('"code":"model_unavailable"' in text and "[DONE]" not in text for text in texts)
    assert host.client.post("/v1/completions", json={"prompt": "!", "max_tokens": 1}).status_code == 200


def pool_switch(host: StubHost, path: Path) -> Any:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(
        lambda: (
            httpx.post(host.url + "/switch-model", json={"model": str(path), "strategy": "albatross device=cpu"}, timeout=60).status_code
        )
    )
    pool.shutdown(wait=False)
    return future


def test_queue_bound_answers_429(models: Path) -> None:
    path = path_of(models, "slow", layers=4, width=256)
    with StubHost(environ={"ALBATROSS_MAX_QUEUE": "3"}) as host:
        assert host.switch(path, "albatross device=cpu batch=1").status_code == 200
        clients = [RudeClient(host)]
        host.wait_for(lambda: host.engine()["slots"]["active"] == 1)
        clients += [RudeClient(host) for _ in range(3)]
        host.wait_for(lambda: host.engine()["queue"]["length"] == 3)
        answer = host.client.post("/v1/completions", json={"prompt": "!", "stream": True})
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "queue_full"
        for client in clients:
            client.close()
