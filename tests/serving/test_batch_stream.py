"""The stream of a batch below HTTP: readers that are slow or leave, how much is written at once, and a host that guards nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("torch")

import tiny
from fastapi import FastAPI
from faults.asking import SCRIPT, WORDS
from serving.batches import PATH, Stream

from albatross_plugin.adapter import AlbatrossRWKV
from albatross_plugin.config import EngineConfig
from albatross_plugin.serving import batch_routes
from albatross_plugin.serving.batch import FLUSH, TICK_SECONDS, Batch
from albatross_plugin.serving.batch_call import read_call
from albatross_plugin.serving.json_route import MAX_BODY
from albatross_plugin.serving.routes import build_routers

TEXT = "".join(WORDS[:-1])
SAID = {"temperature": 0, "max_tokens": 20, "stop": ["User"], "prompt": "!"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AlbatrossRWKV]:
    path = tiny.write(tmp_path_factory.mktemp("models") / "script.pth", tiny.script_checkpoint(SCRIPT, layers=1, width=64))
    served = AlbatrossRWKV(str(path), config=EngineConfig(batch=4, device="cpu", gather_ms=0))
    yield served
    served.shutdown()


@pytest.fixture
def app(model: AlbatrossRWKV) -> FastAPI:
    """No more of a host than the hook asks for; RWKV-Runner guards its routes no better."""
    made = FastAPI()
    host = SimpleNamespace(model=lambda: model, saved_config=dict, deployed=lambda: False, resolve=lambda path: path)
    for router in build_routers(host):
        made.include_router(router)
    return made


def client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", timeout=30)


async def call(app: FastAPI, body: dict[str, Any], send: Callable[[Any], Awaitable[None]], gone: asyncio.Event) -> None:
    """One call of the application by a server whose client takes what it gets when it wants."""
    data = json.dumps(body).encode()
    asked = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> Any:
        if asked:
            return asked.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST", "path": PATH,
        "raw_path": PATH.encode(), "query_string": b"", "root_path": "", "scheme": "http", "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1), "headers": [(b"content-type", b"application/json"), (b"host", b"127.0.0.1")],
    }  # fmt: skip
    await app(scope, receive, send)


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work, 60)

    asyncio.run(bounded())


def test_a_slow_reader_holds_up_nobody_but_itself(app: FastAPI, model: AlbatrossRWKV) -> None:
    async def main() -> None:
        stream, goes_on, begun = Stream(), asyncio.Event(), asyncio.Event()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                if message.get("body"):
                    stream.feed(message["body"])
                begun.set()
                await goes_on.wait()

        slow = asyncio.create_task(call(app, {**SAID, "count": 200}, send, asyncio.Event()))
        await begun.wait()
        async with client(app) as others:
            for count in (1, 150):
                answer = (await others.post(PATH, json={**SAID, "count": count, "stream": False})).json()
                assert answer["counts"]["done"] == count
            assert not stream.items and not slow.done()
            # The items that it had in the engine have ended there, and hold no slot while nobody reads of them.
            while (status := (await others.get("/albatross/status")).json())["engine"]["slots"]["active"]:
                await asyncio.sleep(0.01)
            assert status["batches"]["running"] == 1
            goes_on.set()
            await slow
        stream.check_end()
        assert [item.text for item in stream.items.values()] == [TEXT] * 200

    run(main())


def test_r32_a_reader_that_is_slow_can_still_be_stopped_and_hears_of_it(app: FastAPI) -> None:
    async def main() -> None:
        stream, goes_on, begun = Stream(), asyncio.Event(), asyncio.Event()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                if message.get("body"):
                    stream.feed(message["body"])
                begun.set()
                await goes_on.wait()

        slow = asyncio.create_task(call(app, {**SAID, "count": 50, "batch_id": "slow-batch"}, send, asyncio.Event()))
        await begun.wait()
        async with client(app) as others:
            assert (await others.delete("/albatross/batch/slow-batch")).json()["status"] == "aborted"
        goes_on.set()
        await slow
        stream.check_end()
        assert stream.count("aborted") + stream.count("done") == 50 and stream.count("aborted") >= 42

    run(main())


def test_readers_that_have_stalled_make_room_for_another_batch(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as may run hang in a write. Their places go to the next one, once they have taken nothing for long."""
    monkeypatch.setattr(batch_routes, "MAX_RUNNING", 2)

    async def main() -> None:
        goes_on, stuck = asyncio.Event(), []

        def stalls(stream: Stream, hangs: asyncio.Event) -> Callable[[Any], Awaitable[None]]:
            async def send(message: Any) -> None:
                if message["type"] == "http.response.body" and message.get("body"):
                    stream.feed(message["body"])
                    if stream.items:
                        hangs.set()
                        await goes_on.wait()

            return send

        streams = [Stream(), Stream()]
        for stream in streams:
            hangs = asyncio.Event()
            stuck.append(asyncio.create_task(call(app, {**SAID, "count": 50}, stalls(stream, hangs), asyncio.Event())))
            await hangs.wait()
        async with client(app) as others:
            body = {**SAID, "count": 3, "stream": False}
            refused = await others.post(PATH, json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_batches")
            monkeypatch.setattr(batch_routes, "STALL_SECONDS", 0.0)
            assert (await others.post(PATH, json=body)).json()["counts"]["done"] == 3
            goes_on.set()
            await asyncio.gather(*stuck)
            assert (await others.get("/albatross/status")).json()["batches"] == {"running": 0, "items": 0}
        for stream in streams:
            stream.check_end()
            assert stream.count("aborted") > 0

    run(main())


def test_who_hangs_in_the_last_words_of_a_batch_holds_no_place(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_routes, "MAX_RUNNING", 1)

    async def main() -> None:
        hangs, goes_on, stream = asyncio.Event(), asyncio.Event(), Stream()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body" and message.get("body"):
                stream.feed(message["body"])
                if b"[DONE]" in message["body"]:
                    hangs.set()
                    await goes_on.wait()

        stuck = asyncio.create_task(call(app, {**SAID, "count": 2, "batch_id": "last-words"}, send, asyncio.Event()))
        await hangs.wait()
        async with client(app) as others:
            answer = await others.post(PATH, json={**SAID, "count": 3, "stream": False})
            assert answer.status_code == 200 and answer.json()["counts"]["done"] == 3, answer.text
            assert (await others.delete("/albatross/batch/last-words")).json()["status"] == "done"
            goes_on.set()
            await stuck
            assert (await others.get("/albatross/status")).json()["batches"] == {"running": 0, "items": 0}
        stream.check_end()
        assert stream.count("done") == 2

    run(main())


def test_a_reader_may_stall_where_there_is_nothing_new_too(model: AlbatrossRWKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes that it is still here, say, and that write does not end."""
    monkeypatch.setattr(model, "places", lambda: 0)

    async def main() -> None:
        batch = Batch(model, read_call(model, SAID, {}, str))
        updates = batch.updates()
        assert await anext(updates) == []
        assert batch.stalled(-1.0)
        await updates.aclose()

    run(main())


def test_a_client_that_goes_while_nothing_is_sent_ends_the_batch(app: FastAPI, model: AlbatrossRWKV) -> None:
    """All slots are held by another batch, so there is no write in which its absence could show."""

    async def main() -> None:
        gone, held, asked = asyncio.Event(), asyncio.Event(), asyncio.Event()

        def sender(event: asyncio.Event) -> Callable[[Any], Awaitable[None]]:
            async def send(message: Any) -> None:
                event.set()

            return send

        endless = {"prompt": "x", "ignore_eos": True, "temperature": 0, "max_tokens": 1_000_000, "count": 4}
        other_gone = asyncio.Event()
        holder = asyncio.create_task(call(app, endless, sender(held), other_gone))
        await held.wait()
        waiting = asyncio.create_task(call(app, endless, sender(asked), gone))
        await asked.wait()
        async with client(app) as looking:
            gone.set()
            await waiting
            assert (await looking.get("/albatross/status")).json()["batches"] == {"running": 1, "items": 4}
            other_gone.set()
            await holder
            while (await looking.get("/albatross/status")).json()["engine"]["slots"]["active"]:
                await asyncio.sleep(0.01)

    run(main())


def test_updates_come_in_time_and_at_most_so_many_together(model: AlbatrossRWKV) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        batch = Batch(model, read_call(model, {**SAID, "count": 1000}, {}, str))
        sizes, last, waits = [], loop.time(), []
        async for updates in batch.updates():
            sizes.append(len(updates))
            waits.append(loop.time() - last)
            if len(sizes) == 10:
                # 900 items have never been named: their ends are told in several parts.
                batch.stop()
            last = loop.time()
        assert batch.unfinished == 0 and sum(batch.counts.values()) == 1000
        assert max(sizes) == FLUSH and sizes.count(FLUSH) >= 3
        # Once it has begun, an empty list is a tick without news, never a busy loop.
        assert not any(wait < TICK_SECONDS / 2 for wait, size in zip(waits[1:], sizes[1:], strict=True) if not size)

    run(main())


def test_a_host_without_guards_is_protected_by_the_routes(app: FastAPI) -> None:
    async def main() -> None:
        async with client(app) as page:
            for path in (PATH, "/translate/v1/batch-translate"):
                form = await page.post(path, content=b"prompt=x", headers={"Content-Type": "text/plain"})
                assert (form.status_code, form.json()["error"]["code"]) == (415, "unsupported_media_type")
                large = await page.post(path, content=b" " * (MAX_BODY + 1), headers={"Content-Type": "application/json"})
                assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
                empty = await page.post(path, content=b"", headers={"Content-Type": "application/json"})
                assert (empty.status_code, empty.json()["error"]["code"]) == (400, "invalid_json")
            missing = await page.delete("/albatross/batch/" + "x" * 200)
            assert missing.status_code == 404 and missing.json()["detail"] == missing.json()["error"]["message"]

    run(main())


def test_a_host_with_a_translation_of_its_own_keeps_it(model: AlbatrossRWKV) -> None:
    made = FastAPI()
    host = SimpleNamespace(model=lambda: model, saved_config=dict, deployed=lambda: False, resolve=lambda path: path)
    for router in build_routers(host):
        made.include_router(router)

    @made.post("/translate/v1/batch-translate")
    async def own() -> dict[str, str]:
        return {"whose": "the host's"}

    async def main() -> None:
        async with client(made) as page:
            assert (await page.post("/translate/v1/batch-translate", json={})).json() == {"whose": "the host's"}

    run(main())
