"""The means of these tests themselves: what a page says is seen, what it should not say fails the test, connections are counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import httpx
import pytest
from ui.browsing import Forwarder, PageErrors, until

if TYPE_CHECKING:
    from playwright.sync_api import Page


class _Site(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b"<!doctype html><html lang=en><title>t</title><body><script>document.title = 'ran'</script></body></html>"
        self.send_response(404 if "missing" in self.path else 200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Security-Policy", "default-src 'none'; script-src 'self'")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Site)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_errors_of_a_page_are_seen(page: Page, page_errors: PageErrors, site: int) -> None:
    page.goto(f"http://127.0.0.1:{site}/")
    assert page.title() == "t"
    page.evaluate("setTimeout(() => { throw new Error('thrown') }, 0); console.error('said'); fetch('/missing').catch(() => {}); 0")
    parts = ("exception: thrown", "console: said", "violates the following Content Security Policy", "/missing. Refused to connect")
    until(page, lambda: all(part in "\n".join(page_errors.unexpected()) for part in parts))
    page_errors.expect("thrown|said|Content Security Policy|^request: .*missing|favicon")
    assert page_errors.unexpected() == []


def test_connections_are_counted(site: int) -> None:
    with Forwarder(site) as way, httpx.Client(base_url=way.url) as one, httpx.Client(base_url=way.url) as other:
        for client in (one, one, other):
            assert client.get("/").status_code == 200
        assert (way.peak, way.total) == (2, 2)
        way.reset()
        assert one.get("/").status_code == 200
        assert (way.peak, way.total) == (1, 1)
