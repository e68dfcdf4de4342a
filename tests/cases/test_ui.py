"""Very many streams, few connections, and streams that end too early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from bench.fake_server import serving
from cases.strict_sse import SseReader, parse
from host.live import LiveHost

from albatross_plugin.bench import chosen_executor
from host_stub.demo_streams import Stream, run_all

Load = Callable[..., LiveHost]
TORCH = "albatross_plugin.model.executor:TorchExecutor"
GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}


def test_ui_1_a_batch_of_32_needs_one_connection_and_other_calls_go_on(load: Load, random_model: Path) -> None:
    host = load(random_model, chosen_executor.strategy(TORCH, 33))
    prompts = [[2000 + number] for number in range(32)]
    alone = host.client.post("/v1/completions", json={**GREEDY, "prompt": prompts}).json()["choices"]
    reader = SseReader()
    body = {**GREEDY, "prompt": prompts, "stream": True}
    with (
        httpx.Client(base_url=host.url, timeout=60, limits=httpx.Limits(max_connections=1)) as page,
        page.stream("POST", "/v1/completions", json=body) as response,
    ):
        parts = response.iter_raw()
        reader.feed(next(parts))
        assert host.client.get("/status").status_code == 200
        assert host.client.post("/v1/completions", json={**GREEDY, "prompt": "a"}).status_code == 200
        for data in parts:
            reader.feed(data)
    reader.close()
    answer = parse(reader.events, chat=False, usage=False, marks=True)
    assert [answer.choices[index].text for index in range(32)] == [choice["text"] for choice in alone]


@pytest.mark.parametrize("fault", ["cut", "error", "garbage"])
def test_ui_3_a_stream_that_breaks_off_is_no_complete_answer(fault: str) -> None:
    """The client of this repository that shows streams to people: each ends in a state of its own, and keeps its text."""
    with serving() as server:
        setattr(server, f"{fault}_after", 3)

        async def show() -> list[Stream]:
            streams = [Stream(number, "x", 6) for number in range(3)]
            async with httpx.AsyncClient(base_url=server.url, timeout=10) as client:
                await run_all(client, streams)
            return streams

        for stream in asyncio.run(show()):
            assert not stream.complete and stream.ended is not None
            assert stream.text == "wörd0 wörd1 wörd2 "
            assert stream.error or not stream.whole
        assert len(server.bodies) == 3, "nothing is sent a second time"
