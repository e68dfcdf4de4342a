"""The plugins' routes closed to pages of other sites: the Runner lets every page call, and read what it answers"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from albatross_plugin.errors import RequestError
from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points.missing import member

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_NEAR = (".localhost", ".local")


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``main``, in front of everything else: what the Runner lets in from other sites comes after it."""
    member(module, "app").add_middleware(Door, host=host)


class Door:
    """ASGI middleware. Answers 403 in place of the routes that plugins brought, where ``refusal`` says so."""

    def __init__(self, app: Any, host: RunnerHost) -> None:
        self._app, self._host = app, host
        self._names = frozenset(name.lower() for name in (socket.gethostname(), *host.allowed_names))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and self._is_brought(scope):
            refused = refusal({name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}, self._names)
            if refused is not None:
                from albatross_plugin.serving.json_route import error_response

                await error_response(refused)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_brought(self, scope: Any) -> bool:
        """Whether the path is one of a plugin's, whatever the method: browsers ask with another one whether they may call."""
        return any(route.matches(scope)[0].value for route in self._host.brought)


def refusal(headers: Mapping[str, str], names: Collection[str]) -> RequestError | None:
    """Why a call is refused: a page of another site causes it, or a site's name points to this machine. ``names``: those to be trusted.

    Programs send no ``Origin``, extensions their own. An address, a name without a dot and one of the local network cannot belong to a
    site.
    """
    try:
        here = _name("//" + headers.get("host", ""))
        origin = headers.get("origin", "")
        there = _name(origin) if urlsplit(origin).scheme in ("http", "https") else None
    except ValueError:
        # No address at all, such as half of one in brackets.
        return _refusal("a page without an address may not call this one", "origin_not_allowed")
    if not (_is_address(here) or "." not in here or here.endswith(_NEAR) or here in names):
        return _refusal(f"the name {here[:80]!r} is not served here; allow it with --allow-host", "host_not_allowed")
    if there is None:
        # "null" is a page too: one without an origin of its own, in a frame or a file.
        foreign = origin == "null"
    else:
        foreign = not (there == here or there in _THIS_MACHINE or there.endswith(".localhost") or there in names)
    return _refusal("a page of another site may not call this address", "origin_not_allowed") if foreign else None


def _name(address: str) -> str:
    return (urlsplit(address).hostname or "").lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refusal(message: str, code: str) -> RequestError:
    return RequestError(message, status=403, code=code)
