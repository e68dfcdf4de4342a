"""The browser page: its files, read once from the package, and the routes that serve them."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from fastapi import APIRouter, HTTPException, Request, Response

# Fixed here: what the system believes of an ending (on Windows the registry) may be wrong, and a browser runs no module of another type.
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX = "index.html"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    # Asked for each time, and answered with 304 while nothing changed: after an upgrade no browser mixes old files with new ones.
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
# Read by hosts whose API needs a key: a browser sends none when it opens an address, and nothing here is secret.
PUBLIC = {"x-public": True}


@dataclass(frozen=True)
class Asset:
    """One file of the page: its bytes, its content type, and a tag that changes with them."""

    content: bytes
    content_type: str
    tag: str

    def answer(self, request: Request) -> Response:
        headers = {**HEADERS, "ETag": self.tag}
        if _knows(request.headers.get("if-none-match", ""), self.tag):
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers={**headers, "Content-Type": self.content_type})


@functools.cache
def assets() -> Mapping[str, Asset]:
    """The files of the page by name. A request picks from these; no path is ever made from what it says."""
    found = {}
    for entry in resources.files(__package__).joinpath("ui").iterdir():
        ending = entry.name[entry.name.rfind(".") :]
        if ending in TYPES and entry.is_file():
            content = entry.read_bytes()
            found[entry.name] = Asset(content, TYPES[ending], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return found


def page_router() -> APIRouter:
    """``/albatross/ui`` and the files below it. They are no part of the API, and so none of its description."""
    router = APIRouter(include_in_schema=False)

    async def page(request: Request) -> Response:
        return _pick(INDEX).answer(request)

    async def without_slash() -> Response:
        # Relative, like all addresses of the page, so that a prefix that a proxy puts in front stays.
        return Response(status_code=307, headers={**HEADERS, "Location": "../ui"})

    async def asset(name: str, request: Request) -> Response:
        return _pick(name).answer(request)

    routes = (
        ("/albatross/ui", page),
        ("/albatross/ui/", without_slash),
        # Below the page its own addresses would lead one folder further.
        (f"/albatross/ui/{INDEX}", without_slash),
        ("/albatross/ui/{name}", asset),
    )
    for path, endpoint in routes:
        router.add_api_route(path, endpoint, methods=["GET", "HEAD"], response_class=Response, openapi_extra=PUBLIC)
    return router


def _pick(name: str) -> Asset:
    found = assets().get(name)
    if found is None:
        raise HTTPException(404, "the page has no such file")
    return found


def _knows(value: str, tag: str) -> bool:
    """Whether ``If-None-Match`` names the tag. A proxy that compresses makes it a weak one."""
    return value.strip() == "*" or any(each.strip().removeprefix("W/") == tag for each in value.split(","))
