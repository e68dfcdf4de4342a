"""The single measurements of ``engine_benchmark``: an engine, and what a reader of its events sees."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import TracebackType

from albatross_plugin.bench.report import median
from albatross_plugin.config import EngineConfig
from albatross_plugin.engine.core import AsyncEngineCompletion, AsyncEngineCore, NewTokens
from albatross_plugin.engine.messages import Failed, ModelInfo
from albatross_plugin.engine.request import Request, SamplingParams
from albatross_plugin.engine.step import WorkerSpec

# Ordinary tokens, a different run of them for each request.
FIRST_ID, IDS = 300, 60000
ENDLESS = 10**9


class EngineRunner:
    """An engine on a thread of its own, as a server has it; an async context manager for the loop that reads."""

    def __init__(self, spec: WorkerSpec, device: str, workers: int = 1) -> None:
        # A burst shall share its first pass, whatever the machine does meanwhile.
        self.config = EngineConfig(workers=workers, device=device, batch=spec.rows - 1, gather_ms=20.0, tps_log_interval=0.0)
        self.core = AsyncEngineCore(self.config, [replace(spec, worker=index) for index in range(workers)])
        self.info: ModelInfo
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="albatross-engine", daemon=True)

    async def __aenter__(self) -> EngineRunner:
        self._thread.start()
        self.info = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.core.start(), self._loop))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.core.shutdown(), self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def submit(self, prompt_tokens: int, new_tokens: int) -> AsyncEngineCompletion:
        number = self.core.next_request_id()
        prompt = tuple(FIRST_ID + (number * 7919 + place * 31) % IDS for place in range(prompt_tokens))
        params = SamplingParams(
            max_tokens=new_tokens, temperature=1.0, top_p=0.5, presence_penalty=0.2, frequency_penalty=0.2, ignore_eos=True, seed=number
        )
        return self.core.submit([Request(number, prompt, params)], loop=asyncio.get_running_loop())

    def peak_bytes(self) -> int:
        """The most that one worker's device has held."""
        return max(int(worker.get("peak_memory_bytes", 0)) for worker in self.core.status()["workers"])


@dataclass
class Stream:
    """What the reader of one request saw. Times are seconds of ``time.perf_counter``."""

    started: float
    first: float = 0.0
    ended: float = 0.0
    tokens: int = 0
    stamps: list[tuple[float, int]] = field(default_factory=list)

    @property
    def longest_gap(self) -> float:
        return self.gap_within(0.0, self.ended)

    def gap_within(self, begin: float, end: float) -> float:
        times = [moment for moment, _ in self.stamps if begin < moment <= end]
        return max((later - before for before, later in pairwise(times)), default=0.0)

    def counted(self, begin: float, end: float) -> int:
        """Tokens that came after ``begin`` and not after ``end``."""
        return sum(count for moment, count in self.stamps if begin < moment <= end)


@dataclass
class Figures:
    """One measurement. Times in seconds, rates in tokens a second; None where it does not apply."""

    what: str
    rate: float
    steady: float | None = None
    first_median: float | None = None
    first_longest: float | None = None
    longest_gap: float | None = None
    step: float | None = None
    cpu_per_token: float | None = None
    peak_bytes: int = 0
    tokens: int = 0

    def row(self) -> list[str]:
        first = "" if self.first_median is None else f"{1e3 * self.first_median:.1f} (most {1e3 * (self.first_longest or 0):.1f})"
        gap, step = ("" if value is None else f"{1e3 * value:.2f}" for value in (self.longest_gap, self.step))
        steady = "" if self.steady is None else f"{self.steady:.0f}"
        cpu = "" if self.cpu_per_token is None else f"{1e6 * self.cpu_per_token:.2f}"
        return [self.what, f"{self.rate:.0f}", steady, first, gap, step, cpu, f"{self.peak_bytes / 1e6:.0f}"]

    def line(self) -> str:
        names = ("", "tok/s", "steady", "first ms", "gap ms", "step ms", "processor us/token", "peak MB")
        return "  ".join(f"{name} {value}".strip() for name, value in zip(names, self.row(), strict=True) if value)


