"""The page's routes: what they answer, with which headers, and that they give out nothing but the page's files."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from importlib import resources

import httpx
import pytest
from host.live import LiveHost

from albatross_plugin import hooks
from host_stub.guard import Rules

FOLDER = resources.files("albatross_plugin.serving").joinpath("ui")
NAMES = sorted(entry.name for entry in FOLDER.iterdir() if entry.is_file())
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
PAGE = "/albatross/ui"
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}


@pytest.fixture(scope="module")
def page_host() -> Iterator[LiveHost]:
    """With an API key, which the page must not need."""
    with LiveHost(("albatross", hooks), rules=Rules.of(api_key="secret")) as running:
        yield running


def get(host: LiveHost, path: str, **headers: str) -> httpx.Response:
    return host.client.get(path, headers=headers)


def test_the_page_comes_without_the_key_and_its_policy_is_strict(page_host: LiveHost) -> None:
    answer = get(page_host, PAGE)
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    assert dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";")) == POLICY
    assert answer.text == FOLDER.joinpath("index.html").read_text(encoding="utf-8")
    assert get(page_host, "/albatross/status").status_code == 401


def test_the_page_needs_nothing_from_elsewhere_and_holds_no_code(page_host: LiveHost) -> None:
    text = get(page_host, PAGE).text
    links = re.findall(r'\b(?:src|href)="([^"]*)"', text)
    assert links and all(re.fullmatch(r"ui/[\w.]+", link) and link.removeprefix("ui/") in NAMES for link in links)
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text)
    for name in NAMES:
        content = FOLDER.joinpath(name).read_text(encoding="utf-8")
        assert re.findall(r"(?:https?:)?//(?!www\.w3\.org/)[\w-]+\.[\w./-]+", content) == [], name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", content), name


def test_modules_import_files_that_are_there() -> None:
    for name in NAMES:
        for wanted in re.findall(r'(?m)^(?:import|export|\}).*\bfrom "([^"]+)";$', FOLDER.joinpath(name).read_text(encoding="utf-8")):
            assert wanted.startswith("./") and wanted[2:] in NAMES, f"{name} imports {wanted}"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "index.html"])
def test_each_file_has_its_type_and_a_tag(page_host: LiveHost, name: str) -> None:
    answer = get(page_host, f"{PAGE}/{name}")
    assert answer.status_code == 200 and answer.content == FOLDER.joinpath(name).read_bytes()
    assert answer.headers["content-type"].split(";")[0] == TYPES[name.rpartition(".")[2]]
    expected = {
        "cache-control": "no-cache",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
    }
    assert {key: answer.headers[key] for key in expected} == expected
    tag = answer.headers["etag"]
    for known in (tag, f'"other", W/{tag}', "*"):
        again = get(page_host, f"{PAGE}/{name}", **{"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert "content-security-policy" in again.headers
    assert get(page_host, f"{PAGE}/{name}", **{"if-none-match": '"other"'}).status_code == 200
    head = page_host.client.head(f"{PAGE}/{name}")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(len(answer.content)), b"")


@pytest.mark.parametrize("ending", ["/", "/index.html"])
def test_other_ways_to_write_it_lead_to_the_page_also_behind_a_prefix(page_host: LiveHost, ending: str) -> None:
    answer = get(page_host, PAGE + ending)
    assert answer.status_code == 307
    assert httpx.URL("http://box/some/prefix/albatross/ui" + ending).join(answer.headers["location"]).path == "/some/prefix/albatross/ui"


@pytest.mark.parametrize(
    "name",
    [
        "page.py",
        "%2e%2e%2fpage.py",
        "..%2Fpage.py",
        "..%5Cpage.py",
        "%2Fetc%2Fpasswd",
        "index.html%00",
        "APP.JS",
        "x.js",
        "__init__.py",
        "con",
        "%ff",
    ],
)
def test_nothing_but_the_pages_files_is_given_out(page_host: LiveHost, name: str) -> None:
    answer = page_host.client.get(f"{PAGE}/{name}", headers={"authorization": "Bearer secret"})
    assert answer.status_code == 404 and answer.json()["error"]["message"]


def test_the_page_is_only_read(page_host: LiveHost) -> None:
    authorized = {"authorization": "Bearer secret"}
    assert page_host.client.post(PAGE, json={}, headers=authorized).status_code == 405
    paths = page_host.client.get("/openapi.json", headers=authorized).json()["paths"]
    assert not any(path.startswith(PAGE) for path in paths)


def test_the_routes_work_below_a_prefix_of_any_application() -> None:
    from fastapi import FastAPI

    from albatross_plugin.serving.page import page_router

    app = FastAPI()
    app.include_router(page_router(), prefix="/below")

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://box", follow_redirects=True) as client:
            answer = await client.get("/below/albatross/ui/")
            assert answer.status_code == 200 and answer.url.path == "/below/albatross/ui"
            assert (await client.head("/below/albatross/ui")).status_code == 200
            assert (await client.get("/below/albatross/ui/style.css")).headers["content-type"] == "text/css; charset=utf-8"

    asyncio.run(ask())
