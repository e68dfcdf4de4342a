"""Model list, health, root and exit. None of them waits for a thread: they answer while others are all taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, BackgroundTasks
from starlette.requests import Request

from host_stub import schemas
from host_stub.errors import ApiError
from host_stub.json_body import JsonRoute
from host_stub.openapi import answered, errors
from host_stub.routes.deps import host_state

router = APIRouter(tags=["MISC"], route_class=JsonRoute)


@router.get("/")
async def root() -> dict[str, str]:
    return {"Hello": "World!"}


@router.get("/health", responses=answered(schemas.HEALTH))
async def health(request: Request) -> dict[str, Any]:
    """200 as long as the process answers; ``model`` is null while none is loaded."""
    state = host_state(request)
    return {"status": "ok", "model": getattr(state.model, "name", None), "model_status": state.status.name.lower()}


@router.get("/v1/models", responses=answered(schemas.MODELS))
@router.get("/models", responses=answered(schemas.MODELS))
async def models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": [_entry(request)]}


@router.get("/v1/models/{model_id:path}", responses={**answered(schemas.MODEL), **errors(404)})
@router.get("/models/{model_id:path}", responses={**answered(schemas.MODEL), **errors(404)})
async def model(model_id: str, request: Request) -> dict[str, Any]:
    """The loaded model under its own name, or under any name with rwkv in it."""
    entry = _entry(request)
    if model_id != entry["id"] and "rwkv" not in model_id.lower():
        raise ApiError(404, f"The model {model_id!r} does not exist", param="model", code="model_not_found")
    return entry


@router.post("/exit", responses={**answered(schemas.SUCCESS), **errors(501)})
async def leave(request: Request, tasks: BackgroundTasks) -> str:
    """Stop the server after this answer; running streams get a few seconds. 403 in deploy mode."""
    state = host_state(request)
    if state.deploy:
        raise ApiError(403, "not available in deploy mode", code="deploy_mode")
    if state.exit is None:
        raise ApiError(501, "this server was started by another program, which alone can stop it", code="unsupported")
    tasks.add_task(_call, state.exit)
    return "success"


async def _call(leave: Callable[[], None]) -> None:
    """On the event loop: the threads that Starlette runs plain functions in may all be taken."""
    leave()


def _entry(request: Request) -> dict[str, Any]:
    loaded = host_state(request).model
    name = loaded.name if loaded is not None else "rwkv"
    return {"id": name, "object": "model", "created": request.app.state.started, "owned_by": "rwkv", "root": name, "parent": None}
