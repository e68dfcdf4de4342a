"""The application: plugins, guard, routes, error shapes, and the end of the model when the server stops."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint
from typing import Any

import anyio
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from host_stub.errors import ApiError, error_body, printable
from host_stub.gate import PluginGate, PluginRoutes
from host_stub.guard import Guard, Rules
from host_stub.loads import Loads
from host_stub.openapi import describe
from host_stub.plugins import Plugins
from host_stub.routes import completions, config, embeddings, misc
from host_stub.state import Host, HostState
from host_stub.tools import ToolMemory

logger = logging.getLogger(__name__)

# How long the end of the application waits for the model's release.
CLOSE_SECONDS = 5.0


def create_app(
    *,
    rules: Rules | None = None,
    plugins: Plugins | None = None,
    points: Iterable[EntryPoint] | None = None,
    preload: dict[str, Any] | None = None,
) -> FastAPI:
    """A host. ``plugins``: those already loaded (default: load ``points``, or every entry point that is installed).

    ``preload``: keywords for ``HostState.switch`` to run before the first request.
    """
    rules = rules or Rules()
    if plugins is None:
        plugins = Plugins()
        plugins.load(points)
    state = HostState(plugins)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if preload is not None:
            try:
                await state.loads.run(lambda: state.switch(**preload))
            except ApiError as error:
                logger.error("%s", error.message)
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_SECONDS) as scope:
                await Loads().run(state.close)
            if scope.cancelled_caught:
                logger.warning("the model was not released in time")

    app = FastAPI(title="host stub", lifespan=lifespan)
    app.state.host = state
    app.state.tool_memory = ToolMemory()
    app.state.started = int(time.time())
    _add_error_shapes(app)
    routes = PluginRoutes(_include(app, plugins.routers(Host(state))))
    app.add_middleware(PluginGate, routes=routes, deployed=lambda: state.deploy)
    for module in (completions, embeddings, config, misc):
        app.include_router(module.router)
    if rules.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=sorted(rules.origins), allow_methods=["*"], allow_headers=["*"], allow_credentials=False
        )
    app.add_middleware(Guard, rules=rules, public=routes.public)
    describe(app)
    return app


def _include(app: FastAPI, routers: Iterable[APIRouter]) -> list[APIRouter]:
    """Take plugins' routers in. Returns those that FastAPI accepts; for any other there is a line in the log."""
    taken = []
    for router in routers:
        try:
            app.include_router(router)
        except Exception as error:
            logger.error("a plugin's router was not taken: %s: %s", type(error).__name__, error)
        else:
            taken.append(router)
    return taken


def error_response(error: ApiError) -> JSONResponse:
    content = error_body(error.status, error.message, code=error.code, param=error.param)
    return JSONResponse({**content, "detail": printable(error.detail)}, status_code=error.status, headers=error.headers)


def _add_error_shapes(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def known(_: Request, error: ApiError) -> Response:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"] if part != "body") or None
        if first["type"] == "json_invalid":
            return error_response(ApiError(400, "the body is not valid JSON", code="invalid_json"))
        if first["type"] == "extra_forbidden":
            return error_response(ApiError(400, f"unknown parameter {param!r}; it would be ignored", param=param, code="unknown_parameter"))
        message = f"{param}: {first['msg']}" if param else str(first["msg"])
        return error_response(ApiError(400, message, param=param, code="invalid_value"))

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        detail = error.detail
        if isinstance(detail, dict) and "error" in detail:
            return JSONResponse(detail, status_code=error.status_code, headers=error.headers)
        if detail == "There was an error parsing the body":
            # FastAPI's words for bytes that are no text.
            return error_response(ApiError(400, "the body is not valid JSON", code="invalid_json"))
        return error_response(ApiError(error.status_code, str(detail), headers=error.headers))
