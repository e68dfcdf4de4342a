"""A real browser and what it says: which one, how it is started, what went wrong in a page, how many connections it held."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import peers
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
# A busy machine with two cores starts a page in seconds.
PATIENCE_MS = 20_000
# Where a page stops its own stream, or is left, the browser calls the request failed.
BY_ITSELF = "net::ERR_ABORTED"
# A browser tells a page alone that its observers of sizes went round in a loop.
LOOPS = 'addEventListener("error", ({ message }) => message.startsWith("ResizeObserver") && console.error(message));'


def executable() -> str:
    """The browser of ``ALBATROSS_CHROMIUM``, or one on the PATH. Without any the test is skipped."""
    named = os.environ.get("ALBATROSS_CHROMIUM")
    found = next((path for name in ([named] if named else NAMES) if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"{named or 'chromium'} is not installed")
    return found


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Chromium without a window. An event loop counts as running in this thread for as long."""
    peers.need("playwright")
    path = executable()
    from playwright.sync_api import sync_playwright

    # The sandbox refuses to work for root, as whom containers run.
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"] if root else [], chromium_sandbox=not root)
        try:
            yield browser
        finally:
            browser.close()


class PageErrors:
    """What pages reported: console errors (breaches of the Content-Security-Policy among them), exceptions, failed requests."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._expected: list[re.Pattern[str]] = []

    def expect(self, pattern: str) -> None:
        """The test wants to see such errors."""
        self._expected.append(re.compile(pattern))

    def unexpected(self) -> list[str]:
        return [text for text in self.found if not any(pattern.search(text) for pattern in self._expected)]

    def watch(self, page: Page) -> None:
        page.on("console", lambda said: said.type == "error" and self.found.append(f"console: {said.text} ({said.location.get('url')})"))
        page.on("pageerror", lambda error: self.found.append(f"exception: {error.message}"))
        page.on("requestfailed", lambda request: self._failed(request.url, request.failure or ""))
        page.on("crash", lambda _: self.found.append("the page crashed"))

    def _failed(self, url: str, why: str) -> None:
        if why != BY_ITSELF:
            self.found.append(f"request: {url} {why}")


class Pages:
    """Opens pages, each in a browser context of its own: nothing is stored or cached before."""

    def __init__(self, browser: Browser, errors: PageErrors) -> None:
        self._browser, self._errors = browser, errors
        self._contexts: list[BrowserContext] = []

    def open(self, locale: str = "en-US", width: int = 1280, height: int = 800, dark: bool = False, touch: bool = False) -> Page:
        """An empty page whose errors are gathered."""
        context = self._browser.new_context(
            locale=locale,
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            has_touch=touch,
            is_mobile=touch,
        )
        self._contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(LOOPS)
        context.on("page", self._errors.watch)
        return context.new_page()

    def close(self) -> None:
        for context in self._contexts:
            for page in context.pages:
                # What the page said last arrives before the answer.
                with suppress(Exception):
                    page.evaluate("0")
            context.close()
        self._contexts.clear()


class Forwarder:
    """Passes TCP connections on to a port of this machine and counts them. ``url`` is the way in.

    ``peak``: the most connections that were open at a time and had carried something since the last ``reset``. A browser
    opens some ahead that it may never use, and keeps used ones open for a while.
    """

    def __init__(self, port: int) -> None:
        self.peak = 0
        self.total = 0
        self._target = port
        self._open: set[object] = set()
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="forwarder")
        self._thread.start()
        assert self._ready.wait(10)
        self.url = f"http://127.0.0.1:{self.port}"

    def reset(self) -> None:
        with self._lock:
            self.peak = self.total = 0
            self._open.clear()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def __enter__(self) -> Forwarder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._connect(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mark = object()
        writers = [writer]
        try:
            from_host, to_host = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(to_host)
            ways = [asyncio.ensure_future(self._pass(reader, to_host, mark)), asyncio.ensure_future(self._pass(from_host, writer, mark))]
            try:
                # Either side that ends, ends both: no HTTP client closes one half only.
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass
        finally:
            with self._lock:
                self._open.discard(mark)
            for each in writers:
                each.close()
            for each in writers:
                with suppress(OSError):
                    await each.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mark: object) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                self._note(mark)
                writer.write(data)
                await writer.drain()

    def _note(self, mark: object) -> None:
        with self._lock:
            if mark not in self._open:
                self._open.add(mark)
                self.total += 1
                self.peak = max(self.peak, len(self._open))


def until(page: Page, condition: Callable[[], object], seconds: float = 20) -> None:
    """Wait, with the page alive, until ``condition()`` holds."""
    for _ in range(int(seconds * 50)):
        if condition():
            return
        page.wait_for_timeout(20)
    raise AssertionError("not reached in time")
