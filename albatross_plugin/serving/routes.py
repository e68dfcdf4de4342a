"""Routes that the plugin adds to a host."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anyio
from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import Scope

from albatross_plugin.serving.page import page_router
from albatross_plugin.serving.profile import profile

if TYPE_CHECKING:
    from albatross_plugin.serving.metrics import Exporter

NO_METRICS = 'no metrics without prometheus-client: pip install "albatross-plugin[metrics]"'
_LOOKING = "albatross_plugin.looking"


def build_routers(host: Any) -> list[APIRouter]:
    """The plugin's routers; ``host`` is the host object of the ``rwkv_runner_routers`` hook."""
    router = APIRouter(tags=["Albatross"])

    def allow_reset() -> None:
        if host.deployed():
            raise HTTPException(403, "the counters are not reset in deploy mode")

    @router.get("/albatross/profile")
    async def get_profile(reset: bool = False) -> dict[str, float]:
        """Counters of the serving path since the last reset; all zero unless ALBATROSS_PROFILE=1."""
        if reset:
            allow_reset()
        return profile.snapshot(reset=reset)

    @router.post("/albatross/profile/reset")
    async def reset_profile() -> dict[str, bool]:
        allow_reset()
        profile.reset()
        return {"success": True}

    metrics = _Metrics(host)
    responses: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        501: {"description": "prometheus-client is not installed"},
    }
    router.add_api_route("/albatross/metrics", metrics.answer, methods=["GET"], response_class=Response, responses=responses)
    usual = APIRouter(tags=["Albatross"], route_class=YieldingRoute)
    usual.add_api_route("/metrics", metrics.answer, methods=["GET"], response_class=Response, responses=responses)
    return [router, usual, page_router()]


class _Metrics:
    """The exporter of one host, made at the first scrape: prometheus-client need not be there before."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self._exporter: Exporter | None = None
        self._lock = threading.Lock()
        self._limiter: anyio.CapacityLimiter | None = None

    async def answer(self, request: Request) -> Response:
        """The engine's figures in Prometheus' text format, or in OpenMetrics' where the client asks for it."""
        # One thread of its own: those that the host works with may all be taken.
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(1)
        return await anyio.to_thread.run_sync(self._page, request, limiter=self._limiter)

    def _page(self, request: Request) -> Response:
        with self._lock:
            if self._exporter is None:
                try:
                    from albatross_plugin.serving.metrics import Exporter
                except ImportError as error:
                    raise HTTPException(501, NO_METRICS) from error
                self._exporter = Exporter(self._host)
            body, content_type = self._exporter.render(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})


class YieldingRoute(APIRoute):
    """A route that lets a host's own of the same path go first, though plugins' routes stand before the host's."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if _LOOKING in scope:
            return Match.NONE, {}
        match, child = super().matches(scope)
        if match is Match.FULL and self._host_answers(scope):
            return Match.NONE, {}
        return match, child

    def _host_answers(self, scope: Scope) -> bool:
        # Without what FastAPI keeps in the scope, so that looking leaves no traces there.
        looking = {**{name: value for name, value in scope.items() if name != "fastapi"}, _LOOKING: True}
        return any(self._is_rival(route, looking) for route in getattr(scope.get("app"), "routes", ()))

    def _is_rival(self, route: BaseRoute, scope: Scope) -> bool:
        if isinstance(route, Mount):
            # A mounted application answers below its path, to which the host redirects. One for all paths means no page of ours.
            return route.path == self.path
        match, child = route.matches(scope)
        # A route that takes any path is a front end, which has no metrics.
        return match is Match.FULL and not child.get("path_params")
