"""Tokens per second of a server with hundreds of clients at once, and where the time goes.

    python -m albatross_plugin.bench.http_benchmark --port 8000 --concurrency 320 --requests 640 --max-tokens 128 --processes 2
    python -m albatross_plugin.bench.http_benchmark --port 8000 --concurrency 320 --non-stream --split
    python -m albatross_plugin.bench.http_benchmark --port 8000 --concurrency 256 --max-tokens 256 --bare --runs 5
    python -m albatross_plugin.bench.http_benchmark --port 8000 --concurrency 1 --batch 1000

The clients are bare sockets in processes of their own, which count events and read ``usage`` and parse nothing else, so that they are not
what is measured. All requests are for full-length answers. ``--split`` asks a ``measured_host`` for the processor time of its threads,
and ``--bare`` also for the same bytes without anything that makes them.
``--batch`` makes each request a batch of so many items, of which an event is an update. Exit status 1 if a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

from albatross_plugin.bench.openai_client import Endpoint, HttpError, call
from albatross_plugin.bench.report import Log, median, percentile

MODULE = "albatross_plugin.bench.http_benchmark"
PATH = "/v1/chat/completions"
BATCH_PATH = "/albatross/batch/completions"
BARE = "/bench/bare"
EVENT, EVENT_END = b"data: {", "\r\n\r\n"
RANKED = "above_bare_us_per_token"
COUNT = re.compile(rb'"completion_tokens":\s*(\d+)')
# The last bytes of an answer in which the usage stands.
TAIL = 1024
START_SECONDS = 1.0


@dataclass
class Answer:
    """One request as its socket saw it. Times are seconds of ``time.perf_counter``, which all processes of a machine share."""

    started: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    tokens: int = 0
    events: int = 0
    longest_gap: float = 0.0
    error: str = ""


class Reader(asyncio.Protocol):
    """Sends one request and counts what comes back, up to the end of the connection."""

    def __init__(self, request: bytes, stream: bool) -> None:
        self._request = request
        self._stream = stream
        self._tail = b""
        self._head = b""
        self._last = 0.0
        self.answer = Answer()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.answer.started = time.perf_counter()
        # uvloop's transports are no subclasses of asyncio's.
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        now, answer = time.perf_counter(), self.answer
        if not self._head:
            self._head = data[:64]
        # An event's first bytes may be cut in two by the network.
        joint = self._tail[-(len(EVENT) - 1) :] + data
        count = joint.count(EVENT)
        if count:
            if not answer.first:
                answer.first = now
            else:
                answer.longest_gap = max(answer.longest_gap, now - self._last)
            self._last = now
            answer.events += count
        self._tail = (self._tail + data)[-TAIL:]

    def connection_lost(self, error: Exception | None) -> None:
        answer = self.answer
        answer.ended = time.perf_counter()
        found = COUNT.search(self._tail)
        complete = b"[DONE]" in self._tail if self._stream else found is not None
        if b" 200 " in self._head and found is not None and complete:
            answer.tokens = int(found[1])
        else:
            answer.error = (error and str(error)) or (self._tail or b"no answer")[:300].decode(errors="replace")
        self.done.set_result(None)


def request_bytes(endpoint: Endpoint, path: str, body: dict[str, Any]) -> bytes:
    payload = json.dumps(body).encode()
    lines = [f"POST {endpoint.prefix}{path} HTTP/1.1", f"Host: {endpoint.host}:{endpoint.port}", "Connection: close"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(payload)}"]
    if endpoint.api_key:
        lines.append(f"Authorization: Bearer {endpoint.api_key}")
    return "\r\n".join([*lines, "", ""]).encode() + payload


def body_of(options: argparse.Namespace) -> dict[str, Any]:
    asked = (
        {"prompt": options.prompt, "count": options.batch} if options.batch else {"messages": [{"role": "user", "content": options.prompt}]}
    )
    body = {
        **asked,
        "max_tokens": options.max_tokens,
        "stream": not options.non_stream,
        "temperature": 1.0,
        "top_p": 0.5,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.2,
        "ignore_eos": True,
    }
    if options.no_stop:
        body["stop"] = None
    if not options.non_stream and not options.batch:
        body["stream_options"] = {"include_usage": True}
    return body


def run_clients(endpoint: Endpoint, path: str, body: dict[str, Any], concurrency: int, requests: int, begin: float) -> list[Answer]:
    """Runs in a process of its own: ``requests`` in all, ``concurrency`` of them at a time, from the moment ``begin`` on."""

    async def client(numbers: Iterator[int], request: bytes, answers: list[Answer]) -> None:
        loop = asyncio.get_running_loop()
        for _ in numbers:
            try:
                _, reader = await loop.create_connection(lambda: Reader(request, bool(body["stream"])), endpoint.host, endpoint.port)
            except OSError as error:
                answers.append(Answer(error=str(error)))
                continue
            await reader.done
            answers.append(reader.answer)

    async def all_clients() -> list[Answer]:
        await asyncio.sleep(max(0.0, begin - time.perf_counter()))
        numbers, answers = iter(range(requests)), list[Answer]()
        request = request_bytes(endpoint, path, body)
        await asyncio.gather(*(client(numbers, request, answers) for _ in range(concurrency)))
        return answers

    try:
        import uvloop
    except ImportError:
        return asyncio.run(all_clients())
    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(all_clients())
    finally:
        loop.close()


def measure(endpoint: Endpoint, options: argparse.Namespace, path: str | None = None) -> list[Answer]:
    """One run, spread over the client processes."""
    body, count = body_of(options), options.processes
    path = path or (BATCH_PATH if options.batch else PATH)
    parts = [(options.concurrency + i) // count for i in range(count)], [(options.requests + i) // count for i in range(count)]
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        # The processes are there before the clock runs.
        list(pool.map(time.sleep, [0.3] * count))
        begin = time.perf_counter() + START_SECONDS
        futures = [pool.submit(run_clients, endpoint, path, body, c, r, begin) for c, r in zip(*parts, strict=True) if c and r]
        return [answer for future in futures for answer in future.result()]


def summarize(answers: Sequence[Answer]) -> dict[str, Any]:
    good = [answer for answer in answers if not answer.error]
    report: dict[str, Any] = {
        "requests": len(answers),
        "failures": len(answers) - len(good),
        "errors": sorted({answer.error for answer in answers if answer.error})[:5],
    }
    if good:
        wall = max(a.ended for a in good) - min(a.started for a in good)
        tokens, events = sum(a.tokens for a in good), sum(a.events for a in good)
        report |= {
            "tokens": tokens,
            "wall_s": round(wall, 4),
            "tokens_per_s": round(tokens / wall, 1),
            "latency_ms": _spread([a.ended - a.started for a in good]),
        }
        if events:
            report |= {
                "events_per_s": round(events / wall, 1),
                "tokens_per_event": round(tokens / events, 3),
                "first_ms": _spread([a.first - a.started for a in good]),
                "longest_gap_ms": round(1e3 * max(a.longest_gap for a in good), 1),
            }
    return report


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    return {"p50": round(1e3 * median(seconds), 1), "p99": round(1e3 * percentile(seconds, 0.99), 1)}


def split(before: dict[str, Any], after: dict[str, Any], profile: dict[str, float] | None, tokens: int, wall: float) -> dict[str, Any]:
    """Microseconds of processor time per token by thread, and what the waits were."""
    part: dict[str, Any] = {}
    for name, seconds in sorted(after["threads"].items()):
        spent = seconds - before["threads"].get(name, 0.0)
        if spent > 0:
            part[name] = round(1e6 * spent / tokens, 3)
    samples = after["lock"]["samples"] - before["lock"]["samples"]
    waited = after["lock"]["seconds"] - before["lock"]["seconds"]
    busy = after["process"] - before["process"]
    longest = after["lock"]["longest_since_last_call"]
    result: dict[str, Any] = {
        "cpu_us_per_token": part,
        "cpu_us_per_token_process": round(1e6 * busy / tokens, 3),
        "cores_busy": round(busy / wall, 3),
        "lock_wait_ms": {
            "mean": round(1e3 * waited / max(1, samples), 3),
            "longest": round(1e3 * longest, 2),
        },
    }
    if profile and profile.get("requests"):
        names = ("json_dump_ms", "yield_resume_ms")
        result["front_end_us_per_token"] = {name[:-3]: round(1e3 * profile[name] / tokens, 3) for name in names}
    return result


async def _threads(endpoint: Endpoint) -> dict[str, Any]:
    reply = await call(endpoint, "GET", "/bench/threads")
    if reply.status != 200:
        raise HttpError("this server has no page /bench/threads; start albatross_plugin.bench.measured_host")
    answer: dict[str, Any] = reply.json()
    return answer


async def _profile(endpoint: Endpoint) -> dict[str, float] | None:
    reply = await call(endpoint, "GET", "/albatross/profile?reset=true")
    return reply.json() if reply.status == 200 else None


async def record(endpoint: Endpoint, options: argparse.Namespace) -> None:
    """Ask once, and give the server the bytes of the answer's events to answer ``/bench/bare`` with."""
    reply = await call(endpoint, "POST", PATH, body_of(options), 600)
    raw = reply.body.decode()
    events = [raw] if options.non_stream else [event + EVENT_END for event in raw.split(EVENT_END) if event]
    reply = await call(endpoint, "POST", "/bench/record", {"events": events, "step_ms": options.bare_step_ms}, 600)
    if reply.status != 200:
        raise HttpError("this server has no page /bench/record; start albatross_plugin.bench.measured_host")


