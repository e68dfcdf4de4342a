"""What several routes need."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from host_stub.errors import ApiError
from host_stub.state import HostState, ModelStatus


def host_state(request: Request) -> HostState:
    state: HostState = request.app.state.host
    return state


def loaded_model(request: Request) -> tuple[HostState, Any]:
    """Raises ApiError: 503 while one is being loaded, so that clients ask again; 400 ``model not loaded`` else, as RWKV-Runner does."""
    state = host_state(request)
    model = state.model
    if model is None and state.status is ModelStatus.Loading:
        raise ApiError(503, "model not loaded: it is being loaded", code="model_loading", param="model", headers={"Retry-After": "1"})
    if model is None:
        raise ApiError(400, "model not loaded", code="model_not_loaded", param="model")
    return state, model
