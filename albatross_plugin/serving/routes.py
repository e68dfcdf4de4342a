"""Routes that the plugin adds to a host."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anyio
from fastapi import APIRouter, HTTPException, Request, Response

from albatross_plugin.serving.batch_routes import batch_routers
from albatross_plugin.serving.page import page_router
from albatross_plugin.serving.profile import profile
from albatross_plugin.serving.yielding import YieldingRoute

if TYPE_CHECKING:
    from albatross_plugin.serving.metrics import Exporter

NO_METRICS = 'no metrics without prometheus-client: pip install "albatross-plugin[metrics]"'


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
    return [router, usual, *batch_routers(host), page_router()]


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
