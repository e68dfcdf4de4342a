"""What several routes need."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from host_stub.errors import ApiError
from host_stub.state import HostState


def host_state(request: Request) -> HostState:
    state: HostState = request.app.state.host
    return state


def loaded_model(request: Request) -> tuple[HostState, Any]:
    """Raises ApiError 400 ``model not loaded``."""
    state = host_state(request)
    model = state.model
    if model is None:
        raise ApiError(400, "model not loaded", code="model_not_loaded", param="model")
    return state, model
