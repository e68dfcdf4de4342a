"""What stands in front of the plugins' routes: deploy mode, and pages of other sites that open an address."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.routing import BaseRoute, Match, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from host_stub.errors import ApiError
from host_stub.guard import SAFE_METHODS, refuse

# A plugin's route says with ``openapi_extra={CHANGES_STATE: False}`` that its POST only reads.
CHANGES_STATE = "x-changes-state"


class PluginGate:
    """ASGI middleware. ``routers``: those of the plugins, which the application tries before its own."""

    def __init__(self, app: ASGIApp, routers: Sequence[Router], deployed: Callable[[], bool]) -> None:
        self.app, self.routers, self.deployed = app, routers, deployed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (route := self._route(scope)) is not None:
            try:
                self._check(scope, route)
            except ApiError as error:
                await refuse(error, receive, send)
                return
        await self.app(scope, receive, send)

    def _route(self, scope: Scope) -> BaseRoute | None:
        routes = (route for router in self.routers for route in router.routes)
        return next((route for route in routes if route.matches(scope)[0] is Match.FULL), None)

    def _check(self, scope: Scope, route: BaseRoute) -> None:
        # Following a link is a GET that any page can cause, and the host cannot know what a plugin's GET does.
        if dict(scope["headers"]).get(b"sec-fetch-site") in (b"cross-site", b"same-site") and not _has_origin(scope):
            raise ApiError(403, "another site may not open this address", code="origin_not_allowed")
        if scope["method"] not in SAFE_METHODS and self.deployed() and _changes_state(route):
            raise ApiError(403, "not available in deploy mode", code="deploy_mode")


def _has_origin(scope: Scope) -> bool:
    """An origin that came this far is an allowed one."""
    return any(name == b"origin" for name, _ in scope["headers"])


def _changes_state(route: BaseRoute) -> bool:
    extra = getattr(route, "openapi_extra", None) or {}
    return extra.get(CHANGES_STATE) is not False
