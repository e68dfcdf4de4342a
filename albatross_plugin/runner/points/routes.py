"""The plugins' routes, in front of the Runner's own, also with ``--webui``, which takes all paths that come after; closed to other sites"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points.missing import member

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``routes.completion``, whose router the Runner includes first."""
    own = member(module, "router").routes
    brought = [guarded(route) for router in host.plugins.routers(host) for route in router.routes]
    if host.keeps_builtin:
        taken = {_place(route) for route in own}
        brought = [route for route in brought if _place(route) not in taken]
    own[0:0] = brought


def guarded(route: Any) -> Any:
    """The route, refusing calls that a page of another site causes: the Runner lets every page call, and read what it answers."""
    # Its class, not the object: an application that includes a router makes new routes of the same classes.
    kind: Any = type(route)
    route.__class__ = _guarding(kind)
    return route


@functools.cache
def _guarding(kind: Any) -> type:
    async def handle(self: Any, scope: Any, receive: Any, send: Any) -> None:
        if not _is_foreign({name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}):
            await kind.handle(self, scope, receive, send)
            return
        from albatross_plugin.errors import RequestError
        from albatross_plugin.serving.json_route import error_response

        refusal = RequestError("a page of another site may not call this address", status=403, code="origin_not_allowed")
        await error_response(refusal)(scope, receive, send)

    return type(kind.__name__, (kind,), {"handle": handle})


def _is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether a page of a site asks that is neither this server's nor of this machine. Programs send none, extensions their own."""
    try:
        origin = urlsplit(headers.get("origin", ""))
        if origin.scheme not in ("http", "https"):
            # "null" is a page too: one without an origin of its own, in a frame or a file.
            return headers.get("origin") == "null"
        name = (origin.hostname or "").lower()
        here = urlsplit("//" + headers.get("host", "")).hostname or ""
    except ValueError:
        # No address at all, such as half of one in brackets.
        return True
    return not (name == here.lower() or name in _THIS_MACHINE or name.endswith(".localhost"))


def _place(route: Any) -> tuple[str, frozenset[str]]:
    return route.path, frozenset(route.methods)
