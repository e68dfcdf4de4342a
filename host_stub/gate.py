"""What stands in front of the plugins' routes: deploy mode, and pages of other sites that open an address."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.routing import BaseRoute, Match, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from host_stub.errors import ApiError
from host_stub.guard import SAFE_METHODS, refuse

# A plugin's route says with ``openapi_extra={CHANGES_STATE: False}`` that its POST only reads.
CHANGES_STATE = "x-changes-state"
# With ``openapi_extra={PUBLIC: True}`` it says that anybody may have what it answers.
PUBLIC = "x-public"


class PluginRoutes:
    """The routes of the plugins' routers, which the application tries before its own, in this order."""

    def __init__(self, routers: Sequence[Router]) -> None:
        self._routers = routers

    def find(self, scope: Scope) -> BaseRoute | None:
        """The route that will answer, if it is a plugin's."""
        routes = (route for router in self._routers for route in router.routes)
        return next((route for route in routes if route.matches(scope)[0] is Match.FULL), None)

    def public(self, scope: Scope) -> bool:
        """Whether the call reads a route that is declared as public."""
        if scope["method"] not in SAFE_METHODS:
            return False
        # The guard passes the question for a head on as one for the whole.
        route = self.find({**scope, "method": "GET"} if scope["method"] == "HEAD" else scope)
        return route is not None and _extra(route, PUBLIC) is True


class PluginGate:
    """ASGI middleware in front of the application and so of ``routes``."""

    def __init__(self, app: ASGIApp, routes: PluginRoutes, deployed: Callable[[], bool]) -> None:
        self.app, self.routes, self.deployed = app, routes, deployed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (route := self.routes.find(scope)) is not None:
            try:
                self._check(scope, route)
            except ApiError as error:
                await refuse(error, receive, send)
                return
        await self.app(scope, receive, send)

    def _check(self, scope: Scope, route: BaseRoute) -> None:
        # Following a link is a GET that any page can cause, and the host cannot know what a plugin's GET does.
        linked = dict(scope["headers"]).get(b"sec-fetch-site") in (b"cross-site", b"same-site") and not _has_origin(scope)
        if linked and not self.routes.public(scope):
            raise ApiError(403, "another site may not open this address", code="origin_not_allowed")
        if scope["method"] not in SAFE_METHODS and self.deployed() and _extra(route, CHANGES_STATE) is not False:
            raise ApiError(403, "not available in deploy mode", code="deploy_mode")


def _has_origin(scope: Scope) -> bool:
    """An origin that came this far is an allowed one."""
    return any(name == b"origin" for name, _ in scope["headers"])


def _extra(route: BaseRoute, key: str) -> object:
    """What a route was declared with, beside FastAPI's own settings."""
    return (getattr(route, "openapi_extra", None) or {}).get(key)