def compare(endpoint: Endpoint, options: argparse.Namespace) -> dict[str, Any]:
    """A run, and one of the same bytes from a bare response: microseconds of processor time per token of both, and what lies between."""
    asyncio.run(record(endpoint, options))
    ours, bare = run(endpoint, options), run(endpoint, options, BARE)
    for report in (ours, bare):
        if report["failures"]:
            return report
    cost, floor = (report["split"]["cpu_us_per_token_process"] for report in (ours, bare))
    return {**ours, "bare": bare, "above_bare_us_per_token": round(cost - floor, 3)}


def run(endpoint: Endpoint, options: argparse.Namespace, path: str | None = None) -> dict[str, Any]:
    if not options.split:
        return summarize(measure(endpoint, options))
    asyncio.run(_profile(endpoint))
    before = asyncio.run(_threads(endpoint))
    report = summarize(measure(endpoint, options, path))
    after, profile = asyncio.run(_threads(endpoint)), asyncio.run(_profile(endpoint))
    if report.get("tokens"):
        report["split"] = split(before, after, profile, report["tokens"], report["wall_s"])
    return report


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="the server's address (default: %(default)s)")
    add("--port", type=int, default=8000, help="its port (default: %(default)s)")
    add("--api-key", help="sent as a bearer token")
    add("--concurrency", type=int, default=320, help="requests at a time (default: %(default)s)")
    add("--requests", type=int, default=0, help="requests in all (default: as many as at a time)")
    add("--max-tokens", type=int, default=128, help="tokens of each answer (default: %(default)s)")
    add("--batch", type=int, default=0, help="items of each request, as one batch (default: each request is one chat)")
    add("--processes", type=int, default=2, help="client processes (default: %(default)s)")
    add("--runs", type=int, default=1, help="runs one after the other; the median by tokens per second is told (default: %(default)s)")
    add("--non-stream", action="store_true", help="ask for whole answers")
    add("--no-stop", action="store_true", help="send an explicit null for stop instead of leaving it to the host's default")
    add("--split", action="store_true", help="processor time of the server's threads too; the server must be a measured_host")
    add("--bare", action="store_true", help="after each run one of the same bytes from a bare response, and what lies between them")
    add("--bare-step-ms", type=float, default=0.0, help="pace of the bare stream's events (default: as fast as they can be written)")
    add("--prompt", default="Tell a long story about an albatross that follows a ship.", help="the user message")
    add("--json", type=Path, help="write the report to this file as JSON")
    add("--log", type=Path, help="write the log to this file too")
    options = parser.parse_args(arguments)
    options.requests = options.requests or options.concurrency
    options.split = options.split or options.bare
    if options.batch and options.bare:
        parser.error("--bare compares chats, not batches")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    endpoint = Endpoint(options.host, options.port, api_key=options.api_key)
    with Log(options.log) as log:
        log.head(MODULE, arguments if arguments is not None else sys.argv[1:])
        try:
            measured = compare if options.bare else run
            reports = [measured(endpoint, options) for _ in range(options.runs)]
        except (HttpError, OSError, asyncio.TimeoutError) as error:
            log.line(f"stopped: {error}")
            return 1
        for report in reports:
            log.line(json.dumps(report))
        middle = sorted(reports, key=lambda each: each.get(RANKED if options.bare else "tokens_per_s", 0.0))[len(reports) // 2]
        if options.json:
            options.json.write_text(json.dumps(middle, indent=2) + "\n", encoding="utf-8")
        log.summary(json.dumps(middle, indent=2))
        return 1 if any(report["failures"] for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