async def read(completion: AsyncEngineCompletion, stream: Stream) -> None:
    """Up to the end of the request. Raises RuntimeError when it failed."""
    while events := await completion.next_events():
        now = time.perf_counter()
        for _, event in events:
            if isinstance(event, NewTokens):
                count = len(event.token_ids)
                stream.first = stream.first or now
                stream.tokens += count
                stream.stamps.append((now, count))
            elif isinstance(event, Failed):
                raise RuntimeError(event.message)
    stream.ended = time.perf_counter()


async def burst(engine: EngineRunner, count: int, prompt_tokens: int, new_tokens: int) -> tuple[list[Stream], float]:
    """``count`` requests at the same moment, to their ends; the processor seconds of the process too."""
    used = time.process_time()
    began = time.perf_counter()
    streams = [Stream(began) for _ in range(count)]
    completions = [engine.submit(prompt_tokens, new_tokens) for _ in streams]
    await asyncio.gather(*map(read, completions, streams))
    return streams, time.process_time() - used


async def decode(engine: EngineRunner, count: int, prompt_tokens: int, new_tokens: int, runs: int = 1) -> Figures:
    found = [_decode_figures(count, *await burst(engine, count, prompt_tokens, new_tokens)) for _ in range(runs)]
    return _middle(found, engine)


def _decode_figures(count: int, streams: Sequence[Stream], cpu: float) -> Figures:
    began, ended = streams[0].started, max(stream.ended for stream in streams)
    tokens = sum(stream.tokens for stream in streams)
    firsts = [stream.first - stream.started for stream in streams]
    begin, end = max(stream.first for stream in streams), min(stream.ended for stream in streams)
    steady = sum(stream.counted(begin, end) for stream in streams) / (end - begin) if end > begin else None
    return Figures(
        f"batch {count}",
        tokens / (ended - began),
        steady,
        median(firsts),
        max(firsts),
        max(stream.longest_gap for stream in streams),
        None if not steady else count / steady,
        cpu / tokens,
        tokens=tokens,
    )


async def prefill(engine: EngineRunner, count: int, length: int, runs: int = 1) -> Figures:
    """Prompt tokens a second, from the submission to the last first token."""
    found = []
    for _ in range(runs):
        streams, cpu = await burst(engine, count, length, 1)
        seconds = max(stream.first for stream in streams) - streams[0].started
        firsts = [stream.first - stream.started for stream in streams]
        tokens = count * length
        figures = Figures(f"prefill {count} x {length}", tokens / seconds, None, median(firsts), max(firsts), cpu_per_token=cpu / tokens)
        found.append(figures)
    return _middle(found, engine)


async def arrivals(engine: EngineRunner, streams: int, prompt_tokens: int, times: int) -> Figures:
    """A prompt arrives beside running streams, waits for its first token and leaves; then the next, ``times`` in all.

    ``step`` is the time between two tokens of the streams while nothing arrives, ``longest_gap`` the longest of any stream.
    """
    running = [Stream(time.perf_counter()) for _ in range(streams)]
    completions = [engine.submit(16, ENDLESS) for _ in running]
    tasks = [asyncio.create_task(read(completion, stream)) for completion, stream in zip(completions, running, strict=True)]
    while not all(stream.tokens >= 50 for stream in running):
        await asyncio.sleep(0.01)
    begin = time.perf_counter()
    await asyncio.sleep(0.5)
    calm_end = time.perf_counter()
    calm = sum(stream.counted(begin, calm_end) for stream in running)
    firsts: list[float] = []
    for _ in range(times):
        visitor = Stream(time.perf_counter())
        await read(engine.submit(prompt_tokens, 1), visitor)
        firsts.append(visitor.first - visitor.started)
        await asyncio.sleep(0.02)
    end = time.perf_counter()
    for completion in completions:
        completion.abort()
    await asyncio.gather(*tasks)
    gaps = [stream.gap_within(calm_end, end) for stream in running]
    rate = sum(stream.counted(calm_end, end) for stream in running) / (end - calm_end)
    step = streams * (calm_end - begin) / max(1, calm)
    what = f"{prompt_tokens} tokens beside {streams} streams"
    return Figures(what, rate, calm / (calm_end - begin), median(firsts), max(firsts), max(gaps), step, peak_bytes=engine.peak_bytes())


def _middle(found: list[Figures], engine: EngineRunner) -> Figures:
    """The median run by rate."""
    middle = sorted(found, key=lambda figures: figures.rate)[len(found) // 2]
    middle.peak_bytes = engine.peak_bytes()
    return middle
